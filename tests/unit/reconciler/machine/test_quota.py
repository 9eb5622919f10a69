"""VMs that a quota has halted: one that runs lets all others try, and one that fails to start delays only itself."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import names
from caphv.api.object import Obj
from caphv.runtime.errors import Forbidden
from reconciler.blocked import Blocked
from reconciler.machine.quota import record_running_vm, start_halted_vm, started_after_quota, vm_starting
from reconciler.machine.scope import MachineScope
from reconciler.memory.machine import MachineMemory
from reconciler.memory.quotas import QuotaGate

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]

WHY = "exceeded quota: tight"


class Harvester:
    """A target namespace. Its webhook refuses starts with `refuses`."""

    def __init__(self) -> None:
        self.refuses = False
        self.starts = 0
        self.quotas = QuotaGate()

    async def patch(self, *_: Any) -> Obj:
        if self.refuses:
            raise Forbidden(403, "Forbidden", WHY)
        self.starts += 1
        return {}

    def machines(self, number: int) -> list[Machine]:
        return [Machine(self, f"m{index}") for index in range(number)]


class Machine:
    """A new machine whose VM is halted whenever it is reconciled."""

    def __init__(self, harvester: Harvester, name: str) -> None:
        self.harvester, self.name = harvester, name
        self.memory = MachineMemory(name)
        self.events: list[str] = []
        annotations = {names.INSUFFICIENT_QUOTA_ANNOTATION: WHY}
        self.vm = {"metadata": {"resourceVersion": "1", "annotations": annotations}, "spec": {"runStrategy": "Halted"}}

    @property
    def scope(self) -> MachineScope:
        namespace = SimpleNamespace(vms=SimpleNamespace(observe=lambda _: None))
        scope = SimpleNamespace(
            name=self.name,
            target_namespace="vms",
            memory=self.memory,
            context=SimpleNamespace(memory=SimpleNamespace(quotas=self.harvester.quotas)),
            session=lambda: SimpleNamespace(fingerprint="harvester", client=self.harvester),
            namespace=lambda: namespace,
            event=lambda reason, _message: self.events.append(reason),
        )
        scope.failure = lambda *given, **warn: MachineScope.failure(cast(MachineScope, scope), *given, **warn)
        scope.in_progress = lambda *found: MachineScope.in_progress(cast(MachineScope, scope), *found)
        return cast(MachineScope, scope)

    async def reconcile(self) -> Blocked:
        try:
            await start_halted_vm(self.scope, self.vm)
            return vm_starting(self.scope)
        except Blocked as blocked:
            return blocked

    async def started_after(self) -> float:
        """Seconds until its VM is started, by the delays that it asks for."""
        began = asyncio.get_running_loop().time()
        for _ in range(100):
            delay = (await self.reconcile()).requeue_after
            if delay is None:
                break
            await asyncio.sleep(delay)
        return asyncio.get_running_loop().time() - began


async def test_failed_start_is_repeated_less_and_less_and_reported_once() -> None:
    (machine,) = Harvester().machines(1)
    assert [await machine.started_after() for _ in range(7)] == [0, 15, 30, 60, 120, 240, 240]
    assert machine.events == ["VMStarted"]
    assert not (await machine.reconcile()).warn


async def test_first_failed_start_is_a_warning() -> None:
    (machine,) = Harvester().machines(1)
    await machine.started_after()
    blocked = await machine.reconcile()
    assert blocked.warn
    assert blocked.reason == "QuotaExhausted"
    assert f"is used up: raise it, or delete VMs there; Harvester says: {WHY}" in blocked.message


async def test_all_start_soon_after_the_quota_was_raised() -> None:
    """Whatever they have tried before, and however long each would wait alone."""
    harvester = Harvester()
    machines = harvester.machines(20)
    for _ in range(6):
        await asyncio.gather(*(machine.started_after() for machine in machines))
    harvester.starts = 0
    seconds = await asyncio.gather(*(runs_after(machine) for machine in machines))
    assert harvester.starts == 20
    assert max(seconds) - min(seconds) <= 15, "the first one waits for its own turn, and the others follow"


async def runs_after(machine: Machine) -> float:
    """Seconds until the VM of a machine runs, now that the quota has room."""
    seconds = await machine.started_after()
    record_running_vm(machine.scope)
    return seconds


async def test_good_start_holds_up_no_other_machine() -> None:
    first, second = Harvester().machines(2)
    for _ in range(4):
        await first.started_after()
    record_running_vm(first.scope)
    assert first.memory.quota.starts == 0
    assert await second.started_after() == 0


async def test_while_the_webhook_refuses_one_machine_tries_every_15_s() -> None:
    harvester = Harvester()
    harvester.refuses = True
    machines = harvester.machines(5)
    delays = [(await machine.reconcile()).requeue_after for machine in machines]
    assert delays == [15.0] * 5
    harvester.refuses = False
    assert max(await asyncio.gather(*(machine.started_after() for machine in machines))) <= 30


async def test_vm_that_was_started_is_not_reported_as_stopped() -> None:
    (machine,) = Harvester().machines(1)
    always = {"spec": {"runStrategy": "Always"}}
    assert not started_after_quota(machine.scope, always)
    await machine.started_after()
    assert started_after_quota(machine.scope, always)
    assert not started_after_quota(machine.scope, {"spec": {"runStrategy": "Manual"}})
    record_running_vm(machine.scope)
    assert not started_after_quota(machine.scope, always)
