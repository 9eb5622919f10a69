"""The blocking side of the packager: it renders, commits and pushes in its own thread."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from caphv.api.object import Key
from packager import rollout
from packager.bundler import Batch, Bundler
from packager.controller.definition_source import DefinitionCommit, DefinitionSource, SourceOptions
from packager.controller.open_repository import RepositoryConfig, RepositoryHandle
from packager.definitions import ownership
from packager.definitions.builder import Builder, BuildResult
from packager.git.commit import Reason
from packager.git.errors import CorruptClone, GitError, UnverifiedCommit
from packager.git.prune import Plan
from packager.git.repository import Repository
from packager.git.result import Result
from packager.git.snapshot import Snapshot
from packager.planner import ManagementState, Planner, definitions_changed, publish
from packager.rendering import branches
from packager.rendering.gitrepo import GitRepoOptions
from packager.rendering.renderer import RenderOptions
from packager.tree import CLUSTERS, cluster_folder

_REMEMBERED = 1000


@dataclass(frozen=True)
class PublisherOptions:
    """Where to commit and how. `max_prune` is the number of bundles and definitions that one commit may remove.

    `namespace` limits the clusters to publish; `source` has the cluster definitions, and `git_repos` describes the
    GitRepos to write for their bundles.
    """

    place: RepositoryConfig
    rendering: RenderOptions = field(default_factory=RenderOptions)
    max_prune: int = 10
    namespace: str = ""
    source: SourceOptions | None = None
    git_repos: GitRepoOptions | None = None


@dataclass(frozen=True)
class Published:
    """The result of a publication. `unmerged` are the clusters whose change waits on the review branch.

    `built` is what the definitions build to, None until they were read once; `source_error` is why they cannot be read.
    `unverified` are the clusters of a source whose newest commit is refused, because no listed signer signed it.
    `upgrade` is the upgrade in waves that the repository holds, and `step` its commit if this one was; `problem` is why
    a requested one cannot start. `awaited` are the commits that Fleet must reach, of clusters whose files have changed
    since this process began to read the repository.
    """

    batch: Batch
    result: Result
    unmerged: frozenset[Key] = frozenset()
    built: BuildResult | None = None
    source_error: Exception | None = None
    unverified: frozenset[Key] = frozenset()
    upgrade: rollout.Rollout | None = None
    step: rollout.Step | None = None
    problem: str = ""
    awaited: Mapping[Key, str] = field(default_factory=dict)

    @cached_property
    def changed(self) -> frozenset[Key]:
        """Clusters whose files the commit changed."""
        return frozenset(touched(self.result.plan)) if self.result.commit else frozenset()

    @cached_property
    def skipped(self) -> dict[str, str]:
        """Folders and bundles that were left unchanged, with the reason."""
        return {skipped.what: skipped.why for skipped in (*self.result.plan.refused, *self.result.plan.held)}


class Publisher:
    """Holds the clone and the last rendering. Calls block; only one thread at a time may call."""

    def __init__(self, options: PublisherOptions) -> None:
        """Take the options. Raises as `Renderer` does."""
        bundler = Bundler(options.rendering)
        builder = Builder(bundler.renderer, options.git_repos)
        self.table = bundler.renderer.table
        self._options = options
        self._planner = Planner(bundler, builder, options.max_prune, options.namespace)
        self._target = RepositoryHandle(options.place, branches.folders)
        self._source = DefinitionSource(options.source) if options.source else None
        self._done = ""
        self._stopping = False
        self._order: OrderedDict[str, int] = OrderedDict()
        self._folders: dict[Key, str] = {}
        self._awaited: dict[Key, str] = {}
        self._stale: frozenset[Key] = frozenset()

    def publish(self, state: ManagementState, known: Mapping[Key, str] = MappingProxyType({})) -> Published:
        """Make the repository match definitions and live clusters in one commit, or none when it does already.

        `known` maps clusters to the commit that was awaited before this process. Raises GitErrors. A source that cannot
        be read is reported in the result; its last content stays in use.
        """
        repository = self._target.opened()
        if not self._order:
            self._begin(repository, known)
        definitions, error = self._read_source()
        source = definitions.source if definitions else None
        reason = self._reason(state, definitions)
        planned, result = publish(repository, self._planner, state, source, reason=reason, check=self._check_running)
        self._done = definitions.origin if definitions else ""
        for commit in (result.head, *result.groups.values()):
            self._note(commit)
        unmerged: frozenset[Key] = frozenset()
        merged = repository.at(result.head)
        if self.is_reviewed:
            merged = repository.sync()
            self._note(merged.commit)
            unmerged = frozenset(touched(self._planner.plan(merged, state, source).plan))
        self._await(planned.batch, replace(result, head=merged.commit), _folders(merged), unmerged)
        return Published(
            planned.batch,
            result,
            unmerged,
            planned.built,
            error,
            self._unverified(merged, error),
            planned.upgrade,
            planned.step,
            planned.problem,
            dict(self._awaited),
        )

    @property
    def is_reviewed(self) -> bool:
        """Whether commits go to a review branch and must be merged."""
        return bool(self._options.place.remote.review)

    def is_before(self, commit: str, other: str) -> bool:
        """Whether one commit of the branch is known to be older than another."""
        return self._order.get(commit, math.inf) < self._order.get(other, -1)

    def may_be_before(self, commit: str, other: str) -> bool:
        """Whether a commit of the branch is not known to be another one, or newer.

        Of commits before the start only the last one is known: an unknown one may be older than any other.
        """
        return self._order.get(commit, -1) < self._order.get(other, 0)

    def stop(self) -> None:
        """Commit nothing more, not even the current plan: another replica may take over. Callable from any thread."""
        self._stopping = True

    def _check_running(self) -> None:
        if self._stopping:
            raise GitError("the packager is stopping: nothing more is committed")

    def close(self) -> None:
        """Release the clones."""
        self._target.close()
        if self._source:
            self._source.close()

    def _begin(self, repository: Repository, known: Mapping[Key, str]) -> None:
        """Note the heads, and which clusters may have changed after the commit that their condition names.

        An earlier process may have pushed a commit and ended before it wrote the conditions.
        """
        self._folders = _folders(repository.sync())
        heads = repository.commits()
        earlier = {key: commit for key, commit in known.items() if commit not in heads}
        self._stale = frozenset(
            key for key, commit in earlier.items() if _folder_at(repository, commit, key) != self._folders.get(key, "")
        )
        # All are older than the heads; their order is not known.
        self._order.update(dict.fromkeys((earlier[key] for key in self._stale), 0))
        for commit in heads:
            self._note(commit)

    def _read_source(self) -> tuple[DefinitionCommit | None, Exception | None]:
        """Return the newest definitions that could be read, and why they cannot be read now."""
        if self._source is None:
            return None, None
        try:
            self._source.refresh()
        except (GitError, OSError) as error:
            return self._source.last, error
        return self._source.last, None

    def _unverified(self, snapshot: Snapshot, error: Exception | None) -> frozenset[Key]:
        """Return the clusters that the source defines, if its newest commit is refused."""
        if self._options.source is None or not isinstance(error, UnverifiedCommit):
            return frozenset()
        owners = ownership.Owners(snapshot, ownership.name_of(self._options.source.place.remote))
        return frozenset(Key(*name.split("/")) for name in owners.own)

    def _reason(self, state: ManagementState, definitions: DefinitionCommit | None) -> Reason:
        """Return the reason for a commit; the first one after a new commit of the source names that commit."""
        if definitions is None or definitions.origin == self._done:
            return Reason(state.why)
        return definitions_changed(definitions.origin, definitions.message)

    def _await(self, batch: Batch, result: Result, folders: Mapping[Key, str], unmerged: Collection[Key]) -> None:
        """Remember the commit that each cluster with other files than before waits for, also those of others.

        An earlier call may have failed when a part was pushed already, so the files themselves are compared.
        """
        written = set(touched(result.plan)) if result.commit else set()
        for rendered in batch.rendered:
            key = rendered.cluster
            if not rendered.ok or key in unmerged:
                continue
            folder = folders.get(key, "")
            is_behind = key not in self._awaited and rendered.branch in result.moved
            if key in written or is_behind or key in self._stale or folder != self._folders.get(key, ""):
                self._awaited[key] = result.head_of(rendered.branch)
            self._folders[key] = folder
            self._stale -= {key}
        for remembered in (self._folders, self._awaited):
            for key in remembered.keys() - folders.keys():
                del remembered[key]

    def _note(self, commit: str) -> None:
        """Remember the order of commits that this process has seen."""
        if commit not in self._order:
            self._order[commit] = self._order[next(reversed(self._order))] + 1 if self._order else 0
        while len(self._order) > _REMEMBERED:
            self._order.popitem(last=False)


def _folders(snapshot: Snapshot) -> dict[Key, str]:
    """Return the id of each cluster's folder."""
    return {
        Key(namespace, name): entry.id
        for namespace in snapshot.entries(CLUSTERS)
        for name, entry in snapshot.entries(f"{CLUSTERS}/{namespace}").items()
    }


def _folder_at(repository: Repository, commit: str, key: Key) -> str | None:
    """Return the id of a cluster's folder at a commit, None if the clone does not have that."""
    try:
        entry = repository.at(commit).entry(cluster_folder(*key))
    except CorruptClone:
        return None
    return entry.id if entry else ""


def touched(plan: Plan) -> Iterator[Key]:
    """Clusters whose bundles a plan adds or changes."""
    for folder in (*plan.added, *plan.changed):
        root, namespace, name = folder.split("/")
        if root == CLUSTERS:
            yield Key(namespace, name)
