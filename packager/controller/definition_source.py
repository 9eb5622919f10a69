"""Follows a repository of cluster definitions: what its newest commit holds, read when there is another one."""

from __future__ import annotations

from dataclasses import dataclass

from packager.controller.open_repository import Holder, Place
from packager.definitions.source import Judge, Reader, Source, manifests
from packager.git.errors import GitError


@dataclass(frozen=True)
class Options:
    """The repository with the definitions, and how they are judged."""

    place: Place
    judge: Judge


@dataclass(frozen=True)
class Followed:
    """What a commit of the source holds; `origin` names it in commits: address and commit."""

    origin: str
    source: Source


class Follower:
    """Remembers what it read last. Calls block."""

    def __init__(self, options: Options) -> None:
        self._place = options.place
        self._reader = Reader(options.judge)
        self._holder = Holder(options.place)
        self._followed: tuple[str, Followed] | None = None

    @property
    def last(self) -> Followed | None:
        """What was read last; it counts until something newer can be read."""
        return self._followed[1] if self._followed else None

    def look(self) -> None:
        """Read the newest commit, if there is a new one. Raises GitErrors."""
        repository = self._holder.opened()
        if self._followed and self._followed[0] == repository.heads().target:
            return
        snapshot, remote = repository.sync(), self._place.remote
        if not snapshot.commit:
            # Nothing there is not the same as no definitions there: those would go.
            raise GitError(f"{remote.url} has no branch {remote.branch}: make it, or name another one")
        source = self._reader.read(manifests(snapshot.tree))
        self._followed = snapshot.commit, Followed(f"{remote.url}@{snapshot.commit}", source)

    def close(self) -> None:
        """Let go of the clone."""
        self._holder.close()
