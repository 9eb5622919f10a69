"""A deletion concludes nothing from an old state, and leaves what belongs to others."""

from __future__ import annotations

import time
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.runtime.errors import Invalid, NotFound
from caphv.runtime.queue import WorkQueue
from reconciler.context import Context
from reconciler.harvester import slim
from reconciler.harvester.ownership import Owner, record
from reconciler.machine import deletion
from reconciler.machine.ipaddress import release_address
from reconciler.machine.scope import MachineScope
from reconciler.memory import Memory
from reconciler.status import Blocked, StatusDraft
from reconciler.triggers import Subscription, Topics
from sandbox.harvester import kinds

pytestmark = pytest.mark.unit

OWN = Owner("HarvesterMachine", "team", "one", "uid-one", "management-cluster")


def machine(**annotations: str) -> Obj:
    metadata = {"namespace": "team", "name": "one", "uid": OWN.uid, "annotations": annotations}
    return {"metadata": {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"providerID": "x"}}


class Allocator:
    """Records what is released. `late` is a pool of which the cache hears only when all writes are settled."""

    def __init__(self, store: list[Obj]) -> None:
        self.released: list[str] = []
        self.store = store
        self.late: list[Obj] = []

    async def settle(self, ids: Collection[str]) -> None:
        assert ids == {"team/one"}
        self.store.extend(self.late)

    async def release(self, _pool: str, address: str, *_holder: str) -> bool:
        self.released.append(address)
        return True


def scope_of(
    *, current: bool = True, session: bool = True, refusal: str = "", annotations: Obj | None = None, **pools: Obj
) -> Any:
    """A scope whose Harvester has these pools and no VM."""
    empty = SimpleNamespace(get=lambda *_: None, store=())
    namespace = SimpleNamespace(
        synced=True, current=current, sync_error="", vms=empty, instances=empty, claims=empty, load_balancers=empty
    )
    store = list(pools.values())
    harvester = SimpleNamespace(
        error=None,
        synced=True,
        sync_error="",
        server="https://harvester",
        fingerprint="harvester",
        pools=SimpleNamespace(current=True, store=store),
        watch_namespace=lambda _: namespace,
        refusal=lambda *_: refusal,
        allocator=Allocator(store),
    )
    sessions = SimpleNamespace(of=lambda _: harvester if session else None)
    queues = SimpleNamespace(machines=WorkQueue[Key]("test"))
    context = SimpleNamespace(
        belongs_to_another_tenant=lambda *_: False,
        sessions=sessions,
        topics=Topics(),
        memory=Memory(),
        queues=queues,
        event=lambda *_: None,
        owner=lambda *_: OWN,
    )
    obj = machine(**(annotations or {}))
    cluster = {"metadata": {"namespace": "team", "name": "cluster", "uid": "c"}, "spec": {"targetNamespace": "vms"}}
    scope = MachineScope(cast(Context, context), obj, None, cluster, cluster, StatusDraft(obj))
    return scope, harvester


def pool(address: str, cluster: str) -> Obj:
    annotations = {f"addresses.caphv.io/{address}": cluster} if cluster else {}
    return {"metadata": {"name": "pool", "annotations": annotations}, "status": {"allocated": {address: "team/one"}}}


async def test_absence_in_a_cache_that_is_not_connected_releases_nothing() -> None:
    scope, harvester = scope_of(current=False, pool=pool("10.0.0.1", "manageme"))
    with pytest.raises(Blocked) as blocked:
        await deletion.delete_machine(scope)
    assert blocked.value.unknown
    assert isinstance(blocked.value.triggers[0], Subscription)
    assert harvester.allocator.released == []


async def test_machine_waits_for_its_caches_without_a_timer() -> None:
    scope, _ = scope_of(current=False)
    with pytest.raises(Blocked) as blocked:
        await deletion.delete_machine(scope)
    assert blocked.value.requeue_after is None
    scope.context.topics.notify(("caches", "harvester"))
    assert len(scope.context.queues.machines) == 1


async def test_address_of_a_foreign_vm_is_released_only_with_our_mark() -> None:
    for mark, released in (("", []), ("another-", []), ("manageme", ["10.0.0.1"])):
        scope, harvester = scope_of(pool=pool("10.0.0.1", mark))
        scope.draft.fields["allocatedIPAddress"] = "10.0.0.1"
        await release_address(scope, foreign_vm=True)
        assert harvester.allocator.released == released


async def test_address_whose_reservation_got_no_answer_is_released() -> None:
    scope, harvester = scope_of()
    harvester.allocator.late = [pool("10.0.0.1", "manageme")]
    await release_address(scope, foreign_vm=False)
    assert harvester.allocator.released == ["10.0.0.1"]


async def test_force_delete_works_without_a_session() -> None:
    scope, _ = scope_of(session=False, annotations={"caphv.io/force-delete": "true"})
    with pytest.raises(Blocked, match="waiting for the HarvesterCluster to connect"):
        await deletion.delete_machine(scope)
    scope.context.memory.cluster(scope.harvester_cluster).connection_error = "another Harvester"
    await deletion.delete_machine(scope)


FORCED = {"caphv.io/force-delete": "true"}


async def test_machine_of_an_account_that_may_not_read_waits_until_a_user_force_deletes_it() -> None:
    scope, harvester = scope_of(current=False, refusal="cannot watch virtualmachines", pool=pool("10.0.0.1", "m"))
    with pytest.raises(
        Blocked, match=r'cannot watch.*--target-namespace vms.*caphv\.io/force-delete: "true"'
    ) as blocked:
        await deletion.delete_machine(scope)
    assert (blocked.value.reason, blocked.value.unknown) == ("TargetNamespaceNotReady", False)
    scope.context.topics.notify(("caches", "harvester"))
    assert len(scope.context.queues.machines) == 1
    scope.obj["metadata"]["annotations"] = FORCED
    await deletion.delete_machine(scope)
    assert harvester.allocator.released == []


async def test_force_delete_does_not_end_a_deletion_that_takes_time() -> None:
    scope, _ = scope_of(current=False, annotations=FORCED)
    with pytest.raises(Blocked, match="reading namespace vms"):
        await deletion.delete_machine(scope)


async def test_refusal_that_no_deletion_depends_on_skips_nothing() -> None:
    class Absent:
        async def get(self, *_: object) -> Obj:
            raise NotFound(404, "NotFound", "")

    scope, harvester = scope_of(refusal="cannot watch images", annotations=FORCED, pool=pool("10.0.0.1", "manageme"))
    harvester.client = Absent()
    await deletion.delete_machine(scope)
    assert harvester.allocator.released == ["10.0.0.1"]


async def test_blocked_deletion_names_the_annotation_that_ends_it() -> None:
    scope, _ = scope_of(session=False)
    scope.context.memory.cluster(scope.harvester_cluster).connection_error = "another Harvester"
    with pytest.raises(Blocked, match=r'caphv\.io/force-delete: "true"'):
        await deletion.delete_machine(scope)


async def test_vm_of_a_creation_without_a_response_is_deleted_after_a_restart() -> None:
    """No cache has it yet, and the process that created it has ended."""
    scope, harvester = scope_of(pool=pool("10.0.0.1", "manageme"))
    client = Client(refuses=False, vm=vm_of("one"))
    harvester.client = client
    scope.namespace().vms.observe = lambda _: None
    scope.namespace().vms.deleted = lambda *_: False
    with pytest.raises(Blocked, match="waiting for VirtualMachine one on Harvester to be deleted"):
        await deletion.delete_machine(scope)
    assert (client.deleted, harvester.allocator.released) == (["one"], [])


async def test_vm_that_was_deleted_here_is_not_read_again() -> None:
    scope, harvester = scope_of(pool=pool("10.0.0.1", "manageme"))
    harvester.client = Client(refuses=False)
    scope.memory.vm_deleted_at = 1.0
    await deletion.delete_machine(scope)
    assert harvester.client.reads == 0
    assert harvester.allocator.released == ["10.0.0.1"]


class Client:
    """Records requests; refuses updates of a VM as Harvester's webhook does."""

    def __init__(self, *, refuses: bool, vm: Obj | None = None) -> None:
        self.refuses = refuses
        self._vm = vm
        self.patches: list[Obj] = []
        self.deleted: list[str] = []
        self.reads = 0

    async def get(self, *_: Any) -> Obj:
        self.reads += 1
        if self._vm is None:
            raise NotFound(404, "NotFound", "")
        return self._vm

    async def patch(self, _resource: Any, _name: str, _namespace: str, patch: Obj) -> Obj:
        if self.refuses:
            raise Invalid(422, "Invalid", "the volume shared is already used by VM vms/two")
        self.patches.append(patch)
        return patch

    async def delete(self, resource: Any, name: str, _namespace: str, *, uid: str = "") -> Obj:
        assert uid or resource.kind == "Secret"
        self.deleted.append(name)
        return {}


def vm_of(name: str, *claims: str, deleted: bool = False, listed: str = "") -> Obj:
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    devices = {"disks": [{"name": each} for each in claims]}
    annotations = {**record(OWN), "harvesterhci.io/removedPersistentVolumeClaims": listed}
    metadata = {
        "namespace": "vms",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "annotations": annotations,
    }
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {"template": {"spec": {"volumes": volumes, "domain": {"devices": devices}}}},
    }


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
    scope.memory.vm_stopped_at = None if stopped_for is None else time.monotonic() - stopped_for
    namespace, client = harvester.watch_namespace("vms"), Client(refuses=refuses)
    harvester.client = client
    namespace.instances = SimpleNamespace(get=lambda *_: instance, store=())
    namespace.vms = SimpleNamespace(
        get=lambda *_: vms[0], store=vms, observe=lambda _: None, deleted=lambda *_: False, forget=lambda *_: None
    )
    with pytest.raises((Blocked, Invalid), match=says):
        await deletion.delete_machine(scope)
    return client


async def test_vm_of_which_harvester_refuses_updates_is_deleted() -> None:
    client = await deletion_of(vm_of("one", "shared", listed="photos"), vm_of("two", "shared"))
    (patch,) = client.patches
    assert patch == {"metadata": {"annotations": {"harvesterhci.io/removedPersistentVolumeClaims": ""}}}
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


# Another VM of the machine's name


def disk(name: str) -> Obj:
    return {"metadata": {"namespace": "vms", "name": name, "uid": f"uid-{name}", "annotations": record(OWN)}}


def scope_with(vm: Obj, *disks: Obj, known: str = "") -> tuple[Any, Any]:
    """A machine with address 10.0.0.1, whose status has this uid of its VM, and a VM of its name."""
    scope, harvester = scope_of(pool=pool("10.0.0.1", "manageme"))
    namespace = harvester.watch_namespace("vms")
    harvester.client = Client(refuses=False, vm=vm)
    namespace.vms = SimpleNamespace(get=lambda *_: vm, store=(vm,))
    namespace.claims = SimpleNamespace(
        store=disks, get=lambda _, name: name, deleted=lambda *_: False, forget=lambda *_: None
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
    harvester.watch_namespace("vms").vms.deleted = lambda *_: False
    with pytest.raises(Blocked, match="waiting for VirtualMachine one"):
        await deletion.delete_machine(scope)
    assert harvester.client.deleted == ["one"]
