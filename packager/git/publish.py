"""From wanted folders to a pushed commit: reads of a repository only what differs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packager.git.commit import Reason
from packager.git.folder import RECORD, Folder, recorded
from packager.git.paths import joined
from packager.git.prune import Current, Plan, Pruning, plan
from packager.git.repository import Repository, Result
from packager.git.snapshot import Snapshot
from packager.tree import CLUSTERS, Tree

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Root:
    """A folder at the top of the remote's path that holds folders `<namespace>/<name>`.

    `definitions`: removing one of its folders deletes a cluster.
    """

    name: str
    definitions: bool = False


CLUSTER_ROOT = Root(CLUSTERS)


class Folders:
    """Makes folders of rendered trees, and remembers each while its tree is the very same object."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Tree, Folder]] = {}

    def of(self, trees: Mapping[str, Tree]) -> dict[str, Folder]:
        """Return folders by `<namespace>/<name>`, of trees by the same whose paths begin with `clusters/` and that.

        Raises ValueError when a file stands outside of its folder.
        """
        before, self._known = self._known, {}
        for name, tree in trees.items():
            known = before.get(name)
            self._known[name] = known if known and known[0] is tree else (tree, _folder(name, tree))
        return {name: folder for name, (_, folder) in self._known.items()}


def _folder(name: str, tree: Tree) -> Folder:
    top = f"{CLUSTERS}/{name}/"
    if strange := [path for path in tree if not path.startswith(top)]:
        raise ValueError(f"path {strange[0]!r}: is not below {top}")
    return Folder({path.removeprefix(top): content for path, content in tree.items()})


Wanted = Mapping[Root, Mapping[str, Folder]]
"""Folders by `<namespace>/<name>`, for each root that the caller speaks of."""


def publish(repository: Repository, wanted: Callable[[Snapshot], Wanted], pruning: Pruning, reason: Reason) -> Result:
    """Make the repository hold the wanted folders, as one commit, or none when it does already.

    `wanted` is asked again for each newer snapshot, after somebody else pushed first. Raises GitErrors. What was not
    done is in the result's plan, in the commit message, and in the log.
    """
    return told(repository.commit(lambda snapshot: planned(snapshot, wanted(snapshot), pruning), reason))


def told(result: Result) -> Result:
    """Log what a commit changed, and what was not done."""
    for removal in result.plan.removed:
        log.warning("removed %s", removal)
    for held in (*result.plan.held, *result.plan.refused):
        log.warning("left %s as it is: %s", held.what, held.why)
    if result.commit:
        log.info(
            "pushed %s to %s: %d added, %d changed, %d removed", result.commit[:12], result.branch,
            len(result.plan.added), len(result.plan.changed), len(result.plan.removed),
        )  # fmt: skip
    return result


def planned(snapshot: Snapshot, wanted: Wanted, pruning: Pruning) -> Plan:
    """Plan what brings a snapshot to what is wanted: reads only folders that differ. Raises Damaged."""
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
    return plan(current, folders, pruning, definitions)


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
        return Current(obstacle=obstacle)
    entries = snapshot.files(path)
    own = recorded(snapshot.read(joined(path, RECORD)))
    listed = entries.pop(RECORD, None)
    ids: dict[str, str] = {name: entry.id if entry.is_file else "" for name, entry in entries.items()}
    return Current(
        owned={name: id_ for name, id_ in ids.items() if name in own and id_},
        foreign={name: id_ for name, id_ in ids.items() if name not in own or not id_},
        record=listed.id if listed else "",
    )
