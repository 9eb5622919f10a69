"""Whether a plan counts machines as updated in place or as replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from caphv.api.object import Key, Obj
from operations.capacity.machinechanges import PoolEffect, effect_of
from operations.capacity.machinepools import DesiredState, Pool, desired_state
from operations.change.plan.inplace import InPlaceUpdates, extension_policy
from tests.support.topologies import KEY, topology, variable, world

pytestmark = pytest.mark.unit

DISK: Obj = {"volumeType": "image", "imageName": "default/sles", "volumeSize": "40Gi"}
MACHINE: Obj = {"cpu": 4, "cpuMax": 8, "memory": "8Gi", "volumes": [DISK]}
ABILITIES = ("VMUpToDate", "VMCanGrow", "DisksCanGrow", "DisksCanBeAdded")


def able(*unable: str) -> Obj:
    conditions = [{"type": kind, "status": "False" if kind in unable else "True"} for kind in ABILITIES]
    return {"metadata": {"name": "a"}, "status": {"conditions": conditions}}


def pool(machine: Obj = MACHINE, **fields: Any) -> Pool:
    inputs = {"version": "v1.36.2", "machine": machine, **fields.pop("inputs", {})}
    return Pool("md-0", 3, surge=0, inputs=inputs, machine=machine, updates_in_place=True, **fields)


def planned(after: Pool, updates: InPlaceUpdates, outdated: int = 0) -> PoolEffect:
    before, coming = DesiredState({"md-0": pool()}), DesiredState({"md-0": after})
    (effect,) = effect_of(Key("a", "b"), before, coming, {"md-0": outdated}, updates.obstacles).pools
    return effect


ENABLED = InPlaceUpdates("Prefer", {"md-0": [able(), able(), able()]})
GROWN: Obj = {**MACHINE, "cpu": 8}
LARGER: Obj = {**MACHINE, "volumes": [{**DISK, "volumeSize": "60Gi"}]}


@pytest.mark.parametrize("machine", [GROWN, LARGER, {**MACHINE, "nodeAffinity": {"a": 1}}])
def test_change_that_vms_can_follow_is_made_in_place(machine: Obj) -> None:
    effect = planned(pool(machine), ENABLED)
    assert (effect.updated, effect.replaced, effect.created, effect.deleted) == (3, 0, 0, 0)
    assert effect.reasons
    assert effect.why_replaced == ()


def test_without_an_extension_machines_are_replaced_without_a_reason() -> None:
    effect = planned(pool(GROWN), InPlaceUpdates())
    assert (effect.updated, effect.replaced, effect.why_replaced) == (0, 3, ())


@pytest.mark.parametrize(
    ("after", "updates", "reason"),
    [
        (pool({**MACHINE, "cpu": 2}), ENABLED, "cpu becomes smaller"),
        (pool({**GROWN, "sshUser": "other"}), ENABLED, "a change of sshUser needs another VM"),
        (pool(GROWN, inputs={"version": "v1.36.3"}), ENABLED, "version changes"),
        (pool(LARGER), InPlaceUpdates("Prefer", {"md-0": [able("DisksCanGrow")]}), "see condition DisksCanGrow"),
        (pool(GROWN), InPlaceUpdates("Prefer", {"md-0": [able("VMUpToDate")]}), "see condition VMUpToDate"),
        (pool(GROWN), InPlaceUpdates("Prefer", {"md-0": [{}]}), "see condition VMCanGrow"),
        (pool(GROWN), replace(ENABLED, policy="Never"), "the policy is Never"),
        (pool(GROWN, in_place_policy="Never"), ENABLED, "the policy is Never"),
        (pool(GROWN, in_place_policy="Onyl"), ENABLED, "policy Onyl is not known: use Prefer, Only, Never"),
        (pool(GROWN), replace(ENABLED, policy="Onyl"), "policy Onyl is not known"),
        (pool(GROWN), InPlaceUpdates("Prefer"), "3 of 3 machines cannot be seen"),
        (pool(GROWN), InPlaceUpdates("Prefer", {"md-0": [able(), able()]}), "1 of 3 machines cannot be seen"),
        (pool({**MACHINE, "cpu": 2}), replace(ENABLED, policy="Only"), "Cluster API stops the rollout"),
        (replace(pool(GROWN), updates_in_place=False), ENABLED, "its rollout is not RollingUpdate with maxSurge 0"),
    ],
)
def test_other_changes_replace_machines_and_say_why(after: Pool, updates: InPlaceUpdates, reason: str) -> None:
    effect = planned(after, updates)
    assert (effect.updated, effect.replaced) == (0, 3)
    assert reason in "; ".join(effect.why_replaced)


@pytest.mark.parametrize("policy", ["Prefer", "Only"])
def test_what_can_be_made_in_place_is_no_obstacle(policy: str) -> None:
    updates = replace(ENABLED, policy=policy)
    assert updates.obstacles(pool(), pool(GROWN)) == ()
    reasons = updates.obstacles(pool(), pool({**MACHINE, "cpu": 2}))
    assert len(reasons) == (2 if policy == "Only" else 1)
    assert updates.obstacles(replace(pool(), name="control plane"), replace(pool(GROWN), name="control plane"))[0] == (
        "whether its provider updates control planes in place is not known"
    )


def test_annotation_overrides_the_setting() -> None:
    updates = replace(ENABLED, policy="Never")
    assert planned(pool(GROWN, in_place_policy="Prefer"), updates).updated == 3


def test_machines_of_a_current_rollout_are_replaced() -> None:
    effect = planned(pool(GROWN), ENABLED, outdated=1)
    why = "a rollout is under way, and whether it keeps machines is not known"
    assert (effect.updated, effect.replaced, effect.why_replaced) == (0, 3, (why,))


def test_rest_of_a_rollout_is_not_certain_to_be_replaced() -> None:
    effect = planned(pool(), ENABLED, outdated=2)
    assert (effect.updated, effect.replaced) == (0, 2)
    assert effect.why_replaced == ("a rollout is under way, and whether it keeps machines is not known",)
    assert planned(pool(), InPlaceUpdates(), outdated=2).why_replaced == ()


def test_template_of_a_cluster_without_topology_is_compared_by_its_content() -> None:
    before, after = pool(), pool(GROWN)
    named = [replace(p, inputs={"machine template": name}) for p, name in ((before, "a"), (after, "b"))]
    assert ENABLED.obstacles(*named) == ()
    unread = replace(named[1], machine={})
    assert ENABLED.obstacles(named[0], unread) == ("its HarvesterMachineTemplate cannot be read",)


def rolling(surge: int, policy: str = "") -> Callable[[Obj], None]:
    def edit(found: Obj) -> None:
        for entry in found["workers"]["machineDeployments"]:
            strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 1}}
            entry["rollout"] = {"strategy": strategy}
            entry["metadata"] = {"annotations": {"caphv.io/in-place-updates": policy}} if policy else {}

    return edit


@pytest.mark.parametrize(
    ("edit", "updated"), [(rolling(0), 2), (rolling(1), 0), (rolling(0, "Never"), 0), (lambda _: None, 0)]
)
def test_rollout_and_annotation_of_a_topology_count(edit: Callable[[Obj], None], updated: int) -> None:
    before, after = world(), world()
    for objects, cpus in ((before, 2), (after, 4)):
        edit(topology(objects))
        variable("worker", {"cpuCount": cpus, "cpuMax": 8})(topology(objects))
    updates = InPlaceUpdates("Prefer", {"md-0": [able(), able()], "md-1": [able(), able()]})
    effect = effect_of(KEY, desired_state(KEY, before), desired_state(KEY, after), {}, updates.obstacles)
    assert {pool.pool: pool.updated for pool in effect.pools} == {"md-0": updated, "md-1": updated}


def config(name: str = "caphv", *, discovered: str = "True", handler: str = "caphv", **spec: Any) -> Obj:
    hook = {"requestHook": {"hook": "CanUpdateMachineSet"}, "name": f"{handler}-canupdatemachineset.{name}"}
    status = {"conditions": [{"type": "Discovered", "status": discovered}], "handlers": [hook]}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


NAMESPACE: Obj = {"metadata": {"name": "team", "labels": {"caphv.io/in-place-updates": "true"}}}
SELECTOR: Obj = {"matchLabels": {"caphv.io/in-place-updates": "true"}}


@pytest.mark.parametrize(
    ("configs", "policy"),
    [
        ([], None),
        ([config(namespaceSelector=SELECTOR)], "Prefer"),
        ([config(namespaceSelector=SELECTOR, settings={"policy": "Only"})], "Only"),
        ([config(namespaceSelector={"matchLabels": {"other": "true"}})], None),
        ([config(discovered="False")], None),
        ([config(handler="other")], None),
        ([config(), config("second", handler="other")], None),
        ([config(), config("elsewhere", handler="other", namespaceSelector={"matchLabels": {"a": "b"}})], "Prefer"),
        ([{"metadata": {"name": "new"}, "spec": {}}], None),
    ],
)
def test_extension_counts_where_it_alone_updates_machines(configs: list[Obj], policy: str | None) -> None:
    assert extension_policy(configs, NAMESPACE) == policy
