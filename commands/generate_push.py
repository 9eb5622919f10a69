"""`caphv generate --push`: push the bundles of a cluster to the repository of its GitRepo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from commands.access.repository import open_store
from commands.errors import CommandError
from commands.options.groups import pick
from commands.options.repository import RepositoryOptions, author_options, repository_options
from commands.output.echo import echo

if TYPE_CHECKING:
    from packager.definitions.build import Built
    from packager.definitions.model import FleetSource
    from packager.tree import Tree


def push(cluster: Built, build: Callable[[Tree], Built]) -> Built:
    """Commit the bundles, and return the cluster with the versions that the repository pins.

    Raises `InputError` if the repository cannot be written, and `CommandError` if unmanaged files
    are in the way.

    :param cluster: the cluster as built without the repository
    :param build: builds the cluster on top of files of the repository
    """
    from packager.contents.folders import compare_folders
    from packager.git.commit import Reason
    from packager.git.folder import Folder
    from packager.git.pruning import Pruning
    from packager.tree import CLUSTER_ROOT, cluster_folder

    if cluster.definition is None or cluster.definition.fleet is None:
        raise click.UsageError(
            "--push needs the repository for the bundles: name it with --fleet-addon-repo"
        )
    options = _repository_options(cluster.definition.fleet)
    key = cluster.definition.key
    top = f"{cluster_folder(*key)}/"
    # Bundles are removed in two commits, so that Fleet uninstalls them (`caphv bundles push`).
    no_removals = Pruning(complete=True, budget=0, scope=())

    with open_store(options, new=True) as store:
        # The repository may pin versions of the cluster's bundles.
        tree = store.sync().tree
        pinned = build({path: tree[path] for path in tree if path.startswith(top)})
        if not (pinned.ok and pinned.rendered):
            return pinned
        folder = Folder(
            {path.removeprefix(top): content for path, content in pinned.rendered.tree.items()}
        )
        result = store.commit(
            lambda snapshot: compare_folders(
                snapshot, {CLUSTER_ROOT: {str(key): folder}}, no_removals
            ),
            Reason(f"Bundles of cluster {key}, by caphv generate."),
        )

    if skipped := (*result.plan.held, *result.plan.refused):
        raise CommandError("; ".join(f"{item.what}: {item.why}" for item in skipped))
    outcome = "the bundles are already there"
    if result.commit:
        outcome = f"pushed the bundles in commit {result.commit[:12]}"
    echo(f"{outcome}: {options.repo}, branch {options.review or options.branch}", err=True)
    return pinned


def explain(cluster: Built) -> None:
    """Tell the user how the bundles of the cluster get into Fleet's repository."""
    if cluster.definition and cluster.definition.fleet:
        source = cluster.definition.fleet
        echo(
            f"note: until {source.repo} holds its bundles, the cluster has no cloud provider and "
            "no CSI driver: add --push, or run a packager for that repository (caphv packager "
            "run)",
            err=True,
        )


def _repository_options(repository: FleetSource) -> RepositoryOptions:
    """Return options for a repository; all others come from variables CAPHV_GIT_*.

    Raises `click.BadParameter` for a variable with an invalid value.
    """
    # Parse an empty command line of `caphv bundles push`, whose options read these variables.
    command = author_options(repository_options(click.Command("push")))
    try:
        options = pick(RepositoryOptions, command.make_context("push", []).params)
    except click.BadParameter as error:
        variable = error.param.envvar if error.param else None
        raise click.BadParameter(error.message, param_hint=variable) from None
    return replace(options, repo=repository.repo, branch=repository.branch, inner=repository.path)
