"""Options for the Git repository, or local folder, that a command reads or writes.

Credentials are not options, because other users of a machine can see command lines. They come from the environment or
from the folder of a mounted Secret.
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
    from packager.git.commit import Identity
    from packager.git.credentials import Credentials
    from packager.planner import Store

_Command = TypeVar("_Command", bound=Callable[..., Any])


def repository_options(command: _Command) -> _Command:
    """Add the options for a repository or a local folder."""
    folder = click.option(
        "--folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="Local folder instead of a repository, e.g. a checkout.",
    )
    return folder(git_cache_option("below ~/.cache/caphv")(remote_options(command)))


def git_cache_option(default: str) -> Callable[[_Command], _Command]:
    """Return the option for the folder of the clone, with what a command takes without it in words."""
    return click.option(
        "--git-cache",
        envvar="CAPHV_GIT_CACHE",
        type=click.Path(path_type=Path),
        show_default=False,
        help=f"Folder for the clone of this repository.  [default: {default}]",
    )


def remote_options(command: _Command) -> _Command:
    """Add the options for a remote repository, without the folder of its clone."""
    for add in (
        click.option(
            "--git-timeout",
            envvar="CAPHV_GIT_TIMEOUT",
            type=click.FloatRange(1, 3600),
            default=60.0,
            show_default=True,
            help="Timeout of a Git network operation in seconds.",
        ),
        click.option(
            "--git-max-size",
            envvar="CAPHV_GIT_MAX_SIZE",
            type=click.IntRange(1),
            default=512,
            show_default=True,
            metavar="MIB",
            help="Most that one fetch from a repository may bring, in MiB.",
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
            help="Path in the repository.",
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
            help="URL of the Git repository, without a password.",
        ),
    ):
        command = add(command)
    return command


def source_options(command: _Command) -> _Command:
    """Add the options for a repository with cluster definitions."""
    for add in (
        click.option(
            "--source-signers",
            envvar="CAPHV_SOURCE_SIGNERS",
            type=click.Path(exists=True, path_type=Path),
            help="Keys that may sign: a file, or the folder of a mounted Secret.  [default: commits need no signature]",
        ),
        click.option(
            "--source-credentials",
            envvar="CAPHV_SOURCE_CREDENTIALS",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help="Folder of a mounted Secret, see --git-credentials.  [default: the credentials of --repo]",
        ),
        click.option(
            "--source-path",
            envvar="CAPHV_SOURCE_PATH",
            default="",
            show_default=False,
            metavar="PATH",
            help="Path in that repository.",
        ),
        click.option(
            "--source-branch",
            envvar="CAPHV_SOURCE_BRANCH",
            default="main",
            show_default=True,
            help="Branch of that repository.",
        ),
        click.option(
            "--source-repo",
            envvar="CAPHV_SOURCE_REPO",
            default="",
            show_default=False,
            metavar="URL",
            help="URL of the Git repository with cluster definitions.",
        ),
    ):
        command = add(command)
    return command


def commit_options(command: _Command) -> _Command:
    """Add the options for a commit."""
    message = click.option(
        "--message",
        default="",
        show_default=False,
        metavar="TEXT",
        help="Reason for the change, added to the commit message.",
    )
    return message(author_options(command))


def author_options(command: _Command) -> _Command:
    """Add the options for the author and the branch of a commit."""
    for add in (
        click.option(
            "--create-branch",
            envvar="CAPHV_GIT_CREATE_BRANCH",
            is_flag=True,
            help="Create --branch if the repository has others, but not this one, or no longer has it.",
        ),
        click.option(
            "--author",
            envvar="CAPHV_GIT_AUTHOR",
            default="caphv <caphv@localhost>",
            show_default=True,
            metavar="NAME <EMAIL>",
            help="Author of the commits.",
        ),
        click.option(
            "--review",
            envvar="CAPHV_GIT_REVIEW",
            default="",
            show_default=False,
            metavar="BRANCH",
            help="Push to this branch (caphv/…) for a pull request, instead of --branch.",
        ),
    ):
        command = add(command)
    return command


def prune_option(command: _Command) -> _Command:
    """Add the option that limits removals per commit."""
    return click.option(
        "--max-prune",
        type=click.IntRange(0),
        default=10,
        show_default=True,
        envvar="CAPHV_MAX_PRUNE",
        help="Max bundles and definitions that one commit may remove; if exceeded, none are removed.",
    )(command)


def names_repository(flags: dict[str, Any]) -> bool:
    """Whether a repository or folder is given. A folder overrides a repository from the environment."""
    if flags["folder"]:
        source = click.get_current_context().get_parameter_source
        for name in ("repo", "review"):
            if flags.get(name) and source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--folder and --{name} are mutually exclusive")
    return bool(flags["repo"] or flags["folder"])


@contextlib.contextmanager
def open_store(flags: dict[str, Any], *, new: bool = False) -> Iterator[Store]:
    """Open the repository or folder of `repository_options` and `commit_options`; with `new` the folder may be missing.

    Raises InputError for errors of the repository inside the block.
    """
    from packager.git.directory import Directory
    from packager.git.errors import GitError, InvalidRemote
    from packager.git.remote import Remote
    from packager.git.repository import Repository
    from packager.rendering import branches
    from packager.tree import CLUSTERS, VENDOR

    if not names_repository(flags):
        raise click.UsageError("give a repository with --repo URL or a folder with --folder")
    try:
        if flags["folder"]:
            names = (CLUSTERS, VENDOR, branches.FILE)
            directory = Directory(flags["folder"], _inner(flags["inner"]), names=names)
            if not (new or flags["folder"].is_dir()):
                raise InputError(f"{flags['folder']}: no such folder")
            yield directory
            return
        try:
            remote = Remote(
                flags["repo"],
                flags["branch"],
                flags["inner"],
                flags.get("review") or "",
                flags["git_timeout"],
                create_branch=flags.get("create_branch", False),
                max_size=flags["git_max_size"],
            )
            credentials = _credentials(flags["git_credentials"])
        except InvalidRemote as error:
            raise click.UsageError(str(error)) from None
        identity = _identity(flags.get("author") or "")
        cache = flags["git_cache"] or _cache(remote)
        with Repository(remote, cache, credentials, identity, branches.folders) as repository:
            yield repository
    except GitError as error:
        raise InputError(*str(error).split("\n")) from None
    except OSError as error:
        # The cache, or a folder without permissions.
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
    """Folder for the clone of a remote, unique by its URL, branches and path."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    what = "\0".join((remote.url, remote.branch, remote.path, remote.review))
    return base / "caphv" / "git" / hashlib.sha256(what.encode()).hexdigest()[:16]
