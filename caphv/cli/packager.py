"""`caphv packager`: what keeps a Git repository true by itself."""

import click

from caphv.cli import LazyGroup

COMMANDS = {
    "run": ("caphv.cli.packager_run:run", "Run the packager in a management cluster."),
}


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog="""\b
Examples:
  caphv packager run --repo https://git.example.com/fleet.git --git-credentials /etc/caphv/git --leader-elect
                                                 in a Pod, with credentials from a mounted Secret
""",
)
def packager() -> None:
    """Keep the bundles of clusters in the Git repository that Fleet reads."""
