"""Two management clusters between which clusters move, in memory: each step of a move is noted, and can fail."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from typing import Any

import pytest

from caphv.api.object import Resource
from caphv.api.objectid import id_of
from operations.backup import adoption, dryrun, movedobjects, preflight, reading, writing
from operations.backup.adoption import VirtualMachines, VirtualMachineState
from operations.backup.dryrun import DryRun
from operations.backup.files import Backup, Origin
from operations.backup.writing import Restore
from operations.change import move as protocol
from tests.support.backup import whole_cluster


@dataclass
class Sides:
    """Both management clusters. `failures` are raised by the steps of these names, one for each call from the pause."""

    failures: dict[str, list[BaseException]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    vms: list[VirtualMachines] = field(default_factory=lambda: [VirtualMachines()])
    """What each read of Harvester returns, the last one again and again."""

    async def step(self, name: str) -> None:
        self.steps.append(name)
        if "pause" in self.steps and (left := self.failures.get(name)):
            error = left.pop(0)
            if isinstance(error, KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)  # cancels the main task
                await asyncio.sleep(60)
            raise error


def replace_steps(monkeypatch: pytest.MonkeyPatch) -> Sides:
    """Replace what a move asks and writes, and return what stands for both sides."""
    both = Sides()
    objects = {id_of(obj): obj for obj in whole_cluster()}
    backup = Backup(Origin("b", "", "https://source", "source"), ("team/shop",), objects)
    kinds = {("cluster.x-k8s.io", "Cluster"): Resource("cluster.x-k8s.io", "v1beta2", "clusters", "Cluster")}

    def answer(name: str, value: Any) -> Any:
        async def called(*_: object) -> Any:
            await both.step(name)
            return value

        return called

    async def read_vms(*_: object) -> VirtualMachines:
        await both.step("vms")
        return both.vms.pop(0) if len(both.vms) > 1 else both.vms[0]

    monkeypatch.setattr(protocol, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(protocol, "_PAUSE_SECONDS", 10.0)
    monkeypatch.setattr(reading, "read_backup", answer("read", backup))
    monkeypatch.setattr(writing, "prepare", answer("prepare", Restore(backup, "https://target", "target", kinds)))
    for name in ("create", "verify", "unpause"):
        monkeypatch.setattr(writing, name, answer(name, []))
    monkeypatch.setattr(movedobjects, "pause", answer("pause", None))
    monkeypatch.setattr(movedobjects, "unpaused_objects", lambda _: [])
    monkeypatch.setattr(movedobjects, "uncopied_objects", lambda _: [])
    monkeypatch.setattr(movedobjects, "delete_source", answer("delete", []))
    monkeypatch.setattr(adoption, "read_vms", read_vms)
    monkeypatch.setattr(preflight, "checks", lambda *_: [])
    monkeypatch.setattr(dryrun, "try_creation", answer("try", DryRun()))
    return both


def vms(owner: str, uid: str = "vm", instance: str = "vmi") -> VirtualMachines:
    """The VM of one machine, as Harvester shows it."""
    return VirtualMachines({"team/cp-1": VirtualMachineState(owner, uid, instance)})
