"""The command line. A command's module is imported when it is called, so that help and completion answer at once."""

import errno
import importlib
import importlib.metadata
import sys
from typing import Any

import click

# Command -> where it is, and the line in the list of commands.
COMMANDS = {
    "run": ("commands.run:run", "Run the Cluster API provider for Harvester."),
    "webhook": ("commands.webhook:webhook", "Serve the admission webhooks apart from the provider."),
    "packager": ("commands.packager.group:packager", "Keep the bundles of clusters in a Git repository."),
    "status": ("commands.status:status", "Show clusters, what is wrong with them, and what to do."),
    "tree": ("commands.tree:tree", "Show all that belongs to a cluster."),
    "identity": ("commands.identity:identity", "Accounts for the provider on Harvester."),
    "validate": ("commands.validate:validate", "Check manifests without a cluster, as the webhook would."),
    "generate": ("commands.generate:generate", "Make all objects of a cluster from flags or a definition."),
    "bundles": ("commands.bundles.group:bundles", "Fleet bundles of clusters: rendered, compared, committed."),
    "schema": ("commands.schema:schema", "JSON Schemas of the kinds, for editors."),
    "sandbox": ("commands.sandbox.group:sandbox", "Real API servers and a simulated Harvester on this machine."),
    "completion": ("commands.completion:completion", "Print the completion script of a shell."),
}
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class HelpfulGroup(click.Group):
    """Names commands like one that there is not, also where commands are made when they are asked for."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is called. Raises `click.UsageError`."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            import difflib

            similar = difflib.get_close_matches(name, self.list_commands(ctx))
            hint = f" Did you mean {' or '.join(repr(command) for command in similar)}?" if similar else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(HelpfulGroup):
    """A group whose commands are named in a table like `COMMANDS` and imported when they are called."""

    def __init__(self, *args: Any, table: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name all commands, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None when the table has none of that name."""
        if cmd_name not in self._table:
            return None
        module, _, attribute = self._table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._table.items()])


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: Any) -> None:
    if wanted and not ctx.resilient_parsing:
        try:
            version = importlib.metadata.version("caphv")
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed)"
        click.echo(f"caphv {version}")
        ctx.exit()


@click.group(
    name="caphv",
    cls=LazyGroup,
    table=COMMANDS,
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv sandbox up                         a place to try things, on this machine only
  caphv run --kubeconfig management.yaml   the provider, outside of a cluster
  eval "$(caphv completion bash)"          completion in this shell

\b
Exit status: 0 done, 1 failed or not running, 2 wrong usage; what else there is, the command's own help says.
Each command explains itself: caphv COMMAND --help
""",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
def cli() -> None:
    """Kubernetes clusters on Harvester with Cluster API."""


def main() -> None:
    """Entry point of the command `caphv`."""
    try:
        cli(prog_name="caphv")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # What is printed may go into a file.
        click.echo(f"Error: {error.strerror}", err=True)
        sys.exit(1)
