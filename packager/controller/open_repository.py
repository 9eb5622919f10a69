"""A repository that stays open between calls, and is reopened when its credentials change."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from packager.git.commit import Identity
from packager.git.credentials import Credentials
from packager.git.remote import Remote
from packager.git.repository import Repository, Split

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RepositoryConfig:
    """A repository, the folder of its clone, and its credentials: a mounted Secret, else the environment."""

    remote: Remote
    cache: Path
    secret_folder: Path | None = None
    identity: Identity = field(default_factory=Identity)


class RepositoryHandle:
    """Opens a repository on first use; not thread-safe."""

    def __init__(self, place: RepositoryConfig, split: Split | None = None) -> None:
        self._place, self._split = place, split
        self._repository: Repository | None = None
        self._credentials = Credentials()

    def opened(self) -> Repository:
        """Return the repository. Raises GitErrors for credentials that cannot be read, and for a clone in use."""
        credentials = self._read_credentials()
        if self._repository is not None and credentials != self._credentials:
            log.info("the credentials for %s have changed", self._place.remote.shown)
            self.close()
        if self._repository is None:
            place = self._place
            repository = Repository(place.remote, place.cache, credentials, place.identity, self._split)
            self._repository = repository.__enter__()
            self._credentials = credentials
        return self._repository

    def close(self) -> None:
        """Release the clone."""
        if self._repository is not None:
            self._repository.__exit__(None, None, None)
            self._repository = None

    def _read_credentials(self) -> Credentials:
        if self._place.secret_folder:
            return Credentials.from_folder(self._place.secret_folder)
        return Credentials.from_environment(os.environ)
