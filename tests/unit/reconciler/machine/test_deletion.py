"""A deletion concludes nothing from an old state, and leaves what belongs to others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api import names
from caphv.api.conditions import rfc3339
from caphv.api.object import Obj, key_of
from caphv.api.ownership import Owner, record
from caphv.runtime.errors import NotFound, RequestError, Unauthorized, Unreachable
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.machine import deletion
from reconciler.machine.addresses import ipamclaims
from reconciler.machine.addresses.entries import release_addresses
from reconciler.memory import periods
from reconciler.triggers import Subscription
from tests.support.reconciler.machinedeletion import OWN, Client, pool, scope_of, vm_of

pytestmark = pytest.mark.unit


async def test_absence_in_a_cache_that_is_not_connected_releases_nothing() -> None:
    scope, harvester = scope_of(current=False, pool=pool("10.0.0.1", "manageme"))
    with pytest.raises(Blocked) as blocked:
        await deletion.delete_machine(scope)
    assert blocked.value.is_unknown
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
        await release_addresses(scope, foreign_vm=True)
        assert harvester.allocator.released == released


async def test_address_whose_reservation_got_no_answer_is_released() -> None:
    scope, harvester = scope_of()
    harvester.allocator.late = [pool("10.0.0.1", "manageme")]
    await release_addresses(scope, foreign_vm=False)
    assert harvester.allocator.released == ["10.0.0.1"]


async def test_force_delete_works_without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock(monkeypatch)
    scope, _ = scope_of(session=False, annotations={"caphv.io/force-delete": "true"})
    with pytest.raises(Blocked, match="waiting for the HarvesterCluster to connect"):
        await deletion.delete_machine(scope)
    scope.context.memory.cluster(scope.harvester_cluster).connection_error = "another Harvester"
    now.seconds += periods.FORCE_DELETE_SECONDS
    await deletion.delete_machine(scope)


FORCED = {"caphv.io/force-delete": "true"}


def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, which passes only in the test."""
    now = SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr(periods, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


@pytest.mark.parametrize("error", [Unreachable("reset"), Unauthorized(401, "", "expired")], ids=["reset", "401"])
async def test_interruption_abandons_nothing(monkeypatch: pytest.MonkeyPatch, error: RequestError) -> None:
    """`caphv delete --force` sets the annotation while Harvester answers, and guests take a while to stop."""
    now = clock(monkeypatch)
    scope, harvester = scope_of(annotations=FORCED, pool=pool("10.0.0.1", "manageme"))
    events: list[Any] = []
    scope.context.event = lambda *about: events.append(about)
    harvester.is_unauthorized = isinstance(error, Unauthorized)
    harvester.client = Client(refuses=False)

    for _ in range(3):
        harvester.error = error
        with pytest.raises(Blocked, match="; force-deleting the machine if that lasts 60 s") as blocked:
            await deletion.delete_machine(scope)
        assert blocked.value.requeue_after == 60
        now.seconds += 59
        with pytest.raises(Blocked) as blocked:
            await deletion.delete_machine(scope)
        assert (blocked.value.requeue_after, blocked.value.warn) == (1, False)
        # A reconcile that finds Harvester answering begins the wait again.
        harvester.error = None
        scope.namespace().instances = Instances({"metadata": {"name": "one"}})
        with pytest.raises(Blocked, match="to stop"):
            await deletion.delete_machine(scope)
        now.seconds += 10
    assert (events, harvester.allocator.released) == ([], [])


async def test_outage_that_lasted_before_the_annotation_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = clock(monkeypatch)
    scope, harvester = scope_of()
    harvester.error, harvester.is_unauthorized = Unreachable("no route"), False
    with pytest.raises(Blocked, match=r'caphv\.io/force-delete: "true"'):
        await deletion.delete_machine(scope)
    now.seconds += 60
    scope.obj["metadata"]["annotations"] = FORCED
    await deletion.delete_machine(scope)


async def test_machine_that_lost_its_cluster_is_forced_at_once() -> None:
    scope, _ = scope_of(annotations=FORCED)
    scope.harvester_cluster = None
    await deletion.delete_machine(scope)


async def test_machine_of_an_account_that_may_not_read_waits_until_a_user_force_deletes_it() -> None:
    scope, harvester = scope_of(current=False, refusal="cannot watch virtualmachines", pool=pool("10.0.0.1", "m"))
    with pytest.raises(
        Blocked, match=r'cannot watch.*--target-namespace vms.*caphv\.io/force-delete: "true"'
    ) as blocked:
        await deletion.delete_machine(scope)
    assert (blocked.value.reason, blocked.value.is_unknown) == ("TargetNamespaceNotReady", False)
    scope.context.topics.notify(("caches", "harvester"))
    assert len(scope.context.queues.machines) == 1
    scope.obj["metadata"]["annotations"] = FORCED
    await deletion.delete_machine(scope)
    assert harvester.allocator.released == []


async def test_event_of_a_force_deletion_names_addresses_that_others_can_get(monkeypatch: pytest.MonkeyPatch) -> None:
    async def messages(addresses: list[str], *pools: str) -> str:
        scope, _ = scope_of(session=False, annotations=FORCED)
        scope.context.memory.cluster(scope.harvester_cluster).connection_error = "down"
        now = clock(monkeypatch)
        scope.memory.deletion.outage.begin()
        now.seconds += periods.FORCE_DELETE_SECONDS
        scope.context.ipam = SimpleNamespace(claims=None, addresses=None)
        entries = [{"type": kind, "address": text} for text in addresses for kind in ("InternalIP", "ExternalIP")]
        scope.draft.fields["addresses"] = entries
        named = [{"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": name} for name in pools]
        scope.spec["networks"] = ["a"]
        scope.spec["networkInterfaces"] = [{"network": "a", "addressesFromPools": named}] if named else []
        events: list[str] = []
        scope.context.event = lambda *about: events.append(about[-1])
        await deletion.delete_machine(scope)
        (message,) = events
        return message

    both = "addresses that others can get from InClusterIPPool v4 and InClusterIPPool v6 (10.0.0.5, fd00::5);"
    assert both in await messages(["10.0.0.5", "fd00::5"], "v4", "v6")
    assert "InClusterIPPool v4 (none known);" in await messages([], "v4")
    assert "addresses" not in await messages(["10.0.0.5"])
    # What the pools gave is more certain than what the guest reports.
    monkeypatch.setattr(ipamclaims, "known_addresses", lambda _: ["10.0.0.6"])
    assert "InClusterIPPool v4 (10.0.0.6);" in await messages(["10.0.0.5"], "v4")


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
    scope.namespace().vms.observe_deletion = lambda *_: False
    with pytest.raises(Blocked, match="waiting for VirtualMachine one on Harvester to be deleted"):
        await deletion.delete_machine(scope)
    assert (client.deleted, harvester.allocator.released) == (["one"], [])
    assert scope.memory.deletion.vm_owner == OWN


def of_deleted_cluster(elapsed: float) -> tuple[Any, Client]:
    """A scope whose Cluster was deleted this many seconds ago, with a VM."""
    scope, harvester = scope_of(pool=pool("10.0.0.1", "manageme"))
    client = harvester.client = Client(refuses=False, vm=vm_of("one"))
    scope.namespace().vms.observe = lambda _: None
    scope.namespace().vms.observe_deletion = lambda *_: False
    requested = rfc3339(datetime.now(UTC) - timedelta(seconds=elapsed))
    scope.cluster["metadata"]["deletionTimestamp"] = requested
    return scope, client


async def test_vm_stays_until_the_deleted_cluster_has_recorded_what_its_guest_created() -> None:
    scope, client = of_deleted_cluster(10)
    with pytest.raises(Blocked, match="what its guest created") as blocked:
        await deletion.delete_machine(scope)
    assert client.deleted == []
    assert 0 < (blocked.value.requeue_after or 0) <= 80

    scope.context.memory.cluster(scope.harvester_cluster).volumes.recorded = True
    scope.context.topics.notify(triggers.guest_parts(key_of(scope.harvester_cluster)))
    assert len(scope.context.queues.machines) == 1
    with pytest.raises(Blocked, match="to be deleted"):
        await deletion.delete_machine(scope)
    assert client.deleted == ["one"]


@pytest.mark.parametrize("paused", [False, True])
async def test_cluster_that_records_nothing_does_not_keep_its_vms(paused: bool) -> None:
    scope, client = of_deleted_cluster(10 if paused else 100)
    if paused:
        scope.harvester_cluster["metadata"]["annotations"] = {names.PAUSED_ANNOTATION: ""}
    with pytest.raises(Blocked, match="to be deleted"):
        await deletion.delete_machine(scope)
    assert client.deleted == ["one"]


async def test_vm_that_was_deleted_here_is_not_read_again() -> None:
    scope, harvester = scope_of(pool=pool("10.0.0.1", "manageme"))
    harvester.client = Client(refuses=False)
    instances = scope.namespace().instances = Instances()
    scope.memory.deletion.vm_deletion_requested = True
    await deletion.delete_machine(scope)
    assert harvester.client.reads == ["Secret"]
    assert instances.reads == 0
    assert harvester.allocator.released == ["10.0.0.1"]


class Instances:
    """A cache that lags behind: Harvester has `instance`."""

    def __init__(self, instance: Obj | None = None) -> None:
        self._instance = instance
        self.reads = 0

    def get(self, *_: str) -> None:
        """Nothing is cached."""

    async def read(self, *key: str) -> Obj | None:
        assert key == ("vms", "one")
        self.reads += 1
        return self._instance


async def test_instance_that_is_in_no_cache_yet_keeps_the_address_of_a_vm_that_others_deleted() -> None:
    scope, harvester = scope_of(pool=pool("10.0.0.1", "manageme"))
    harvester.client = Client(refuses=False)
    scope.namespace().instances = Instances({"metadata": {"name": "one"}})
    with pytest.raises(Blocked, match="waiting for VirtualMachineInstance one on Harvester to stop"):
        await deletion.delete_machine(scope)
    assert harvester.allocator.released == []
    scope.namespace().instances = Instances()
    await deletion.delete_machine(scope)
    assert harvester.allocator.released == ["10.0.0.1"]


@pytest.mark.parametrize(
    ("recorded", "asked"),
    [("uid-one", False), ("uid-former", True), ("", False)],
    ids=["the machine's VM runs for another owner", "another VM has its name", "unknown"],
)
async def test_member_of_a_vm_that_runs_for_another_owner_stays(
    monkeypatch: pytest.MonkeyPatch, recorded: str, asked: bool
) -> None:
    """After a move or a restored backup, another management cluster has adopted the VM, whose guest is a member."""
    removals: list[str] = []

    async def remove(scope: Any) -> None:
        removals.append(scope.name)

    monkeypatch.setattr(deletion, "remove_etcd_member", remove)
    scope, harvester = scope_of(pool=pool("10.0.0.1", "another-"))
    vm = vm_of("one")
    vm["metadata"]["annotations"] = record(Owner("HarvesterMachine", "team", "one", "uid-there", "another-cluster"))
    harvester.client = Client(refuses=False)
    namespace = scope.namespace()
    namespace.vms = SimpleNamespace(get=lambda *_: vm, store=[vm])
    scope.draft.fields["virtualMachine"] = {"uid": recorded} if recorded else {}
    scope.draft.set_true(names.ConditionType.MACHINE_CREATED)
    events: list[tuple[str, str]] = []
    scope.context.event = lambda _resource, _obj, kind, reason, _message: events.append((kind, reason))
    await deletion.delete_machine(scope)
    assert bool(removals) is asked
    assert (harvester.client.deleted, harvester.allocator.released) == ([], [])
    assert events == ([] if asked else [("Normal", "VMKept")])


async def test_addresses_that_a_vm_of_another_owner_keeps_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its IPAddressClaims are deleted with the machine, and their pools may give the addresses to others."""
    vm = vm_of("one")
    vm["metadata"]["annotations"] = record(Owner("HarvesterMachine", "team", "one", "uid-there", "another-cluster"))
    scope, _ = scope_of()
    scope.namespace().vms = SimpleNamespace(get=lambda *_: vm, store=[vm])
    scope.draft.fields["virtualMachine"] = {"uid": "uid-one"}
    scope.draft.set_true(names.ConditionType.MACHINE_CREATED)
    monkeypatch.setattr(deletion, "describe_released", lambda _: "InClusterIPPool v4 (10.0.0.5)")
    events: list[tuple[str, ...]] = []
    scope.context.event = lambda _resource, _obj, *event: events.append(event)
    await deletion.delete_machine(scope)
    ((kind, reason, message),) = events
    assert (kind, reason) == ("Warning", "VMKept")
    assert message.endswith("others can get from InClusterIPPool v4 (10.0.0.5)")
