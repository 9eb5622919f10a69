"""Define the command line. Commands are imported on demand, which keeps completion fast."""

import errno
import importlib
import io
import os
import sys
from typing import Any

import click

# The location of each command, and its line in the list of commands.
COMMANDS = {
    "run": ("commands.run:run", "Run the Cluster API provider for Harvester."),
    "webhook": ("commands.webhook:webhook", "Serve the admission webhooks in a separate process."),
    "packager": (
        "commands.packager.group:packager",
        "Render add-on bundles of clusters into a Git repository.",
    ),
    "status": (
        "commands.status:status",
        "Show clusters and their problems, with the next step for each.",
    ),
    "tree": ("commands.tree:tree", "Show a cluster with its machines, VMs, disks and Nodes."),
    "doctor": ("commands.doctor:doctor", "Check everything that clusters depend on."),
    "support-bundle": (
        "commands.support_bundle:support_bundle",
        "Collect diagnostic data for a support request.",
    ),
    "scale": ("commands.scale:scale", "Change the number of machines of a cluster."),
    "upgrade": ("commands.upgrade:upgrade", "Upgrade a cluster to another version of Kubernetes."),
    "park": (
        "commands.park:park",
        "Stop all machines of clusters; disks, addresses and objects stay.",
    ),
    "resume": ("commands.park:resume", "Start parked clusters again."),
    "evacuate": (
        "commands.evacuate:evacuate",
        "Move VMs that cannot be live-migrated off a host.",
    ),
    "etcd": ("commands.etcd:etcd", "List and remove etcd members, and restore snapshots."),
    "plan": (
        "commands.plan:plan",
        "Show what applying manifests would create, change, replace and delete.",
    ),
    "capacity": ("commands.capacity:capacity", "Show the free capacity of Harvester."),
    "backup": ("commands.backup:backup", "Save clusters and everything they need as files."),
    "restore": (
        "commands.restore:restore",
        "Restore clusters from a backup; their VMs keep running.",
    ),
    "move": ("commands.move:move", "Move clusters to another management cluster."),
    "delete": (
        "commands.delete:delete",
        "Delete a cluster, or explain what its deletion waits for.",
    ),
    "leftovers": (
        "commands.leftovers:leftovers",
        "Find and delete what deleted clusters left on Harvester.",
    ),
    "pools": ("commands.pools:pools", "Audit the addresses of IPPools, and release leaked ones."),
    "identity": ("commands.identity:identity", "Manage the provider's accounts on Harvester."),
    "cloud-config": (
        "commands.cloud_config:cloud_config",
        "Give clusters outside Cluster API access to Harvester.",
    ),
    "validate": (
        "commands.validate:validate",
        "Validate manifests offline, with the rules of the webhooks.",
    ),
    "generate": (
        "commands.generate:generate",
        "Generate the objects of a cluster from flags or a definition.",
    ),
    "bundles": (
        "commands.bundles.group:bundles",
        "Render, compare and commit Fleet bundles of clusters.",
    ),
    "schema": ("commands.schema:schema", "Print JSON Schemas for editors."),
    "sandbox": (
        "commands.sandbox.group:sandbox",
        "Run real API servers and a simulated Harvester on this machine.",
    ),
    "completion": ("commands.completion:completion", "Print the completion script for a shell."),
}
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class HelpfulGroup(click.Group):
    """A group that suggests similar names for an unknown command, including lazily created ones."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command to run. Raises `click.UsageError`."""
        name = args[0]
        if (
            not name.startswith("-")
            and not ctx.resilient_parsing
            and self.get_command(ctx, name) is None
        ):
            import difflib

            similar = difflib.get_close_matches(name, self.list_commands(ctx))
            hint = (
                f" Did you mean {' or '.join(repr(command) for command in similar)}?"
                if similar
                else ""
            )
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. An unknown option is compared with similar options only.

        By click's own measure, the short `--help` resembles many options, such as `--deep`.
        """
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            import difflib

            name = error.option_name
            similar = difflib.get_close_matches(name, error.possibilities or (), cutoff=0.75)
            raise click.NoSuchOption(name, possibilities=similar, ctx=error.ctx) from None


class LazyGroup(HelpfulGroup):
    """A group whose commands are listed in a table like `COMMANDS` and imported on demand."""

    def __init__(self, *args: Any, table: dict[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands, in the order of the table."""
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None if the table does not list it."""
        if cmd_name not in self._table:
            return None
        module, _, attribute = self._table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._table.items()])


def _print_version(ctx: click.Context, _option: click.Parameter, wanted: Any) -> None:
    if wanted and not ctx.resilient_parsing:
        # It imports `email`, which would be most of the time of a completion.
        import importlib.metadata

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
  caphv sandbox up                         start a test environment on this machine
  caphv run --kubeconfig management.yaml   run the provider outside of a cluster
  eval "$(caphv completion bash)"          enable completion in this shell

Exit status: 0 success, 1 failure, 2 usage error; some commands define others. Run `caphv COMMAND
--help` for details.
""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Manage Kubernetes clusters on Harvester with Cluster API."""


def _accept_any_text() -> None:
    """Let the standard streams take any character, and be there although they were closed.

    Marks such as ✗ are in no encoding but that of Unicode, and file names may be no text at all.
    """
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main(name: str = "caphv") -> None:
    """Run the command line."""
    _accept_any_text()
    try:
        cli(prog_name=name)
    except OSError as error:
        # An error without a file name is about the output, which may go to a full disk.
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        file = "" if error.filename is None else f"{click.format_filename(error.filename)}: "
        click.echo(f"Error: {file}{error.strerror}", err=True)
        sys.exit(1)
