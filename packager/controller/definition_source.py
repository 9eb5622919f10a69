"""Follows a repository of cluster definitions by reading each new commit of its branch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from packager.controller.open_repository import RepositoryConfig, RepositoryHandle
from packager.definitions import ownership
from packager.definitions.source import Reader, Source, Validator
from packager.git.errors import GitError
from packager.git.repository import Repository
from packager.git.signers import Signers
from packager.git.snapshot import Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceOptions:
    """The repository with the definitions, the check of its objects, and signers of commits."""

    repository: RepositoryConfig
    validate: Validator
    signers: Path | None = None
    """A file, or a mounted Secret or ConfigMap, with keys that may sign commits; None for any."""


@dataclass(frozen=True)
class DefinitionCommit:
    """The definitions of one commit, and the commit's message.

    `origin` names the commit in the packager's own commits, as `<URL>@<commit>`.
    """

    origin: str
    source: Source
    message: str = ""


class DefinitionSource:
    """Reads definitions, and remembers those of the last commit. Calls block."""

    def __init__(self, options: SourceOptions) -> None:
        self._remote = options.repository.remote
        self._signers_path = options.signers
        self._signers: Signers | None = None
        self._reader = Reader(options.validate)
        self._repository = RepositoryHandle(options.repository)
        self._last: DefinitionCommit | None = None
        self._last_commit = ""

    @property
    def last(self) -> DefinitionCommit | None:
        """The last commit that could be read. It stays in use until a newer one can be read."""
        return self._last

    def refresh(self) -> None:
        """Read the newest commit if it was not read yet. Raises `GitError`.

        A commit that no listed signer signed is not read. A commit that was read is verified again
        when the list of signers changes.
        """
        signers = Signers.read(self._signers_path) if self._signers_path else None
        repository = self._repository.open()
        repository.read(lambda snapshot: self._read(repository, snapshot, signers))

    def _read(self, repository: Repository, snapshot: Snapshot, signers: Signers | None) -> None:
        """Read a commit that was not read yet.

        :param repository: the repository of the definitions
        :param snapshot: the commit
        :param signers: keys that may sign commits, None for any
        """
        remote = self._remote
        is_read = self._last is not None and self._last_commit == snapshot.commit
        if is_read and signers == self._signers:
            return

        if not snapshot.commit:
            # A missing branch must not count as an empty branch, which would remove all clusters.
            raise GitError(
                f"{remote.shown} has no branch {remote.branch}: create it, or name another one"
            )
        if signers:
            signer = repository.verify(snapshot.commit, signers)
            log.info("commit %s of %s is signed by %s", snapshot.commit, remote.shown, signer)
        self._signers = signers
        if is_read:
            return

        source = self._reader.read(snapshot.tree, snapshot.unread(), name=ownership.name_of(remote))
        origin = f"{remote.shown}@{snapshot.commit}"
        self._last = DefinitionCommit(origin, source, snapshot.message)
        self._last_commit = snapshot.commit

    def close(self) -> None:
        """Release the clone."""
        self._repository.close()
