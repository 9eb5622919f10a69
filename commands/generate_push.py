"""`caphv generate --push`: the bundles of a generated cluster in the repository that its GitRepo names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from commands.options.clusters import CommandError
from commands.options.repository import open_store
from commands.output.echo import echo

if TYPE_CHECKING:
    from packager.definitions.build import Built
    from packager.tree import Tree


def push(found: Built, build: Callable[[Tree], Built]) -> Built:
    """Commit the bundles, and return the cluster as it is with what the repository pins.

    `build` makes the cluster again for the files of the repository. Raises InputError if it cannot be written, and
    CommandError if files of others are in the way.
    """
    from packager.git.commit import Reason
    from packager.git.folder import Folder
    from packager.git.prune import Pruning
    from packager.git.publish import changes
    from packager.tree import CLUSTER_ROOT, cluster_folder

    source = _source(found)
    if found.definition is None:
        return found
    key = found.definition.key
    top = f"{cluster_folder(*key)}/"
    with open_store(source, new=True) as store:
        tree = store.sync().tree
        found = build({path: tree[path] for path in tree if path.startswith(top)})
        if not (found.ok and found.rendered):
            return found
        folder = Folder({path.removeprefix(top): content for path, content in found.rendered.tree.items()})
        # Nothing is removed: bundles that the cluster no longer has need the two commits of `caphv bundles push`.
        kept = Pruning(complete=True, budget=0, scope=())
        result = store.commit(
            lambda now: changes(now, {CLUSTER_ROOT: {str(key): folder}}, kept),
            Reason(f"Bundles of cluster {key}, by caphv generate."),
        )
    if held := (*result.plan.held, *result.plan.refused):
        raise CommandError("; ".join(f"{one.what}: {one.why}" for one in held))
    done = f"pushed the bundles in commit {result.commit[:12]}" if result.commit else "the bundles are already there"
    echo(f"{done}: {source['repo']}, branch {source['branch']}", err=True)
    return found


def explain(found: Built) -> None:
    """Say who has to push the bundles of a cluster that Fleet is to install."""
    if found.definition and found.definition.fleet:
        source = found.definition.fleet
        echo(
            f"note: until {source.repo} holds its bundles, the cluster has no cloud provider and no CSI driver: add "
            "--push, or run a packager for that repository (caphv packager run)",
            err=True,
        )


def _source(found: Built) -> dict[str, Any]:
    """Return the repository of the definition as options of a repository."""
    source = found.definition.fleet if found.definition else None
    if source is None:
        raise click.UsageError("--push needs the repository for the bundles: name it with --fleet-addon-repo")
    place = {"repo": source.repo, "branch": source.branch, "inner": source.path, "folder": None}
    # Credentials come from the environment, as for `caphv bundles push`.
    return {**place, "git_credentials": None, "git_cache": None, "git_timeout": 60.0, "git_max_size": 512}
