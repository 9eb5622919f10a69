"""A repository that stays open between calls, and is reopened when its credentials change."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from packager.git.commit import Identity
from packager.git.credentials import Credentials
from packager.git.remote import Remote
from packager.git.repository import Repository

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RepositoryConfig:
    """A repository, the folder of its clone, and a mounted Secret with its credentials.

    Without a Secret, the credentials come from the environment.
    """

    remote: Remote
    cache: Path
    secret_folder: Path | None = None
    identity: Identity = field(default_factory=Identity)


class RepositoryHandle:
    """Opens a repository on first use. Not thread-safe."""

    def __init__(self, config: RepositoryConfig) -> None:
        self._config = config
        self._repository: Repository | None = None
        self._credentials = Credentials()

    def open(self) -> Repository:
        """Return the repository, opened again after its credentials changed.

        Raises `GitError` for credentials that cannot be read, and for a clone in use.
        """
        config = self._config
        # Read the files each time, because kubelets replace them when the Secret changes.
        credentials = (
            Credentials.from_folder(config.secret_folder)
            if config.secret_folder
            else Credentials.from_environment(os.environ)
        )
        if self._repository is not None and credentials != self._credentials:
            log.info("the credentials for %s have changed", config.remote.shown)
            self.close()

        if self._repository is None:
            repository = Repository(
                remote=config.remote,
                folder=config.cache,
                credentials=credentials,
                identity=config.identity,
            )
            self._repository = repository.__enter__()
            self._credentials = credentials
        return self._repository

    def close(self) -> None:
        """Release the clone."""
        if self._repository is not None:
            self._repository.__exit__(None, None, None)
            self._repository = None
