"""Addresses of IPPools of single interfaces, next to the address of the machine."""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY

from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner
from caphv.runtime.errors import Conflict, Forbidden
from caphv.runtime.queue import WorkQueue
from reconciler.blocked import Blocked
from reconciler.harvester import addressplan
from reconciler.harvester.addressplan import ReleaseEntry, plan_releases
from reconciler.machine import create, ensurevm
from reconciler.machine.addresses.entries import release_addresses
from reconciler.machine.scope import MachineScope
from reconciler.memory.machine import MachineMemory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics, Watched

pytestmark = pytest.mark.unit

ID = "team/one"
ALLOCATED = ConditionType.VM_IP_ALLOCATED
NETWORKS = ["default/production", "default/storage"]


def pool(name: str, subnet: str = "10.1.0", first: int = 5, last: int = 9, **allocated: str) -> Obj:
    part = {"subnet": f"{subnet}.0/24", "rangeStart": f"{subnet}.{first}", "rangeEnd": f"{subnet}.{last}"}
    held = {f"{subnet}.{number.removeprefix('n')}": holder for number, holder in allocated.items()}
    return {
        "metadata": {"name": name, "resourceVersion": "7"},
        "spec": {"ranges": [part]},
        "status": {"allocated": held},
    }


def interface(*pools: str, network: str = "default/storage") -> Obj:
    listed = [{"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool", "name": name} for name in pools]
    return {"network": network, "addressesFromPools": listed}


class Machine:
    """A machine whose second interface has addresses of IPPools, and the pools on Harvester."""

    def __init__(self, *pools: Obj, interfaces: list[Obj] | None = None, own: str = "") -> None:
        self.pools = {obj["metadata"]["name"]: obj for obj in pools}
        self.spec: Obj = {"networks": NETWORKS, "networkInterfaces": interfaces or [interface("p")]}
        self.cluster_spec: Obj = {}
        if own:
            self.cluster_spec = {"vmNetworkConfig": {"ipPoolRef": own, "gateway": "10.0.0.1"}}
        self.obj: Obj = {"metadata": {"namespace": "team", "name": "one"}, "status": {}}
        self.memory = MachineMemory("u")
        self.events: list[str] = []
        self.vm: Obj | None = None
        self.others: set[str] = set()
        """Names of other HarvesterMachines."""
        self.unseen_vm: Obj | None = None
        """A VM that its watch has not delivered."""

    async def reconcile(self) -> Obj | None:
        """Ensure the VM, write the status, and return the patch of it."""
        draft = StatusDraft(self.obj)
        try:
            await ensurevm.ensure_vm(self._scope(draft))
        except Blocked as blocked:
            draft.set_false(blocked.condition, blocked.reason, blocked.message)
        patch = draft.patch()
        self.obj = {**self.obj, "status": copy.deepcopy(draft.fields)}
        for condition in self.obj["status"].get("conditions") or ():
            # A later transition would have another time.
            condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        return patch

    @property
    def condition(self) -> Obj:
        conditions = self.obj["status"].get("conditions") or []
        return next((obj for obj in conditions if obj["type"] == ALLOCATED), {})

    @property
    def recorded(self) -> list[str]:
        return [entry["address"] for entry in self.obj["status"].get("interfaceAddresses") or ()]

    def holders(self) -> dict[str, dict[str, str]]:
        return {name: obj["status"]["allocated"] for name, obj in self.pools.items()}

    def _scope(self, draft: StatusDraft) -> MachineScope:
        cached = SimpleNamespace(get=lambda _namespace, name: self.pools.get(name), store=list(self.pools.values()))
        allocator = SimpleNamespace(allocate=self._allocate, release=self._release, settle=self._settle)
        client = SimpleNamespace(list=self._no_vms, create=self._create)
        session = SimpleNamespace(fingerprint="h", pools=cached, allocator=allocator, client=client)
        vms = SimpleNamespace(get=lambda *_: self.vm, observe=lambda _vm: None)
        queue: WorkQueue[Key] = WorkQueue("test")
        machines = SimpleNamespace(get=lambda _namespace, name: {} if name in self.others else None)
        scope = SimpleNamespace(
            context=SimpleNamespace(caches=SimpleNamespace(harvester_machines=machines)),
            obj=self.obj,
            key=Key("team", "one"),
            name="one",
            target_namespace="vms",
            spec=self.spec,
            cluster_spec=self.cluster_spec,
            draft=draft,
            memory=self.memory,
            reservation=ID,
            owner=Owner("HarvesterMachine", "team", "one", "u", "management"),
            requeue_after=None,
            namespace=lambda: SimpleNamespace(vms=vms),
            require_current_namespace=lambda: SimpleNamespace(vms=vms),
            live_vm=self._live_vm,
            session=lambda: session,
            subscribe=lambda *topics: Topics().subscribe(queue, Key("team", "one"), *topics),
            event=lambda reason, _message: self.events.append(reason),
            warning_event=lambda reason, _message: self.events.append(reason),
        )
        scope.requeue_in = partial(MachineScope.requeue_in, cast(MachineScope, scope))
        return cast(MachineScope, scope)

    async def _allocate(self, request: addressplan.AddressRequest) -> Any:
        plan = addressplan.plan_allocations(self.pools, [request])
        answer = plan.grants.get(request.id) or plan.refusals[request.id]
        if isinstance(answer, addressplan.Grant):
            self.pools[answer.pool]["status"]["allocated"][answer.address] = request.id
        return answer

    async def _release(self, name: str, address: str, holder: str, cluster: str) -> bool:
        released = plan_releases(self.pools[name], [ReleaseEntry(address, holder, cluster)]).released
        for text in released:
            del self.pools[name]["status"]["allocated"][text]
        return bool(released)

    async def delete(self) -> None:
        await release_addresses(self._scope(StatusDraft(self.obj)), foreign_vm=False)

    async def _settle(self, _ids: set[str]) -> None:
        """The cached pools show every reservation."""

    async def _no_vms(self, *_: Any, **_more: Any) -> Obj:
        return {"items": []}

    async def _live_vm(self) -> Obj | None:
        return self.vm or self.unseen_vm

    async def _create(self, _resource: Any, _vm: Obj) -> Obj:
        self.vm = {"metadata": {"name": "one"}}
        return self.vm


@pytest.fixture(autouse=True)
def _other_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have only the steps run that concern addresses, and wait before the VM is created."""

    async def passes(*_: object, **_more: object) -> None:
        """Nothing is missing."""

    async def same(_scope: Any, vm: Obj) -> Obj:
        return vm

    async def refuse(*_: object) -> Obj:
        raise Blocked(ConditionType.INFRASTRUCTURE_READY, "r", "refused", Watched.SELF)

    for step in ("bootstrap_data", "ensure_secret", "offered_modes", "confirm_address_claims"):
        monkeypatch.setattr(create, step, passes)
    for step in ("require_inputs", "check_quota", "replace"):
        monkeypatch.setattr(create, step, lambda *_, **__: None)
    monkeypatch.setattr(ensurevm, "adopt_or_refuse", same)
    monkeypatch.setattr(ensurevm, "ensure_labels", same)
    monkeypatch.setattr(create, "_request_vm", refuse)


def running(machine: Machine) -> Machine:
    machine.vm = {"metadata": {"name": "one"}}
    return machine


async def test_two_lost_addresses_are_one_message_and_one_event() -> None:
    machine = Machine(pool("own", "10.0.0"), pool("p"), own="own")
    await machine.reconcile()
    running(machine)
    assert await machine.reconcile() is None
    machine.pools["own"]["status"]["allocated"] = {"10.0.0.5": "team/other"}
    machine.pools["p"]["status"]["allocated"] = {"10.1.0.5": "team/other"}
    await machine.reconcile()
    assert "address 10.0.0.5 of team/one is held by team/other" in machine.condition["message"]
    assert "address 10.1.0.5 of team/one.1-0 is held by team/other" in machine.condition["message"]
    assert [await machine.reconcile() for _ in range(3)] == [None] * 3
    assert machine.events == ["VMIPAllocationFailed"]

    machine.pools["own"]["status"]["allocated"] = {"10.0.0.5": ID}
    machine.pools["p"]["status"]["allocated"] = {"10.1.0.5": "team/one.1-0"}
    await machine.reconcile()
    assert machine.condition["status"] == "True"
    assert await machine.reconcile() is None


@pytest.mark.parametrize("own", ["", "own"])
@pytest.mark.parametrize("has_vm", [False, True])
async def test_missing_address_of_an_interface_leaves_the_status_as_it_is(own: str, has_vm: bool) -> None:
    machine = Machine(pool("own", "10.0.0"), pool("p", last=5, n5="team/other"), own=own)
    if has_vm:
        machine.pools["p"]["status"]["allocated"] = {}
        await machine.reconcile()
        running(machine)
        machine.pools["p"]["status"]["allocated"] = {"10.1.0.5": "team/other"}
    await machine.reconcile()
    assert machine.condition["status"] == "False"
    assert [await machine.reconcile() for _ in range(3)] == [None] * 3
    assert machine.holders()["own"] == ({"10.0.0.5": ID} if own else {})


# A machine without a VM


async def test_address_of_a_pool_that_the_settings_no_longer_name_is_given_up() -> None:
    machine = Machine(pool("own", "10.0.0"), pool("p"), pool("q", "10.2.0"), own="own")
    await machine.reconcile()
    assert machine.recorded == ["10.1.0.5"]
    machine.spec["networkInterfaces"] = [interface("q")]
    await machine.reconcile()
    assert machine.recorded == ["10.2.0.5"]
    assert machine.holders() == {"own": {"10.0.0.5": ID}, "p": {}, "q": {"10.2.0.5": "team/one.1-0"}}

    machine.spec["networkInterfaces"] = []
    await machine.reconcile()
    assert machine.recorded == []
    assert machine.holders() == {"own": {"10.0.0.5": ID}, "p": {}, "q": {}}


async def test_pools_that_change_places_leave_no_address_behind() -> None:
    machine = Machine(pool("p"), pool("q", "10.2.0"), interfaces=[interface("p", "q")])
    await machine.reconcile()
    machine.spec["networkInterfaces"] = [interface("q", "p")]
    await machine.reconcile()
    assert sorted(machine.recorded) == ["10.1.0.5", "10.2.0.5"]
    assert machine.holders() == {"p": {"10.1.0.5": "team/one.1-1"}, "q": {"10.2.0.5": "team/one.1-0"}}


@pytest.mark.parametrize("pools", [("p",), ("q",)], ids=["same pool", "another pool"])
async def test_restart_before_the_status_was_written_leaves_no_address_behind(pools: tuple[str]) -> None:
    machine = Machine(pool("p"), pool("q", "10.2.0"))
    await machine.reconcile()
    machine.obj["status"] = {}
    machine.spec["networkInterfaces"] = [interface(*pools)]
    await machine.reconcile()
    address = {"p": "10.1.0.5", "q": "10.2.0.5"}[pools[0]]
    assert machine.recorded == [address]
    assert machine.holders() == {"p": {}, "q": {}} | {pools[0]: {address: "team/one.1-0"}}


async def test_nothing_is_given_up_while_a_vm_may_exist() -> None:
    machine = Machine(pool("p"), pool("q", "10.2.0"))
    await machine.reconcile()
    machine.spec["networkInterfaces"] = [interface("q")]
    machine.unseen_vm = {"metadata": {"name": "one"}}
    with pytest.raises(Conflict):
        await machine.reconcile()
    assert machine.recorded == ["10.1.0.5"]
    assert machine.holders() == {"p": {"10.1.0.5": "team/one.1-0"}, "q": {}}


@pytest.mark.parametrize("is_written", [True, False])
async def test_address_outside_of_changed_ranges_is_replaced_before_the_vm_exists(is_written: bool) -> None:
    machine = Machine(pool("p"))
    await machine.reconcile()
    if not is_written:
        machine.obj["status"] = {}
    machine.pools["p"]["spec"] = pool("p", first=20, last=29)["spec"]
    await machine.reconcile()
    assert machine.recorded == ["10.1.0.20"]
    assert machine.holders() == {"p": {"10.1.0.20": "team/one.1-0"}}


async def test_invalid_ranges_are_named_and_release_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(pool("p"))
    await machine.reconcile()
    broken = {"ranges": [{"subnet": "10.1.0.0/240"}]}
    allocate = machine._allocate

    async def become_invalid(request: addressplan.AddressRequest) -> Any:
        answer = await allocate(request)
        machine.pools["p"]["spec"] = broken
        return answer

    # After the reservation, and before it.
    monkeypatch.setattr(machine, "_allocate", become_invalid)
    for _ in range(2):
        await machine.reconcile()
        assert "10.1.0.0/240" in machine.condition["message"]
        assert machine.recorded == ["10.1.0.5"]
    assert machine.holders() == {"p": {"10.1.0.5": "team/one.1-0"}}


async def test_two_entries_for_one_pool_never_share_an_address() -> None:
    """The check of the spec refuses them; this is the second line of defence."""
    machine = Machine(pool("p"), interfaces=[interface("p", "p")])
    for _ in range(2):
        await machine.reconcile()
        assert machine.recorded == ["10.1.0.5", "10.1.0.6"]
        assert machine.holders() == {"p": {"10.1.0.5": "team/one.1-0", "10.1.0.6": "team/one.1-1"}}


async def test_address_of_a_machine_whose_name_looks_like_an_interface_is_its_own() -> None:
    machine = Machine(pool("p", n9="team/one.1-0"))
    machine.others = {"one.1-0"}
    await machine.reconcile()
    assert "team/one.1-0 is the id of another HarvesterMachine" in machine.condition["message"]
    await machine.delete()
    assert machine.holders() == {"p": {"10.1.0.9": "team/one.1-0"}}
    machine.others = set()
    await machine.delete()
    assert machine.holders() == {"p": {}}


@pytest.mark.parametrize("own", ["", "own"])
async def test_condition_is_not_true_while_an_address_is_unknown(own: str) -> None:
    machine = Machine(pool("own", "10.0.0"), pool("p"), own=own)
    await machine.reconcile()
    running(machine)
    assert await machine.reconcile() is None
    missing = machine.pools.pop("p")
    assert await machine.reconcile() is None, "the status has the address"

    # As after `clusterctl move`, which takes no status along.
    machine.obj["status"] = {}
    await machine.reconcile()
    assert machine.condition == {}
    assert [await machine.reconcile() for _ in range(2)] == [None] * 2
    machine.pools["p"] = missing
    await machine.reconcile()
    assert (machine.recorded, machine.condition["status"]) == (["10.1.0.5"], "True")


async def test_write_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: object) -> None:
        raise Forbidden(403, "Forbidden", "may not patch")

    machine = Machine(pool("p"))
    monkeypatch.setattr(machine, "_allocate", refuses)
    failures = REGISTRY.get_sample_value("caphv_ippool_allocation_errors_total") or 0
    with pytest.raises(Forbidden):
        await machine.reconcile()
    assert REGISTRY.get_sample_value("caphv_ippool_allocation_errors_total") == failures + 1
