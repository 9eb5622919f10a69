"""The changes of a commit: a pure function that removes with care.

Removing a bundle can remove a cluster's network, and removing a definition deletes the cluster. So nothing is removed
while the list of clusters is incomplete; when more is to be removed at once than the budget allows, an error is more
likely than an intention, and nothing is removed; definitions need a confirmation. Skipped removals are reported, and
stay recorded as the packager's, so that a later commit can remove them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from caphv.api import names
from packager.git.folder import RECORD, Folder, blob_id, record
from packager.git.paths import joined

_NOT_DEPLOYED = (".md", "/.gitkeep")


@dataclass(frozen=True)
class Current:
    """An existing folder: ids of the packager's own files, and of unmanaged files, by path relative to the folder.

    Links and submodules have an empty id.
    """

    owned: Mapping[str, str] = field(default_factory=dict)
    foreign: Mapping[str, str] = field(default_factory=dict)
    record: str = ""
    obstacle: str = ""
    """What is where the folder, or its list of files, should be."""


@dataclass(frozen=True)
class Pruning:
    """What may be removed.

    `complete`: all clusters are known, so an unwanted folder belongs to none. `budget`: number of bundles and
    definitions that one commit may remove. `scope`: folders that may be removed; None for all. `keep`: unwanted folders
    that stay, because their cluster exists and cannot be rendered now. `confirmed`: folders of definitions whose
    removal the user confirmed. `deleted`: folders of clusters that were seen to be deleted, which need no budget.
    """

    complete: bool
    budget: int
    scope: Collection[str] | None = None
    keep: Collection[str] = ()
    confirmed: Collection[str] = ()
    deleted: Collection[str] = ()


@dataclass(frozen=True, order=True)
class Removal:
    """A bundle of a folder, or the whole folder where `bundle` is empty; `files` by path relative to the folder."""

    folder: str
    bundle: str
    files: tuple[str, ...]
    definition: bool = False

    @property
    def weight(self) -> int:
        """How much of the budget it uses: one per bundle or definition."""
        return 1 if self.definition else max(1, len({path.split("/")[0] for path in self.files if "/" in path}))

    def __str__(self) -> str:
        return joined(self.folder, self.bundle)


@dataclass(frozen=True, order=True)
class Skipped:
    """A removal that was held back, or a folder that was left alone; `why` names the remedy.

    `released` is the id of the file by which Fleet may uninstall a bundle, empty if it may not.
    """

    what: str
    why: str
    released: str = ""


@dataclass(frozen=True)
class Stay:
    """Why a bundle is not removed yet, and files of its folder to write first."""

    why: str
    write: Mapping[str, bytes] = field(default_factory=dict)


Staging = Callable[[Removal], Stay | None]
"""Says why a removal must wait; None if it need not."""


@dataclass(frozen=True)
class Plan:
    """Changes of files by path relative to the remote's path, and their summary.

    `subject` is the first line of the commit's message, empty for one made of the folders; `why` is the reason if it is
    the plan's own; `details` say what changes in each cluster, by `<namespace>/<name>`. `foreign` are files that
    others put where Fleet deploys them.
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
    wanted: Mapping[str, Folder],
    pruning: Pruning,
    definitions: Collection[str] = (),
    staging: Staging = lambda _: None,
) -> Plan:
    """Compare existing folders with wanted ones.

    `current` holds every folder that differs or is not wanted; folders that already match are left out. `definitions`
    are the folders, wanted or not, whose removal deletes a cluster. `staging` delays the removal of single bundles.
    """
    refused = {folder: why for folder in wanted if (why := _clash(current.get(folder), wanted[folder]))}
    asked = sorted(_removals(current, wanted, pruning, definitions, refused))
    staged = {removal: stay for removal in asked if removal.bundle and (stay := staging(removal))}
    # What waits uses nothing of the budget.
    held = _held([removal for removal in asked if removal not in staged or staged[removal].write], pruning)
    held = {removal: stay.why for removal, stay in staged.items()} | held
    kept = {removal.folder: set[str]() for removal in held}
    first: dict[str, dict[str, bytes]] = {}
    for removal, why in held.items():
        kept[removal.folder].update(removal.files)
        if removal in staged and staged[removal].why == why:
            first.setdefault(removal.folder, {}).update(staged[removal].write)
    write: dict[str, bytes] = {}
    delete: list[str] = []
    added: list[str] = []
    changed: list[str] = []
    for folder, now in sorted(current.items()):
        if folder in refused:
            continue
        if folder in wanted:
            files, gone = _difference(now, wanted[folder], kept.get(folder, set()))
            files |= first.get(folder, {})
            if files or gone:
                (changed if now.owned else added).append(folder)
        else:
            mine = [*now.owned, *([RECORD] if now.record else ())]
            files, gone = {}, [] if folder in kept or not _in_scope(folder, pruning) else mine
        write.update({joined(folder, path): content for path, content in files.items()})
        delete += [joined(folder, path) for path in gone]
    return Plan(
        write=write,
        delete=tuple(sorted(delete)),
        added=tuple(added),
        changed=tuple(changed),
        removed=tuple(removal for removal in asked if removal not in held),
        held=tuple(Skipped(str(removal), why) for removal, why in held.items()),
        refused=tuple(Skipped(folder, why) for folder, why in sorted(refused.items())),
        foreign=tuple(_foreign(current, wanted, pruning)),
    )


def _foreign(current: Mapping[str, Current], wanted: Mapping[str, Folder], pruning: Pruning) -> Iterator[str]:
    """Yield files of others in the bundles of the packager's folders, and of folders next to them.

    Fleet deploys each folder of a cluster's folder; files above these are read by no one.
    """
    for folder, now in sorted(current.items()):
        if folder in wanted or _in_scope(folder, pruning):
            files = wanted[folder].files if folder in wanted else {}
            yield from (
                joined(folder, path)
                for path in sorted(now.foreign)
                if "/" in path and path not in files and not path.endswith(_NOT_DEPLOYED)
            )


def _in_scope(folder: str, pruning: Pruning) -> bool:
    return folder not in pruning.keep and (pruning.scope is None or folder in pruning.scope)


def _removals(
    current: Mapping[str, Current],
    wanted: Mapping[str, Folder],
    pruning: Pruning,
    definitions: Collection[str],
    refused: Collection[str],
) -> Iterator[Removal]:
    for folder, now in current.items():
        if folder not in wanted:
            if (now.owned or now.record) and _in_scope(folder, pruning):
                yield Removal(folder, "", tuple(sorted(now.owned)), folder in definitions)
        elif folder not in refused:
            staying = {path.split("/")[0] for path in wanted[folder].files}
            going: dict[str, list[str]] = {}
            for path in sorted(now.owned):
                bundle, slash, _ = path.partition("/")
                if slash and bundle not in staying:
                    going.setdefault(bundle, []).append(path)
            yield from (Removal(folder, bundle, tuple(files)) for bundle, files in going.items())


def _held(asked: Iterable[Removal], pruning: Pruning) -> dict[Removal, str]:
    """Return the removals to hold back, each with reason and remedy."""
    if not pruning.complete:
        return dict.fromkeys(
            asked, "not all clusters are known: removal waits until all files can be read and caches are in sync"
        )
    held = {
        removal: "removing a definition deletes its cluster; confirm it with --confirm, or with annotation "
        f"{names.CONFIRM_REMOVAL_ANNOTATION}=true in the definition before you remove it, or on the Cluster if the "
        "packager runs on its management cluster"
        for removal in asked
        if removal.definition and removal.folder not in pruning.confirmed
    }
    rest = [removal for removal in asked if removal not in held and removal.folder not in pruning.deleted]
    weight = sum(removal.weight for removal in rest)
    if weight > pruning.budget:
        why = (
            f"{weight} removals at once exceed --max-prune {pruning.budget}; check them, then raise it, or remove the "
            "folders of deleted clusters in Git"
        )
        held |= dict.fromkeys(rest, why)
    return held


def _difference(now: Current, folder: Folder, kept: Collection[str]) -> tuple[dict[str, bytes], list[str]]:
    """Return files to write and paths to delete; unwanted files in `kept` stay."""
    have = {**now.foreign, **now.owned}
    files = {path: content for path, content in folder.files.items() if have.get(path) != blob_id(content)}
    listed = record([*folder.files, *kept])
    if now.record != blob_id(listed):
        files[RECORD] = listed
    return files, [path for path in now.owned if path not in folder.files and path not in kept]


def _clash(now: Current | None, folder: Folder) -> str:
    """Return why a folder cannot be written without overwriting unmanaged files."""
    if now is None:
        return ""
    if now.obstacle:
        return f"{now.obstacle}; move it away"
    for path, content in folder.files.items():
        if path in now.foreign and now.foreign[path] != blob_id(content):
            return f"{path} was not written by caphv; move it away, or add it to {RECORD} to hand it over"
    parents = {parent for path in folder.files for parent in _parents(path)}
    for path in sorted(now.foreign):
        if path in parents or any(parent in folder.files for parent in _parents(path)):
            return f"{path} was not written by caphv and blocks the path; move it away"
    return ""


def _parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:end]) for end in range(1, len(parts)))
