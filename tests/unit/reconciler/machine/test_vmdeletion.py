"""Which VM is deleted with its machine, with which disks and Secret, and what another VM keeps."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api import names
from caphv.api.object import Obj
from caphv.api.ownership import Owner, record
from caphv.api.virtualmachine import cloud_init_secret_name
from caphv.runtime.errors import Invalid
from reconciler.blocked import Blocked
from reconciler.harvester import slim
from reconciler.machine import deletion
from sandbox.harvester import kinds
from tests.support.reconciler.machinedeletion import OWN, Client, pool, scope_of, vm_of

pytestmark = pytest.mark.unit


def secret_of(owner: Owner | None) -> Obj:
    """The cloud-init Secret of the machine's name, with the record of this owner."""
    annotations = record(owner) if owner else {}
    return {"metadata": {"namespace": "vms", "name": SECRET, "uid": "uid-secret", "annotations": annotations}}


SECRET = cloud_init_secret_name("one")
FORMER = Owner("HarvesterMachine", "team", "one", "uid-before", "former-cluster")
NAMESAKE = Owner("HarvesterMachine", "other-team", "one", "uid-namesake", "management-cluster")


@pytest.mark.parametrize(
    ("owner", "deleted"),
    [
        pytest.param(OWN, True, id="ours"),
        pytest.param(None, True, id="of the Go provider"),
        pytest.param(NAMESAKE, False, id="of another machine of the name"),
        pytest.param(FORMER, True, id="of the deleted VM, which was not adopted yet"),
    ],
)
async def test_secret_is_deleted_with_the_vm_only_if_it_belonged_to_it(owner: Owner | None, deleted: bool) -> None:
    """A later step may have failed, and another machine may have created its Secret since."""
    scope, harvester = scope_of()
    scope.memory.deletion.vm_deletion_requested, scope.memory.deletion.vm_owner = True, FORMER
    harvester.client = Client(refuses=False, secret=secret_of(owner))
    await deletion.delete_machine(scope)
    assert harvester.client.deleted == ([SECRET] if deleted else [])


async def test_secret_of_a_restored_machine_is_deleted_without_its_vm() -> None:
    restored = {names.FORMER_OWNER_ANNOTATION: "former-cluster/uid-before"}
    scope, harvester = scope_of(annotations=restored, pool=pool("10.0.0.1", "former-c"), other=pool("10.0.0.2", "x"))
    harvester.client = Client(refuses=False, secret=secret_of(FORMER))
    await deletion.delete_machine(scope)
    assert harvester.client.deleted == [SECRET]
    assert harvester.allocator.released == ["10.0.0.1"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_machine_that_was_moved_and_not_adopted_leaves_nothing(restarted: bool) -> None:
    """Its pools have the mark of the other management cluster, and the provider may restart while the VM stops."""
    vm = vm_of("one", deleted=restarted)
    vm["metadata"]["annotations"] |= record(FORMER)
    vm["spec"]["runStrategy"] = "Halted"
    scope, harvester = scope_of(pool=pool("10.0.0.1", "former-c"), other=pool("10.0.0.2", "another-"))
    scope.obj["spec"]["providerID"] = "harvester://uid-one"
    harvester.client = Client(refuses=False, vm=vm)
    namespace = scope.namespace()
    empty = namespace.vms
    namespace.vms = SimpleNamespace(get=lambda *_: vm, store=[vm], observe_deletion=lambda *_: False)
    with pytest.raises(Blocked, match="to be deleted"):
        await deletion.delete_machine(scope)

    namespace.vms = empty
    harvester.client = Client(refuses=False, secret=secret_of(FORMER))
    await deletion.delete_machine(scope)
    assert harvester.client.deleted == [SECRET]
    assert harvester.allocator.released == ["10.0.0.1"]


async def deletion_of(
    *vms: Obj,
    refuses: bool = False,
    instance: Obj | None = None,
    stopped_for: float | None = None,
    says: str | None = None,
) -> Client:
    """Delete machine `one`, whose VM is the first, once; the requests that it sent.

    :param stopped_for: seconds since the instance was found to have stopped
    :param says: what the deletion waits for
    """
    scope, harvester = scope_of()
    scope.memory.deletion.vm_stopped_at = None if stopped_for is None else time.monotonic() - stopped_for
    namespace, client = harvester.watch_namespace("vms"), Client(refuses=refuses)
    harvester.client = client
    namespace.instances = SimpleNamespace(get=lambda *_: instance, store=())
    namespace.vms = SimpleNamespace(
        get=lambda *_: vms[0],
        store=vms,
        observe=lambda _: None,
        observe_deletion=lambda *_: False,
        forget=lambda *_: None,
    )
    with pytest.raises((Blocked, Invalid), match=says):
        await deletion.delete_machine(scope)
    return client


async def test_vm_of_which_harvester_refuses_updates_is_deleted() -> None:
    client = await deletion_of(vm_of("one", "shared", listed="photos"), vm_of("two", "shared"))
    (patch,) = client.patches
    # The version, because a VM that replaced the machine's must not get its list.
    listed = {"harvesterhci.io/removedPersistentVolumeClaims": ""}
    assert patch == {"metadata": {"annotations": listed, "resourceVersion": "7"}}
    assert client.deleted == ["one"]
    client = await deletion_of(vm_of("one", "shared"), vm_of("two", "shared"), refuses=True)
    assert client.deleted == ["one"]


async def test_vm_is_not_deleted_while_harvester_would_delete_volumes_of_others_with_it() -> None:
    client = await deletion_of(vm_of("one", "photos", listed="photos"), refuses=True)
    assert client.deleted == []


async def test_volumes_that_another_vm_has_are_removed_from_a_stopped_vm() -> None:
    one, two = vm_of("one", "own", "shared", deleted=True, listed="moved"), vm_of("two", "shared", "moved")
    (patch,) = (await deletion_of(one, two)).patches
    assert patch["metadata"]["resourceVersion"] == "7"
    assert patch["metadata"]["annotations"] == {"harvesterhci.io/removedPersistentVolumeClaims": ""}
    left = patch["spec"]["template"]["spec"]
    assert [each["name"] for each in left["volumes"]] == ["own"]
    assert left["domain"]["devices"]["disks"] == [{"name": "own"}]


@pytest.mark.parametrize(("stopped_for", "strategies"), [(4.0, []), (6.0, ["Halted"])])
async def test_stopped_vm_is_halted_once_kubevirt_had_time_to_release_it(
    stopped_for: float, strategies: list[str]
) -> None:
    client = await deletion_of(vm_of("one", "own", deleted=True), stopped_for=stopped_for)
    assert [patch["spec"]["runStrategy"] for patch in client.patches] == strategies


async def test_running_vm_and_one_that_shares_nothing_keep_their_volumes() -> None:
    one, two = vm_of("one", "shared", deleted=True), vm_of("two", "shared")
    assert (await deletion_of(one, two, instance={"metadata": {"name": "one"}})).patches == []
    assert (await deletion_of(one, vm_of("two", "other"))).patches == []


@pytest.mark.parametrize(
    ("finalizer", "who"),
    [
        (kinds.VM_GUARD, "Harvester's load balancer controller: check Deployment harvester-load-balancer"),
        (kinds.VM_FINALIZER, "KubeVirt: check Deployment virt-controller"),
        ("example.com/mine", "another controller"),
    ],
)
async def test_finalizer_that_stays_after_the_instance_is_named(finalizer: str, who: str) -> None:
    vm = vm_of("one", deleted=True)
    vm["metadata"]["finalizers"], vm["spec"]["runStrategy"] = [finalizer], "Halted"
    stays = "waiting for VirtualMachine one on Harvester to be deleted"
    await deletion_of(vm, says=f"{stays}$")
    await deletion_of(vm, stopped_for=9, says=f"{stays}$")
    await deletion_of(vm, stopped_for=11, says=f"{stays}: finalizer {finalizer} is removed by {who}$")
    await deletion_of(vm, instance={"metadata": {"name": "one"}}, stopped_for=11, says=f"{stays}$")


async def test_backup_for_which_harvester_does_not_halt_the_vm_is_reported_with_what_keeps_it() -> None:
    """The finalizer may be that of a controller that does not run: without the backup, the VM would stay as well."""
    vm = vm_of("one", deleted=True)
    vm["metadata"]["finalizers"] = [kinds.VM_GUARD]
    scope, harvester = scope_with(vm)
    harvester.client = Client(refuses=False, vm=vm, has_backup=True)
    scope.memory.deletion.vm_stopped_at = time.monotonic() - 6
    with pytest.raises(Blocked, match=r"to be deleted$"):
        await deletion.delete_machine(scope)

    scope.memory.deletion.vm_stopped_at = time.monotonic() - 11
    halted = "; Harvester does not halt the VM: there is vmbackup in progress for vm vms/one"
    with pytest.raises(Blocked, match=f"check Deployment harvester-load-balancer{halted}$") as blocked:
        await deletion.delete_machine(scope)
    assert blocked.value.warn
    assert blocked.value.requeue_after == 15, "no event tells that the backup is ready"


HOST_DOWN = {"metadata": {"name": "h1"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
HOST_READY = {"metadata": {"name": "h1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


@pytest.mark.parametrize("has_vm", [True, False], ids=["VM in deletion", "instance without a VM"])
@pytest.mark.parametrize(
    ("host", "remedy"),
    [
        (HOST_DOWN, r"has not stopped on host h1, which is not ready: start h1, or .* vm-force-reset-policy.* force-"),
        (HOST_READY, r"has not stopped on host h1: check its virt-launcher Pod and virt-handler of h1"),
        (None, r"has not stopped: check its virt-launcher Pod on Harvester"),
    ],
    ids=["host down", "host ready", "no host"],
)
async def test_instance_that_does_not_stop_is_reported_with_its_host_and_the_remedy(
    host: Obj | None, remedy: str, has_vm: bool
) -> None:
    """A machine may be deleted because its host is down, and no guest of such a host stops."""
    scope, harvester = scope_of()
    harvester.hosts = SimpleNamespace(store=[host] if host else [])
    namespace = harvester.watch_namespace("vms")
    harvester.client = Client(refuses=False)
    vm = vm_of("one", deleted=True) if has_vm else None
    instance = {"metadata": {"name": "one"}, "status": {"nodeName": "h1"} if host else {}}
    namespace.vms = SimpleNamespace(get=lambda *_: vm, store=[vm] if vm else ())
    namespace.instances = SimpleNamespace(get=lambda *_: instance, store=())
    scope.memory.deletion.vm_deletion_requested = True

    with pytest.raises(Blocked, match=r"one on Harvester to (be deleted|stop)$") as blocked:
        await deletion.delete_machine(scope)
    assert not blocked.value.warn, "the guest shuts down"
    assert 170 < (blocked.value.requeue_after or 0) <= 180

    scope.memory.deletion.vm_stopping_since = time.monotonic() - 181
    with pytest.raises(Blocked, match=remedy) as blocked:
        await deletion.delete_machine(scope)
    assert blocked.value.warn


def disk(name: str) -> Obj:
    return {"metadata": {"namespace": "vms", "name": name, "uid": f"uid-{name}", "annotations": record(OWN)}}


def scope_with(vm: Obj, *disks: Obj, known: str = "") -> tuple[Any, Any]:
    """A machine with address 10.0.0.1, whose status has this uid of its VM, and a VM of its name."""
    scope, harvester = scope_of(pool=pool("10.0.0.1", "manageme"))
    namespace = harvester.watch_namespace("vms")
    harvester.client = Client(refuses=False, vm=vm)
    namespace.vms = SimpleNamespace(get=lambda *_: vm, store=(vm,))
    by_name = {disk["metadata"]["name"]: disk for disk in disks}
    namespace.claims = SimpleNamespace(
        store=disks, get=lambda _, name: by_name.get(name), observe_deletion=lambda *_: False, forget=lambda *_: None
    )
    if known:
        scope.draft.fields["virtualMachine"] = {"uid": known}
    return scope, harvester


def unrecorded(vm: Obj, **labels: str) -> Obj:
    vm["metadata"] |= {"annotations": {}, "labels": labels}
    return vm


async def test_disk_that_a_vm_made_by_hand_uses_stays_and_the_machine_is_deleted() -> None:
    used, left = disk("one-disk-0-abcde"), disk("one-disk-1-abcde")
    vm = unrecorded(vm_of("one", "one-disk-0-abcde"))
    scope, harvester = scope_with(vm, used, left)
    with pytest.raises(Blocked, match=r"waiting for disks on Harvester to be deleted: one-disk-1-abcde$"):
        await deletion.delete_machine(scope)
    assert harvester.client.deleted == ["one-disk-1-abcde"]
    scope, harvester = scope_with(vm, used)
    await deletion.delete_machine(scope)
    assert harvester.client.deleted == []
    assert harvester.allocator.released == ["10.0.0.1"]


async def test_finalizer_that_holds_a_disk_is_named_once_it_had_time_to_go() -> None:
    held = disk("one-disk-0-abcde")
    held["metadata"] |= {"finalizers": ["kubernetes.io/pvc-protection"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    scope, _ = scope_with(unrecorded(vm_of("one", "other")), slim.claim(held))
    with pytest.raises(Blocked, match=r"to be deleted: one-disk-0-abcde$"):
        await deletion.delete_machine(scope)

    scope.memory.deletion.vm_absent_since = time.monotonic() - 16
    with pytest.raises(Blocked, match=r"one-disk-0-abcde \(finalizer kubernetes.io/pvc-protection\)") as blocked:
        await deletion.delete_machine(scope)
    assert blocked.value.warn, "an Event tells of it"


async def test_vm_whose_other_fields_no_cache_keeps_is_read_before_it_is_deleted() -> None:
    vm = unrecorded(vm_of("one", "own", "shared", deleted=True), **{names.MACHINE_TYPE_LABEL: "worker"})
    scope, harvester = scope_with(slim.virtual_machine(vm, "management"))
    harvester.client = Client(refuses=False, vm=vm)
    harvester.watch_namespace("vms").vms.store = (vm, vm_of("two", "shared"))
    harvester.watch_namespace("vms").vms.observe = lambda *_: None
    with pytest.raises(Blocked, match="waiting for VirtualMachine one"):
        await deletion.delete_machine(scope)
    (patch,) = harvester.client.patches
    assert patch["spec"]["template"]["spec"]["domain"]["devices"]["disks"] == [{"name": "own"}]


async def test_another_vm_that_replaced_it_meanwhile_is_not_deleted() -> None:
    vm = unrecorded(vm_of("one", "own"), **{names.MACHINE_TYPE_LABEL: "worker"})
    scope, harvester = scope_with(vm)
    forgotten: list[str] = []
    harvester.watch_namespace("vms").vms.forget = lambda _, name: forgotten.append(name)
    harvester.client = Client(refuses=False, vm={"metadata": {**vm["metadata"], "uid": "another"}})
    await deletion.delete_machine(scope)
    assert "one" not in harvester.client.deleted
    assert forgotten == ["one"]


async def test_a_vm_with_the_mark_of_the_go_provider_that_replaced_the_machines_is_kept() -> None:
    vm = unrecorded(vm_of("one", "restored"), **{names.MACHINE_TYPE_LABEL: "worker"})
    scope, harvester = scope_with(vm, known="before")
    await deletion.delete_machine(scope)
    assert harvester.client.deleted == []
    scope, harvester = scope_with(vm)
    harvester.watch_namespace("vms").vms.observe_deletion = lambda *_: False
    with pytest.raises(Blocked, match="waiting for VirtualMachine one"):
        await deletion.delete_machine(scope)
    assert harvester.client.deleted == ["one"]
