"""The VM of a machine is created once."""

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.names import ConditionType
from caphv.api.object import Key
from reconciler.machine import create
from reconciler.memory import MachineMemory
from reconciler.status import Blocked
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
