"""A machine with a VM keeps its address: whatever a pool has lost is reserved again, and nothing else is written.

One without a VM follows its pools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY

from caphv.api.ippool import mark_name
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner
from caphv.runtime.errors import ApiError, Conflict, Forbidden, RequestError, ServerFault, Unauthorized, Unreachable
from caphv.runtime.queue import WorkQueue
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.harvester import addressplan
from reconciler.machine.addresses.entries import release_addresses
from reconciler.machine.addresses.pool import ensure_address, restore_address
from reconciler.machine.addresses.state import report_addresses
from reconciler.machine.network import StaticAddress
from reconciler.machine.scope import MachineScope
from reconciler.memory.machine import MachineMemory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics, Watched
from tests.support.ippools import pool

pytestmark = pytest.mark.unit

ADDRESS, ID = "10.0.0.12", "team/one"
OTHER = {"subnet": "10.9.0.0/24"}
ALLOCATED = ConditionType.VM_IP_ALLOCATED


class Machine:
    """A machine with a VM and address `ADDRESS` of pool `p`, and the pools that its session has cached."""

    def __init__(self, *pools: Obj, configured: tuple[str, ...] = ("p",), error: Exception | None = None) -> None:
        self.pools = {obj["metadata"]["name"]: obj for obj in pools}
        self.configured, self.error = configured, error
        self.requeue_after: float | None = None
        self.requests: list[addressplan.AddressRequest] = []
        self.events: list[tuple[str, str]] = []
        self.memory = MachineMemory("u")
        self.queue: WorkQueue[Key] = WorkQueue("test")
        self.topics = Topics()
        condition = {"type": "VMIPAllocated", "status": "True"}
        status = {"allocatedIPAddress": ADDRESS, "allocatedPoolRef": "p", "conditions": [condition]}
        self.obj: Obj = {"metadata": {"namespace": "team", "name": "one"}, "status": status}

    def reconcile(self, requeue_after: float | None = None) -> StatusDraft:
        """Restore the address; return the draft of the status, which the next reconcile finds written.

        `requeue_after` are the seconds that an earlier step asked for.
        """
        draft = StatusDraft(self.obj)
        scope = self._scope(draft)
        scope.requeue_after = requeue_after
        report_addresses(scope, [asyncio.run(restore_address(scope))])
        self.requeue_after = scope.requeue_after
        self.obj = {**self.obj, "status": draft.fields}
        return draft

    def requeued_by(self, topic: Hashable) -> bool:
        self.topics.notify(topic)
        return len(self.queue) == 1

    def _scope(self, draft: StatusDraft) -> MachineScope:
        cached = SimpleNamespace(get=lambda _namespace, name: self.pools.get(name), store=list(self.pools.values()))
        allocator = SimpleNamespace(allocate=self._allocate)
        scope = SimpleNamespace(
            obj=self.obj,
            requeue_after=None,
            memory=self.memory,
            spec={},
            cluster_spec={"vmNetworkConfig": {"ipPoolRefs": list(self.configured)}},
            draft=draft,
            reservation=ID,
            owner=Owner("HarvesterMachine", "team", "one", "u", "management"),
            session=lambda: SimpleNamespace(fingerprint="harvester", pools=cached, allocator=allocator),
            subscribe=lambda *topics: self.topics.subscribe(self.queue, Key("team", "one"), *topics),
            event=lambda reason, _message: self.events.append(("Normal", reason)),
            warning_event=lambda reason, _message: self.events.append(("Warning", reason)),
        )
        scope.requeue_in = partial(MachineScope.requeue_in, cast(MachineScope, scope))
        return cast(MachineScope, scope)

    async def _allocate(self, request: addressplan.AddressRequest) -> Any:
        self.requests.append(request)
        if self.error:
            raise self.error
        plan = addressplan.plan_allocations(self.pools, [request])
        return plan.grants.get(ID) or plan.refusals[ID]


def marked(obj: Obj, cluster: str) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "annotations": {mark_name(ADDRESS): cluster}}}


def test_reserved_address_costs_nothing() -> None:
    machine = Machine(pool(allocated={ADDRESS: ID}))
    assert machine.reconcile().patch() is None
    assert (machine.requests, machine.events) == ([], [])


@pytest.mark.parametrize("configured", [("p",), ("q", "p"), ("q",)])
def test_lost_entry_is_reserved_again_where_it_was(configured: tuple[str, ...]) -> None:
    machine = Machine(pool(), pool("q", OTHER), configured=configured)
    assert machine.reconcile().is_true(ALLOCATED)
    assert [(request.id, request.pools, request.address) for request in machine.requests] == [(ID, ("p",), ADDRESS)]
    assert machine.events == [("Normal", "AddressReservedAgain")]
    assert not machine.requeued_by(triggers.pool("harvester", "p"))


@pytest.mark.parametrize(
    "lost",
    [
        pytest.param(pool(allocated={ADDRESS: "another/owner"}), id="another holder"),
        pytest.param(marked(pool(allocated={ADDRESS: ID}), "other"), id="of another management cluster"),
        pytest.param(Forbidden(403, "Forbidden", "may not patch"), id="forbidden"),
        pytest.param(ServerFault(500, "InternalError", "failed calling webhook"), id="no webhook"),
        pytest.param(Conflict(409, "Conflict", "modified concurrently"), id="conflicts"),
        pytest.param(Unreachable("Harvester does not answer in time"), id="time-out"),
    ],
)
def test_what_cannot_be_reserved_is_reported_once_until_the_pool_changes(lost: Obj | Exception) -> None:
    error = lost if isinstance(lost, Exception) else None
    machine = Machine(pool() if isinstance(lost, Exception) else lost, error=error)
    draft = machine.reconcile()
    assert not draft.is_true(ALLOCATED)
    assert draft.fields["allocatedIPAddress"] == ADDRESS
    assert machine.requeued_by(triggers.pool("harvester", "p"))
    assert bool(machine.requeue_after) == bool(error), "an error may end without a change of the pool"
    if isinstance(error, ApiError):
        machine.error = type(error)(error.status, error.reason, "the same in other words")
    machine.reconcile()
    assert machine.events == [("Warning", "VMIPAllocationFailed")]
    machine.pools["p"] = pool(allocated={ADDRESS: ID})
    assert machine.reconcile().is_true(ALLOCATED)


def test_rejected_credentials_are_no_failure_of_the_pool() -> None:
    with pytest.raises(Unauthorized):
        Machine(pool(), error=Unauthorized(401, "Unauthorized", "expired")).reconcile()


def test_address_outside_of_all_ranges_stays_as_it_is() -> None:
    machine = Machine(pool("p", OTHER), {**pool("broken"), "spec": {"ranges": [{"subnet": "x"}]}})
    machine.configured = ("p", "broken")
    assert machine.reconcile().patch() is None
    assert (machine.requests, machine.events) == ([], [])
    assert not machine.requeued_by(triggers.pool("harvester", "p"))


def test_recreated_pool_gets_the_entry_again() -> None:
    machine = Machine()
    assert machine.reconcile().patch() is None
    assert machine.requests == []
    assert machine.requeued_by(triggers.pool("harvester", "p"))
    machine.pools["p"] = pool()
    machine.reconcile()
    assert [request.address for request in machine.requests] == [ADDRESS]


def test_machine_that_waited_for_an_address_when_its_vm_was_adopted_does_not_any_more() -> None:
    machine = Machine(pool())
    machine.obj["status"] = {"conditions": [{"type": "VMIPAllocated", "status": "False"}]}
    assert not machine.reconcile().has(ALLOCATED)
    assert machine.requests == []


# A machine without a VM


class New(Machine):
    """A machine whose VM Harvester has refused after it had reserved `ADDRESS` in pool `p`."""

    def __init__(self, *pools: Obj, **more: Any) -> None:
        super().__init__(*pools, **more)
        self.current = True
        self.namesakes: list[Obj] | ApiError = []
        self.vm: Obj | None = None
        self.static: StaticAddress | None = None

    def reconcile(self) -> StatusDraft:
        draft = StatusDraft(self.obj)
        scope = self._scope(draft)
        try:
            network = asyncio.run(ensure_address(scope))
            assert isinstance(network, StaticAddress)
            self.static = network
        finally:
            self.obj = {**self.obj, "status": draft.fields}
        return draft

    def holders(self) -> dict[str, dict[str, str]]:
        return {name: obj["status"]["allocated"] for name, obj in self.pools.items()}

    def _scope(self, draft: StatusDraft) -> MachineScope:
        scope = super()._scope(draft)
        session = scope.session()
        session.allocator.release = self._release
        session.client = SimpleNamespace(list=self._vms_of_that_name)
        session.allocator.settle = self._settled
        scope.name, scope.target_namespace = "one", "vms"
        namespace = {"subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
        scope.cluster_spec["vmNetworkConfig"] |= namespace
        scope.session = lambda: session  # type: ignore[method-assign]
        scope.require_current_namespace = self._current_namespace  # type: ignore[method-assign]
        scope.live_vm = self._live_vm  # type: ignore[method-assign]
        return scope

    def _current_namespace(self) -> Any:
        if not self.current:
            raise Blocked(ConditionType.VM_PROVISIONING_READY, "r", "the watch is not connected", Watched.CONNECTION)

    async def _live_vm(self) -> Obj | None:
        return self.vm

    def delete(self) -> None:
        """Release what the deleted machine holds."""
        asyncio.run(release_addresses(self._scope(StatusDraft(self.obj)), foreign_vm=False))

    async def _settled(self, _ids: set[str]) -> None:
        pass

    async def _vms_of_that_name(self, *_: Any, **_more: Any) -> Obj:
        if isinstance(self.namesakes, ApiError):
            raise self.namesakes
        return {"items": self.namesakes}

    async def _allocate(self, request: addressplan.AddressRequest) -> Any:
        answer = await super()._allocate(request)
        if isinstance(answer, addressplan.Grant):
            self.pools[answer.pool]["status"]["allocated"][answer.address] = request.id
        return answer

    async def _release(self, name: str, address: str, holder: str, _cluster: str) -> bool:
        assert self.pools[name]["status"]["allocated"].pop(address) == holder
        return True


def test_machine_without_a_vm_follows_a_change_of_its_pools() -> None:
    machine = New(pool(allocated={ADDRESS: ID, "10.0.0.13": "team/two"}), pool("q", OTHER), configured=("q",))
    draft = machine.reconcile()
    assert machine.holders() == {"p": {"10.0.0.13": "team/two"}, "q": {"10.9.0.2": ID}}
    assert (draft.fields["allocatedIPAddress"], draft.fields["allocatedPoolRef"]) == ("10.9.0.2", "q")
    assert machine.static is not None
    assert machine.static.address == "10.9.0.2"


def test_machine_without_a_vm_gets_another_address_if_another_one_holds_its_own() -> None:
    machine = New(pool(allocated={ADDRESS: "another/owner"}))
    machine.reconcile()
    assert machine.holders() == {"p": {ADDRESS: "another/owner", "10.0.0.10": ID}}


def test_machine_without_a_vm_keeps_an_address_that_its_pools_serve() -> None:
    machine = New(pool(), pool("q", OTHER), configured=("q", "p"))
    machine.reconcile()
    assert machine.holders() == {"p": {ADDRESS: ID}, "q": {}}


@pytest.mark.parametrize(
    "error",
    [
        Forbidden(403, "Forbidden", "may not patch"),
        Conflict(409, "Conflict", "modified concurrently"),
        Unreachable("Harvester does not answer in time"),
    ],
)
def test_write_that_fails_is_counted(error: RequestError) -> None:
    counters = ("caphv_ippool_allocations_total", "caphv_ippool_allocation_errors_total")
    before = [REGISTRY.get_sample_value(name) or 0 for name in counters]
    with pytest.raises(type(error)):
        New(pool(), error=error).reconcile()
    assert [REGISTRY.get_sample_value(name) for name in counters] == [count + 1 for count in before]


def test_machine_whose_new_pool_does_not_exist_keeps_what_it_has() -> None:
    machine = New(pool(allocated={ADDRESS: ID}), configured=("q",))
    with pytest.raises(Blocked, match="IPPool q does not exist"):
        machine.reconcile()
    assert machine.holders() == {"p": {ADDRESS: ID}}


@pytest.mark.parametrize("unknown", ["watch", "creation"])
def test_address_is_not_released_while_a_vm_may_exist(unknown: str) -> None:
    machine = New(pool(allocated={ADDRESS: ID}), pool("q", OTHER), configured=("q",))
    machine.current = unknown != "watch"
    machine.vm = {"metadata": {"name": "one"}} if unknown == "creation" else None
    with pytest.raises((Blocked, Conflict)):
        machine.reconcile()
    assert machine.holders() == {"p": {ADDRESS: ID}, "q": {}}


def namesake(**annotations: str) -> Obj:
    return {"metadata": {"name": "one", "namespace": "elsewhere", "annotations": annotations}}


@pytest.mark.parametrize(
    ("namesakes", "released"),
    [
        ([], True),
        ([namesake()], False),
        ([namesake(**{"caphv.io/owner": "HarvesterMachine/team/one"})], False),
        ([namesake(**{"caphv.io/owner": "HarvesterMachine/another/one"})], True),
        (Forbidden(403, "Forbidden", "cannot list virtualmachines"), False),
    ],
    ids=["none", "of the Go provider", "of another management cluster", "of another machine", "may not be listed"],
)
def test_unmarked_address_that_another_vm_may_use_is_not_released(
    namesakes: list[Obj] | ApiError, released: bool
) -> None:
    machine = New(pool(allocated={"10.0.0.13": ID}))
    machine.namesakes = namesakes
    machine.delete()
    assert (machine.holders() == {"p": {}}) is released


def test_an_earlier_check_that_another_step_asked_for_stays() -> None:
    machine = Machine(pool(), error=Forbidden(403, "Forbidden", "may not patch"))
    machine.reconcile(requeue_after=1.0)
    assert machine.requeue_after == 1.0
