"""A running VM follows its machine while Cluster API updates it, or the machine says why it cannot."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import conditions, names
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, at
from caphv.runtime.errors import ApiError, Forbidden, Invalid, ServerFault
from caphv.runtime.queue import WorkQueue
from reconciler.machine.inplace import update_in_place
from reconciler.machine.placement import REQUIRED, as_harvester_keeps, avoidance_patch
from reconciler.machine.scope import MachineScope
from reconciler.machine.status import report_drift
from reconciler.machine.vm import virtual_machine
from reconciler.machine.vminputs import inputs_of
from reconciler.memory import MachineMemory
from reconciler.status import StatusDraft
from reconciler.triggers import Topics
from sandbox.harvester import hotplug, instances
from tests.support.ippools import merge
from tests.support.reconciler.machines import OWNER, machine_spec

pytestmark = pytest.mark.unit

IMAGE = {
    "metadata": {"namespace": "default", "name": "image-x"},
    "spec": {"displayName": "sles-15"},
    "status": {"storageClassName": "lh-x", "conditions": [{"type": "Imported", "status": "True"}]},
}
DOMAIN = ("spec", "template", "spec", "domain")
HOSTS: list[Obj] = [{"metadata": {"name": name, "labels": {}}, "spec": {}} for name in ("a", "b")]


class Harvester:
    """Harvester with one VM, which it may refuse to change."""

    def __init__(self) -> None:
        self.images, self.hosts, self.error = [IMAGE], HOSTS, cast(ApiError | None, None)
        self.fingerprint, self.deployment_object = "harvester", None
        self.client = self
        self.vm: Obj = {}

    async def patch(self, _resource: Any, _name: str, _namespace: str, patch: Obj) -> Obj:
        if self.error:
            raise self.error
        self.vm = merge(self.vm, patch)
        return self.vm

    def session(self) -> Any:
        stores = {name: SimpleNamespace(store=getattr(self, name)) for name in ("images", "hosts")}
        named = {name: getattr(self, name) for name in ("fingerprint", "deployment_object", "client")}
        return SimpleNamespace(pools=SimpleNamespace(store=()), **stores, **named)


class Machine:
    """A machine whose VM was created for its spec, while Cluster API updates it."""

    def __init__(self, **spec: Any) -> None:
        self.harvester, self.events = Harvester(), list[str]()
        self.requeue_after: float | None = None
        self._memory = MachineMemory("u")
        metadata = {"namespace": "team", "name": "one", "uid": "u", "generation": 1}
        self.obj: Obj = {"metadata": metadata, "spec": {**machine_spec(), "cpuMax": 8, "memoryMax": "16Gi", **spec}}
        vm = virtual_machine(replace(inputs_of(self._scope()), hotplug=True))
        vm["metadata"] |= {"uid": "vm", "generation": 1, "resourceVersion": "1"}
        self.harvester.vm = vm
        vmi = instances.instance_of(copy.deepcopy(vm), "a")
        self.vmi = {**vmi, "status": {**hotplug.current_sizes(vmi), "nodeName": "a"}}

    async def update(self, **spec: Any) -> Obj:
        """Reconcile with a changed spec; return condition `VMUpToDate`."""
        self.obj["spec"] |= spec
        self.obj["metadata"] |= {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: ""}, "generation": 2}
        scope = self._scope()
        vm, refusal = await update_in_place(scope, copy.deepcopy(self.harvester.vm), self.vmi)
        report_drift(scope, vm, self.vmi, refusal)
        self.requeue_after = scope.requeue_after
        return conditions.get_condition(scope.draft.fields["conditions"], ConditionType.VM_UP_TO_DATE) or {}

    @property
    def sockets(self) -> Any:
        return at(self.harvester.vm, *DOMAIN, "cpu", "sockets")

    def _scope(self) -> MachineScope:
        queue: WorkQueue[Key] = WorkQueue("machines")
        vms = SimpleNamespace(store=SimpleNamespace(by_index=lambda *_: (), count=lambda *_: 0), observe=lambda _: None)
        scope = SimpleNamespace(
            obj=self.obj,
            machine=None,
            spec=self.obj["spec"],
            owner=OWNER,
            cluster_key=Key("team", "cluster"),
            target_namespace="vms",
            control_plane=False,
            failure_domain="",
            failure_domains=[],
            memory=self._memory,
            draft=StatusDraft(self.obj),
            session=self.harvester.session,
            namespace=lambda: SimpleNamespace(vms=vms),
            subscribe=lambda *topics: Topics().subscribe(queue, Key("team", "one"), *topics),
            event=lambda reason, _: self.events.append(reason),
            warning_event=lambda reason, _: self.events.append(reason),
            requeue_after=None,
        )
        scope.requeue_in = partial(MachineScope.requeue_in, cast(MachineScope, scope))
        return cast(MachineScope, cast(Any, scope))


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
    assert condition["message"] == "Harvester refuses the change: exceeded quota"
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
