"""Follows a repository of cluster definitions: a commit there becomes a commit with manifests in the other repository.

Bundles are not made here. They follow from the Clusters, once somebody has applied the manifests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from packager.batch import Packager
from packager.definitions.source import Judge, read
from packager.definitions.sync import Options as SyncOptions
from packager.definitions.sync import Outcome, sync
from packager.git.errors import GitError
from packager.git.repository import Repository
from packager.incluster.holder import Holder, Place

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """The repository with the definitions, and how they are judged; `max_prune` as everywhere."""

    place: Place
    judge: Judge
    max_prune: int


class Follower:
    """Remembers which commit of the source it has done. Calls block."""

    def __init__(self, options: Options, packager: Packager) -> None:
        self._options = options
        self._packager = packager
        self._source = Holder(options.place)
        self._done = ""

    def follow(self, target: Repository, is_own: Callable[[str], bool]) -> Outcome | None:
        """Write the manifests of the newest commit; None when it was done before and nobody else has written since.

        `is_own` tells whether a commit of the target was made or seen by this process. Raises GitErrors.
        """
        repository = self._source.opened()
        commit = repository.heads().target
        if not commit:
            remote = self._options.place.remote
            raise GitError(f"{remote.url} has no branch {remote.branch}: make it, or name another one")
        if commit == self._done and is_own(target.sync().commit):
            return None
        snapshot = repository.sync()
        source = read(dict(snapshot.tree), self._options.judge)
        origin = f"{self._options.place.remote.url}@{snapshot.commit}"
        options = SyncOptions(self._options.max_prune, bundles=False)
        outcome = sync(source, origin, target, self._packager, options)
        for problem in outcome.made.problems:
            log.warning("%s: %s", snapshot.commit[:12], problem)
        self._done = snapshot.commit
        return outcome

    def close(self) -> None:
        """Let go of the clone."""
        self._source.close()
