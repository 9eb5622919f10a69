"""What the simulated Harvester changes in a VM at admission."""

from __future__ import annotations

import copy

import pytest

from caphv.api.object import Obj
from sandbox.harvester import kinds
from sandbox.harvester.mutations import MutationSettings, mutated

pytestmark = pytest.mark.unit


def vm(**changes: object) -> Obj:
    spec = {
        "domain": {
            "memory": {"guest": "4Gi"},
            "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "4Gi"}},
            "devices": {"interfaces": [{"name": "nic-1"}, {"name": "nic-2", "macAddress": "02:00:00:00:00:01"}]},
        },
        "networks": [{"name": "nic-1", "multus": {"networkName": "default/production"}}],
        **changes,
    }
    return {"metadata": {"name": "one"}, "spec": {"runStrategy": "Always", "template": {"spec": spec}}}


def admitted(new: Obj, old: Obj | None = None) -> Obj:
    return mutated(new, old, MutationSettings())


def test_what_is_filled_in() -> None:
    given = vm()
    before = copy.deepcopy(given)
    made = admitted(given)
    assert given == before
    spec = made["spec"]["template"]["spec"]
    assert made["metadata"]["finalizers"] == [kinds.VM_FINALIZER]
    assert spec["domain"]["memory"]["guest"] == "4Gi"
    assert spec["domain"]["resources"]["requests"] == {"cpu": "125m", "memory": "2730Mi"}
    assert spec["domain"]["resources"]["limits"] == {"cpu": "2", "memory": "4Gi"}
    first, second = spec["domain"]["devices"]["interfaces"]
    assert first["macAddress"].startswith("02:")
    assert second["macAddress"] == "02:00:00:00:00:01"
    assert spec["terminationGracePeriodSeconds"] == 120
    assert spec["domain"]["cpu"]["maxSockets"] == 1


def test_again_changes_nothing() -> None:
    once = admitted(vm())
    assert admitted(once, once) == once


def test_affinity_is_added_to_each_alternative() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("a", "b")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    made = admitted(vm(affinity={"nodeAffinity": required}))
    affinity = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    added = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[entry["key"] for entry in term["matchExpressions"]] for term in added] == [
        ["zone", kinds.CLUSTER_NETWORK],
        ["zone", kinds.CLUSTER_NETWORK],
    ]


@pytest.mark.parametrize(
    ("annotations", "strategy"), [({}, "RerunOnFailure"), ({kinds.RUN_STRATEGY: "Manual"}, "Manual")]
)
def test_start_becomes_the_strategy_of_the_annotation(annotations: Obj, strategy: str) -> None:
    halted, started = admitted(vm()), admitted(vm())
    halted["spec"]["runStrategy"] = "Halted"
    started["metadata"]["annotations"] = annotations
    assert admitted(started, halted)["spec"]["runStrategy"] == strategy
