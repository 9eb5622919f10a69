"""`caphv bundles`: the work of the packager, by hand and in pipelines."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from commands.access.clusters import SelectedClusters, read_clusters
from commands.access.repository import names_repository, open_store
from commands.bundles.check import check
from commands.bundles.common import (
    DIFFERENT,
    DONE,
    EVERYTHING,
    PARTIAL,
    PRUNE,
    BundleOptions,
    bundler_of,
    compare,
    finish,
    pruning_of,
    render_options,
)
from commands.bundles.images import images
from commands.bundles.trace import trace
from commands.bundles.upgrade import upgrade
from commands.bundles.vendor import vendor
from commands.errors import InputError
from commands.main import CONTEXT_SETTINGS
from commands.options.charts import helm_secret_options
from commands.options.clusters import cluster_options
from commands.options.formats import DATA_FORMATS, output_option
from commands.options.groups import fill
from commands.options.repository import (
    RepositoryOptions,
    commit_options,
    prune_option,
    repository_options,
)
from commands.output.progress import Step, progress
from commands.output.quiet import quiet_publishing

if TYPE_CHECKING:
    from packager.rendering.bundler import Batch


@click.group(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv bundles render cluster.yaml                                the bundles of a cluster
  caphv bundles diff clusters/ --repo https://git.example.com/fleet.git
  caphv bundles push clusters/ --repo https://git.example.com/fleet.git
  caphv bundles verify --repo https://git.example.com/fleet.git    against the management cluster
  caphv bundles check clusters/ --charts charts/                   with the real charts
  caphv bundles trace team-a/demo cni.mtu --repo https://git.example.com/fleet.git
  caphv bundles list --repo https://git.example.com/fleet.git
  caphv bundles upgrade --repo https://git.example.com/fleet.git -l wave=1

Git credentials come from --git-credentials, or from environment variables CAPHV_GIT_USERNAME,
CAPHV_GIT_PASSWORD, CAPHV_GIT_SSH_KEY_FILE, CAPHV_GIT_KNOWN_HOSTS_FILE, CAPHV_GIT_CA_FILE,
CAPHV_GIT_PROXY and CAPHV_GIT_SIGNING_KEY_FILE.
""",
)
def bundles() -> None:
    """Render and publish Fleet bundles with CNI, cloud provider and CSI driver, from the settings
    of each cluster.

    Clusters are read from files, directories and `-` (standard input), or without arguments from
    the management cluster. Invalid clusters are reported, and their bundles stay unchanged.
    """
    logging.basicConfig(format="caphv bundles: %(message)s", level=logging.WARNING)
    quiet_publishing()


bundles.add_command(check)
bundles.add_command(trace)
bundles.add_command(images)
bundles.add_command(upgrade)
bundles.add_command(vendor)


@dataclass(frozen=True, kw_only=True)
class PrintOptions(BundleOptions):
    """Options for the output of bundles, and for the GitRepos that read them."""

    to: Path | None
    client_secret: str
    helm_secret: str
    helm_repo_regex: str
    ca_file: IO[str] | None
    groups: int | None


@dataclass(frozen=True, kw_only=True)
class DiffOptions(BundleOptions):
    """A comparison that may include removals."""

    prune: bool


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(BundleOptions):
    """A comparison with all clusters, or some."""

    partial: bool


@dataclass(frozen=True, kw_only=True)
class PushOptions(BundleOptions):
    """A commit with or without removals."""

    prune: bool
    max_prune: int


@bundles.command(
    short_help="Print bundles, or write them to a directory.",
    epilog="""\b
Examples:
  caphv bundles render cluster.yaml                            all files as one stream
  kubectl get clusters -A -o yaml | caphv bundles render -     clusters from standard input
  caphv bundles render -n team-a --to fleet/                   to a directory, keeping its pinned \
versions
  caphv bundles render cluster.yaml -o tree                    file names only
  caphv bundles render --repo https://git.example.com/fleet.git -o gitrepo --client-secret fleet-git
                                                               the GitRepos of a repository

Exit status: 0 done, 1 clusters cannot be rendered, 2 usage error or unreadable input.
""",
)
@cluster_options
@render_options
@repository_options
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the files to this directory.",
)
@output_option("yaml", "json", "tree", "gitrepo")
@click.option(
    "--client-secret",
    default="",
    metavar="NAME",
    help="With -o gitrepo: Secret with Fleet's credentials for the repository.",
)
@helm_secret_options
@click.option(
    "--ca-file",
    type=click.File(),
    metavar="FILE",
    help="With -o gitrepo: PEM file with the CA certificates that Fleet trusts.",
)
@click.option(
    "--groups",
    type=click.IntRange(1),
    default=None,
    metavar="NUMBER",
    help="With -o gitrepo: number of GitRepos per workspace.  [default: one per namespace]",
)
@fill(options=PrintOptions)
def render(options: PrintOptions) -> None:
    """Render the bundles of clusters, and print them or write them to a directory.

    With --repo or --folder, pinned versions are kept, and changes that would break a running
    network are rejected.
    """
    from commands.output import bundles as out

    with progress() as step:
        selected = read_clusters(options, step)
        if options.output == "gitrepo":
            text, batch = _gitrepos(options, selected)
        else:
            batch = _render(options, selected, step)
            text = (
                out.summary(batch, options.to)
                if options.to
                else out.RENDERED[options.output](batch)
            )
    click.echo(text, nl=False)
    finish(selected, batch)


def _render(options: PrintOptions, selected: SelectedClusters, step: Step) -> Batch:
    """Render the bundles of the clusters; with `--to`, write them to this directory."""
    from packager.contents.folders import compare_folders
    from packager.contents.uninstall import policies_of, staging
    from packager.git.commit import Reason
    from packager.git.directory import Directory
    from packager.git.errors import GitError
    from packager.git.pruning import Pruning
    from packager.tree import CLUSTER_ROOT, CLUSTERS, VENDOR

    bundler = bundler_of(options, step)
    target = Directory(options.to, names=(CLUSTERS, VENDOR)) if options.to else None
    try:
        if names_repository(options):
            with open_store(options) as store:
                batch = store.read(
                    lambda snapshot: bundler.render(selected.clusters, snapshot.tree)
                )
        else:
            batch = bundler.render(selected.clusters, target.sync().tree if target else {})
        if target:
            pruning = Pruning(complete=True, budget=EVERYTHING, scope=batch.trees)
            folders = {CLUSTER_ROOT: bundler.folders(batch)}
            policies = policies_of(batch.rendered)
            target.commit(
                lambda snapshot: compare_folders(
                    snapshot, folders, pruning, staging(policies, snapshot, None)
                ),
                Reason(""),
            )
    except GitError as error:
        raise InputError(*str(error).split("\n")) from None
    return batch


def _gitrepos(options: PrintOptions, selected: SelectedClusters) -> tuple[str, Batch]:
    """Return the GitRepos of all clusters, none if one is invalid.

    Fleet deletes what a GitRepo drops.
    """
    from packager.addons.settings import settings_of
    from packager.rendering import yaml
    from packager.rendering.bundler import Batch
    from packager.rendering.gitrepo import GitRepoOptions, check_is_remote, git_repos
    from packager.rendering.rendered import Rendered

    results = [(facts.key, *settings_of(facts)) for facts in selected.clusters]
    batch = Batch(
        tuple(
            Rendered(key, settings=settings, findings=tuple(findings))
            for key, settings, findings in results
        )
    )
    # Fleet cannot read a folder, or a path on this machine.
    try:
        check_is_remote(options.repo or "")
        repos = GitRepoOptions(
            options.repo,
            options.branch,
            folder=options.inner,
            client_secret_name=options.client_secret,
            ca_bundle=options.ca_file.read() if options.ca_file else "",
            groups=options.groups or 0,
            helm_secret_name=options.helm_secret,
            helm_repo_regex=options.helm_repo_regex,
        )
    except ValueError as error:
        hint = "" if options.repo else "; name the repository with --repo"
        raise click.UsageError(f"{error}{hint}") from None
    if batch.failed or selected.input.unreadable:
        return "", batch
    return yaml.dump_all(
        git_repos([settings for _, settings, _ in results if settings], repos)
    ), batch


@bundles.command(
    short_help="Show what a push would change.",
    epilog="""\b
Examples:
  caphv bundles diff clusters/ --repo https://git.example.com/fleet.git
  caphv bundles diff --folder fleet/ -o text                    clusters with the number of lines
  caphv bundles diff cluster.yaml --folder fleet/               one cluster
  caphv bundles diff clusters/ --prune --folder fleet/          with removals, as `push --prune`

Exit status: 0 no differences, 1 differences, or clusters that cannot be rendered, 2 usage error
or unreadable input.
""",
)
@cluster_options
@render_options
@repository_options
@PRUNE
# The flag remains for old scripts; what it requested is now the default.
@click.option("--partial", is_flag=True, hidden=True)
@output_option("diff", *DATA_FORMATS)
@fill(options=DiffOptions)
def diff(options: DiffOptions, *, partial: bool) -> None:
    """Show what a push would change, as a unified diff or as a summary."""
    from commands.output import bundles as out

    comparison = compare(options, with_others=options.prune)
    click.echo(
        out.DIFFERENCES[options.output](comparison.differences), nl=False, color=out.colour()
    )
    comparison.finish()


@bundles.command(
    short_help="Check that a repository matches its clusters.",
    epilog="""\b
Examples:
  caphv bundles verify --repo https://git.example.com/fleet.git             against the \
management cluster
  caphv bundles verify clusters/ --folder fleet/ -o json                    in a pipeline
  caphv bundles verify -n team-a --repo https://git.example.com/fleet.git   one namespace

Exit status: 0 no differences, 1 differences, or clusters that cannot be rendered, 2 usage error
or unreadable input.
""",
)
@cluster_options
@render_options
@repository_options
@PARTIAL
@output_option()
@fill(options=VerifyOptions)
def verify(options: VerifyOptions) -> None:
    """Check that a repository contains the bundles of its clusters, and list all differences."""
    from commands.output import bundles as out

    comparison = compare(options, with_others=not options.partial)
    click.echo(out.VERIFIED[options.output](comparison.differences), nl=False, color=out.colour())
    comparison.finish()


@bundles.command(
    short_help="Commit the bundles of all clusters in one commit.",
    epilog="""\b
Examples:
  caphv bundles push clusters/ --repo https://git.example.com/fleet.git
  caphv bundles push --repo git@git.example.com:fleet.git --path add-ons --review caphv/bundles
  caphv bundles push clusters/ --prune --max-prune 9 --repo https://git.example.com/fleet.git
                               also remove up to 9 bundles of clusters that are not in the directory

Exit status: 0 done or nothing to do, 1 clusters cannot be rendered, or changes were held back or
rejected, 2 usage error or unreadable input.
""",
)
@cluster_options
@render_options
@repository_options
@commit_options
@PRUNE
@prune_option
@output_option()
@fill(options=PushOptions)
def push(options: PushOptions) -> None:
    """Commit the bundles of all given clusters in one commit.

    If the repository is up to date, nothing is committed.
    """
    from commands.output import bundles as out
    from packager.git.commit import Reason
    from packager.planning.commitplan import commit_plan
    from packager.planning.planner import Planner
    from packager.planning.state import ManagementState

    if options.prune and options.selector:
        raise click.UsageError("--prune needs all clusters: leave out --selector")
    with progress() as step:
        selected = read_clusters(options, step)
        bundler = bundler_of(options, step)
        with open_store(options, new=True) as store:
            step("reading the repository")
            pruning = store.read(
                lambda snapshot: pruning_of(
                    selected, snapshot, options.max_prune, with_others=options.prune
                )
            )
            reason = Reason(options.message or "Bundles follow the settings of their clusters.")
            state = ManagementState(selected.clusters, live=False, pruning=pruning)
            planned, result = commit_plan(store, Planner(bundler), state, reason=reason)
    click.echo(out.PUSHED[options.output](result), nl=False, color=out.colour())
    finish(selected, planned.batch, different=bool(result.plan.held or result.plan.refused))


@bundles.command(
    "list",
    short_help="List the clusters of a repository with their versions.",
    epilog="""\b
Examples:
  caphv bundles list --repo https://git.example.com/fleet.git
  caphv bundles list --folder fleet/ -o json

Exit status: 0 done, 1 the lock file of a cluster is missing or invalid, 2 usage error or unreadable
input.
""",
)
@repository_options
@output_option()
@fill(options=RepositoryOptions)
def list_(*, output: str, options: RepositoryOptions) -> None:
    """List the clusters of a repository with their pinned versions, newer versions and the hash of
    their files.
    """
    from commands.output import bundles as out
    from packager.addons.versions import load_table
    from packager.contents.inventory import inventory

    with progress() as step, open_store(options) as store:
        step("reading the repository")
        listing = store.read(inventory)
    click.echo(out.LISTED[output](listing, load_table().newest), nl=False)
    sys.exit(DIFFERENT if any(cluster.fault for cluster in listing) else DONE)
