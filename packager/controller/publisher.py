"""The blocking side of the packager, which renders, commits and pushes in its own thread."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

from caphv.api.object import Key
from packager.controller.definition_source import DefinitionCommit, DefinitionSource, SourceOptions
from packager.controller.open_repository import RepositoryConfig, RepositoryHandle
from packager.definitions import ownership
from packager.definitions.builder import Builder
from packager.definitions.buildresult import BuildResult
from packager.git.changeplan import Plan
from packager.git.commit import Reason
from packager.git.errors import CorruptClone, GitError, UnverifiedCommit
from packager.git.repository import Repository
from packager.git.result import Result
from packager.git.snapshot import Snapshot
from packager.planning.commitplan import commit_plan, definitions_reason
from packager.planning.planner import Planner
from packager.planning.state import ManagementState
from packager.rendering.bundler import Batch, Bundler
from packager.rendering.gitrepo import GitRepoOptions
from packager.rendering.options import RenderOptions
from packager.tree import CLUSTERS, cluster_folder
from packager.upgrade.decision import Decision

_MAX_KNOWN_COMMITS = 1000


@dataclass(frozen=True)
class PublisherOptions:
    """The repository to commit to, and options of commits.

    `max_prune` is the number of bundles and definitions that one commit may remove. `namespace`
    limits the clusters to publish. `source` has the cluster definitions, and `git_repos` describes
    the GitRepos to write for their bundles.
    """

    repository: RepositoryConfig
    rendering: RenderOptions = field(default_factory=RenderOptions)
    max_prune: int = 10
    namespace: str = ""
    source: SourceOptions | None = None
    git_repos: GitRepoOptions | None = None


@dataclass(frozen=True, kw_only=True)
class Published:
    """The result of a publication.

    `unmerged` are the clusters whose change waits on the review branch. `built` has the objects of
    the definitions, and is None until they were read once. `source_error` is why they cannot be
    read. `unverified` are the clusters of a source whose newest commit is refused, because no
    listed signer signed it. `waves` is the decision about an upgrade in waves; it has a step if
    the commit belongs to the upgrade. `awaited` are the commits that Fleet must reach, for clusters
    whose files have changed since this process began to read the repository.
    """

    batch: Batch
    result: Result
    unmerged: frozenset[Key] = frozenset()
    built: BuildResult | None = None
    source_error: Exception | None = None
    unverified: frozenset[Key] = frozenset()
    waves: Decision = field(default_factory=Decision)
    awaited: Mapping[Key, str] = field(default_factory=dict)

    @cached_property
    def changed(self) -> frozenset[Key]:
        """Clusters whose files the commit changed."""
        return frozenset(clusters_of(self.result.plan)) if self.result.commit else frozenset()

    @cached_property
    def skipped(self) -> dict[str, str]:
        """Folders and bundles that were left unchanged, with the reason."""
        return {
            skipped.what: skipped.why
            for skipped in (*self.result.plan.refused, *self.result.plan.held)
        }


class Publisher:
    """Holds the clone and the last rendering. Calls block, and must come from one thread."""

    def __init__(self, options: PublisherOptions) -> None:
        """Take the options. Raises as `Renderer` does."""
        bundler = Bundler(options.rendering)
        builder = Builder(bundler.renderer, options.git_repos)
        self._options = options
        self._planner = Planner(
            bundler=bundler,
            builder=builder,
            max_prune=options.max_prune,
            namespace=options.namespace,
        )
        self._target = RepositoryHandle(options.repository)
        self._source = DefinitionSource(options.source) if options.source else None
        # The commit of the source that the last commit names.
        self._last_origin = ""
        self._stopping = False
        # Rank of each known commit: a higher rank is a newer commit.
        self._order: OrderedDict[str, int] = OrderedDict()
        # Git's id of each cluster's folder, as it was when the cluster was last rendered.
        self._folders: dict[Key, str] = {}
        # The commit that Fleet must reach for each cluster.
        self._awaited: dict[Key, str] = {}
        # Clusters that changed between the commit in their condition and the start of this process.
        self._stale: frozenset[Key] = frozenset()

    def publish(
        self, state: ManagementState, known: Mapping[Key, str] = MappingProxyType({})
    ) -> Published:
        """Make the repository match definitions and live clusters, in at most one commit.

        `known` maps clusters to the commit that was awaited before this process started. If the
        source cannot be read, the result has the error, and the last definitions stay in use.
        Raises `GitError`.
        """
        repository = self._target.open()
        if not self._order:
            repository.read(lambda snapshot: self._note_start(repository, snapshot, known))

        # Live clusters are published even while the source cannot be read.
        error = self._refresh_source()
        definitions = self._source.last if self._source else None
        source = definitions.source if definitions else None
        reason = self._reason(state, definitions)
        planned, result = commit_plan(
            repository, self._planner, state, source, reason=reason, check=self._check_running
        )
        self._last_origin = definitions.origin if definitions else ""
        self._note_order(result.head)

        # Fleet reads the target branch. With a review, changes that a plan for the target branch
        # would still make wait to be merged.
        merged = repository.snapshot_at(result.head)
        unmerged: frozenset[Key] = frozenset()
        if self.is_reviewed:
            merged = repository.sync()
            self._note_order(merged.commit)
            unmerged = frozenset(clusters_of(self._planner.plan(merged, state, source).plan))

        self._note_awaited(
            planned.batch, replace(result, head=merged.commit), _folders(merged), unmerged
        )
        return Published(
            batch=planned.batch,
            result=result,
            unmerged=unmerged,
            built=planned.built,
            source_error=error,
            unverified=self._unverified_clusters(merged, error),
            waves=planned.waves,
            awaited=dict(self._awaited),
        )

    @property
    def is_reviewed(self) -> bool:
        """Whether commits go to a review branch and must be merged."""
        return bool(self._options.repository.remote.review)

    def is_before(self, commit: str, other: str) -> bool:
        """Whether one commit of the branch is known to be older than another."""
        # An unknown commit must not count as older, so the defaults make the result false.
        return self._order.get(commit, math.inf) < self._order.get(other, -1)

    def may_be_before(self, commit: str, other: str) -> bool:
        """Whether a commit of the branch may be older than another commit.

        Commits before the start of this process are unknown, except for the last one. An unknown
        commit may be older than any other.
        """
        return commit != other and self._order.get(commit, -1) < self._order.get(other, 0)

    def stop(self) -> None:
        """Stop all commits, even of the current plan, because another replica may take over.

        May be called from any thread.
        """
        self._stopping = True

    def _check_running(self) -> None:
        if self._stopping:
            raise GitError("the packager is stopping: nothing more is committed")

    def close(self) -> None:
        """Release the clones."""
        self._target.close()
        if self._source:
            self._source.close()

    def _note_start(
        self, repository: Repository, snapshot: Snapshot, known: Mapping[Key, str]
    ) -> None:
        """Note the head, and clusters that may have changed after the commit of their condition.

        An earlier process may have pushed a commit and ended before it wrote the conditions.

        :param repository: the repository
        :param snapshot: its head
        :param known: clusters with the commit of their condition
        """
        self._folders = _folders(snapshot)
        earlier = {key: commit for key, commit in known.items() if commit != snapshot.commit}
        self._stale = frozenset(
            key
            for key, commit in earlier.items()
            if _folder_at(repository, commit, key) != self._folders.get(key, "")
        )
        # All these commits are older than the head, and their order is not known. So they share the
        # lowest rank.
        self._order.update(dict.fromkeys((earlier[key] for key in self._stale), 0))
        self._note_order(snapshot.commit)

    def _refresh_source(self) -> Exception | None:
        """Read the newest definitions, and return the error if that fails.

        After a failure, the definitions that were read before stay in use.
        """
        try:
            if self._source:
                self._source.refresh()
        except (GitError, OSError) as error:
            return error
        return None

    def _unverified_clusters(self, snapshot: Snapshot, error: Exception | None) -> frozenset[Key]:
        """Return the clusters that the source defines, if its newest commit is refused."""
        source = self._options.source
        if source is None or not isinstance(error, UnverifiedCommit):
            return frozenset()
        owners = ownership.Owners(snapshot, ownership.name_of(source.repository.remote))
        return frozenset(Key(*name.split("/")) for name in owners.own)

    def _reason(self, state: ManagementState, definitions: DefinitionCommit | None) -> Reason:
        """Return the reason for a commit.

        The first commit after a commit of the source names the source's commit.
        """
        if definitions is None or definitions.origin == self._last_origin:
            return Reason(state.why)
        return definitions_reason(definitions.origin, definitions.message)

    def _note_awaited(
        self, batch: Batch, result: Result, folders: Mapping[Key, str], unmerged: Collection[Key]
    ) -> None:
        """Remember the commit that Fleet must reach, for each cluster whose files have changed.

        The files themselves are compared, because an earlier call may have failed after a push, and
        other clients also commit.

        :param batch: the rendered clusters
        :param result: result of the commit; its head is the head of the branch that Fleet reads
        :param folders: the ids of all clusters' folders at that head
        :param unmerged: the clusters whose change waits on the review branch
        """
        written = set(clusters_of(result.plan)) if result.commit else set()
        # Clusters without a valid rendering, or with a change that waits to be merged, are skipped.
        # A later call compares their folder with the folder at their last rendering.
        for rendered in batch.rendered:
            key = rendered.cluster
            if not rendered.ok or key in unmerged:
                continue
            folder = folders.get(key, "")
            if key in written or key in self._stale or folder != self._folders.get(key, ""):
                self._awaited[key] = result.head
            self._folders[key] = folder
            self._stale -= {key}

        for memory in (self._folders, self._awaited):
            for key in memory.keys() - folders.keys():
                del memory[key]

    def _note_order(self, commit: str) -> None:
        """Remember the order of the commits that this process has read."""
        if commit not in self._order:
            numbers = list(self._order.values())
            self._order[commit] = numbers[-1] + 1 if numbers else 0
        while len(self._order) > _MAX_KNOWN_COMMITS:
            self._order.popitem(last=False)


def _folders(snapshot: Snapshot) -> dict[Key, str]:
    """Return the id of each cluster's folder."""
    return {
        Key(namespace, name): entry.id
        for namespace in snapshot.entries(CLUSTERS)
        for name, entry in snapshot.entries(f"{CLUSTERS}/{namespace}").items()
    }


def _folder_at(repository: Repository, commit: str, key: Key) -> str | None:
    """Return the id of a cluster's folder at a commit, None if the clone lacks the commit."""
    try:
        entry = repository.snapshot_at(commit).entry(cluster_folder(*key))
    except CorruptClone:
        return None
    return entry.id if entry else ""


def clusters_of(plan: Plan) -> Iterator[Key]:
    """Yield the clusters whose bundles a plan adds or changes."""
    for folder in (*plan.added, *plan.changed):
        root, namespace, name = folder.split("/")
        if root == CLUSTERS:
            yield Key(namespace, name)
