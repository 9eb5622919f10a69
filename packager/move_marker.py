"""Marks bundles of clusters that were deleted while paused, as `clusterctl move` does: they may still run elsewhere.

Only the process that saw the deletion knows it, so the mark is a file with the bundles: it survives a restart, and a
user who knows better removes it in Git. When the Cluster comes back, the next rendering removes the mark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from packager.git.folder import RECORD, record, recorded
from packager.git.prune import Plan, Skipped
from packager.git.snapshot import Snapshot

MARK = ".caphv-moved"
_TEXT = b"""\
The Cluster of these bundles was deleted while it was paused, so it may have been moved to another management cluster.
Remove this file to have the packager remove the bundles.
"""


def moved(folders: Iterable[str], seen: Collection[str], snapshot: Snapshot) -> list[str]:
    """Return the packager's folders whose cluster was deleted while paused: seen now, or marked before."""
    return sorted(
        folder
        for folder in folders
        if snapshot.entry(f"{folder}/{MARK}") or (folder in seen and snapshot.read(f"{folder}/{RECORD}") is not None)
    )


def with_marks(plan: Plan, folders: Iterable[str], snapshot: Snapshot) -> Plan:
    """Return a plan that marks these folders if they are not marked yet, and reports them as kept."""
    write, held = dict(plan.write), list(plan.held)
    for folder in folders:
        if snapshot.entry(f"{folder}/{MARK}") is None:
            own = recorded(snapshot.read(f"{folder}/{RECORD}"))
            write |= {f"{folder}/{MARK}": _TEXT, f"{folder}/{RECORD}": record([*own, MARK])}
        held.append(
            Skipped(
                folder,
                f"its Cluster was deleted while paused and may still be running elsewhere; if not, remove {MARK}",
            )
        )
    return replace(plan, write=write, held=tuple(held))
