"""The side of the packager that blocks: it renders, commits and pushes, and runs in a thread of its own."""

from __future__ import annotations

import logging
import math
import os
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from caphv.runtime.resource import Key
from packager.batch import Batch, Packager
from packager.git.commit import Identity, Reason
from packager.git.credentials import Credentials
from packager.git.prune import Plan, Pruning
from packager.git.remote import Remote
from packager.git.repository import Repository, Result
from packager.render import Options as RenderOptions
from packager.settings import ClusterFacts
from packager.tree import CLUSTERS

log = logging.getLogger(__name__)

_REMEMBERED = 1000


@dataclass(frozen=True)
class Options:
    """Where to commit and how. `secret_folder` is a mounted Secret with credentials, else the environment has them.

    `max_prune` is the number of bundles that one commit may remove. `namespace` limits what is removed to a folder.
    """

    remote: Remote
    cache: Path
    secret_folder: Path | None = None
    identity: Identity = field(default_factory=Identity)
    rendering: RenderOptions = field(default_factory=RenderOptions)
    max_prune: int = 10
    namespace: str = ""


@dataclass(frozen=True)
class Work:
    """What the repository should hold: bundles of these clusters, and untouched what it has of those in `keep`."""

    facts: tuple[ClusterFacts, ...]
    keep: frozenset[Key]
    why: str


@dataclass(frozen=True)
class Published:
    """What became of it. `unmerged` has the clusters whose change waits on the branch for review."""

    batch: Batch
    result: Result
    unmerged: frozenset[Key] = frozenset()

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
        self._repository: Repository | None = None
        self._credentials = Credentials()
        self._order: OrderedDict[str, int] = OrderedDict()

    def publish(self, work: Work) -> Published:
        """Bring the repository to what it should hold, in one commit at most. Raises GitErrors."""
        repository = self._opened()
        if not self._order:
            self._note(repository.sync().commit)
        batch, result = self._packager.publish(repository, work.facts, self._pruning(work), Reason(work.why))
        self._packager.forget(facts.key for facts in work.facts)
        self._note(result.head)
        unmerged = self._unmerged(repository, work) if self._options.remote.review else frozenset()
        return Published(batch, result, unmerged)

    def is_before(self, commit: str, other: str) -> bool:
        """Whether one commit of the branch is known to be older than another."""
        return self._order.get(commit, math.inf) < self._order.get(other, -1)

    def close(self) -> None:
        """Let go of the clone."""
        if self._repository is not None:
            self._repository.__exit__(None, None, None)
            self._repository = None

    def _opened(self) -> Repository:
        credentials = self._read_credentials()
        if self._repository is not None and credentials != self._credentials:
            log.info("the credentials for the repository have changed")
            self.close()
        if self._repository is None:
            options = self._options
            repository = Repository(options.remote, options.cache, credentials, options.identity)
            self._repository = repository.__enter__()
            self._credentials = credentials
        return self._repository

    def _read_credentials(self) -> Credentials:
        if self._options.secret_folder:
            return Credentials.from_folder(self._options.secret_folder)
        return Credentials.from_environment(os.environ)

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
