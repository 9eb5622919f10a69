"""`caphv packager sync`: cluster definitions become manifests and bundles, in one commit."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from commands.access.repository import names_repository, open_store
from commands.errors import InputError
from commands.main import CONTEXT_SETTINGS
from commands.options.charts import ChartOptions, chart_options, helm_secret_options, rendering
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.management import CONTEXT, KUBECONFIG, ManagementOptions, object_key
from commands.options.repository import (
    RepositoryOptions,
    SourceOptions,
    commit_options,
    prune_option,
    repository_options,
    source_options,
)
from commands.output.echo import echo
from commands.output.progress import progress
from commands.output.quiet import quiet_publishing
from commands.output.sync import print_result
from commands.packager import management
from commands.packager.sync_push import push
from commands.packager.sync_source import read_source, source_repository

if TYPE_CHECKING:
    from caphv.api.object import Key
    from packager.contents.uninstall import Waiting
    from packager.definitions.source import Reader
    from packager.planning.commitplan import Store
    from packager.planning.planner import Planner

DONE = 0
FAULTY = 1
# The time that Fleet gets to deploy one commit before the next one follows. It equals Fleet's
# default interval to resync a GitRepo.
_FLEET_SECONDS = 900.0


@dataclass(frozen=True)
class _Round:
    """The result of one sync.

    `retry_seconds` says when another sync may do more without a new commit; it is None if only a
    new commit can change something. `pushed` is the commit that the sync pushed to the branch, and
    empty if it pushed none.
    """

    status: int
    retry_seconds: float | None
    pushed: str


@dataclass(frozen=True, kw_only=True)
class SyncOptions(ManagementOptions, ChartOptions, RepositoryOptions, SourceOptions):
    """Definitions, the repository to write, and what else a sync may do."""

    definitions: Path | None
    source_name: str
    max_prune: int
    confirmed: frozenset[Key]
    no_bundles: bool
    client_secret: str
    helm_secret: str
    helm_repo_regex: str
    interval: float | None
    dry_run: bool
    applied: bool
    output: str


def _keys(_ctx: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> frozenset[Key]:
    return frozenset(object_key(text, "--confirm") for text in texts)


@click.command(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv packager sync --source-repo https://git.example.com/clusters.git --repo \
https://git.example.com/fleet.git
  caphv packager sync definitions/ --repo https://git.example.com/fleet.git --review caphv/clusters
                                                       from a directory, as a pull request
  caphv packager sync definitions/ --folder fleet/ --dry-run -o json
  caphv packager sync definitions/ --repo https://git.example.com/fleet.git --confirm team-a/old
                                                       also delete a cluster whose definition \
was removed

Exit status: 0 done or nothing to do, 1 definitions are invalid, or changes were held back or
rejected, 2 usage error or unreadable input.
""",
)
@click.argument(
    "definitions", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@source_options
@click.option(
    "--source-name",
    envvar="CAPHV_SOURCE_NAME",
    default="",
    show_default=False,
    metavar="NAME",
    help=(
        "Name of this source in a repository that several sources share.  [default: "
        "derived from --source-repo]"
    ),
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
    help="Cluster that may be deleted because its definition was removed. Repeatable.",
)
@click.option(
    "--no-bundles",
    is_flag=True,
    help="Write only manifests, and leave bundles to a packager in the cluster.",
)
@click.option(
    "--client-secret",
    default="",
    metavar="NAME",
    help=(
        "Secret with Fleet's credentials for the repository, field clientSecretName of "
        "the GitRepos."
    ),
)
@chart_options
@helm_secret_options
@click.option(
    "--interval",
    type=click.FloatRange(1, 86400),
    metavar="SECONDS",
    help=(
        "Keep running, and poll both repositories at this interval, in seconds.  "
        "[default: sync once]"
    ),
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option(
    "--apply", "applied", is_flag=True, help="Also apply the manifests to the management cluster."
)
@KUBECONFIG
@CONTEXT
@output_option()
@fill(options=SyncOptions)
def sync(options: SyncOptions) -> None:
    """Turn cluster definitions into manifests and bundles, in one commit that names its source.

    Definitions are files of kind ClusterDefinition, or plain manifests of Cluster API with one
    Cluster per file. Invalid definitions are reported with file and line, and their clusters stay
    unchanged; all others are synced. While a file cannot be read, nothing is removed. A cluster
    whose definition was removed is deleted only if you confirm it: with --confirm, or before the
    removal with annotation caphv.io/confirm-removal.

    Fleet applies the manifests to the management cluster, see `caphv packager gitrepo`. With
    --apply, this command applies them.
    """
    logging.basicConfig(format="caphv packager: %(message)s", level=logging.WARNING)
    quiet_publishing()
    if options.applied and options.review and not options.folder:
        raise click.UsageError(
            f"--apply and --review {options.review} are mutually exclusive: it would apply what "
            "is not merged; sync with --review, merge, then sync with --apply and without "
            "--review (variable CAPHV_GIT_REVIEW)"
        )

    reader = _reader()
    planner = _planner(options)
    if not options.interval:
        sys.exit(_sync_once(options, reader, planner).status)

    if not (options.source_repo and options.repo):
        raise click.UsageError(
            "--interval needs --source-repo and --repo, which can be polled for new commits"
        )
    _poll(options, reader, planner, options.interval)


def _poll(options: SyncOptions, reader: Reader, planner: Planner, interval: float) -> NoReturn:
    """Sync whenever a repository has a new commit, or a retry is due.

    Removals wait for Fleet, whatever commit another client pushes in the meantime.
    """
    from packager.contents.uninstall import Waiting

    # Fleet's status is not visible here.
    waiting = Waiting(lambda: None)
    synced_source = ""
    synced_target = ""
    is_synced = False
    retry_after: float | None = None
    while True:
        try:
            # One short request to each host says whether there is anything to do.
            source_head = _head(source_repository(options))
            target_head = _head(options)
            has_commits = (source_head, target_head) != (synced_source, synced_target)
            is_retry_due = retry_after is not None and retry_after <= 0
            if has_commits or is_retry_due or not is_synced:
                last_round = _sync_once(options, reader, planner, waiting)
                retry_after = last_round.retry_seconds
                # Ignore our own push, but no other: reading the head again would hide a commit
                # that another client pushed on top of ours.
                synced_source = source_head
                synced_target = last_round.pushed or target_head
                is_synced = True
        except InputError as error:
            # The host may be back at the next interval.
            echo(f"error: {error.message}", err=True)

        time.sleep(interval)
        if retry_after is not None:
            retry_after -= interval


def _sync_once(
    options: SyncOptions, reader: Reader, planner: Planner, waiting: Waiting | None = None
) -> _Round:
    """Sync, and print the result. Without `waiting`, the user decides when to sync again."""
    from packager.definitions.buildresult import BuildResult

    with progress() as step:
        source, reason = read_source(options, reader, step)
        with _target(options) as store:
            step("reading the repository")
            pushed = push(source, reason, store, planner, options, waiting=waiting)

        failures = pushed.failures
        manifests = pushed.planned.built or BuildResult()
        if options.applied and not options.dry_run:
            step("applying manifests")
            failures += management.on_cluster(
                options, lambda applier: management.apply(applier, manifests)
            )

    print_result(manifests, pushed.result, failures, options)

    # What is held back waits for Fleet, from the first sync that reads what this one pushed. What
    # was refused may be accepted at the next interval.
    plan = pushed.result.plan
    if waiting:
        waiting.note(plan.held)
    retry_seconds: float | None = None
    if plan.held:
        retry_seconds = 0.0 if pushed.result.commit else _FLEET_SECONDS
    elif failures:
        retry_seconds = 0.0

    is_faulty = manifests.errors or failures or plan.held or plan.refused
    # With --review the commit is on another branch, and the target did not move.
    commit = "" if options.review else pushed.result.commit
    return _Round(FAULTY if is_faulty else DONE, retry_seconds, commit)


def _head(options: RepositoryOptions) -> str:
    """Return the head of a remote's branch without fetching it."""
    from packager.git.repository import Repository

    with open_store(options) as store:
        return store.heads().target if isinstance(store, Repository) else ""


def _reader() -> Reader:
    from packager.definitions.source import Reader
    from webhooks import crossobject

    return Reader(crossobject.check)


def _planner(options: SyncOptions) -> Planner:
    """Return the planner of bundles and manifests. Raises `click.UsageError`."""
    from packager.definitions.builder import Builder
    from packager.planning.planner import Planner
    from packager.rendering.bundler import Bundler
    from packager.rendering.gitrepo import git_repo_options

    try:
        bundler = Bundler(rendering(options))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        git_repos = None if options.no_bundles else git_repo_options(options)
    except ValueError as error:
        hint = "" if options.repo else "; name the repository with --repo"
        raise click.UsageError(f"{error}{hint}") from None
    builder = Builder(bundler.renderer, git_repos, bundles=not options.no_bundles)
    return Planner(bundler, builder, options.max_prune)


@contextlib.contextmanager
def _target(options: SyncOptions) -> Iterator[Store]:
    """Lend the repository to write, or the folder, of which only our own names are written."""
    from packager.definitions.files import NAMES
    from packager.git.directory import Directory

    with open_store(options, new=True) as store:
        yield (
            Directory(options.folder, options.inner, names=NAMES)
            if names_repository(options) and options.folder
            else store
        )
