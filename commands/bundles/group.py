"""`caphv bundles`: what the packager does in a cluster, by hand and in pipelines."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.bundles.common import (
    DIFFERENT,
    DONE,
    EVERYTHING,
    PARTIAL,
    compare,
    finish,
    output,
    packager_of,
    pruning_of,
    release_of,
    render_options,
)
from commands.main import CONTEXT_SETTINGS
from commands.options.clusters import InputError, SelectedClusters, Step, cluster_options, progress, read_clusters
from commands.options.repository import commit_options, names_repository, open_store, prune_option, repository_options

if TYPE_CHECKING:
    from packager.bundler import Batch

_EXIT_STATUS = """\b
Exit status: 0 done or nothing to do, 1 differences, or clusters that cannot be rendered, 2 something cannot be read,
or wrong usage.
"""


@click.group(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv bundles render cluster.yaml                                what a cluster gets
  caphv bundles diff clusters/ --repo https://git.example.com/fleet.git
  caphv bundles push clusters/ --repo https://git.example.com/fleet.git
  caphv bundles verify --repo https://git.example.com/fleet.git    against the management cluster
  caphv bundles list --repo https://git.example.com/fleet.git
  caphv bundles upgrade --repo https://git.example.com/fleet.git -l wave=1

\b
Credentials are no options. Variables: CAPHV_GIT_USERNAME, CAPHV_GIT_PASSWORD, CAPHV_GIT_SSH_KEY_FILE,
CAPHV_GIT_KNOWN_HOSTS_FILE, CAPHV_GIT_CA_FILE, CAPHV_GIT_PROXY, CAPHV_GIT_SIGNING_KEY_FILE; or --git-credentials.
""",
)
def bundles() -> None:
    """Fleet bundles of clusters: CNI, cloud provider and CSI driver, for each cluster from its own settings.

    Clusters are read from files, folders and `-` (standard input); without any, from the management cluster. One with
    an invalid setting is told and keeps what it has; the others go on.
    """
    logging.basicConfig(format="caphv bundles: %(message)s", level=logging.WARNING)
    # What a commit changed and what was left is part of the output.
    logging.getLogger("packager.git.publish").setLevel(logging.ERROR)


@bundles.command(
    short_help="Print bundles, or write them into a folder.",
    epilog=f"""\b
Examples:
  caphv bundles render cluster.yaml                            all files, one after the other
  kubectl get clusters -A -o yaml | caphv bundles render -     clusters from anywhere
  caphv bundles render -n team-a --to fleet/                   into a folder, which keeps pinned versions
  caphv bundles render cluster.yaml -o tree                    names of files only
  caphv bundles render --repo https://git.example.com/fleet.git -o gitrepo --client-secret fleet-git
                                                               the GitRepos by which Fleet reads the repository

{_EXIT_STATUS}""",
)
@cluster_options
@render_options
@repository_options
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), help="Write into this folder.")
@output("yaml", "json", "tree", "gitrepo")
@click.option(
    "--client-secret", default="", metavar="NAME", help="gitrepo: Secret with which Fleet reads the repository."
)
@click.option("--ca-file", type=click.File(), help="gitrepo: authorities that Fleet trusts, PEM.")
@click.option("--groups", type=click.IntRange(1), default=1, show_default=True, help="gitrepo: GitRepos a workspace.")
def render(**flags: Any) -> None:
    """Render the bundles of clusters and print them, or write them into a folder.

    With --repo or --folder versions are those that are pinned there, and what would break a live network is refused.
    """
    from commands.output import bundles as out

    with progress() as step:
        given = read_clusters(flags, step)
        if flags["output"] == "gitrepo":
            text, batch = _gitrepos(flags, given)
        else:
            batch = _rendered(flags, given, step)
            text = out.summary(batch, flags["to"]) if flags["to"] else out.RENDERED[flags["output"]](batch)
    click.echo(text, nl=False)
    finish(given, batch)


def _rendered(flags: dict[str, Any], given: SelectedClusters, step: Step) -> Batch:
    from packager.git.commit import Reason
    from packager.git.directory import Directory
    from packager.git.errors import GitError
    from packager.git.prune import Pruning
    from packager.git.publish import CLUSTER_ROOT, planned

    packager = packager_of(flags, step)
    target = Directory(flags["to"]) if flags["to"] else None
    try:
        if names_repository(flags):
            with open_store(flags) as store:
                batch = packager.render(given.clusters, store.sync().tree)
        else:
            batch = packager.render(given.clusters, target.sync().tree if target else {})
        if target:
            pruning = Pruning(complete=True, budget=EVERYTHING, scope=batch.trees)
            target.commit(lambda now: planned(now, {CLUSTER_ROOT: packager.folders(batch)}, pruning), Reason(""))
    except GitError as error:
        raise InputError(str(error)) from None
    return batch


def _gitrepos(flags: dict[str, Any], given: SelectedClusters) -> tuple[str, Batch]:
    """Return the GitRepos of all clusters, nothing when one is invalid: Fleet would uninstall what is not in them."""
    from packager.addons.settings import settings_of
    from packager.bundler import Batch
    from packager.rendering import yaml
    from packager.rendering.gitrepo import GitRepoOptions, git_repos
    from packager.rendering.renderer import Rendered

    results = [(facts.key, *settings_of(facts)) for facts in given.clusters]
    batch = Batch(tuple(Rendered(key, settings=found, findings=tuple(said)) for key, found, said in results))
    try:
        options = GitRepoOptions(
            flags["repo"],
            flags["branch"],
            folder=flags["inner"],
            client_secret_name=flags["client_secret"],
            ca_bundle=flags["ca_file"].read() if flags["ca_file"] else "",
            groups=flags["groups"],
        )
    except ValueError as error:
        raise click.UsageError(f"{error}; name the repository with --repo") from None
    if batch.failed or given.input.unreadable:
        return "", batch
    return yaml.dump_all(git_repos([found for _, found, _ in results if found], options)), batch


@bundles.command(
    short_help="What a push would change.",
    epilog=f"""\b
Examples:
  caphv bundles diff clusters/ --repo https://git.example.com/fleet.git
  caphv bundles diff --folder fleet/ -o table                   which clusters, and how many lines
  caphv bundles diff cluster.yaml --partial --folder fleet/     of one cluster

{_EXIT_STATUS}""",
)
@cluster_options
@render_options
@repository_options
@PARTIAL
@output("diff", "table", "json", "yaml")
def diff(**flags: Any) -> None:
    """Show what a push would change, as a unified diff or as a summary."""
    from commands.output import bundles as out

    given, batch, found = compare(flags)
    click.echo(out.DIFFERENCES[flags["output"]](found), nl=False, color=out.colour())
    finish(given, batch, different=not all(one.is_true for one in found))


@bundles.command(
    short_help="Prove that a repository matches its clusters.",
    epilog=f"""\b
Examples:
  caphv bundles verify --repo https://git.example.com/fleet.git             against the management cluster
  caphv bundles verify clusters/ --folder fleet/ -o json                    in a pipeline
  caphv bundles verify -n team-a --repo https://git.example.com/fleet.git   one namespace

{_EXIT_STATUS}""",
)
@cluster_options
@render_options
@repository_options
@PARTIAL
@output("table", "json", "yaml")
def verify(**flags: Any) -> None:
    """Prove that a repository holds what its clusters should have, or list where it does not."""
    from commands.output import bundles as out

    given, batch, found = compare(flags)
    click.echo(out.VERIFIED[flags["output"]](found), nl=False, color=out.colour())
    finish(given, batch, different=not all(one.is_true for one in found))


@bundles.command(
    short_help="Commit bundles, all in one commit.",
    epilog=f"""\b
Examples:
  caphv bundles push clusters/ --repo https://git.example.com/fleet.git
  caphv bundles push --repo git@git.example.com:fleet.git --path add-ons --review caphv/bundles
  caphv bundles push clusters/ --prune --max-prune 9 --repo https://git.example.com/fleet.git
                               and remove clusters that are not in the folder any more, up to 9 bundles

{_EXIT_STATUS}""",
)
@cluster_options
@render_options
@repository_options
@commit_options
@click.option(
    "--prune",
    is_flag=True,
    help="The clusters given are all there are (of the namespace): remove, and so uninstall, bundles of others.",
)
@prune_option
@output("table", "json", "yaml")
def push(**flags: Any) -> None:
    """Commit the bundles of clusters, all of them in one commit, or none when the repository holds them already."""
    from commands.output import bundles as out
    from packager.git.commit import Reason

    if flags["prune"] and flags["selector"]:
        raise click.UsageError("--prune needs all clusters: leave out --selector")
    with progress() as step:
        given = read_clusters(flags, step)
        packager = packager_of(flags, step)
        with open_store(flags, new=True) as store:
            step("reading the repository")
            pruning = pruning_of(given, store.sync(), flags["max_prune"], whole=flags["prune"])
            reason = Reason(flags["message"] or "Bundles follow the settings of their clusters.")
            batch, result = packager.publish(store, given.clusters, pruning, reason)
    click.echo(out.PUSHED[flags["output"]](result), nl=False, color=out.colour())
    finish(given, batch, different=bool(result.plan.held or result.plan.refused))


@bundles.command(
    "list",
    short_help="Clusters of a repository with their versions.",
    epilog=f"""\b
Examples:
  caphv bundles list --repo https://git.example.com/fleet.git
  caphv bundles list --folder fleet/ -o json

{_EXIT_STATUS}""",
)
@repository_options
@output("table", "json", "yaml")
def list_(**flags: Any) -> None:
    """List the clusters of a repository: pinned versions, newer ones, and the hash over their files."""
    from commands.output import bundles as out
    from packager.addons.versions import table
    from packager.inventory import inventory

    with progress() as step, open_store(flags) as store:
        step("reading the repository")
        found = inventory(store.sync())
    click.echo(out.LISTED[flags["output"]](found, table().newest), nl=False)
    sys.exit(DIFFERENT if any(held.fault for held in found) else DONE)


@bundles.command(
    short_help="Give clusters other versions, in waves.",
    epilog=f"""\b
Examples:
  caphv bundles upgrade -l wave=1 --repo https://git.example.com/fleet.git --dry-run
  caphv bundles upgrade -l wave=1 --repo https://git.example.com/fleet.git
  caphv bundles upgrade --count 10 --repo https://git.example.com/fleet.git --review caphv/upgrade
  caphv bundles upgrade --all --release 2026.11 --repo https://git.example.com/fleet.git

{_EXIT_STATUS}""",
)
@cluster_options
@render_options
@repository_options
@commit_options
@click.option("--count", type=click.IntRange(1), help="At most so many clusters, by namespace and name.")
@click.option("--all", "everything", is_flag=True, help="All clusters that were read.")
@click.option("--release", default="", help="Set of versions, also an older one.  [default: the newest]")
@click.option("--dry-run", is_flag=True, help="Show the difference and change nothing.")
@prune_option
@output("table", "json", "yaml")
def upgrade(**flags: Any) -> None:
    """Give clusters other versions of charts and templates, in waves: by --selector, by --count, or --all.

    Nothing else changes versions that are pinned. Clusters that are not chosen are not touched.
    """
    from commands.output import bundles as out
    from packager.diff import compared
    from packager.git.commit import Reason
    from packager.git.prune import Pruning
    from packager.inventory import wave
    from packager.tree import CLUSTERS

    if not (flags["selector"] or flags["count"] or flags["everything"]):
        raise click.UsageError("say which clusters: --selector, --count or --all")
    with progress() as step:
        given = read_clusters(flags, step)
        packager = packager_of(flags, step)
        target = release_of(packager, flags["release"])
        with open_store(flags) as store:
            step("reading the repository")
            snapshot = store.sync()
            chosen = wave(given.clusters, snapshot.tree, target, flags["count"])
            pins = {facts.key: target for facts in chosen.chosen}
            # Clusters that are not in the wave are not spoken of.
            scope = {f"{CLUSTERS}/{facts.key}" for facts in chosen.chosen}
            pruning = Pruning(complete=not given.input.unreadable, budget=flags["max_prune"], scope=scope)
            reason = Reason(flags["message"] or f"Upgrade to release {target.release} of the bundles.")
            if flags["dry_run"]:
                batch, plan = packager.plan(chosen.chosen, snapshot, pruning, pins)
                form = "diff" if flags["output"] == "table" else flags["output"]
                text = out.DIFFERENCES[form](compared(batch, plan, snapshot))
            else:
                batch, result = packager.publish(store, chosen.chosen, pruning, reason, pins)
                text, plan = out.PUSHED[flags["output"]](result), result.plan
    click.echo(text, nl=False, color=out.colour())
    click.echo(out.wave(chosen, target), err=True)
    finish(given, batch, different=bool(plan.held or plan.refused))
