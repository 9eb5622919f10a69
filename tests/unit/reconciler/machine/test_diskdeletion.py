"""Disks that only a snapshot keeps do not delay the deletion of a machine."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from caphv.api.object import Obj
from caphv.api.ownership import record
from reconciler.blocked import Blocked
from reconciler.machine.diskdeletion import delete_disks
from tests.support.reconciler.machinedeletion import OWN, scope_of

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
