"""A running VM follows its machine while Cluster API updates it, or the machine says why it cannot."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import conditions, names
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, at
from caphv.api.ownership import record
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, ServerFault
from caphv.runtime.queue import WorkQueue
from reconciler.machine.growth import updated_message
from reconciler.machine.inplace import update_in_place
from reconciler.machine.placement import REQUIRED, as_harvester_keeps, avoidance_patch
from reconciler.machine.scope import MachineScope
from reconciler.machine.status import report_drift
from reconciler.machine.vm import virtual_machine
from reconciler.machine.vmclaims import machine_disks, own_claims
from reconciler.machine.vminputs import inputs_of
from reconciler.memory import MachineMemory, Memory
from reconciler.status import StatusDraft
from reconciler.triggers import Topics
from sandbox.harvester import disks, hotplug, instances
from sandbox.harvester.releases import release_named
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
        self.fingerprint = "harvester"
        image = "rancher/harvester:v1.8.2"
        self.deployment_object: Obj = {"spec": {"template": {"spec": {"containers": [{"image": image}]}}}}
        self.client = self
        self.storage_class: Obj = {
            "metadata": {"name": "lh-x"},
            "provisioner": "driver.longhorn.io",
            "allowVolumeExpansion": True,
        }
        self.vm: Obj = {}

    async def patch(self, _resource: Any, _name: str, _namespace: str, patch: Obj) -> Obj:
        if self.error:
            raise self.error
        self.vm = merge(self.vm, patch)
        return self.vm

    async def get(self, resource: Any, name: str) -> Obj:
        if resource.kind != "StorageClass":
            raise NotFound(404, "NotFound", name)
        return {**self.storage_class, "metadata": {"name": name}}

    def session(self) -> Any:
        stores = {name: SimpleNamespace(store=getattr(self, name)) for name in ("images", "hosts")}
        named = {name: getattr(self, name) for name in ("fingerprint", "deployment_object", "client")}
        return SimpleNamespace(pools=SimpleNamespace(store=()), **stores, **named)


class Machine:
    """A machine whose VM was created for its spec, while Cluster API updates it."""

    def __init__(self, **spec: Any) -> None:
        self.harvester, self.events = Harvester(), list[str]()
        self.requeue_after: float | None = None
        self.conditions: list[Obj] = []
        self._memory, self._shared = MachineMemory("u"), Memory()
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
        self.conditions = scope.draft.fields["conditions"]
        return conditions.get_condition(scope.draft.fields["conditions"], ConditionType.VM_UP_TO_DATE) or {}

    @property
    def sockets(self) -> Any:
        return at(self.harvester.vm, *DOMAIN, "cpu", "sockets")

    def _scope(self) -> MachineScope:
        queue: WorkQueue[Key] = WorkQueue("machines")
        vms = SimpleNamespace(store=SimpleNamespace(by_index=lambda *_: (), count=lambda *_: 0), observe=lambda _: None)
        scope = SimpleNamespace(
            obj=self.obj,
            spec=self.obj["spec"],
            owner=OWNER,
            cluster_key=Key("team", "cluster"),
            target_namespace="vms",
            control_plane=False,
            failure_domain="",
            failure_domains=[],
            memory=self._memory,
            context=SimpleNamespace(updates_in_place=True, memory=self._shared),
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


DISK: Obj = machine_spec()["volumes"][0]
EMPTY: Obj = {"volumeType": "storageClass", "storageClass": "longhorn", "volumeSize": "10Gi"}


def claim_templates(machine: Machine) -> list[Obj]:
    annotations = machine.harvester.vm["metadata"]["annotations"]
    templates: list[Obj] = json.loads(annotations[names.VOLUME_CLAIM_TEMPLATES_ANNOTATION])
    return templates


def claim_sizes(machine: Machine) -> list[str]:
    return [at(template, "spec", "resources", "requests", "storage") for template in claim_templates(machine)]


async def complete(machine: Machine) -> Obj:
    """Let KubeVirt attach disks and Longhorn enlarge them; return condition `VMUpToDate`."""
    claims = {}
    for template in claim_templates(machine):
        status = {"phase": "Bound", "capacity": template["spec"]["resources"]["requests"]}
        claims[template["metadata"]["name"]] = {**template, "status": status}
    patch = disks.instance_patch(machine.harvester.vm, machine.vmi, claims, release_named("1.8"))
    machine.vmi = merge(machine.vmi, patch)
    return await machine.update()


async def test_disk_grows_by_the_annotation_of_its_vm_until_the_instance_has_it() -> None:
    machine = Machine()
    await complete(machine)
    template = copy.deepcopy(machine.harvester.vm["spec"]["template"])
    before = claim_sizes(machine)
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert (before, claim_sizes(machine)) == (["40Gi"], ["60Gi"])
    assert machine.harvester.vm["spec"]["template"] == template
    assert (condition["status"], condition["reason"], machine.events) == ("False", "VMUpdating", ["VMUpdated"])
    assert condition["message"] == "Harvester changes disks of the VM: volumes[0] grows from 40Gi to 60Gi"

    condition = await complete(machine)
    assert (condition["status"], condition["message"]) == ("True", updated_message(machine.obj["spec"]))
    assert machine.events == ["VMUpdated"]


async def test_disk_is_added_to_a_running_vm_and_is_the_machines() -> None:
    machine = Machine()
    boot = copy.deepcopy(machine.harvester.vm["spec"]["template"]["spec"]["volumes"])
    condition = await machine.update(volumes=[DISK, EMPTY])
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    *others, added = spec["volumes"]
    claim = added["persistentVolumeClaim"]["claimName"]
    assert others == boot
    assert added == {
        "name": claim.removeprefix("one-"),
        "persistentVolumeClaim": {"claimName": claim, "hotpluggable": True},
    }
    assert spec["domain"]["devices"]["disks"][-1] == {"name": added["name"], "disk": {"bus": "scsi"}}
    assert claim_sizes(machine) == ["40Gi", "10Gi"]
    assert condition["message"] == "Harvester changes disks of the VM: volumes[1] is being attached (not seen yet)"

    condition = await complete(machine)
    assert (condition["status"], condition["message"]) == ("True", updated_message(machine.obj["spec"]))
    claims = {claim: {"metadata": {"annotations": record(OWNER)}}}
    assert claim in own_claims(machine.harvester.vm, claims, OWNER, 2)
    assert await machine.update(volumes=[DISK, EMPTY, EMPTY])
    assert len(machine_disks(machine.harvester.vm)) == 3


async def test_disk_that_is_larger_already_stays() -> None:
    machine = Machine()
    templates = claim_templates(machine)
    templates[0]["spec"]["resources"]["requests"]["storage"] = "80Gi"
    machine.harvester.vm["metadata"]["annotations"][names.VOLUME_CLAIM_TEMPLATES_ANNOTATION] = json.dumps(templates)
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert (claim_sizes(machine), condition["reason"]) == (["80Gi"], "VMDiffers")


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "[{}]", '[{"metadata": {"name": "one-disk-0-aaaaa"}}]'])
async def test_annotation_that_a_user_broke_is_not_rewritten(text: str) -> None:
    machine = Machine()
    machine.harvester.vm["metadata"]["annotations"][names.VOLUME_CLAIM_TEMPLATES_ANNOTATION] = text
    before = copy.deepcopy(machine.harvester.vm["spec"]["template"]["spec"]["volumes"])
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert machine.harvester.vm["metadata"]["annotations"][names.VOLUME_CLAIM_TEMPLATES_ANNOTATION] == text
    assert machine.harvester.vm["spec"]["template"]["spec"]["volumes"] == before
    by_type = {entry["type"]: entry for entry in machine.conditions}
    assert by_type["DisksCanGrow"]["status"] == "False"
    assert condition["reason"] in ("VMUpdating", "VMDiffers")


async def test_growth_of_all_kinds_is_one_write() -> None:
    machine = Machine()
    await machine.update(cpu=4, volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])
    assert (machine.sockets, claim_sizes(machine), machine.events) == (4, ["60Gi", "10Gi"], ["VMUpdated"])
    assert machine.harvester.vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]


@pytest.mark.parametrize(
    ("release", "storage_class", "growth", "addition"),
    [
        ("v1.8.2", {}, "", ""),
        ("v1.7.3", {}, "", "Harvester 1.7 does not support it, 1.8 and later do"),
        ("v1.6.1", {}, "Harvester 1.6 does not support it", "Harvester 1.6 does not support it"),
        ("head", {}, "the release of Harvester is unknown", "the release of Harvester is unknown"),
        ("v1.8.2", {"provisioner": "lvm.driver.harvesterhci.io"}, "StorageClass lh-x is not of driver.longhorn.io", ""),
        ("v1.8.2", {"allowVolumeExpansion": False}, "StorageClass lh-x has no allowVolumeExpansion", ""),
        ("v1.8.2", {"parameters": {"frontend": "ublk"}}, "StorageClass lh-x has frontend ublk", ""),
        ("v1.8.2", {"parameters": {"encrypted": "true"}}, "StorageClass lh-x is encrypted and lacks", ""),
    ],
)
async def test_disks_that_cannot_change_stay_and_conditions_say_why(
    release: str, storage_class: Obj, growth: str, addition: str
) -> None:
    machine = Machine()
    containers = [{"image": f"rancher/harvester:{release}"}]
    machine.harvester.deployment_object = {"spec": {"template": {"spec": {"containers": containers}}}}
    machine.harvester.storage_class |= storage_class
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])

    conditions_by_type = {entry["type"]: entry for entry in machine.conditions}
    for kind, obstacle in (("DisksCanGrow", growth), ("DisksCanBeAdded", addition)):
        assert conditions_by_type[kind]["status"] == ("False" if obstacle else "True")
        assert obstacle in conditions_by_type[kind].get("message", "")
        assert obstacle in condition["message"]
    assert claim_sizes(machine) == (["40Gi"] if growth else ["60Gi"]) + ([] if addition else ["10Gi"])
    assert machine.requeue_after == (60 if growth or addition else None)


@pytest.mark.parametrize(("mode", "grows"), [("Block", True), ("Filesystem", False)])
async def test_file_system_that_was_added_cannot_grow(mode: str, grows: bool) -> None:
    machine = Machine()
    empty = {**EMPTY, "volumeMode": mode}
    await machine.update(volumes=[DISK, empty])
    condition = await machine.update(volumes=[DISK, {**empty, "volumeSize": "20Gi"}])
    assert claim_sizes(machine) == ["40Gi", "20Gi" if grows else "10Gi"]
    assert ("was added and has volumeMode Filesystem" in condition["message"]) is not grows


async def test_disks_that_others_hotplug_are_no_difference_and_stay() -> None:
    machine = Machine()
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "disk-1", "persistentVolumeClaim": {"claimName": "pvc-1", "hotpluggable": True}})
    spec["domain"]["devices"]["disks"].append({"name": "disk-1", "disk": {"bus": "scsi"}})
    assert (await machine.update())["status"] == "True"
    await machine.update(volumes=[DISK, EMPTY])
    volumes = [volume["name"] for volume in machine.harvester.vm["spec"]["template"]["spec"]["volumes"]]
    assert volumes[:3] == ["disk-0", "cloudinitdisk", "disk-1"]
    assert len(set(volumes)) == len(volumes) == 4
