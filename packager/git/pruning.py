"""Decides which folders and bundles a commit may remove.

Removing a bundle can remove a cluster's network, and removing a definition deletes the cluster. So
nothing is removed while the list of clusters is incomplete. Nothing is removed either when the
removals exceed the budget, because that is more likely an error than an intention. Removing a
definition needs a confirmation. Removals that are held back are reported, and their files stay
recorded as the packager's, so that a later commit can remove them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from caphv.api import names
from packager.git.folder import ExistingFolder, Folder
from packager.git.paths import join_path


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

    def includes(self, folder: str) -> bool:
        """Whether a folder may be removed, as far as it depends on the folder alone."""
        return folder not in self.keep and (self.scope is None or folder in self.scope)


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

    `released` is the id of the file that lets Fleet uninstall a bundle, or delete a cluster or
    pool; empty if it may not.
    """

    what: str
    why: str
    released: str = ""


@dataclass(frozen=True)
class Delay:
    """The reason why a bundle is not removed yet, and files of its folder to write first."""

    why: str
    write: Mapping[str, bytes] = field(default_factory=dict)


Staging = Callable[[Removal], Delay | None]
"""Returns why a removal must wait; None if it need not."""


@dataclass(frozen=True)
class HeldRemovals:
    """Removals that are held back, each with its reason, and files to write instead, by folder."""

    reasons: Mapping[Removal, str]
    preparations: Mapping[str, Mapping[str, bytes]]

    @cached_property
    def files(self) -> Mapping[str, Collection[str]]:
        """The files that stay because their removal is held back, by folder."""
        files: dict[str, set[str]] = {}
        for removal in self.reasons:
            files.setdefault(removal.folder, set()).update(removal.files)
        return files


def find_removals(
    current: Mapping[str, ExistingFolder],
    desired: Mapping[str, Folder],
    pruning: Pruning,
    definitions: Collection[str],
) -> Iterator[Removal]:
    """Yield the folders that are not desired, and the bundles that desired folders no longer have.

    :param current: the folders to compare
    :param desired: all folders that should exist
    :param pruning: limits for removals
    :param definitions: the folders whose removal deletes a cluster
    """
    for folder, existing in current.items():
        if folder in desired:
            yield from _dropped_bundles(folder, existing, desired[folder])
        elif (existing.owned or existing.file_list) and pruning.includes(folder):
            yield Removal(
                folder=folder,
                bundle="",
                files=tuple(sorted(existing.owned)),
                definition=folder in definitions,
            )


def _dropped_bundles(folder: str, existing: ExistingFolder, desired: Folder) -> Iterator[Removal]:
    """Yield the bundles of a folder of which no file is desired any more."""
    staying = {path.split("/")[0] for path in desired.files}
    dropped: dict[str, list[str]] = {}
    for path in sorted(existing.owned):
        bundle, slash, _ = path.partition("/")
        if slash and bundle not in staying:
            dropped.setdefault(bundle, []).append(path)
    for bundle, files in dropped.items():
        yield Removal(folder, bundle, tuple(files))


def hold_removals(removals: Sequence[Removal], pruning: Pruning, staging: Staging) -> HeldRemovals:
    """Return the removals that must not be part of the next commit.

    :param removals: all removals
    :param pruning: limits for removals
    :param staging: delays the removal of single bundles
    """
    delays: dict[Removal, Delay] = {}
    for removal in removals:
        if removal.bundle and (delay := staging(removal)):
            delays[removal] = delay

    # A prepared removal counts against the budget, because Fleet may uninstall the bundle after
    # the commit that prepares it. A removal that only waits changes nothing, and does not count.
    counted = [removal for removal in removals if removal not in delays or delays[removal].write]
    refused = _refuse_removals(counted, pruning)

    preparations: dict[str, dict[str, bytes]] = {}
    for removal, delay in delays.items():
        # A removal that is refused is not prepared either.
        if removal not in refused:
            preparations.setdefault(removal.folder, {}).update(delay.write)

    # A refusal says more than a delay, so its reason replaces that of the delay.
    reasons = {removal: delay.why for removal, delay in delays.items()} | refused
    return HeldRemovals(reasons, preparations)


def _refuse_removals(removals: Sequence[Removal], pruning: Pruning) -> dict[Removal, str]:
    """Return the removals that `pruning` does not allow, each with reason and remedy."""
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
    refused = {
        removal: reason
        for removal in removals
        if removal.definition and removal.folder not in pruning.confirmed
    }

    # Too many removals are all refused, because nothing tells which of them are intended.
    budgeted = [
        removal
        for removal in removals
        if removal not in refused and removal.folder not in pruning.deleted
    ]
    weight = sum(removal.weight for removal in budgeted)
    if weight > pruning.budget:
        reason = (
            f"{weight} removals at once exceed --max-prune {pruning.budget}; check them, then "
            "raise it, or remove the folders of deleted clusters in Git"
        )
        refused |= dict.fromkeys(budgeted, reason)
    return refused
