"""`caphv generate --push`: push the bundles of a cluster to the repository of its GitRepo."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from commands.access.repository import open_store
from commands.errors import CommandError
from commands.options.repository import RepositoryOptions
from commands.output.echo import echo

if TYPE_CHECKING:
    from packager.definitions.build import Built
    from packager.tree import Tree


def push(cluster: Built, build: Callable[[Tree], Built]) -> Built:
    """Commit the bundles, and return the cluster with the versions that the repository pins.

    `build` builds the cluster again with the files of the repository. Raises `InputError` if the
    repository cannot be written, and `CommandError` if files of others are in the way.
    """
    from packager.contents.folders import compare_folders
    from packager.git.commit import Reason
    from packager.git.folder import Folder
    from packager.git.prune import Pruning
    from packager.tree import CLUSTER_ROOT, cluster_folder

    source = _source(cluster)
    if cluster.definition is None:
        return cluster
    key = cluster.definition.key
    top = f"{cluster_folder(*key)}/"
    with open_store(source, new=True) as store:
        # The cluster is built again, because the repository may pin versions of its bundles.
        tree = store.sync().tree
        cluster = build({path: tree[path] for path in tree if path.startswith(top)})
        if not (cluster.ok and cluster.rendered):
            return cluster
        folder = Folder(
            {path.removeprefix(top): content for path, content in cluster.rendered.tree.items()}
        )
        # Nothing is removed here. The removal of a bundle takes the two commits of `caphv bundles
        # push`.
        kept = Pruning(complete=True, budget=0, scope=())
        result = store.commit(
            lambda now: compare_folders(now, {CLUSTER_ROOT: {str(key): folder}}, kept),
            Reason(f"Bundles of cluster {key}, by caphv generate."),
        )

    if held := (*result.plan.held, *result.plan.refused):
        raise CommandError("; ".join(f"{item.what}: {item.why}" for item in held))
    outcome = "the bundles are already there"
    if result.commit:
        outcome = f"pushed the bundles in commit {result.commit[:12]}"
    echo(f"{outcome}: {source.repo}, branch {source.branch}", err=True)
    return cluster


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


def _source(cluster: Built) -> RepositoryOptions:
    """Return options for the repository that the definition names."""
    source = cluster.definition.fleet if cluster.definition else None
    if source is None:
        raise click.UsageError(
            "--push needs the repository for the bundles: name it with --fleet-addon-repo"
        )
    # Credentials come from the environment, as for `caphv bundles push`.
    return RepositoryOptions(
        repo=source.repo,
        branch=source.branch,
        inner=source.path,
        git_credentials=None,
        git_cache=None,
        git_timeout=60.0,
        git_max_size=512,
    )
