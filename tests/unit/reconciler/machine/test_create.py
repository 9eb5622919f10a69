"""The VM of a machine is created once."""

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj
from reconciler.blocked import Blocked, Cause
from reconciler.machine import create, ensurevm
from reconciler.machine.addresses.state import AddressState
from reconciler.machine.network import StaticAddress
from reconciler.memory.machine import MachineMemory
from reconciler.triggers import Watched

pytestmark = pytest.mark.unit


def scope_of(client: Any, **more: Any) -> Any:
    """The scope of a machine whose VM is not in the cache."""
    vms = SimpleNamespace(get=lambda *_: None, observe=lambda _vm: None)
    values = {
        "namespace": lambda: SimpleNamespace(vms=vms),
        "session": lambda: SimpleNamespace(client=client),
        "target_namespace": "vms",
        "name": "m0",
        "key": Key("team", "m0"),
        "spec": {},
        "control_plane": False,
        "draft": SimpleNamespace(is_true=lambda _condition: False, set_true=lambda _condition: None),
        "memory": MachineMemory("uid"),
        "warning_event": lambda *_: None,
        "failed": lambda message, *_: Blocked(ConditionType.VM_PROVISIONING_READY, "r", message, Watched.SELF),
    }
    return SimpleNamespace(**{**values, **more})


@pytest.mark.parametrize("proof", ["providerID", "condition"])
async def test_vm_is_not_lost_while_the_watch_is_disconnected(proof: str) -> None:
    """A cache that lags behind lacks VMs that exist, and a lost VM is never created again."""

    def disconnected() -> None:
        raise Blocked(ConditionType.VM_PROVISIONING_READY, "Reading", "", Watched.CONNECTION, cause=Cause.UNKNOWN)

    async def absent() -> None:
        """Harvester has no VM."""

    more: dict[str, Any] = {"spec": {"providerID": "harvester://uid"}, "live_vm": absent}
    if proof == "condition":
        created = SimpleNamespace(is_true=lambda condition: condition == ConditionType.MACHINE_CREATED)
        more = {"draft": created, "live_vm": absent}
    with pytest.raises(Blocked) as unknown:
        await ensurevm.ensure_vm(scope_of(None, require_current_namespace=disconnected, **more))
    assert unknown.value.is_unknown
    with pytest.raises(Blocked) as lost:
        await ensurevm.ensure_vm(scope_of(None, require_current_namespace=lambda: None, **more))
    assert lost.value.reason == "MachineNotFound"
    assert lost.value.message.endswith("; delete the Machine, or have a MachineHealthCheck replace it")


async def test_lost_vm_with_the_only_etcd_is_not_to_be_replaced() -> None:
    async def absent() -> None:
        """Harvester has no VM."""

    lost = scope_of(
        None, control_plane=True, spec={"providerID": "x"}, live_vm=absent, require_current_namespace=lambda: None
    )
    with pytest.raises(Blocked, match=r"if other machines have its etcd, delete the Machine.*; otherwise restore"):
        await ensurevm.ensure_vm(lost)


async def test_vm_that_its_watch_has_not_delivered_yet_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    vm = {"metadata": {"name": "m0", "uid": "uid"}}

    async def live() -> Obj:
        return vm

    async def same(_scope: Any, vm: Obj) -> Obj:
        return vm

    async def restored(_scope: Any) -> AddressState:
        """Its address is in its pool."""
        return AddressState()

    monkeypatch.setattr(ensurevm, "adopt_or_refuse", same)
    monkeypatch.setattr(ensurevm, "ensure_labels", same)
    monkeypatch.setattr(ensurevm, "restore_address", restored)
    monkeypatch.setattr(ensurevm, "restore_pool_addresses", restored)
    spec = {"providerID": "harvester://uid"}
    scope = scope_of(None, require_current_namespace=lambda: None, spec=spec, live_vm=live)
    assert await ensurevm.ensure_vm(scope) == vm


async def test_machine_that_waits_for_bootstrap_data_reserves_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = []

    async def reserve(scope: Any) -> StaticAddress:
        reserved.append(scope.name)
        return StaticAddress("10.0.0.1", mask="255.255.255.0", gateway="10.0.0.254")

    monkeypatch.setattr(create, "require_inputs", lambda _scope: None)
    monkeypatch.setattr(create, "check_quota", lambda _scope: None)
    monkeypatch.setattr(create, "ensure_address", reserve)
    with pytest.raises(Blocked, match="waiting for the bootstrap provider"):
        await ensurevm.ensure_vm(scope_of(None, machine={"spec": {"bootstrap": {}}}))
    assert reserved == []


async def test_vm_of_claims_that_the_server_lacks_is_not_created(monkeypatch: pytest.MonkeyPatch) -> None:
    async def passes(*_: object) -> list[object]:
        return []

    async def lost(*_: object) -> None:
        raise Blocked(ConditionType.VM_IP_ALLOCATED, Reason.VM_IP_CLAIM_PENDING, "was deleted", Watched.SELF)

    reserving = ("ensure_address_claims", "ensure_address", "ensure_pool_addresses")
    for step in ("bootstrap_data", *reserving, "ensure_secret", "offered_modes"):
        monkeypatch.setattr(create, step, passes)
    for step in ("require_inputs", "check_quota", "replace"):
        monkeypatch.setattr(create, step, lambda *_, **__: None)
    monkeypatch.setattr(create, "confirm_address_claims", lost)
    # A request would fail, because the scope has no client.
    with pytest.raises(Blocked, match="was deleted"):
        await ensurevm.ensure_vm(scope_of(None))
