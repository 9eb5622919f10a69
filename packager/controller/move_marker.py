"""Clusters that went while they were paused, as `clusterctl move` leaves them: they may live on elsewhere.

Only who saw one go knows that, so it is written beside its bundles: no restart forgets it, and whoever knows better
takes the mark away in Git. It goes by itself when the Cluster is here again, because no rendering makes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from packager.git.folder import RECORD, record, recorded
from packager.git.prune import Plan, Told
from packager.git.snapshot import Snapshot

MARK = ".caphv-moved"
_TEXT = b"""\
The Cluster of these bundles went while it was paused, so it may have been moved to another management cluster.
Remove this file, and the packager removes the bundles.
"""


def moved(folders: Iterable[str], seen: Collection[str], snapshot: Snapshot) -> list[str]:
    """Return those of the packager's folders whose cluster was seen to go while paused, now or by the mark before."""
    return sorted(
        folder
        for folder in folders
        if snapshot.entry(f"{folder}/{MARK}") or (folder in seen and snapshot.entry(f"{folder}/{RECORD}"))
    )


def with_marks(plan: Plan, folders: Iterable[str], snapshot: Snapshot) -> Plan:
    """Return a plan that marks these folders where they are not marked yet, and tells that they stay."""
    write, held = dict(plan.write), list(plan.held)
    for folder in folders:
        if snapshot.entry(f"{folder}/{MARK}") is None:
            own = recorded(snapshot.read(f"{folder}/{RECORD}"))
            write |= {f"{folder}/{MARK}": _TEXT, f"{folder}/{RECORD}": record([*own, MARK])}
        held.append(
            Told(folder, f"its Cluster went while it was paused, and may live on elsewhere; if not, remove {MARK}")
        )
    return replace(plan, write=write, held=tuple(held))
