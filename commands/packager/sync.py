"""`caphv packager sync`: a repository of cluster definitions becomes manifests and bundles, in one commit."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from commands.main import CONTEXT_SETTINGS
from commands.options.charts import chart_options, helm_secret_options, rendering
from commands.options.clusters import InputError, Step, progress
from commands.options.management import object_key
from commands.options.repository import (
    commit_options,
    names_repository,
    open_store,
    prune_option,
    repository_options,
    source_options,
)
from commands.output.echo import echo
from commands.output.quiet import quiet_publishing
from commands.output.sync import print_result
from commands.packager import management

if TYPE_CHECKING:
    from caphv.api.object import Key
    from packager.apply import ApplyFailure
    from packager.definitions.source import Reader, Source
    from packager.git.commit import Reason
    from packager.git.prune import Plan
    from packager.git.repository import Repository
    from packager.git.result import Result
    from packager.git.signers import Signers
    from packager.git.snapshot import Snapshot, Unread
    from packager.planner import Planned, Planner, Store
    from packager.rendering.gitrepo import GitRepoOptions
    from packager.tree import Tree

DONE, FAULTY = 0, 1
_FLEET_SECONDS = 900.0
"""Time for Fleet to deploy a commit, before the one that follows it: its default interval to resync a GitRepo."""


@dataclass(frozen=True)
class _Round:
    """One sync: its exit status, and after how many seconds another one may do more without a new commit, if any."""

    status: int
    retry: float | None


def _keys(_ctx: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> frozenset[Key]:
    return frozenset(object_key(text, "--confirm") for text in texts)


@click.command(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv packager sync --source-repo https://git.example.com/clusters.git --repo https://git.example.com/fleet.git
  caphv packager sync definitions/ --repo https://git.example.com/fleet.git --review caphv/clusters
                                                       from a folder, for a pull request
  caphv packager sync definitions/ --folder fleet/ --dry-run -o json
  caphv packager sync definitions/ --repo https://git.example.com/fleet.git --confirm team-a/old
                                                       and delete a cluster whose definition was removed

\b
Exit status: 0 done or nothing to do, 1 invalid definitions, or changes that were held back or rejected, 2 unreadable
input, or wrong usage.
""",
)
@click.argument("definitions", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
@source_options
@click.option(
    "--source-name",
    envvar="CAPHV_SOURCE_NAME",
    default="",
    show_default=False,
    metavar="NAME",
    help="Name of this source in a repository that several sources share.  [default: from --source-repo]",
)
@repository_options
@commit_options
@prune_option
@click.option(
    "--confirm",
    "confirmed",
    multiple=True,
    callback=_keys,
    metavar="NAMESPACE/NAME",
    help="Cluster to delete along with its removed definition. Repeatable.",
)
@click.option(
    "--no-bundles", is_flag=True, help="Write manifests only, and leave bundles to a packager in the cluster."
)
@click.option(
    "--client-secret", default="", metavar="NAME", help="Secret with credentials for Fleet to read the repository."
)
@chart_options
@helm_secret_options
@click.option(
    "--interval",
    type=click.FloatRange(1, 86400),
    help="Keep running: poll both repositories at this interval, in seconds.  [default: sync once]",
)
@click.option("--dry-run", is_flag=True, help="Show what would change without changing it.")
@click.option("--apply", "applied", is_flag=True, help="Apply the manifests to the management cluster.")
@click.option("--kubeconfig", default="", help="Kubeconfig of the management cluster.")
@click.option("--context", default="", help="Context of that kubeconfig.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def sync(**flags: Any) -> None:
    """Turn cluster definitions into manifests and bundles, in one commit that names its source.

    Definitions are files of kind ClusterDefinition, or plain manifests of Cluster API with one Cluster per file.
    Invalid definitions are reported by file and line and left unchanged; all others are synced. Nothing is removed
    while a file cannot be read. Removing a definition must be confirmed: with --confirm, or beforehand with annotation
    caphv.io/confirm-removal.

    Fleet applies the manifests on the management cluster, see `caphv packager gitrepo`; or use --apply.
    """
    logging.basicConfig(format="caphv packager: %(message)s", level=logging.WARNING)
    quiet_publishing()
    if flags["applied"] and flags["review"] and not flags["folder"]:
        raise click.UsageError(
            f"--apply and --review {flags['review']} are mutually exclusive: it would apply what is not merged; "
            "sync with --review, merge, then sync with --apply and without --review (variable CAPHV_GIT_REVIEW)"
        )
    reader, planner = _reader(), _planner(flags)
    if not flags["interval"]:
        sys.exit(_once(flags, reader, planner).status)
    if not (flags["source_repo"] and flags["repo"]):
        raise click.UsageError("--interval needs --source-repo and --repo, which can be polled for new commits")
    seen: tuple[str, str] | None = None
    left: float | None = None
    while True:
        try:
            now = _head(_source(flags)), _head(flags)
            if now != seen or (left is not None and left <= 0):
                left = _once(flags, reader, planner).retry
                # Ignore our own push.
                seen = now[0], _head(flags)
        except InputError as error:
            # The host may be back at the next interval.
            echo(f"error: {error.message}", err=True)
        time.sleep(flags["interval"])
        left = None if left is None else left - flags["interval"]


def _once(flags: dict[str, Any], reader: Reader, planner: Planner) -> _Round:
    """Sync, and print the result."""
    from packager.definitions.builder import BuildResult

    with progress() as step:
        name = _source_name(flags)
        files, unread, reason = _files(flags, step)
        source = _read(reader, files, unread, name)
        with _target(flags) as store:
            step("reading the repository")
            planned, result, failures = _synced(source, reason, store, planner, flags)
        built = planned.built or BuildResult()
        if flags["applied"] and not flags["dry_run"]:
            step("applying manifests")
            failures += management.on_cluster(flags, lambda applier: management.apply(applier, built))
    print_result(built, result, failures, flags)
    plan = result.plan
    retry = _FLEET_SECONDS if plan.held else 0.0 if failures else None
    return _Round(FAULTY if built.errors or failures or plan.held or plan.refused else DONE, retry)


def _read(reader: Reader, files: Tree, unread: Mapping[str, Unread], name: str) -> Source:
    from packager.git.errors import UnusableContent

    try:
        return reader.read(files, unread, name=name)
    except UnusableContent as error:
        raise InputError(str(error)) from None


def _head(flags: dict[str, Any]) -> str:
    """Return the head of a remote's branch without fetching it."""
    from packager.git.repository import Repository

    with open_store(flags) as store:
        return store.heads().target if isinstance(store, Repository) else ""


def _reader() -> Reader:
    from packager.definitions.source import Reader
    from webhooks import crossobject

    return Reader(crossobject.check)


def _planner(flags: dict[str, Any]) -> Planner:
    from packager.bundler import Bundler
    from packager.definitions.builder import Builder
    from packager.planner import Planner

    try:
        bundler = Bundler(rendering(flags))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    builder = Builder(bundler.renderer, _git_repos(flags), bundles=not flags["no_bundles"])
    return Planner(bundler, builder, flags["max_prune"])


def _git_repos(flags: dict[str, Any]) -> GitRepoOptions | None:
    from packager.rendering.gitrepo import GitRepoOptions

    try:
        return GitRepoOptions(
            flags["repo"],
            flags["branch"],
            folder=flags["inner"],
            client_secret_name=flags["client_secret"],
            helm_secret_name=flags["helm_secret"],
            helm_repo_regex=flags["helm_repo_regex"],
        )
    except ValueError as error:
        if flags["client_secret"] or flags["helm_secret"] or flags["helm_repo_regex"]:
            raise click.UsageError(f"{error}; name the repository with --repo") from None
        # A folder, or a path on this machine: only the user knows the address that Fleet reads.
        return None


def _files(flags: dict[str, Any], step: Step) -> tuple[Tree, Mapping[str, Unread], Reason]:
    """Return files of the source by path, its links and submodules, and the reason for a commit that follows them."""
    from packager.definitions.source import manifests
    from packager.planner import definitions_changed

    if bool(flags["definitions"]) == bool(flags["source_repo"]):
        raise click.UsageError("name the definitions: a folder, or --source-repo URL")
    refuse_signers_without_source(flags)
    if flags["definitions"]:
        step("reading definitions")
        reason = definitions_changed(flags["definitions"].name or "a folder")
        return _of_folder(flags["definitions"]), _links(flags["definitions"]), reason
    refuse_circles(flags)
    step("reading the source")
    with open_store(_source(flags)) as repository:
        snapshot = repository.sync()
        if not snapshot.commit:
            raise InputError(f"{flags['source_repo']} has no branch {flags['source_branch']}")
        if flags["source_signers"]:
            cast("Repository", repository).verify(snapshot.commit, _signers(flags["source_signers"]))
        origin = f"{flags['source_repo']}@{snapshot.commit}"
        return manifests(snapshot.tree), snapshot.unread(), definitions_changed(origin, snapshot.message)


def _signers(path: Path) -> Signers:
    """Return the signers of a file or folder. Raises click.UsageError."""
    from packager.git.errors import InvalidRemote
    from packager.git.signers import Signers

    try:
        return Signers.read(path)
    except InvalidRemote as error:
        raise click.UsageError(str(error)) from None


def _source_name(flags: dict[str, Any]) -> str:
    """Return the name by which the repository records the source."""
    from packager.definitions import ownership
    from packager.git.errors import InvalidRemote
    from packager.git.remote import Remote

    try:
        if flags["source_name"]:
            return ownership.checked_name(flags["source_name"])
        if not flags["source_repo"]:
            return ownership.DIRECTORY
        return ownership.name_of(Remote(flags["source_repo"], flags["source_branch"], flags["source_path"]))
    except InvalidRemote as error:
        raise click.UsageError(str(error)) from None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--source-name") from None


def _source(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the source as those of a repository."""
    return {
        "repo": flags["source_repo"],
        "branch": flags["source_branch"],
        "inner": flags["source_path"],
        "folder": None,
        "git_credentials": flags["source_credentials"] or flags["git_credentials"],
        "git_cache": flags["git_cache"] / "source" if flags["git_cache"] else None,
        "git_timeout": flags["git_timeout"],
        "git_max_size": flags["git_max_size"],
    }


def _of_folder(folder: Path) -> Tree:
    from caphv.validation.yaml.loader import Unreadable, files

    try:
        return {Path(name).relative_to(folder).as_posix(): Path(name).read_bytes() for name, _ in files([str(folder)])}
    except (Unreadable, OSError) as error:
        raise InputError(str(error)) from None


def _links(folder: Path) -> dict[str, Unread]:
    """Return the symbolic links below a folder by path, except those by which Kubernetes mounts volumes."""
    from packager.git.snapshot import Unread

    found = {}
    for directory, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(directory, name) for name in (*folders, *names)):
            if path.is_symlink() and not str(path.readlink()).startswith("..data/"):
                why = "is a symbolic link, which is not followed"
                found[path.relative_to(folder).as_posix()] = Unread(why, is_folder=path.is_dir())
    return found


def refuse_signers_without_source(flags: dict[str, Any]) -> None:
    """Refuse a list of signers that nothing is verified by."""
    if flags["source_signers"] and not flags["source_repo"]:
        raise click.UsageError("--source-signers verifies commits: name their repository with --source-repo")


def refuse_circles(flags: dict[str, Any]) -> None:
    """Refuse to write where definitions are read from."""
    same = (flags["repo"], flags["branch"]) == (flags["source_repo"], flags["source_branch"])
    above, below = flags["source_path"].split("/"), flags["inner"].split("/")
    if same and (not flags["source_path"] or below[: len(above)] == above):
        raise click.UsageError("output would be read as definitions: set --source-path and --path to different folders")


@contextlib.contextmanager
def _target(flags: dict[str, Any]) -> Iterator[Store]:
    from packager.definitions.files import NAMES
    from packager.git.directory import Directory

    with open_store(flags, new=True) as store:
        yield (
            Directory(flags["folder"], flags["inner"], names=NAMES)
            if names_repository(flags) and flags["folder"]
            else store
        )


def _synced(
    source: Source, reason: Reason, store: Store, planner: Planner, flags: dict[str, Any]
) -> tuple[Planned, Result, list[ApplyFailure]]:
    """Push what the definitions make of the repository; with --apply, delete removed clusters once that is pushed.

    A definition that has left the repository is forgotten: while its Cluster cannot be deleted, it must stay there. So
    the server is asked before the push, and nothing is deleted that the branch still holds: a push may be rejected.
    """
    from packager.git.errors import GitError
    from packager.git.publish import log_result
    from packager.git.result import Result
    from packager.planner import ManagementState

    state = ManagementState(confirmed=flags["confirmed"], live=False)
    if flags["message"]:
        reason = replace(reason, why=flags["message"])
    if flags["dry_run"]:
        planned = planner.plan(store.sync(), state, source)
        return planned, Result(planned.plan, "", ""), []
    made: list[Planned] = []
    failures: list[ApplyFailure] = []

    def gone() -> list[str]:
        return _removed_clusters(made[-1].plan) if made and flags["applied"] else []

    def plan(snapshot: Snapshot) -> Plan:
        planned = planner.plan(snapshot, state, source)
        made.append(planned)
        failures[:] = management.delete(flags, gone(), dry_run=True)
        if failures:
            without = planner.plan(snapshot, state, replace(source, complete=False))
            made.append(replace(without, plan=_held(without.plan, planned.plan)))
        if flags["applied"]:
            left, refused = management.drop(flags, made[-1].plan, snapshot)
            made.append(replace(made[-1], plan=left))
            failures.extend(refused)
        return made[-1].plan

    try:
        result = log_result(store.commit(plan, reason))
    except GitError as error:
        raise InputError(*str(error).split("\n"), *management.after_failure(flags, store, gone())) from None
    return made[-1], result, failures + management.delete_lost(flags, gone())


def _removed_clusters(plan: Plan) -> list[str]:
    from packager.definitions.files import MANIFESTS

    removed = (removal for removal in plan.removed if removal.definition and not removal.bundle)
    return [removal.folder.removeprefix(f"{MANIFESTS}/") for removal in removed]


def _held(plan: Plan, before: Plan) -> Plan:
    """Return a plan without removals that says why those of the plan before are held back."""
    asked = {str(removal) for removal in before.removed}
    why = "not all Clusters of removed definitions can be deleted: confirm again and sync once that is possible"
    return replace(plan, held=tuple(replace(one, why=why) if one.what in asked else one for one in plan.held))
