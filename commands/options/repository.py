"""Options that say which Git repository, or folder in its place, a command reads or writes.

Credentials are no options: command lines are seen by everybody on a machine. They come from the environment or from the
folder of a mounted Secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from commands.options.clusters import InputError

if TYPE_CHECKING:
    from packager.bundler import Store
    from packager.git.commit import Identity
    from packager.git.credentials import Credentials

_Command = TypeVar("_Command", bound=Callable[..., Any])


def repository_options(command: _Command) -> _Command:
    """Add the options that name a repository, or a folder in its place."""
    folder = click.option(
        "--folder", type=click.Path(file_okay=False, path_type=Path), help="A folder, for example a checkout."
    )
    return folder(remote_options(command))


def remote_options(command: _Command) -> _Command:
    """Add the options that name a repository and say how it is reached."""
    for add in (
        click.option(
            "--git-timeout",
            envvar="CAPHV_GIT_TIMEOUT",
            type=click.FloatRange(1, 3600),
            default=60.0,
            show_default=True,
            help="Seconds that one exchange with the remote may take.",
        ),
        click.option(
            "--git-cache",
            envvar="CAPHV_GIT_CACHE",
            type=click.Path(path_type=Path),
            help="Folder for the clone, for this repository alone.  [default: below ~/.cache/caphv]",
        ),
        click.option(
            "--git-credentials",
            envvar="CAPHV_GIT_CREDENTIALS",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Folder of a mounted Secret of type basic-auth or ssh-auth.  [default: variables CAPHV_GIT_*]",
        ),
        click.option(
            "--path",
            "inner",
            envvar="CAPHV_GIT_PATH",
            default="",
            show_default=False,
            metavar="PATH",
            help="Folder in the repository.",
        ),
        click.option(
            "--branch", envvar="CAPHV_GIT_BRANCH", default="main", show_default=True, help="Branch that Fleet reads."
        ),
        click.option(
            "--repo",
            envvar="CAPHV_GIT_REPO",
            default="",
            show_default=False,
            metavar="URL",
            help="Git repository, without password.",
        ),
    ):
        command = add(command)
    return command


def source_options(command: _Command) -> _Command:
    """Add the options that name a repository with definitions of clusters."""
    for add in (
        click.option(
            "--source-credentials",
            envvar="CAPHV_SOURCE_CREDENTIALS",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Folder of a mounted Secret, as --git-credentials.  [default: the same as for --repo]",
        ),
        click.option(
            "--source-path",
            envvar="CAPHV_SOURCE_PATH",
            default="",
            show_default=False,
            metavar="PATH",
            help="Folder in it.",
        ),
        click.option(
            "--source-branch", envvar="CAPHV_SOURCE_BRANCH", default="main", show_default=True, help="Its branch."
        ),
        click.option(
            "--source-repo",
            envvar="CAPHV_SOURCE_REPO",
            default="",
            show_default=False,
            metavar="URL",
            help="Repository with the definitions.",
        ),
    ):
        command = add(command)
    return command


def commit_options(command: _Command) -> _Command:
    """Add the options that say how a commit is made, and why."""
    message = click.option(
        "--message", default="", show_default=False, metavar="TEXT", help="Why, for the message of the commit."
    )
    return message(author_options(command))


def author_options(command: _Command) -> _Command:
    """Add the options that say by whom a commit is made, and where to."""
    for add in (
        click.option(
            "--author",
            envvar="CAPHV_GIT_AUTHOR",
            default="caphv <caphv@localhost>",
            show_default=True,
            metavar="NAME <EMAIL>",
        ),
        click.option(
            "--review",
            envvar="CAPHV_GIT_REVIEW",
            default="",
            show_default=False,
            metavar="BRANCH",
            help="Push to this branch (caphv/…) for a pull request, in place of the branch itself.",
        ),
    ):
        command = add(command)
    return command


def prune_option(command: _Command) -> _Command:
    """Add the option that limits removals: the same for all commands that commit."""
    return click.option(
        "--max-prune",
        type=click.IntRange(0),
        default=10,
        show_default=True,
        envvar="CAPHV_MAX_PRUNE",
        help="Bundles and definitions that one commit may remove; when more are to go, all of them stay.",
    )(command)


def names_repository(flags: dict[str, Any]) -> bool:
    """Whether a repository or folder is named. A folder wins over a repository that only the environment names."""
    if flags["folder"]:
        source = click.get_current_context().get_parameter_source
        for name in ("repo", "review"):
            if flags.get(name) and source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--folder and --{name} exclude each other")
    return bool(flags["repo"] or flags["folder"])


@contextlib.contextmanager
def open_store(flags: dict[str, Any], *, new: bool = False) -> Iterator[Store]:
    """Give what the options of `repository_options` and `commit_options` mean; only with `new` a folder may be missing.

    Raises InputError for what goes wrong with a repository inside of the block.
    """
    from packager.git.directory import Directory
    from packager.git.errors import GitError, InvalidRemote
    from packager.git.remote import Remote
    from packager.git.repository import Repository

    if not names_repository(flags):
        raise click.UsageError("name the repository with --repo URL, or a folder with --folder")
    try:
        if flags["folder"]:
            directory = Directory(flags["folder"], _inner(flags["inner"]))
            if not (new or flags["folder"].is_dir()):
                raise InputError(f"{flags['folder']}: there is no such folder")
            yield directory
            return
        try:
            remote = Remote(
                flags["repo"], flags["branch"], flags["inner"], flags.get("review") or "", flags["git_timeout"]
            )
            credentials = _credentials(flags["git_credentials"])
        except InvalidRemote as error:
            raise click.UsageError(str(error)) from None
        identity = _identity(flags.get("author") or "")
        with Repository(remote, flags["git_cache"] or _cache(remote), credentials, identity) as repository:
            yield repository
    except GitError as error:
        raise InputError(str(error)) from None
    except OSError as error:
        # The cache, or a folder of somebody else's.
        raise InputError(f"{error.filename}: {error.strerror}") from None


def _inner(path: str) -> str:
    from packager.git.paths import checked

    try:
        return checked(path) if path else ""
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
        raise click.BadParameter(f"{error}; write it as: NAME <EMAIL>", param_hint="--author") from None


def _cache(remote: Any) -> Path:
    """Folder for the clone of a remote: by its address and branches, so that no two share one."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    what = "\0".join((remote.url, remote.branch, remote.path, remote.review))
    return base / "caphv" / "git" / hashlib.sha256(what.encode()).hexdigest()[:16]
