"""Taking over what belongs to a VM: what cannot be written now is written later, and not forgotten."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import names
from caphv.api.object import Obj
from caphv.api.ownership import Owner, record
from caphv.runtime.errors import Conflict
from reconciler.machine.adoption import VmOwner, adopt_or_refuse, ensure_vm_proof, owner_of_vm, vm_proof
from reconciler.machine.scope import MachineScope
from reconciler.memory.machine import MachineMemory

pytestmark = pytest.mark.unit

BEFORE = Owner("HarvesterMachine", "team", "one", "old-uid", "elsewhere")
NOW = Owner("HarvesterMachine", "team", "one", "new-uid", "here")
VM = {
    "metadata": {"name": "one", "namespace": "vms", "uid": "vm", "resourceVersion": "1", "annotations": record(BEFORE)}
}


class Client:
    """A user writes the Secret between reading and writing it."""

    def __init__(self, vm: Obj) -> None:
        self.patched: list[str] = []
        self._vm = vm

    async def get(self, resource: Any, *_: Any) -> Obj:
        if resource.kind == "VirtualMachine":
            return self._vm
        return {"metadata": {"resourceVersion": "1", "annotations": record(BEFORE)}}

    async def patch(self, resource: Any, *_: Any) -> Obj:
        self.patched.append(resource.kind)
        raise Conflict(409, "Conflict", "the object has been modified")


def test_a_secret_that_is_written_meanwhile_is_taken_over_with_the_vm_later() -> None:
    client = Client(VM)
    with pytest.raises(Conflict):
        asyncio.run(adopt_or_refuse(scope_of(client), VM))
    # The VM keeps its old record, by which the next attempt finds the Secret.
    assert client.patched == ["Secret"]


def test_disks_with_the_former_record_are_taken_over_whatever_their_names() -> None:
    class Reader(Client):
        async def patch(self, resource: Any, name: str, *_: Any) -> Obj:
            if resource.kind == "Secret":
                raise Conflict(409, "Conflict", "the object has been modified")
            self.patched.append(name)
            return {}

    listed = ["restore-one-5f0b-disk-0", "photos", "hot"]
    spec = {"volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "hot", "hotpluggable": True}}]}
    templates = json.dumps([{"metadata": {"name": name}} for name in listed])
    metadata = {**VM["metadata"], "annotations": {**record(BEFORE), names.VOLUME_CLAIM_TEMPLATES_ANNOTATION: templates}}
    owned = [*listed[::2], "one-disk-1-abcde", "unlisted"]
    annotations = {**dict.fromkeys(owned, record(BEFORE)), "photos": {}}
    claims = [{"metadata": {"name": n, "resourceVersion": "1", "annotations": a}} for n, a in annotations.items()]
    vm = {"metadata": metadata, "spec": {"template": {"spec": spec}}}
    client = Reader(vm)
    with pytest.raises(Conflict):
        asyncio.run(adopt_or_refuse(scope_of(client, *claims), vm))
    assert client.patched == ["restore-one-5f0b-disk-0", "one-disk-1-abcde"]


def scope_of(client: Client, *claims: Obj) -> MachineScope:
    spec = {"providerID": f"{names.PROVIDER_ID_PREFIX}vm"}
    scope = SimpleNamespace(
        obj={"metadata": {"name": "one"}, "spec": spec},
        context=SimpleNamespace(belongs_to_another_tenant=lambda *_: False),
        spec=spec,
        owner=NOW,
        name="one",
        target_namespace="vms",
        draft=SimpleNamespace(fields={}),
        session=lambda: SimpleNamespace(client=client),
        namespace=lambda: SimpleNamespace(claims=SimpleNamespace(store=claims, observe=lambda _: None)),
    )
    return cast(MachineScope, scope)


# Machines whose providerID is that of the Node


def noted(uid: str, known: str = "") -> MachineScope:
    """A machine with providerID `rke2://one`, this uid in its annotation, and that one in its status."""
    scope = scope_of(Client(VM))
    scope.obj["metadata"]["annotations"] = {names.VM_UID_ANNOTATION: uid} if uid else {}
    scope.obj["spec"]["providerID"] = "rke2://one"
    scope.draft.fields["virtualMachine"] = {"uid": known}
    return scope


def test_annotation_proves_a_move_until_the_vm_was_the_machines() -> None:
    assert owner_of_vm(noted("vm"), VM) is VmOwner.MACHINE
    assert owner_of_vm(noted("another"), VM) is VmOwner.OTHER
    assert owner_of_vm(noted(""), VM) is VmOwner.OTHER
    # Left behind on the former management cluster, the machine does not take its VM back.
    assert owner_of_vm(noted("vm", known="vm"), VM) is VmOwner.OTHER


def test_annotation_is_written_where_the_provider_id_does_not_carry_the_uid() -> None:
    assert vm_proof("harvester://vm", VM) == vm_proof("", VM) == {}
    assert vm_proof("rke2://one", VM) == vm_proof("harvester://replaced", VM) == {names.VM_UID_ANNOTATION: "vm"}


@pytest.mark.virtual_time
async def test_machines_of_an_earlier_version_are_annotated_once_within_ten_minutes() -> None:
    vm = {"metadata": {**VM["metadata"], "annotations": record(NOW)}}
    written: list[float] = []
    began = asyncio.get_running_loop().time()

    async def upgraded() -> None:
        scope = noted("")
        delays: list[float] = []
        scope.requeue_in, scope.memory = delays.append, MachineMemory("u")

        async def patch(patch: Obj) -> None:
            written.append(asyncio.get_running_loop().time() - began)
            scope.obj["metadata"] |= patch["metadata"]

        scope.patch = patch  # type: ignore[method-assign]
        await ensure_vm_proof(scope, vm)
        await asyncio.sleep(delays[0])
        for _ in range(2):
            await ensure_vm_proof(scope, vm)

    await asyncio.gather(*(upgraded() for _ in range(100)))
    assert len(written) == 100
    assert max(written) <= 600
    assert sum(moment < 60 for moment in written) < 40, "an upgrade writes them over time"
