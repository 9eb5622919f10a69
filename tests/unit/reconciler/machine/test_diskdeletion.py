"""Disks that only a snapshot keeps do not delay the deletion of a machine."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from caphv.api.object import Obj
from caphv.api.ownership import record
from reconciler.blocked import Blocked
from reconciler.machine import deletion, diskdeletion, vmdeletion
from reconciler.machine.diskdeletion import delete_disks
from tests.support.reconciler.machinedeletion import OWN, Client, scope_of, vm_of

pytestmark = pytest.mark.unit

SNAPSHOT = "snapshot.storage.kubernetes.io/pvc-as-source-protection"
IN_USE = "kubernetes.io/pvc-protection"


def disk(number: int, *finalizers: str) -> Obj:
    metadata = {"namespace": "vms", "name": f"one-disk-{number}-abcde", "uid": "u", "annotations": record(OWN)}
    deletion = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": list(finalizers)}
    return {"metadata": metadata | deletion}


async def delete(*claims: Obj) -> list[str]:
    """Delete the disks of a machine; return its Events."""
    scope, _ = scope_of()
    scope.memory.deletion.vm_absent_since = time.monotonic() - 16
    events: list[str] = []
    scope.context.event = lambda *event: events.append(event[-1])
    namespace = scope.require_current_namespace()
    stored = {claim["metadata"]["name"]: claim for claim in claims}
    namespace.claims = SimpleNamespace(store=list(claims), get=lambda _, name: stored.get(name))
    await delete_disks(scope, namespace, is_ours=True)
    return events


@pytest.mark.parametrize("finalizers", [(SNAPSHOT,), (IN_USE, SNAPSHOT)])
async def test_disk_that_a_snapshot_keeps_is_left_to_harvester(finalizers: tuple[str, ...]) -> None:
    (event,) = await delete(disk(0, *finalizers))
    assert "one-disk-0-abcde" in event


@pytest.mark.parametrize("finalizers", [(IN_USE,), (SNAPSHOT, "example.com/hold")])
async def test_disk_that_something_else_keeps_blocks_the_deletion(finalizers: tuple[str, ...]) -> None:
    with pytest.raises(Blocked, match=r"waiting for disks.*one-disk-1-abcde") as blocked:
        await delete(disk(0, SNAPSHOT), disk(1, *finalizers))
    assert "one-disk-0" not in blocked.value.message


class Clock:
    """The clock of the modules that delete a machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        for module in (vmdeletion, diskdeletion):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.seconds))


async def test_time_for_disks_begins_when_the_vm_no_longer_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest may take minutes to shut down, and Harvester deletes the disks only after that."""
    clock = Clock(monkeypatch)
    scope, harvester = scope_of()
    client = harvester.client = Client(refuses=False, vm=vm_of("one", "one-disk-0-abcde"))
    namespace = scope.require_current_namespace()
    vms = {"one": vm_of("one", "one-disk-0-abcde")}
    namespace.vms = SimpleNamespace(
        get=lambda _, name: vms.get(name), store=vms.values(), observe_deletion=lambda *_: False
    )
    held = disk(0, IN_USE)
    del held["metadata"]["deletionTimestamp"]
    claims = {held["metadata"]["name"]: held | {"metadata": held["metadata"] | {"uid": "uid-one-disk-0-abcde"}}}
    namespace.claims = SimpleNamespace(
        store=claims.values(), get=lambda _, name: claims.get(name), observe_deletion=lambda *_: False
    )

    async def delete_at(seconds: float) -> Blocked:
        clock.seconds = 1000.0 + seconds
        with pytest.raises(Blocked) as blocked:
            await deletion.delete_machine(scope)
        return blocked.value

    assert "VirtualMachine one on Harvester to be deleted" in (await delete_at(0)).message
    del vms["one"]
    assert (await delete_at(100)).requeue_after == 5
    assert client.deleted == ["one"], "Harvester deletes the disks with the VM"
    assert (await delete_at(103)).requeue_after == 2

    assert not (await delete_at(106)).warn
    assert client.deleted == ["one", "one-disk-0-abcde"]
    assert not (await delete_at(114)).warn
    assert (await delete_at(116)).warn
