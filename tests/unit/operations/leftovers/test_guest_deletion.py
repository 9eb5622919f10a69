"""Objects of lost guests are deleted one by one, each as it is right before, on servers in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from caphv.api import names, resources
from caphv.api.guestparts import entry_of, proof_annotations
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, Obj, annotations_of
from operations.leftovers.release import Outcome
from tests.support.leftovers import BALANCERS, CLUSTER, VMS, Sides, again, obj, pool, vm

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]

BALANCER, VOLUME = "LoadBalancer vms/shop-web", "PersistentVolumeClaim vms/pvc-delete"
KEPT = ["PersistentVolumeClaim pvc-by-hand", "PersistentVolumeClaim pvc-retain", "LoadBalancer by-hand"]


def proven(made: Obj, **annotations: str) -> Obj:
    """Put the proof on an object that a guest of the lost cluster has had it."""
    made["metadata"]["uid"] = f"{made['metadata']['name']}-uid"
    made["metadata"]["annotations"] |= proof_annotations(made, [entry_of(CLUSTER)]) | annotations
    return made


def balancer(name: str) -> Obj:
    labels = {names.BALANCER_CLUSTER_LABEL: "shop"}
    return obj(BALANCERS, name, None, metadata={"labels": labels}, spec={"workloadType": "cluster"})


def volume(name: str, policy: str) -> Obj:
    return proven(obj(PERSISTENT_VOLUME_CLAIMS, name, None), **{names.RECLAIM_POLICY_ANNOTATION: policy})


def objects() -> list[Obj]:
    """What a guest has left, and what a user has created."""
    return [
        proven(balancer("shop-web")),
        balancer("by-hand"),
        volume("pvc-delete", "Delete"),
        volume("pvc-retain", "Retain"),
        obj(PERSISTENT_VOLUME_CLAIMS, "pvc-by-hand", None),
    ]


async def test_only_what_is_proven_is_deleted_with_its_address() -> None:
    sides = Sides.of(*objects(), pool("guests", None, _10_0_0_10="vms/shop-web", _10_0_0_11="vms/by-hand"))
    outcomes = await sides.delete()
    assert outcomes == {
        VOLUME: Outcome.DELETED,
        BALANCER: Outcome.DELETED,
        "address 10.0.0.10 of IPPool guests": Outcome.RELEASED,
    }
    assert sorted(sides.left()) == sorted([*KEPT, "IPPool guests"])
    assert await sides.delete() == {}


def a_cluster_exists_again(sides: Sides) -> None:
    sides.management.put(again(resources.HARVESTER_CLUSTERS, "shop", "shop-uid"))


def a_cluster_of_its_name_is_created(sides: Sides) -> None:
    sides.management.put(again(resources.HARVESTER_CLUSTERS, "shop", "next"))


def a_vm_of_it_is_restored(sides: Sides) -> None:
    sides.harvester.put(vm("restored", None, labels={names.CLUSTER_LABEL: "team.shop"}))


def another_guest_has_had_it(sides: Sides) -> None:
    for resource in (BALANCERS, PERSISTENT_VOLUME_CLAIMS):
        for stored in sides.harvester.stored(resource):
            if proof := annotations_of(stored).get(names.GUEST_OF_ANNOTATION):
                stored["metadata"]["annotations"][names.GUEST_OF_ANNOTATION] = f"{proof},another"
                sides.harvester.put(stored)


@pytest.mark.parametrize(
    "change",
    [a_cluster_exists_again, a_cluster_of_its_name_is_created, a_vm_of_it_is_restored, another_guest_has_had_it],
    ids=lambda change: change.__name__,
)
async def test_what_is_needed_since_it_was_listed_is_kept(change: Callable[[Sides], None]) -> None:
    sides = Sides.of(*objects())
    report, _ = await sides.read()
    assert [leftover.subject for leftover in report.leaked] == [VOLUME, BALANCER]
    change(sides)
    outcomes = await sides.delete(report)
    assert outcomes == {VOLUME: Outcome.KEPT, BALANCER: Outcome.KEPT}
    assert {"LoadBalancer shop-web", "PersistentVolumeClaim pvc-delete"} <= set(sides.left())


async def test_another_object_of_the_name_is_kept() -> None:
    sides = Sides.of(*objects())
    report, _ = await sides.read()
    await sides.harvester.delete(PERSISTENT_VOLUME_CLAIMS, "pvc-delete", "vms")
    sides.harvester.put(obj(PERSISTENT_VOLUME_CLAIMS, "pvc-delete", None, metadata={"uid": "next"}))
    await sides.delete(report)
    assert "PersistentVolumeClaim pvc-delete" in sides.left()


async def test_while_a_vm_of_the_lost_cluster_is_being_deleted_they_stay() -> None:
    slow: dict[str, Any] = {"labels": {names.CLUSTER_LABEL: "team.shop"}, "finalizers": ["x"]}
    sides = Sides.of(*objects(), vm("gone", **slow))
    report, _ = await sides.read()
    assert {"VirtualMachine vms/gone", VOLUME, BALANCER} <= {leftover.subject for leftover in report.leaked}
    outcomes = await sides.delete(report, seconds=1)
    assert outcomes["VirtualMachine vms/gone"] is Outcome.DELETING
    assert (outcomes[VOLUME], outcomes[BALANCER]) == (Outcome.KEPT, Outcome.KEPT)
    await sides.harvester.patch(VMS, "gone", "vms", {"metadata": {"finalizers": []}})
    outcomes = await sides.delete()
    assert (outcomes[VOLUME], outcomes[BALANCER]) == (Outcome.DELETED, Outcome.DELETED)
