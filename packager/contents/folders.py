"""Compares the folders that a repository should hold with those that it holds."""

from __future__ import annotations

from collections.abc import Mapping

from packager.git.changeplan import Plan, plan_changes
from packager.git.folder import FILE_LIST, ExistingFolder, Folder, Root, parse_file_list
from packager.git.paths import join_path
from packager.git.pruning import Pruning, Staging
from packager.git.snapshot import Snapshot
from packager.tree import is_plain

Wanted = Mapping[Root, Mapping[str, Folder]]
"""Folders by `<namespace>/<name>`, for each root that the caller manages."""


def compare_folders(
    snapshot: Snapshot, wanted: Wanted, pruning: Pruning, staging: Staging = lambda _: None
) -> Plan:
    """Return the changes that make a snapshot match the wanted folders. Raises `CorruptClone`.

    :param snapshot: the repository
    :param wanted: all folders that it should hold
    :param pruning: limits for removals
    :param staging: delays the removal of single bundles
    """
    folders: dict[str, Folder] = {}
    current: dict[str, ExistingFolder] = {}
    definitions: set[str] = set()

    for root, inner in wanted.items():
        # Folders with equal ids have equal files, so a thousand unchanged folders are not read.
        ids = _folder_ids(snapshot, root.name)
        for name, folder in inner.items():
            folders[join_path(root.name, name)] = folder
        for name in ids.keys() | inner.keys():
            if name in inner and ids.get(name) == inner[name].id:
                continue
            path = join_path(root.name, name)
            current[path] = _current(snapshot, path)
            if root.definitions:
                definitions.add(path)

    return plan_changes(current, folders, pruning, definitions, staging)


def _folder_ids(snapshot: Snapshot, root: str) -> dict[str, str]:
    """Return the id of each folder `<namespace>/<name>` below a root."""
    ids: dict[str, str] = {}
    for namespace, outer in snapshot.entries(root).items():
        if not outer.is_folder:
            continue
        for name, entry in snapshot.entries(join_path(root, namespace)).items():
            if entry.is_folder:
                ids[f"{namespace}/{name}"] = entry.id
    return ids


def _current(snapshot: Snapshot, path: str) -> ExistingFolder:
    """Return the existing folder at a path of the repository.

    A copy of a folder, under a name that the packager never writes, belongs to the user who
    created it.
    """
    if not is_plain(path):
        entries = snapshot.files(path).items()
        return ExistingFolder(
            foreign={name: entry.id if entry.is_file else "" for name, entry in entries}
        )
    list_path = join_path(path, FILE_LIST)
    if obstacle := snapshot.obstacle(list_path):
        return ExistingFolder(obstacle=f"{obstacle} is not a folder")
    listing = snapshot.entry(list_path)
    if listing and not listing.is_file:
        return ExistingFolder(obstacle=f"{list_path} is not a regular file")

    names = parse_file_list(snapshot.read(list_path))
    owned: dict[str, str] = {}
    foreign: dict[str, str] = {}
    for name, entry in snapshot.files(path).items():
        if name == FILE_LIST:
            continue
        # A link or submodule is never the packager's, even if the list of files has its path.
        if entry.is_file and name in names:
            owned[name] = entry.id
        else:
            foreign[name] = entry.id if entry.is_file else ""
    return ExistingFolder(owned=owned, foreign=foreign, file_list=listing.id if listing else "")
