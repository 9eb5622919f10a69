"""The side of the packager that blocks: it renders, commits and pushes, and runs in a thread of its own."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from caphv.runtime.resource import Key
from packager.batch import Batch, Packager
from packager.definitions.sync import Outcome as Followed
from packager.git.commit import Reason
from packager.git.errors import GitError
from packager.git.prune import Plan, Pruning
from packager.git.repository import Repository, Result
from packager.incluster.follower import Follower
from packager.incluster.follower import Options as SourceOptions
from packager.incluster.holder import Holder, Place
from packager.render import Options as RenderOptions
from packager.settings import ClusterFacts
from packager.tree import CLUSTERS

_REMEMBERED = 1000


@dataclass(frozen=True)
class Options:
    """Where to commit and how. `max_prune` is the number of bundles that one commit may remove.

    `namespace` limits what is removed to a folder; `source` has definitions that become manifests.
    """

    place: Place
    rendering: RenderOptions = field(default_factory=RenderOptions)
    max_prune: int = 10
    namespace: str = ""
    source: SourceOptions | None = None


@dataclass(frozen=True)
class Work:
    """What the repository should hold: bundles of these clusters, and untouched what it has of those in `keep`."""

    facts: tuple[ClusterFacts, ...]
    keep: frozenset[Key]
    why: str


@dataclass(frozen=True)
class Published:
    """What became of it. `unmerged` has the clusters whose change waits on the branch for review.

    `followed` is what new definitions have made, `source_error` why they could not be read.
    """

    batch: Batch
    result: Result
    unmerged: frozenset[Key] = frozenset()
    followed: Followed | None = None
    source_error: GitError | None = None

    @cached_property
    def changed(self) -> frozenset[Key]:
        """Clusters whose files the commit changed."""
        return frozenset(touched(self.result.plan)) if self.result.commit else frozenset()

    @cached_property
    def told(self) -> dict[str, str]:
        """Folders and bundles that were left as they are, with the reason."""
        return {told.what: told.why for told in (*self.result.plan.refused, *self.result.plan.held)}


class Publisher:
    """Holds the clone and what was rendered last. Calls block; only one thread at a time may call."""

    def __init__(self, options: Options) -> None:
        """Take the options. Raises as `Renderer` does."""
        self._options = options
        self._packager = Packager(options.rendering)
        self._target = Holder(options.place)
        self._follower = Follower(options.source, self._packager) if options.source else None
        self._order: OrderedDict[str, int] = OrderedDict()

    def publish(self, work: Work) -> Published:
        """Bring the repository to what it should hold: one commit for new definitions, and one for all bundles.

        Raises GitErrors; a source of definitions that cannot be read is only told.
        """
        repository = self._target.opened()
        if not self._order:
            self._note(repository.sync().commit)
        followed, error = self._follow(repository)
        batch, result = self._packager.publish(repository, work.facts, self._pruning(work), Reason(work.why))
        self._packager.forget(facts.key for facts in work.facts)
        self._note(result.head)
        unmerged = self._unmerged(repository, work) if self._options.place.remote.review else frozenset()
        return Published(batch, result, unmerged, followed, error)

    def is_before(self, commit: str, other: str) -> bool:
        """Whether one commit of the branch is known to be older than another."""
        return self._order.get(commit, math.inf) < self._order.get(other, -1)

    def close(self) -> None:
        """Let go of the clones."""
        self._target.close()
        if self._follower:
            self._follower.close()

    def _follow(self, repository: Repository) -> tuple[Followed | None, GitError | None]:
        if self._follower is None:
            return None, None
        try:
            followed = self._follower.follow(repository, self._order.__contains__)
        except GitError as error:
            return None, error
        if followed:
            self._note(followed.result.head)
        return followed, None

    def _pruning(self, work: Work) -> Pruning:
        namespace = self._options.namespace
        return Pruning(
            complete=True,
            budget=self._options.max_prune,
            scope=_Below(f"{CLUSTERS}/{namespace}/") if namespace else None,
            keep=frozenset(f"{CLUSTERS}/{key}" for key in work.keep),
        )

    def _unmerged(self, repository: Repository, work: Work) -> frozenset[Key]:
        _, plan = self._packager.plan(work.facts, repository.sync(), self._pruning(work))
        return frozenset(touched(plan))

    def _note(self, commit: str) -> None:
        """Remember the order of commits, as far as this process has seen them."""
        if commit not in self._order:
            self._order[commit] = self._order[next(reversed(self._order))] + 1 if self._order else 0
        while len(self._order) > _REMEMBERED:
            self._order.popitem(last=False)


def touched(plan: Plan) -> Iterator[Key]:
    """Clusters whose folders a plan adds or changes."""
    for folder in (*plan.added, *plan.changed):
        _, namespace, name = folder.split("/")
        yield Key(namespace, name)


class _Below(Collection[str]):
    """All paths below a folder; which there are, only the repository knows."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and path.startswith(self._folder)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
