"""A running VM follows its machine while Cluster API updates it, or the machine says why it cannot."""

from __future__ import annotations

import pytest

from caphv.api import names
from caphv.api.object import Obj, at
from caphv.runtime.errors import ApiError, Forbidden, Invalid, ServerFault
from reconciler.machine.placement import REQUIRED, as_harvester_keeps, avoidance_patch
from tests.support.ippools import merge
from tests.support.reconciler.inplace import HOSTS, Machine

pytestmark = pytest.mark.unit


async def test_vm_whose_image_was_deleted_grows() -> None:
    machine = Machine()
    machine.harvester.images = []
    condition = await machine.update(cpu=4)
    assert machine.sockets == 4
    assert (condition["reason"], machine.events) == ("VMUpdating", ["VMUpdated"])


@pytest.mark.parametrize(
    "error",
    [
        Forbidden(403, "Forbidden", "exceeded quota"),
        Invalid(422, "Invalid", "exceeded quota"),
        ServerFault(500, "InternalError", "exceeded quota"),
    ],
)
async def test_refusal_of_harvester_is_reported_and_the_change_repeated(error: ApiError) -> None:
    machine = Machine()
    machine.harvester.error = error
    condition = await machine.update(cpu=4)
    assert (condition["status"], condition["reason"]) == ("False", "VMUpdating")
    assert condition["message"] == "Harvester refuses 4 CPUs and 4Gi of memory: exceeded quota"
    assert (machine.requeue_after, machine.events) == (60, [])

    machine.harvester.error = None
    await machine.update()
    assert machine.sockets == 4


async def test_update_that_waits_for_a_host_says_so_and_is_repeated() -> None:
    machine = Machine()
    machine.harvester.hosts = [HOSTS[0], {**HOSTS[1], "spec": {"unschedulable": True}}]
    condition = await machine.update(cpu=4)
    assert condition["reason"] == "VMUpdating"
    assert condition["message"].startswith("the VM cannot grow: ")
    assert (machine.sockets, machine.requeue_after, machine.events) == (2, 60, [])

    machine.harvester.hosts = HOSTS
    await machine.update()
    assert machine.sockets == 4


async def test_affinity_changes_although_the_vm_cannot_grow() -> None:
    machine = Machine()
    machine.harvester.hosts = HOSTS[:1]
    terms = [{"matchExpressions": [{"key": "ssd", "operator": "Exists"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    condition = await machine.update(nodeAffinity=required)
    assert at(machine.harvester.vm, "spec", "template", "spec", "affinity", "nodeAffinity") == required
    assert (condition["status"], machine.requeue_after) == ("True", None)


async def test_vm_that_is_evacuated_follows_and_stays_away_from_its_host() -> None:
    machine = Machine()
    vm = machine.harvester.vm = merge(machine.harvester.vm, avoidance_patch(machine.harvester.vm, ["a"]))
    await machine.update()
    assert machine.harvester.vm == vm

    ssd = {"key": "ssd", "operator": "Exists"}
    condition = await machine.update(nodeAffinity={REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ssd]}]}})
    assert condition["status"] == "True"
    (term,) = at(machine.harvester.vm, "spec", "template", "spec", "affinity", "nodeAffinity")[REQUIRED][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [ssd, {"key": names.HOSTNAME_LABEL, "operator": "NotIn", "values": ["a"]}]


@pytest.mark.parametrize(
    "dropped",
    [
        {"matchExpressions": [{"key": "network.harvesterhci.io/mgmt", "operator": "In", "values": ["true"]}]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["h3"]}]},
        {},
    ],
    ids=["keys of Harvester", "fields", "empty"],
)
async def test_alternative_that_harvester_has_dropped_does_not_return_by_an_evacuation(dropped: Obj) -> None:
    rack = {"key": "rack", "operator": "In", "values": ["1"]}
    user = {REQUIRED: {"nodeSelectorTerms": [dropped, {"matchExpressions": [rack]}]}}
    machine = Machine(nodeAffinity=user)
    machine.harvester.vm["spec"]["template"]["spec"]["affinity"]["nodeAffinity"] = as_harvester_keeps(user)
    vm = machine.harvester.vm = merge(machine.harvester.vm, avoidance_patch(machine.harvester.vm, ["a"]))
    await machine.update()
    assert (machine.harvester.vm, machine.events) == (vm, [])

    ssd = {"key": "ssd", "operator": "Exists"}
    terms = [dropped, {"matchExpressions": [rack, ssd]}]
    await machine.update(nodeAffinity={REQUIRED: {"nodeSelectorTerms": terms}})
    rules = at(machine.harvester.vm, "spec", "template", "spec", "affinity", "nodeAffinity")
    avoids = {"key": names.HOSTNAME_LABEL, "operator": "NotIn", "values": ["a"]}
    assert rules[REQUIRED]["nodeSelectorTerms"] == [{"matchExpressions": [rack, ssd, avoids]}]


async def test_expression_that_some_releases_drop_stays_during_an_evacuation() -> None:
    """Harvester 1.9 keeps those for dedicated CPUs."""
    machine = Machine()
    machine.harvester.vm = merge(machine.harvester.vm, avoidance_patch(machine.harvester.vm, ["a"]))
    rules = [{"key": "cpumanager", "operator": "In", "values": ["true"]}, {"key": "ssd", "operator": "Exists"}]
    await machine.update(nodeAffinity={REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": rules}]}})
    (term,) = at(machine.harvester.vm, "spec", "template", "spec", "affinity", "nodeAffinity")[REQUIRED][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][:2] == rules


async def test_other_difference_of_the_vm_stays_visible_during_an_update() -> None:
    machine = Machine()
    machine.harvester.vm["spec"]["template"]["spec"]["hostname"] = "other"
    condition = await machine.update(cpu=4)
    assert (machine.sockets, condition["reason"]) == (4, "VMDiffers")
    assert condition["message"].startswith("hostname is other, not one")
