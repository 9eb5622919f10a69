"""From wanted folders to a pushed commit; only folders that differ are read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from packager.git.commit import Reason
from packager.git.folder import RECORD, Folder, Root, recorded
from packager.git.paths import joined
from packager.git.prune import Current, Plan, Pruning, Staging, difference
from packager.git.repository import Repository
from packager.git.result import Result
from packager.git.snapshot import Snapshot

log = logging.getLogger(__name__)


Wanted = Mapping[Root, Mapping[str, Folder]]
"""Folders by `<namespace>/<name>`, for each root that the caller manages."""


def publish(repository: Repository, wanted: Callable[[Snapshot], Wanted], pruning: Pruning, reason: Reason) -> Result:
    """Make the repository hold the wanted folders in one commit, or none when it does already.

    When another client pushed first, `wanted` is called again for the newer snapshot. Raises GitErrors. What was
    skipped is in the result's plan, in the commit message, and in the log.
    """
    return log_result(repository.commit(lambda snapshot: changes(snapshot, wanted(snapshot), pruning), reason))


def log_result(result: Result) -> Result:
    """Log what a commit changed, and what was skipped."""
    for removal in result.plan.removed:
        log.warning("removed %s", removal)
    for held in (*result.plan.held, *result.plan.refused):
        log.warning("skipped %s: %s", held.what, held.why)
    for path in result.plan.foreign:
        log.warning("%s was not written by caphv, and Fleet deploys it", path)
    if result.commit:
        log.info(
            "pushed %s to %s: %d added, %d changed, %d removed", result.commit[:12], result.branch,
            len(result.plan.added), len(result.plan.changed), len(result.plan.removed),
        )  # fmt: skip
        if result.merge_request:
            log.info("%s", result.merge_request)
    return result


def changes(snapshot: Snapshot, wanted: Wanted, pruning: Pruning, staging: Staging = lambda _: None) -> Plan:
    """Return the changes that make a snapshot match what is wanted. Raises CorruptClone.

    `staging` delays the removal of single bundles.
    """
    folders: dict[str, Folder] = {}
    current: dict[str, Current] = {}
    definitions = set()
    for root, inner in wanted.items():
        there = _folders(snapshot, root.name)
        folders |= {joined(root.name, name): folder for name, folder in inner.items()}
        for name in there.keys() | inner.keys():
            if name not in inner or there.get(name) != inner[name].id:
                path = joined(root.name, name)
                current[path] = _current(snapshot, path)
                if root.definitions:
                    definitions.add(path)
    return difference(current, folders, pruning, definitions, staging)


def _folders(snapshot: Snapshot, root: str) -> dict[str, str]:
    """Return the id of each folder `<namespace>/<name>` below a root."""
    return {
        f"{namespace}/{name}": entry.id
        for namespace, outer in snapshot.entries(root).items()
        if outer.is_folder
        for name, entry in snapshot.entries(joined(root, namespace)).items()
        if entry.is_folder
    }


def _current(snapshot: Snapshot, path: str) -> Current:
    if obstacle := snapshot.obstacle(joined(path, RECORD)):
        return Current(obstacle=f"{obstacle} is not a folder")
    listing = snapshot.entry(joined(path, RECORD))
    if listing and not listing.is_file:
        return Current(obstacle=f"{joined(path, RECORD)} is not a regular file")
    entries = snapshot.files(path)
    own = recorded(snapshot.read(joined(path, RECORD)))
    listed = entries.pop(RECORD, None)
    ids: dict[str, str] = {name: entry.id if entry.is_file else "" for name, entry in entries.items()}
    return Current(
        owned={name: id_ for name, id_ in ids.items() if name in own and id_},
        foreign={name: id_ for name, id_ in ids.items() if name not in own or not id_},
        record=listed.id if listed else "",
    )
