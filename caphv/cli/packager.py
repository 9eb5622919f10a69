"""`caphv packager`: what keeps a Git repository true by itself."""

import click

from caphv.cli import LazyGroup

COMMANDS = {
    "run": ("caphv.cli.packager_run:run", "Run the packager in a management cluster."),
    "sync": ("caphv.cli.packager_sync:sync", "Turn cluster definitions into manifests and bundles."),
    "gitrepo": ("caphv.cli.packager_gitrepo:gitrepo", "Print the GitRepo by which Fleet applies manifests."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog="""\b
Examples:
  caphv packager run --repo https://git.example.com/fleet.git --git-credentials /etc/caphv/git --leader-elect
                                                 in a Pod, with credentials from a mounted Secret
  caphv packager sync --source-repo https://git.example.com/clusters.git --repo https://git.example.com/fleet.git
                                                 definitions become manifests and bundles, in one commit
""",
)
def packager() -> None:
    """Keep the bundles of clusters in the Git repository that Fleet reads."""
