"""Read the definitions of `caphv packager sync` from a folder or from a repository."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import click

from commands.access.repository import open_store
from commands.errors import InputError
from commands.options.repository import RepositoryOptions, SourceOptions
from commands.output.progress import Step

if TYPE_CHECKING:
    from commands.packager.sync import SyncOptions
    from packager.definitions.source import Reader, Source
    from packager.git.commit import Reason
    from packager.git.repository import Repository
    from packager.git.signers import Signers
    from packager.git.snapshot import Snapshot, Unread
    from packager.tree import Tree


class Definitions(NamedTuple):
    """The definitions, and the reason for a commit that follows them."""

    source: Source
    reason: Reason


class _SourceFiles(NamedTuple):
    """Files of a source by path, its links and submodules, and the reason for a commit."""

    files: Tree
    unread: Mapping[str, Unread]
    reason: Reason


def read_source(options: SyncOptions, reader: Reader, step: Step) -> Definitions:
    """Read the definitions from a folder or a repository.

    Raises `InputError`, `click.UsageError`.
    """
    from packager.definitions.sourcefile import SourceProblem
    from packager.git.errors import UnusableContent

    name = _source_name(options)
    files, unread, reason = _files(options, step)
    try:
        source = reader.read(files, unread, name=name)
    except UnusableContent as error:
        raise InputError(str(error)) from None

    if options.definitions and not files:
        # The last definition may have been removed, but also the wrong folder named.
        detail = "has no definition: all clusters that it defined before count as removed"
        source.problems.append(SourceProblem(str(options.definitions), 1, detail, advice=True))
    return Definitions(source, reason)


def source_repository(options: SyncOptions) -> RepositoryOptions:
    """Return repository options for the source of definitions."""
    return RepositoryOptions(
        repo=options.source_repo,
        branch=options.source_branch,
        inner=options.source_path,
        git_credentials=options.source_credentials or options.git_credentials,
        git_cache=options.git_cache / "source" if options.git_cache else None,
        git_timeout=options.git_timeout,
        git_max_size=options.git_max_size,
    )


def refuse_signers_without_source(options: SourceOptions) -> None:
    """Raise `click.UsageError` for signers without a repository whose commits they sign."""
    if options.source_signers and not options.source_repo:
        raise click.UsageError(
            "--source-signers verifies commits: name their repository with --source-repo"
        )


def refuse_circles(source: SourceOptions, repo: str, branch: str, path: str) -> None:
    """Refuse to write where definitions are read from. Raises `click.UsageError`.

    :param source: the repository with definitions
    :param repo: the repository to write
    :param branch: the branch to write
    :param path: the path to write in the repository
    """
    above = source.source_path.split("/")
    below = path.split("/")
    is_same = _is_same(repo, branch, source.source_repo, source.source_branch)
    if is_same and (not source.source_path or below[: len(above)] == above):
        raise click.UsageError(
            "output would be read as definitions: set --source-path and --path to different folders"
        )


def _is_same(repo: str, branch: str, other_repo: str, other_branch: str) -> bool:
    """Whether two addresses lead to one branch, even by ssh and by https."""
    from packager.definitions import ownership
    from packager.git.errors import InvalidRemote
    from packager.git.remote import Remote

    try:
        return ownership.name_of(Remote(repo, branch)) == ownership.name_of(
            Remote(other_repo, other_branch)
        )
    except InvalidRemote:
        # Its faults are reported when it is opened. A target may also be a folder.
        return False


def _files(options: SyncOptions, step: Step) -> _SourceFiles:
    """Read the files of the source. Raises `InputError`, `click.UsageError`.

    :param options: the place of the definitions
    :param step: called with a description of each step
    """
    from packager.definitions.sourcefile import manifests
    from packager.planning.commitplan import definitions_reason

    if bool(options.definitions) == bool(options.source_repo):
        raise click.UsageError("name the definitions: a folder, or --source-repo URL")
    refuse_signers_without_source(options)

    if options.definitions:
        step("reading definitions")
        # The path may be `.`, which has no name.
        reason = definitions_reason(options.definitions.resolve().name or "a folder")
        folder = options.definitions
        return _SourceFiles(_folder_files(folder), _links(folder), reason)

    refuse_circles(options, options.repo, options.branch, options.inner)
    step("reading the source")
    with open_store(source_repository(options)) as store:
        # Only --folder makes a store a folder, and the options of a source have none.
        repository = cast("Repository", store)
        signers = _signers(options.source_signers) if options.source_signers else None

        def read(snapshot: Snapshot) -> _SourceFiles:
            # The address may have a user, who is not for messages and commits.
            address = repository.remote.shown
            if not snapshot.commit:
                raise InputError(f"{address} has no branch {options.source_branch}")
            if signers:
                repository.verify(snapshot.commit, signers)
            reason = definitions_reason(f"{address}@{snapshot.commit}", snapshot.message)
            return _SourceFiles(manifests(snapshot.tree), snapshot.unread(), reason)

        return repository.read(read)


def _signers(path: Path) -> Signers:
    """Return the signers of a file or folder. Raises click.UsageError."""
    from packager.git.errors import InvalidRemote
    from packager.git.signers import Signers

    try:
        return Signers.read(path)
    except InvalidRemote as error:
        raise click.UsageError(str(error)) from None


def _source_name(options: SyncOptions) -> str:
    """Return the name by which the repository records the source."""
    from packager.definitions import ownership
    from packager.git.errors import InvalidRemote
    from packager.git.remote import Remote

    try:
        if options.source_name:
            return ownership.checked_name(options.source_name)
        if not options.source_repo:
            return ownership.DIRECTORY
        return ownership.name_of(
            Remote(options.source_repo, options.source_branch, options.source_path)
        )
    except InvalidRemote as error:
        raise click.UsageError(str(error)) from None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--source-name") from None


def _folder_files(folder: Path) -> Tree:
    """Return the manifests in a folder by path. Raises `InputError`."""
    from caphv.validation.yaml.loader import Unreadable, files

    try:
        return {
            Path(name).relative_to(folder).as_posix(): Path(name).read_bytes()
            for name, _ in files([str(folder)], may_be_empty=True)
        }
    except (Unreadable, OSError) as error:
        raise InputError(str(error)) from None


def _links(folder: Path) -> dict[str, Unread]:
    """Return the symbolic links below a folder by path."""
    from packager.git.snapshot import Unread

    links = {}
    for directory, folders, names in os.walk(folder):
        # os.walk does not enter the folders that are removed from its list.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(directory, name) for name in (*folders, *names)):
            # Kubernetes mounts volumes by links into the folder ..data.
            if path.is_symlink() and not str(path.readlink()).startswith("..data/"):
                reason = "is a symbolic link, which is not followed"
                name = path.relative_to(folder).as_posix()
                links[name] = Unread(reason, is_folder=path.is_dir())
    return links
