"""`caphv packager`: keeps a Git repository in sync with clusters."""

import click

from commands.main import LazyGroup

COMMANDS = {
    "run": ("commands.packager.run:run", "Run the packager in a management cluster."),
    "sync": (
        "commands.packager.sync:sync",
        "Turn cluster definitions into manifests and bundles.",
    ),
    "gitrepo": (
        "commands.packager.gitrepo:gitrepo",
        "Print the GitRepo with which Fleet applies the manifests.",
    ),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog="""\b
Examples:
  caphv packager run --repo https://git.example.com/fleet.git --git-credentials /etc/caphv/git \
--leader-elect
                                                 in a Pod, with credentials from a mounted Secret
  caphv packager sync --source-repo https://git.example.com/clusters.git --repo \
https://git.example.com/fleet.git
                                                 turn definitions into manifests and bundles, in \
one commit
""",
)
def packager() -> None:
    """Keep manifests and bundles of clusters in the Git repository that Fleet reads."""
