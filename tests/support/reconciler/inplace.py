"""A machine whose running VM Cluster API updates in place, and a Harvester with that VM, in memory."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from caphv.api import conditions, names
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, at
from caphv.runtime.errors import ApiError, Forbidden, NotFound
from caphv.runtime.queue import WorkQueue
from reconciler.machine.inplace import follow_update
from reconciler.machine.report import report_drift
from reconciler.machine.scope import MachineScope
from reconciler.machine.vm import virtual_machine
from reconciler.machine.vminputs import inputs_of
from reconciler.memory.machine import MachineMemory
from reconciler.memory.store import Memory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics
from sandbox.harvester import disks, hotplug, instances
from sandbox.harvester.releases import release_named
from tests.support.ippools import merge
from tests.support.reconciler.machines import OWNER, machine_spec

IMAGE = {
    "metadata": {"namespace": "default", "name": "image-x"},
    "spec": {"displayName": "sles-15"},
    "status": {"storageClassName": "lh-x", "conditions": [{"type": "Imported", "status": "True"}]},
}
DOMAIN = ("spec", "template", "spec", "domain")
HOSTS: list[Obj] = [{"metadata": {"name": name, "labels": {}}, "spec": {}} for name in ("a", "b")]
# The disk that the machine starts with, and one to add.
DISK: Obj = machine_spec()["volumes"][0]
EMPTY: Obj = {
    "volumeType": "storageClass",
    "storageClass": "longhorn",
    "volumeSize": "10Gi",
    "accessMode": "ReadWriteMany",
}


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
        vm, refusal = await follow_update(scope, copy.deepcopy(self.harvester.vm), self.vmi)
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
            rancher_etcd=False,
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


def write_templates(machine: Machine, templates: list[Obj]) -> None:
    annotations = machine.harvester.vm["metadata"]["annotations"]
    annotations[names.VOLUME_CLAIM_TEMPLATES_ANNOTATION] = json.dumps(templates)
