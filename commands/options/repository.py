"""Options for the Git repository, or local folder, that a command reads or writes.

Credentials are not options, because other users of a machine can see command lines. They come from
the environment or from the folder of a mounted Secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from commands.options.groups import with_options

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class RepositoryOptions:
    """The repository or local folder of `repository_options`.

    A command that commits also takes the options of `commit_options`.
    """

    repo: str
    branch: str
    inner: str
    git_credentials: Path | None
    git_cache: Path | None
    git_timeout: float
    git_max_size: int
    folder: Path | None = None
    review: str = ""
    author: str = ""
    create_branch: bool = False
    message: str = ""


def repository_options(command: _Command) -> _Command:
    """Add the options for a repository or a local folder."""
    folder = click.option(
        "--folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="Use this local directory, such as a checkout, instead of a repository.",
    )
    return folder(git_cache_option("below ~/.cache/caphv")(remote_options(command)))


def git_cache_option(default: str) -> Callable[[_Command], _Command]:
    """Return the option for the folder of the clone; `default` is in words."""
    return click.option(
        "--git-cache",
        envvar="CAPHV_GIT_CACHE",
        type=click.Path(path_type=Path),
        show_default=False,
        metavar="DIRECTORY",
        help=f"Directory for the clone of the repository.  [default: {default}]",
    )


def remote_options(command: _Command) -> _Command:
    """Add the options for a remote repository, without the folder of its clone."""
    return with_options(
        command,
        click.option(
            "--git-timeout",
            envvar="CAPHV_GIT_TIMEOUT",
            type=click.FloatRange(1, 3600),
            default=60.0,
            show_default=True,
            metavar="SECONDS",
            help="Timeout of each Git network operation, in seconds.",
        ),
        click.option(
            "--git-max-size",
            envvar="CAPHV_GIT_MAX_SIZE",
            type=click.IntRange(1),
            default=512,
            show_default=True,
            metavar="MIB",
            help="Maximum size of one fetch, in MiB.",
        ),
        click.option(
            "--git-credentials",
            envvar="CAPHV_GIT_CREDENTIALS",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help=(
                "Directory of a mounted Secret of type basic-auth or ssh-auth.  [default: "
                "environment variables CAPHV_GIT_*]"
            ),
        ),
        click.option(
            "--path",
            "inner",
            envvar="CAPHV_GIT_PATH",
            default="",
            show_default=False,
            metavar="PATH",
            help="Directory in the repository.  [default: its root]",
        ),
        click.option(
            "--branch",
            envvar="CAPHV_GIT_BRANCH",
            default="main",
            show_default=True,
            metavar="BRANCH",
            help="Branch that Fleet reads.",
        ),
        click.option(
            "--repo",
            envvar="CAPHV_GIT_REPO",
            default="",
            show_default=False,
            metavar="URL",
            help="URL of the Git repository that Fleet reads; it must not contain a password.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The repository with cluster definitions, of `source_options`."""

    source_repo: str
    source_branch: str
    source_path: str
    source_credentials: Path | None
    source_signers: Path | None


def source_options(command: _Command) -> _Command:
    """Add the options for a repository with cluster definitions."""
    return with_options(
        command,
        click.option(
            "--source-signers",
            envvar="CAPHV_SOURCE_SIGNERS",
            type=click.Path(exists=True, path_type=Path),
            help=(
                "Public keys that may sign commits of --source-repo: a file, or the directory "
                "of a mounted Secret.  [default: signatures are not required]"
            ),
        ),
        click.option(
            "--source-credentials",
            envvar="CAPHV_SOURCE_CREDENTIALS",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            help=(
                "Credentials for --source-repo, like --git-credentials.  [default: the "
                "credentials of --repo]"
            ),
        ),
        click.option(
            "--source-path",
            envvar="CAPHV_SOURCE_PATH",
            default="",
            show_default=False,
            metavar="PATH",
            help="Directory in the source repository.  [default: its root]",
        ),
        click.option(
            "--source-branch",
            envvar="CAPHV_SOURCE_BRANCH",
            default="main",
            show_default=True,
            metavar="BRANCH",
            help="Branch of the source repository.",
        ),
        click.option(
            "--source-repo",
            envvar="CAPHV_SOURCE_REPO",
            default="",
            show_default=False,
            metavar="URL",
            help="URL of the Git repository with cluster definitions.",
        ),
    )


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
    return with_options(
        command,
        click.option(
            "--create-branch",
            envvar="CAPHV_GIT_CREATE_BRANCH",
            is_flag=True,
            help="Create --branch if the repository lacks it but has other branches.",
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
            help=(
                "Push to this branch instead of --branch, for a pull request; its name must "
                "begin with caphv/."
            ),
        ),
    )


def prune_option(command: _Command) -> _Command:
    """Add the option that limits removals per commit."""
    return click.option(
        "--max-prune",
        type=click.IntRange(0),
        default=10,
        show_default=True,
        envvar="CAPHV_MAX_PRUNE",
        metavar="NUMBER",
        help=(
            "Maximum number of bundles and definitions that one commit may remove; if "
            "there are more, none is removed."
        ),
    )(command)
