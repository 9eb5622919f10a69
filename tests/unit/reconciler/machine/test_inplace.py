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
        self.refused, self.absent_class = "", ""
        self.offered: list[str] = []
        self.failure: ApiError | None = None
        self.asked: list[str] = []

    async def patch(self, _resource: Any, _name: str, _namespace: str, patch: Obj) -> Obj:
        if self.error:
            raise self.error
        if self.refused and f'"{self.refused}"' in json.dumps(patch):
            raise Forbidden(403, "Forbidden", "exceeded quota")
        self.vm = merge(self.vm, patch)
        return self.vm

    async def get(self, resource: Any, name: str) -> Obj:
        self.asked.append(name)
        if self.failure:
            raise self.failure
        if resource.kind == "StorageProfile" and self.offered:
            return {"status": {"claimPropertySets": [{"accessModes": self.offered, "volumeMode": "Block"}]}}
        if resource.kind != "StorageClass" or name == self.absent_class:
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
        self.claims: dict[str, Obj] = {}
        self.updates_in_place = True
        self.owner = replace(OWNER, uid="u")
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
        self.obj["metadata"] |= {"annotations": {names.UPDATE_IN_PROGRESS_ANNOTATION: ""}}
        return await self.reconcile(**spec)

    def forget(self) -> None:
        """Forget what was read of StorageClasses, as after some time."""
        self._shared = Memory()

    async def reconcile(self, **spec: Any) -> Obj:
        """Reconcile with a changed spec; return condition `VMUpToDate`."""
        annotations = self.obj["metadata"].get("annotations") if self.updates_in_place else {}
        self.obj["spec"] |= spec
        self.obj["metadata"] |= {"annotations": annotations or {}}
        self.obj["metadata"]["generation"] += bool(spec)
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
        claims = SimpleNamespace(get=lambda _, name: self.claims.get(name))
        scope = SimpleNamespace(
            obj=self.obj,
            machine=None,
            spec=self.obj["spec"],
            owner=self.owner,
            cluster_key=Key("team", "cluster"),
            target_namespace="vms",
            control_plane=False,
            failure_domain="",
            failure_domains=[],
            memory=self._memory,
            context=SimpleNamespace(updates_in_place=self.updates_in_place, memory=self._shared),
            draft=StatusDraft(self.obj),
            session=self.harvester.session,
            namespace=lambda: SimpleNamespace(vms=vms, claims=claims),
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


DISK: Obj = machine_spec()["volumes"][0]
EMPTY: Obj = {
    "volumeType": "storageClass",
    "storageClass": "longhorn",
    "volumeSize": "10Gi",
    "accessMode": "ReadWriteMany",
}


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


async def test_vm_gets_its_size_before_disks_are_added() -> None:
    """A disk that is being attached and the migration that gives the size keep each other waiting."""
    machine = Machine()
    condition = await machine.update(cpu=4, volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])
    assert (machine.sockets, claim_sizes(machine)) == (4, ["60Gi"])
    assert (condition["status"], condition["reason"]) == ("False", "VMUpdating")
    assert condition["message"] == "the VM cannot get disks: it gets 4 CPUs and 4Gi of memory first"
    assert machine.requeue_after == 60
    await machine.update()
    assert claim_sizes(machine) == ["60Gi"], "the VM has not migrated yet"

    machine.vmi["status"] |= hotplug.current_sizes({"spec": machine.harvester.vm["spec"]["template"]["spec"]})
    await machine.update()
    assert claim_sizes(machine) == ["60Gi", "10Gi"]
    assert machine.harvester.vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]
    assert (await complete(machine))["status"] == "True"


async def test_vm_that_cannot_grow_gets_no_disk() -> None:
    machine = Machine()
    machine.harvester.hosts = HOSTS[:1]
    condition = await machine.update(cpu=4, volumes=[DISK, EMPTY])
    assert (machine.sockets, claim_sizes(machine)) == (2, ["40Gi"])
    assert condition["message"].startswith("the VM cannot grow: ")


@pytest.mark.parametrize("refused", ["sockets", "claims"])
async def test_change_that_harvester_refuses_keeps_no_other_from_the_vm(refused: str) -> None:
    machine = Machine()
    machine.harvester.refused = "domain" if refused == "sockets" else "annotations"
    condition = await machine.update(cpu=4, volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert machine.sockets == (2 if refused == "sockets" else 4)
    assert claim_sizes(machine) == (["60Gi"] if refused == "sockets" else ["40Gi"])
    part = "4 CPUs and 4Gi of memory" if refused == "sockets" else "the disks of its machine"
    assert condition["message"] == f"Harvester refuses {part}: exceeded quota"


@pytest.mark.parametrize("access_mode", ["ReadWriteOnce", ""])
async def test_disk_that_would_keep_the_vm_from_migrating_is_not_added(access_mode: str) -> None:
    machine = Machine()
    machine.harvester.offered = ["ReadWriteOnce"]
    condition = await machine.update(volumes=[DISK, {**EMPTY, "accessMode": access_mode}])
    assert claim_sizes(machine) == ["40Gi"]
    assert "of StorageClass longhorn would not be ReadWriteMany" in condition["message"]


async def test_disk_of_a_class_that_does_not_offer_its_mode_is_not_added() -> None:
    machine = Machine()
    machine.harvester.offered = ["ReadWriteOnce"]
    condition = await machine.update(volumes=[DISK, {**EMPTY, "volumeMode": "Block"}])
    assert claim_sizes(machine) == ["40Gi"]
    assert "of StorageClass longhorn would not be ReadWriteMany" in condition["message"]

    machine.harvester.offered = ["ReadWriteOnce", "ReadWriteMany"]
    machine.forget()
    await machine.update()
    assert claim_sizes(machine) == ["40Gi", "10Gi"]


async def test_disk_of_a_class_that_does_not_exist_is_not_added_and_can_be_taken_back() -> None:
    machine = Machine()
    machine.harvester.absent_class = "typo"
    before = copy.deepcopy(machine.harvester.vm)
    condition = await machine.update(volumes=[DISK, {**EMPTY, "storageClass": "typo"}])
    assert condition["message"] == "the VM cannot get disks: StorageClass typo does not exist, or may not be read"
    assert machine.harvester.vm == before
    assert (await machine.update(volumes=[DISK]))["status"] == "True"


async def test_disk_is_not_added_while_volumes_are_migrated() -> None:
    machine = Machine()
    machine.harvester.vm["spec"]["updateVolumesStrategy"] = "Migration"
    await machine.update(volumes=[DISK, EMPTY])
    by_type = {entry["type"]: entry for entry in machine.conditions}
    assert "its volumes were migrated" in by_type["DisksCanBeAdded"]["message"]
    assert by_type["DisksCanGrow"]["status"] == "True"
    assert claim_sizes(machine) == ["40Gi"]


def attach(machine: Machine, claim: str, size: str, **source: Any) -> None:
    """A user attaches a claim in Harvester's UI."""
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "disk-1", "persistentVolumeClaim": {"claimName": claim, **source}})
    spec["domain"]["devices"]["disks"].append({"name": "disk-1", "disk": {"bus": "virtio"}})
    template = {
        "metadata": {"name": claim, "annotations": {}},
        "spec": {"storageClassName": "longhorn", "resources": {"requests": {"storage": size}}},
    }
    write_templates(machine, [*claim_templates(machine), template])


def write_templates(machine: Machine, templates: list[Obj]) -> None:
    annotations = machine.harvester.vm["metadata"]["annotations"]
    annotations[names.VOLUME_CLAIM_TEMPLATES_ANNOTATION] = json.dumps(templates)


@pytest.mark.parametrize("claim", ["users-data", "one-disk-1-qqqqq", "one-disk-7-qqqqq", "one-disk-0-qqqqq"])
@pytest.mark.parametrize("size", ["10Gi", "500Gi"])
async def test_disk_of_a_user_is_never_enlarged(claim: str, size: str) -> None:
    machine = Machine()
    attach(machine, claim, "1Gi")
    before = copy.deepcopy(machine.harvester.vm)
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}, {**EMPTY, "volumeSize": size}])
    assert machine.harvester.vm == before
    by_type = {entry["type"]: entry["status"] for entry in machine.conditions}
    assert (by_type["DisksCanGrow"], by_type["DisksCanBeAdded"]) == ("False", "False")
    assert (condition["status"], condition["reason"]) == ("False", "VMUpdating")


async def test_claim_with_the_record_of_another_is_never_enlarged() -> None:
    machine = Machine()
    await machine.update(volumes=[DISK, EMPTY])
    claim = claim_templates(machine)[1]["metadata"]["name"]
    machine.claims[claim] = {"metadata": {"annotations": record(replace(OWNER, uid="other"))}}
    await machine.update(volumes=[DISK, {**EMPTY, "volumeSize": "20Gi"}])
    assert claim_sizes(machine) == ["40Gi", "10Gi"]


async def test_disk_keeps_its_record_when_its_machine_moves_to_another_cluster() -> None:
    machine = Machine()
    empty = {**EMPTY, "volumeMode": "Block"}
    await machine.update(volumes=[DISK, empty])
    claim = claim_templates(machine)[1]["metadata"]["name"]
    moved = replace(OWNER, uid="moved")
    machine.owner = moved
    machine.obj["metadata"]["uid"] = "moved"
    await machine.update(volumes=[DISK, {**empty, "volumeSize": "20Gi"}])
    assert claim_sizes(machine) == ["40Gi", "10Gi"], "nothing proves that the disk is the machine's"
    machine.claims[claim] = {"metadata": {"annotations": record(moved)}}
    await machine.update()
    assert claim_sizes(machine) == ["40Gi", "20Gi"]


@pytest.mark.parametrize("keeps_template", [True, False])
async def test_after_a_disk_was_detached_no_disk_changes(keeps_template: bool) -> None:
    machine = Machine()
    empty = {**EMPTY, "volumeMode": "Block"}
    await machine.update(volumes=[DISK, empty, empty])
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    spec["volumes"] = [volume for volume in spec["volumes"] if not volume["name"].startswith("disk-1-")]
    devices = spec["domain"]["devices"]
    devices["disks"] = [disk for disk in devices["disks"] if not disk["name"].startswith("disk-1-")]
    if not keeps_template:
        first, _, third = claim_templates(machine)
        write_templates(machine, [first, third])
    before = copy.deepcopy(machine.harvester.vm)
    sizes = ("50Gi", "90Gi", "60Gi")
    volumes = [{**volume, "volumeSize": size} for volume, size in zip((DISK, empty, empty), sizes, strict=True)]
    condition = await machine.update(volumes=volumes)
    assert machine.harvester.vm == before
    assert "the VM has disks 0, 2, and its machine disks 0 to 2" in condition["message"]


async def test_last_disk_that_was_detached_is_not_attached_again() -> None:
    machine = Machine()
    await machine.update(volumes=[DISK, EMPTY])
    spec = machine.harvester.vm["spec"]["template"]["spec"]
    spec["volumes"].pop()
    spec["domain"]["devices"]["disks"].pop()
    before = copy.deepcopy(machine.harvester.vm)
    await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])
    assert machine.harvester.vm == before


async def test_disks_that_differ_otherwise_do_not_change() -> None:
    machine = Machine()
    templates = claim_templates(machine)
    templates[0]["metadata"]["annotations"][names.IMAGE_ID_ANNOTATION] = "default/other"
    write_templates(machine, templates)
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])
    assert claim_sizes(machine) == ["40Gi"]
    assert "default/other" in condition["message"]


async def test_hotplugged_disk_whose_claim_harvester_replaces_stays_the_machines() -> None:
    machine = Machine()
    await machine.update(volumes=[DISK, EMPTY])
    volume = machine.harvester.vm["spec"]["template"]["spec"]["volumes"][-1]
    templates = claim_templates(machine)
    old = templates[1]["metadata"]["name"]
    templates[1]["metadata"]["name"] = volume["persistentVolumeClaim"]["claimName"] = "restore-abc"
    write_templates(machine, templates)
    condition = await complete(machine)
    assert condition["status"] == "True", condition
    before = copy.deepcopy(machine.harvester.vm)
    condition = await machine.update(volumes=[DISK, {**EMPTY, "volumeSize": "20Gi"}])
    assert machine.harvester.vm == before
    assert (condition["status"], condition["reason"]) == ("False", "VMDiffers")
    by_type = {entry["type"]: entry for entry in machine.conditions}
    for kind in ("DisksCanGrow", "DisksCanBeAdded"):
        assert "restore-abc does not have the name of a disk of the machine" in by_type[kind]["message"]

    # Only its record says whether the claim may be deleted.
    owner = replace(OWNER, uid="u")
    vm = machine.harvester.vm
    assert "restore-abc" not in own_claims(vm, {}, owner, 2)
    claims: dict[str, Obj] = {"restore-abc": {"metadata": {"annotations": record(owner)}}}
    assert {"restore-abc"} == set(own_claims(vm, claims, owner, 2)) - {old, "one-disk-0", *own_claims(vm, {}, owner, 2)}


async def test_failure_of_harvester_leaves_the_conditions_as_they_are() -> None:
    machine = Machine()
    await machine.update()
    machine.obj["status"] = {"conditions": copy.deepcopy(machine.conditions)}
    machine.forget()
    machine.harvester.failure = ServerFault(503, "ServiceUnavailable", "etcd")
    await machine.update()
    by_type = {entry["type"]: entry["status"] for entry in machine.conditions}
    assert (by_type["DisksCanGrow"], by_type["DisksCanBeAdded"]) == ("True", "True")
    condition = await machine.update(volumes=[{**DISK, "volumeSize": "60Gi"}])
    assert claim_sizes(machine) == ["40Gi"], "what is not certain is not done"
    assert "Harvester does not answer" in condition["message"]

    machine.harvester.failure = None
    await machine.update()
    assert claim_sizes(machine) == ["60Gi"]


async def test_class_that_cannot_grow_is_asked_again() -> None:
    machine = Machine()
    machine.harvester.storage_class["allowVolumeExpansion"] = False
    await machine.update()
    assert machine.requeue_after == 600
    machine.harvester.storage_class["allowVolumeExpansion"] = True
    machine.forget()
    await machine.update()
    assert machine.requeue_after is None


async def test_where_nothing_updates_machines_harvester_is_not_asked() -> None:
    machine = Machine()
    await machine.update()
    machine.obj["status"] = {"conditions": copy.deepcopy(machine.conditions)}
    assert {"DisksCanGrow", "DisksCanBeAdded"} <= {entry["type"] for entry in machine.conditions}
    machine.forget()
    machine.harvester.asked.clear()
    machine.updates_in_place = False
    before = copy.deepcopy(machine.harvester.vm)
    await machine.reconcile(volumes=[{**DISK, "volumeSize": "60Gi"}, EMPTY])
    assert machine.harvester.asked == []
    assert not {"DisksCanGrow", "DisksCanBeAdded"} & {entry["type"] for entry in machine.conditions}
    assert (machine.harvester.vm, machine.requeue_after) == (before, None)


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
