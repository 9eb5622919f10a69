"""The side of the packager that blocks: it renders, commits and pushes, and runs in a thread of its own."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from caphv.api.object import Key
from packager.bundler import Batch, Packager
from packager.controller.definition_source import Followed, Follower
from packager.controller.definition_source import Options as SourceOptions
from packager.controller.open_repository import Holder, Place
from packager.controller.planner import Decider, Decision, Work
from packager.definitions.builder import Made, Maker
from packager.definitions.sync import WHY
from packager.git.commit import Reason
from packager.git.errors import GitError
from packager.git.prune import Plan
from packager.git.publish import told
from packager.git.repository import Result
from packager.git.snapshot import Snapshot
from packager.rendering.gitrepo import GitRepoOptions
from packager.rendering.renderer import Options as RenderOptions
from packager.tree import CLUSTERS

_REMEMBERED = 1000


@dataclass(frozen=True)
class Options:
    """Where to commit and how. `max_prune` is the number of bundles and definitions that one commit may remove.

    `namespace` limits the clusters that are cared for; `source` has definitions that become manifests and bundles, and
    `git_repos` makes GitRepos for the bundles of those.
    """

    place: Place
    rendering: RenderOptions = field(default_factory=RenderOptions)
    max_prune: int = 10
    namespace: str = ""
    source: SourceOptions | None = None
    git_repos: GitRepoOptions | None = None


@dataclass(frozen=True)
class Published:
    """What became of it. `unmerged` has the clusters whose change waits on the branch for review.

    `made` is what definitions make, None while nobody could read them; `source_error` is why they cannot be read now.
    """

    batch: Batch
    result: Result
    unmerged: frozenset[Key] = frozenset()
    made: Made | None = None
    source_error: Exception | None = None

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
        packager = Packager(options.rendering)
        maker = Maker(packager.renderer, options.git_repos)
        self._options = options
        self._decider = Decider(packager, maker, options.max_prune, options.namespace)
        self._target = Holder(options.place)
        self._follower = Follower(options.source) if options.source else None
        self._done = ""
        self._stopping = False
        self._order: OrderedDict[str, int] = OrderedDict()

    def publish(self, work: Work) -> Published:
        """Bring the repository to what it should hold, as one commit, or none when it does already.

        Raises GitErrors. A source of definitions that cannot be read is only told; what it held before still counts.
        """
        repository = self._target.opened()
        if not self._order:
            self._note(repository.sync().commit)
        followed, error = self._look()
        source = followed.source if followed else None
        decision = Decision(Batch(), None, Plan())

        def decide(snapshot: Snapshot) -> Plan:
            nonlocal decision
            if self._stopping:
                raise GitError("the packager is stopping: nothing more is committed")
            decision = self._decider.decide(snapshot, work, source)
            return decision.plan

        result = told(repository.commit(decide, self._reason(work, followed)))
        self._done = followed.origin if followed else ""
        self._note(result.head)
        unmerged: frozenset[Key] = frozenset()
        if self.is_reviewed:
            unmerged = frozenset(touched(self._decider.decide(repository.sync(), work, source).plan))
        return Published(decision.batch, result, unmerged, decision.made, error)

    @property
    def is_reviewed(self) -> bool:
        """Whether somebody has to merge what is published."""
        return bool(self._options.place.remote.review)

    def is_before(self, commit: str, other: str) -> bool:
        """Whether one commit of the branch is known to be older than another."""
        return self._order.get(commit, math.inf) < self._order.get(other, -1)

    def stop(self) -> None:
        """Commit nothing more, also not what is being decided now: somebody else may go on. From any thread."""
        self._stopping = True

    def close(self) -> None:
        """Let go of the clones."""
        self._target.close()
        if self._follower:
            self._follower.close()

    def _look(self) -> tuple[Followed | None, Exception | None]:
        """Return what the source holds, as far as it could be read, and why it cannot be read now."""
        if self._follower is None:
            return None, None
        try:
            self._follower.look()
        except (GitError, OSError) as error:
            return self._follower.last, error
        return self._follower.last, None

    def _reason(self, work: Work, followed: Followed | None) -> Reason:
        """Say why there is a commit; the first one after a new commit of the source names that."""
        if followed is None or followed.origin == self._done:
            return Reason(work.why)
        return Reason(WHY, {"Source": followed.origin})

    def _note(self, commit: str) -> None:
        """Remember the order of commits, as far as this process has seen them."""
        if commit not in self._order:
            self._order[commit] = self._order[next(reversed(self._order))] + 1 if self._order else 0
        while len(self._order) > _REMEMBERED:
            self._order.popitem(last=False)


def touched(plan: Plan) -> Iterator[Key]:
    """Clusters whose bundles a plan adds or changes."""
    for folder in (*plan.added, *plan.changed):
        root, namespace, name = folder.split("/")
        if root == CLUSTERS:
            yield Key(namespace, name)
