"""Marks bundles of clusters that were deleted while paused, because they may still run elsewhere.

`clusterctl move` pauses and then deletes them. Only the process that saw the deletion knows of it,
so the mark is a file next to the bundles. It survives a restart, and a user who knows better
removes it in Git. When the Cluster comes back, the next rendering removes the mark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from packager.git.changeplan import Plan
from packager.git.folder import FILE_LIST, MARK, file_list, parse_file_list
from packager.git.pruning import Skipped
from packager.git.snapshot import Snapshot
from packager.tree import is_plain

_TEXT = b"""\
The Cluster of these bundles was deleted while it was paused, so it may have been moved to \
another management cluster.
Remove this file to have the packager remove the bundles.
"""


def moved_folders(folders: Iterable[str], paused: Collection[str], snapshot: Snapshot) -> list[str]:
    """Return the packager's folders of clusters that may have moved.

    Such a folder is marked already, or is in `paused` because its cluster was deleted while paused.
    """
    return sorted(
        folder
        for folder in folders
        if is_plain(folder)
        and (
            snapshot.entry(f"{folder}/{MARK}")
            or (folder in paused and snapshot.read(f"{folder}/{FILE_LIST}") is not None)
        )
    )


def add_marks(plan: Plan, folders: Iterable[str], snapshot: Snapshot) -> Plan:
    """Mark these folders in a plan unless they are marked, and report them as kept."""
    reason = (
        "its Cluster was deleted while paused and may still be running elsewhere; if not, "
        f"remove {MARK}"
    )
    write = dict(plan.write)
    held = list(plan.held)
    for folder in folders:
        held.append(Skipped(folder, reason))
        # A mark that exists is not written again, so that it causes no further commit.
        if snapshot.entry(f"{folder}/{MARK}") is None:
            names = parse_file_list(snapshot.read(f"{folder}/{FILE_LIST}"))
            write[f"{folder}/{MARK}"] = _TEXT
            write[f"{folder}/{FILE_LIST}"] = file_list([*names, MARK])
    return replace(plan, write=write, held=tuple(held))
