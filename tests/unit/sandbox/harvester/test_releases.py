"""What releases of Harvester do differently to new VMs."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from sandbox.harvester import kinds
from sandbox.harvester.mutations import MutationSettings, mutated
from sandbox.harvester.releases import release_named

pytestmark = pytest.mark.unit


def vm(sockets: int) -> Obj:
    domain = {"cpu": {"cores": 2, "sockets": sockets}, "resources": {"limits": {"cpu": "4", "memory": "4Gi"}}}
    return {"metadata": {"name": "one"}, "spec": {"template": {"spec": {"domain": domain}}}}


@pytest.mark.parametrize(
    ("release", "limits"), [("1.5", None), ("1.6", 1), ("1.7", 1), ("1.8.0", 1), ("1.8", 1), ("1.9", 2)]
)
def test_sockets_are_limited(release: str, limits: int | None) -> None:
    made = mutated(vm(sockets=2), None, MutationSettings(release=release_named(release)))
    assert made["spec"]["template"]["spec"]["domain"]["cpu"].get("maxSockets") == limits


@pytest.mark.parametrize("guarded", [False, True])
def test_new_vms_are_guarded_while_the_load_balancer_controller_runs(guarded: bool) -> None:
    made = mutated(vm(sockets=1), None, MutationSettings(guards_vms=guarded))
    assert (kinds.VM_GUARD in made["metadata"]["finalizers"]) == guarded
