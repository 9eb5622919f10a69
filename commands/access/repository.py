"""Open the repository or folder that options name."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from commands.errors import InputError
from commands.options.repository import RepositoryOptions

if TYPE_CHECKING:
    from packager.git.commit import Identity
    from packager.git.credentials import Credentials
    from packager.planning.commitplan import Store


def names_repository(options: RepositoryOptions) -> bool:
    """Whether a repository or folder is given.

    A folder overrides a repository from the environment.
    """
    if options.folder:
        # Variables of the environment may be meant for other commands. Only options on the command
        # line contradict --folder.
        source = click.get_current_context().get_parameter_source
        for name in ("repo", "review"):
            if getattr(options, name) and source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--folder and --{name} are mutually exclusive")
    return bool(options.repo or options.folder)


@contextlib.contextmanager
def open_store(
    options: RepositoryOptions, *, new: bool = False, more: Collection[str] = ()
) -> Iterator[Store]:
    """Open the repository or folder of `repository_options` and `commit_options`.

    Raises `InputError` for errors of the repository inside the block.

    :param options: the repository or folder
    :param new: whether the folder may be missing
    :param more: files at the top that the caller reads besides bundles
    """
    from packager.git.directory import Directory
    from packager.git.errors import GitError, InvalidRemote
    from packager.git.remote import Remote
    from packager.git.repository import Repository
    from packager.tree import CLUSTERS, VENDOR

    if not names_repository(options):
        raise click.UsageError("give a repository with --repo URL or a folder with --folder")
    try:
        if options.folder:
            names = (CLUSTERS, VENDOR, *more)
            directory = Directory(options.folder, _inner(options.inner), names=names)
            if not (new or options.folder.is_dir()):
                raise InputError(f"{options.folder}: no such folder")
            yield directory
            return
        try:
            remote = Remote(
                url=options.repo,
                branch=options.branch,
                path=options.inner,
                review=options.review,
                timeout=options.git_timeout,
                create_branch=options.create_branch,
                max_size=options.git_max_size,
            )
            credentials = _credentials(options.git_credentials)
        except InvalidRemote as error:
            raise click.UsageError(str(error)) from None

        identity = _identity(options.author)
        cache = options.git_cache or _cache(remote)
        with Repository(remote, cache, credentials, identity) as repository:
            yield repository
    except GitError as error:
        raise InputError(*str(error).split("\n")) from None
    except OSError as error:
        # The cache or the folder lacks permissions.
        raise InputError(f"{error.filename}: {error.strerror}") from None


def _inner(path: str) -> str:
    from packager.git.paths import check_path

    try:
        return check_path(path) if path else ""
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--path") from None


def _credentials(folder: Path | None) -> Credentials:
    from packager.git.credentials import Credentials

    return Credentials.from_folder(folder) if folder else Credentials.from_environment(os.environ)


def _identity(author: str) -> Identity | None:
    from packager.git.commit import Identity

    name, _, email = author.partition(" <")
    try:
        return Identity(name, email.removesuffix(">")) if author else None
    except ValueError as error:
        raise click.BadParameter(
            f"{error}; write it as: NAME <EMAIL>", param_hint="--author"
        ) from None


def _cache(remote: Any) -> Path:
    """Return the folder for the clone of a remote, unique by its URL, branches and path."""
    # Each branch and path of a repository has its own clone.
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    identity = "\0".join((remote.url, remote.branch, remote.path, remote.review))
    return base / "caphv" / "git" / hashlib.sha256(identity.encode()).hexdigest()[:16]
