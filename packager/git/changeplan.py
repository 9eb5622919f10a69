"""Computes what a commit changes: the files to write and to delete, and their summary."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from caphv.api.plaintext import printable
from packager.git.folder import FILE_LIST, ExistingFolder, Folder, blob_id, file_list
from packager.git.paths import join_path
from packager.git.pruning import (
    Pruning,
    Removal,
    Skipped,
    Staging,
    find_removals,
    hold_removals,
)

_NOT_DEPLOYED = (".md", "/.gitkeep")


@dataclass(frozen=True)
class Plan:
    """Changes of files by path relative to the remote's path, and their summary.

    `subject` is the first line of the commit's message; if empty, the line lists the folders. `why`
    replaces the caller's reason for the commit. `details` describe the changes in each cluster, by
    `<namespace>/<name>`. `foreign` are files that others put where Fleet deploys them.
    """

    write: Mapping[str, bytes] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[Removal, ...] = ()
    held: tuple[Skipped, ...] = ()
    refused: tuple[Skipped, ...] = ()
    foreign: tuple[str, ...] = ()
    subject: str = ""
    why: str = ""
    details: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.write and not self.delete


class _FileChanges(NamedTuple):
    """Files to write and paths to delete, relative to a folder."""

    write: dict[str, bytes]
    delete: list[str]


def plan_changes(
    current: Mapping[str, ExistingFolder],
    desired: Mapping[str, Folder],
    pruning: Pruning,
    definitions: Collection[str] = (),
    staging: Staging = lambda _: None,
) -> Plan:
    """Return the changes that turn existing folders into the desired ones.

    :param current: every folder that differs or is not desired; folders that match are left out
    :param desired: all folders that should exist
    :param pruning: limits for removals
    :param definitions: the folders, desired or not, whose removal deletes a cluster
    :param staging: delays the removal of single bundles
    """
    # Folders that cannot be written without overwriting unmanaged files do not change at all.
    refused: dict[str, str] = {}
    for folder, content in desired.items():
        if reason := _clash(current.get(folder), content):
            refused[folder] = reason
    changeable = {
        folder: existing for folder, existing in sorted(current.items()) if folder not in refused
    }

    removals = sorted(find_removals(changeable, desired, pruning, definitions))
    held = hold_removals(removals, pruning, staging)
    removed = tuple(removal for removal in removals if removal not in held.reasons)
    removed_folders = {removal.folder for removal in removed if not removal.bundle}

    # All decisions are made. Turn them into changes of files.
    write: dict[str, bytes] = {}
    delete: list[str] = []
    added: list[str] = []
    changed: list[str] = []
    for folder, existing in changeable.items():
        changes = _FileChanges({}, [])
        if folder in removed_folders:
            changes = _FileChanges({}, existing.own_files)
        elif folder in desired:
            changes = _file_changes(existing, desired[folder], held.files.get(folder, set()))
            changes.write.update(held.preparations.get(folder, {}))
            if changes.write or changes.delete:
                summary = changed if existing.owned else added
                summary.append(folder)
        write.update({join_path(folder, path): content for path, content in changes.write.items()})
        delete += [join_path(folder, path) for path in changes.delete]

    return Plan(
        write=write,
        delete=tuple(sorted(delete)),
        added=tuple(added),
        changed=tuple(changed),
        removed=removed,
        held=tuple(Skipped(str(removal), reason) for removal, reason in held.reasons.items()),
        refused=tuple(Skipped(folder, reason) for folder, reason in sorted(refused.items())),
        foreign=tuple(_foreign(current, desired, pruning)),
    )


def _foreign(
    current: Mapping[str, ExistingFolder], desired: Mapping[str, Folder], pruning: Pruning
) -> Iterator[str]:
    """Yield unmanaged files in the packager's bundles, and in other folders next to these.

    Fleet deploys every folder in a cluster's folder, and ignores files next to them.
    """
    for folder, existing in sorted(current.items()):
        if folder not in desired and not pruning.includes(folder):
            continue
        files = desired[folder].files if folder in desired else {}
        for path in sorted(existing.foreign):
            if "/" in path and path not in files and not path.endswith(_NOT_DEPLOYED):
                # Git stores names as bytes, and conditions hold only UTF-8.
                yield printable(join_path(folder, path))


def _file_changes(
    existing: ExistingFolder, folder: Folder, staying: Collection[str]
) -> _FileChanges:
    """Return the changes of a folder. Files in `staying` are not deleted, even if undesired."""
    ids = {**existing.foreign, **existing.owned}
    write = {
        path: content for path, content in folder.files.items() if ids.get(path) != blob_id(content)
    }
    # Files that stay are on the list of the packager's files, so that a later commit can remove
    # them.
    listing = file_list([*folder.files, *staying])
    if existing.file_list != blob_id(listing):
        write[FILE_LIST] = listing
    delete = [path for path in existing.owned if path not in folder.files and path not in staying]
    return _FileChanges(write, delete)


def _clash(existing: ExistingFolder | None, folder: Folder) -> str:
    """Return why a folder cannot be written without overwriting unmanaged files."""
    if existing is None:
        return ""
    if existing.obstacle:
        return f"{existing.obstacle}; move it away"

    for path, content in folder.files.items():
        if path in existing.foreign and existing.foreign[path] != blob_id(content):
            return (
                f"{path} was not written by caphv; move it away, or add it to {FILE_LIST} to hand "
                "it over"
            )

    # An unmanaged file may have the name of a folder to create, or be in a folder with the name of
    # a file to create. For the latter, compare prefixes: a path of another user may be so deep that
    # listing all of its parents takes too long.
    parents = {str(parent) for path in folder.files for parent in PurePosixPath(path).parents}
    for path in sorted(existing.foreign):
        if path in parents or any(path.startswith(f"{file}/") for file in folder.files):
            return f"{printable(path)} was not written by caphv and blocks the path; move it away"
    return ""
