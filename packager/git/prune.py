"""Computes the changes of a commit, and removes files with care.

Removing a bundle can remove a cluster's network, and removing a definition deletes the cluster. So
nothing is removed while the list of clusters is incomplete. Nothing is removed either when the
removals exceed the budget, because that is more likely an error than an intention. Removing a
definition needs a confirmation. Skipped removals are reported, and stay recorded as the packager's,
so that a later commit can remove them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from caphv.api import names
from packager.git.folder import FILE_LIST, Folder, blob_id, file_list
from packager.git.paths import join_path

_NOT_DEPLOYED = (".md", "/.gitkeep")


@dataclass(frozen=True)
class Current:
    """An existing folder: ids of the packager's files and of unmanaged ones, by relative path.

    Links and submodules have an empty id.
    """

    owned: Mapping[str, str] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    file_list: str = ""
    obstacle: str = ""
    """Message about an entry that is in the place of the folder, or of its list of files."""

    @property
    def own_files(self) -> list[str]:
        """The packager's files, with their list."""
        return [*self.owned, FILE_LIST] if self.file_list else [*self.owned]


@dataclass(frozen=True)
class Pruning:
    """Limits for the removal of folders and bundles.

    `complete`: all clusters are known, so an unwanted folder belongs to no cluster. `budget`:
    number of bundles and definitions that one commit may remove. `scope`: folders that may be
    removed; None for all. `keep`: unwanted folders that stay, because their cluster exists and
    cannot be rendered now. `confirmed`: folders of definitions whose removal the user confirmed.
    `deleted`: folders of clusters whose deletion was observed, which need no budget.
    """

    complete: bool
    budget: int
    scope: Collection[str] | None = None
    keep: Collection[str] = ()
    confirmed: Collection[str] = ()
    deleted: Collection[str] = ()


@dataclass(frozen=True, order=True)
class Removal:
    """A bundle of a folder, or the whole folder if `bundle` is empty.

    `files` are paths relative to the folder.
    """

    folder: str
    bundle: str
    files: tuple[str, ...]
    definition: bool = False

    @property
    def weight(self) -> int:
        """Number of bundles or definitions that count against the budget."""
        if self.definition:
            return 1
        bundles = {path.split("/")[0] for path in self.files if "/" in path}
        return max(1, len(bundles))

    def __str__(self) -> str:
        return join_path(self.folder, self.bundle)


@dataclass(frozen=True, order=True)
class Skipped:
    """A removal that was held back, or a folder that was left alone; `why` names the remedy.

    `released` is the id of the file that lets Fleet uninstall a bundle, empty if it may not.
    """

    what: str
    why: str
    released: str = ""


@dataclass(frozen=True)
class Stay:
    """The reason why a bundle is not removed yet, and files of its folder to write first."""

    why: str
    write: Mapping[str, bytes] = field(default_factory=dict)


Staging = Callable[[Removal], Stay | None]
"""Returns why a removal must wait; None if it need not."""


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


def difference(
    current: Mapping[str, Current],
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
    # Folders that cannot be written without overwriting unmanaged files are not removed either.
    refused: dict[str, str] = {}
    for folder, content in desired.items():
        if reason := _clash(current.get(folder), content):
            refused[folder] = reason

    removals = sorted(_removals(current, desired, pruning, definitions, refused))
    stays: dict[Removal, Stay] = {}
    for removal in removals:
        if removal.bundle and (stay := staging(removal)):
            stays[removal] = stay

    # A removal that only waits does not count against the budget.
    budgeted = [removal for removal in removals if removal not in stays or stays[removal].write]
    held = {removal: stay.why for removal, stay in stays.items()}
    held |= _reasons_to_hold(budgeted, pruning)

    # Files of removals that are held back stay in their folders.
    kept: dict[str, set[str]] = {}
    preparations: dict[str, dict[str, bytes]] = {}
    for removal, reason in held.items():
        kept.setdefault(removal.folder, set()).update(removal.files)
        # A removal that exceeds the budget is not prepared either.
        if removal in stays and stays[removal].why == reason:
            preparations.setdefault(removal.folder, {}).update(stays[removal].write)

    # All decisions are made. Turn the folders into changes of files.
    write: dict[str, bytes] = {}
    delete: list[str] = []
    added: list[str] = []
    changed: list[str] = []
    for folder, existing in sorted(current.items()):
        if folder in refused:
            continue
        files: dict[str, bytes] = {}
        deleted: list[str] = []
        if folder in desired:
            files, deleted = _difference(existing, desired[folder], kept.get(folder, set()))
            files |= preparations.get(folder, {})
            if files or deleted:
                summary = changed if existing.owned else added
                summary.append(folder)
        elif folder not in kept and _is_in_scope(folder, pruning):
            deleted = existing.own_files
        write.update({join_path(folder, path): content for path, content in files.items()})
        delete += [join_path(folder, path) for path in deleted]

    return Plan(
        write=write,
        delete=tuple(sorted(delete)),
        added=tuple(added),
        changed=tuple(changed),
        removed=tuple(removal for removal in removals if removal not in held),
        held=tuple(Skipped(str(removal), reason) for removal, reason in held.items()),
        refused=tuple(Skipped(folder, reason) for folder, reason in sorted(refused.items())),
        foreign=tuple(_foreign(current, desired, pruning)),
    )


def _foreign(
    current: Mapping[str, Current], desired: Mapping[str, Folder], pruning: Pruning
) -> Iterator[str]:
    """Yield unmanaged files in the packager's bundles, and in other folders next to these.

    Fleet deploys every folder in a cluster's folder, and ignores files next to them.
    """
    for folder, existing in sorted(current.items()):
        if folder not in desired and not _is_in_scope(folder, pruning):
            continue
        files = desired[folder].files if folder in desired else {}
        for path in sorted(existing.foreign):
            if "/" in path and path not in files and not path.endswith(_NOT_DEPLOYED):
                yield join_path(folder, path)


def _is_in_scope(folder: str, pruning: Pruning) -> bool:
    return folder not in pruning.keep and (pruning.scope is None or folder in pruning.scope)


def _removals(
    current: Mapping[str, Current],
    desired: Mapping[str, Folder],
    pruning: Pruning,
    definitions: Collection[str],
    refused: Collection[str],
) -> Iterator[Removal]:
    """Yield the folders that are not desired, and the bundles that desired folders no longer have.

    :param current: every folder that differs or is not desired
    :param desired: all folders that should exist
    :param pruning: limits for removals
    :param definitions: the folders whose removal deletes a cluster
    :param refused: the folders that cannot be written
    """
    for folder, existing in current.items():
        if folder in refused:
            continue
        if folder not in desired:
            if (existing.owned or existing.file_list) and _is_in_scope(folder, pruning):
                yield Removal(
                    folder=folder,
                    bundle="",
                    files=tuple(sorted(existing.owned)),
                    definition=folder in definitions,
                )
            continue

        staying = {path.split("/")[0] for path in desired[folder].files}
        dropped: dict[str, list[str]] = {}
        for path in sorted(existing.owned):
            bundle, slash, _ = path.partition("/")
            if slash and bundle not in staying:
                dropped.setdefault(bundle, []).append(path)
        for bundle, files in dropped.items():
            yield Removal(folder, bundle, tuple(files))


def _reasons_to_hold(removals: Sequence[Removal], pruning: Pruning) -> dict[Removal, str]:
    """Return the removals to hold back, each with reason and remedy."""
    # A file that cannot be read may define any cluster.
    if not pruning.complete:
        reason = (
            "not all clusters are known: removal waits until all files can be read and caches are "
            "in sync"
        )
        return dict.fromkeys(removals, reason)

    reason = (
        "removing a definition deletes its cluster; confirm it with --confirm, or with "
        f"annotation {names.CONFIRM_REMOVAL_ANNOTATION}=true in the definition before you "
        "remove it, or on the Cluster if the packager runs on its management cluster"
    )
    held = {
        removal: reason
        for removal in removals
        if removal.definition and removal.folder not in pruning.confirmed
    }

    budgeted = [
        removal
        for removal in removals
        if removal not in held and removal.folder not in pruning.deleted
    ]
    weight = sum(removal.weight for removal in budgeted)
    if weight > pruning.budget:
        reason = (
            f"{weight} removals at once exceed --max-prune {pruning.budget}; check them, then "
            "raise it, or remove the folders of deleted clusters in Git"
        )
        held |= dict.fromkeys(budgeted, reason)
    return held


def _difference(
    existing: Current, folder: Folder, kept: Collection[str]
) -> tuple[dict[str, bytes], list[str]]:
    """Return files to write and paths to delete; undesired files in `kept` stay."""
    ids = {**existing.foreign, **existing.owned}
    files = {
        path: content for path, content in folder.files.items() if ids.get(path) != blob_id(content)
    }
    # Files that are held back stay on the list, so that a later commit can remove them.
    listing = file_list([*folder.files, *kept])
    if existing.file_list != blob_id(listing):
        files[FILE_LIST] = listing
    deleted = [path for path in existing.owned if path not in folder.files and path not in kept]
    return files, deleted


def _clash(existing: Current | None, folder: Folder) -> str:
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

    parents = {str(parent) for path in folder.files for parent in PurePosixPath(path).parents}
    for path in sorted(existing.foreign):
        # Not by the parents of a foreign path, whose depth another user has chosen.
        if path in parents or any(path.startswith(f"{file}/") for file in folder.files):
            return f"{path} was not written by caphv and blocks the path; move it away"
    return ""
