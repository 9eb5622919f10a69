"""The creation of a VM: what its machine remembers of an attempt without an answer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj
from caphv.runtime.errors import Conflict, Forbidden, ServerFault, Unreachable
from reconciler.machine import create
from reconciler.memory import MachineMemory
from reconciler.status import Blocked
from reconciler.triggers import Watched

pytestmark = pytest.mark.unit


async def test_creation_that_was_cancelled_is_unconfirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_request: Any) -> Obj:
        return await asyncio.sleep(60, {})

    monkeypatch.setattr(create, "virtual_machine", lambda _inputs: {})
    client = SimpleNamespace(create=hang)
    scope: Any = SimpleNamespace(
        namespace=lambda: None,
        session=lambda: SimpleNamespace(client=client),
        target_namespace="vms",
        name="m0",
        memory=MachineMemory("uid"),
    )
    inputs: Any = None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await create._create(scope, inputs)
    assert scope.memory.creation_unconfirmed, "a deletion reads the VM from Harvester"


@pytest.mark.parametrize(
    ("error", "unconfirmed"),
    [
        (Unreachable("https://harvester: no answer"), True),
        (ServerFault(504, "Timeout", "the request did not complete"), True),
        (Conflict(409, "Conflict", "changed"), False),
        (Forbidden(403, "Forbidden", "cannot create"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_creation_without_an_answer_is_remembered(
    error: Exception, unconfirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a deletion would release the address, and leave a VM that Harvester created all the same."""

    async def fail(*_request: Any) -> Obj:
        raise error

    monkeypatch.setattr(create, "virtual_machine", lambda _inputs: {})
    monkeypatch.setattr(create, "_checked_inputs", lambda _scope: None)
    for name in ("ensure_address", "_bootstrap_data", "_ensure_secret"):
        monkeypatch.setattr(create, name, _nothing)
    monkeypatch.setattr(create, "check_quota", lambda _scope: None)
    scope = scope_of(SimpleNamespace(create=fail))
    with pytest.raises((type(error), Blocked)):
        await create.ensure_vm(scope)
    assert scope.memory.creation_unconfirmed is unconfirmed
    # A later attempt that fails in another way does not make the first one known.
    scope.memory.creation_unconfirmed = True
    with pytest.raises((type(error), Blocked)):
        await create.ensure_vm(scope)
    assert scope.memory.creation_unconfirmed


async def _nothing(*_arguments: Any) -> None:
    return None


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
        "draft": SimpleNamespace(is_true=lambda _condition: False),
        "memory": MachineMemory("uid"),
        "warning_event": lambda *_: None,
        "failed": lambda message, *_: Blocked(ConditionType.VM_PROVISIONING_READY, "r", message, Watched.SELF),
    }
    return SimpleNamespace(**{**values, **more})


@pytest.mark.parametrize("proof", ["providerID", "condition"])
async def test_vm_is_not_lost_while_the_watch_is_disconnected(proof: str) -> None:
    """A cache that lags behind lacks VMs that exist, and a lost VM is never created again."""

    def disconnected() -> None:
        raise Blocked(ConditionType.VM_PROVISIONING_READY, "Reading", "", Watched.CONNECTION, unknown=True)

    more: dict[str, Any] = {"spec": {"providerID": "harvester://uid"}}
    if proof == "condition":
        more = {"draft": SimpleNamespace(is_true=lambda condition: condition == ConditionType.MACHINE_CREATED)}
    with pytest.raises(Blocked) as unknown:
        await create.ensure_vm(scope_of(None, current_namespace=disconnected, **more))
    assert unknown.value.unknown
    with pytest.raises(Blocked) as lost:
        await create.ensure_vm(scope_of(None, current_namespace=lambda: None, **more))
    assert lost.value.reason == "MachineNotFound"
