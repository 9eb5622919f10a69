"""The creation of a VM: what its machine remembers of an attempt without an answer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.object import Obj
from reconciler.machine import create
from reconciler.memory import MachineMemory

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
