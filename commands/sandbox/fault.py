"""`caphv sandbox fault`: inject and clear faults on the simulated Harvester."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.main import CONTEXT_SETTINGS, HelpfulGroup
from commands.options.formats import output_option
from commands.output.data import print_data
from commands.sandbox.common import sandbox_options

if TYPE_CHECKING:
    from sandbox.environment import Sandbox
    from sandbox.harvester.faults import Faults, Kind

_Answer = TypeVar("_Answer")


class FaultGroup(HelpfulGroup):
    """A group with a command for each kind of fault, created on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return `list`, `clear`, `chaos` and all kinds."""
        from sandbox.harvester.faults import KINDS

        return [*super().list_commands(ctx), *KINDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return `list`, `clear`, `chaos`, or the command of a kind."""
        from sandbox.harvester.faults import KINDS

        command = super().get_command(ctx, cmd_name)
        return command if command or cmd_name not in KINDS else _command(KINDS[cmd_name])


@click.group(
    cls=FaultGroup,
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv sandbox fault host-failure harvester-1
  caphv sandbox fault migration demo/demo-worker-0
  caphv sandbox fault too-many-requests --share 0.5
  caphv sandbox fault list
  caphv sandbox fault clear
""",
)
@sandbox_options
@click.pass_context
def fault(ctx: click.Context, /, name: str | None, folder: Path | None) -> None:
    """Inject faults on the simulated Harvester.

    Object faults (hosts, VMs, images, …) affect all clients. Transport faults (slow, away, HTTP
    errors) affect clients with the kubeconfigs harvester and identity, but not the simulation
    itself. Watch the provider's reaction with `kubectl get harvesterclusters,harvestermachines -A`,
    and in the Events.

    A fault stays active until `caphv sandbox fault clear`. Some faults happen once, such as
    vm-vanishes and migration.
    """
    # The options that select a sandbox may precede or follow the kind of fault.
    ctx.obj = (name, folder)


@fault.command("list")
@sandbox_options
@output_option()
def list_faults(name: str | None, folder: Path | None, output: str) -> None:
    """List active faults."""
    active = _with_faults(_sandbox(name, folder), lambda faults: faults.active())
    if output != "text":
        fields = ("name", "target", "share", "delay")
        items = [{field: getattr(item, field) for field in fields} for item in active]
        print_data(output, items=items)
        return
    for item in active:
        click.echo(str(item))
    if not active:
        click.echo("no faults")


@fault.command(short_help="Clear all or some faults.")
@click.argument("kind", required=False, default="")
@click.argument("target", required=False, default="")
@sandbox_options
def clear(kind: str, target: str, name: str | None, folder: Path | None) -> None:
    """Clear all faults, those of KIND, or that of KIND on TARGET."""
    from sandbox.harvester.faults import KINDS

    if kind and kind not in KINDS:
        raise click.BadParameter(
            f"unknown kind of fault {kind!r}; see `caphv sandbox fault --help`", param_hint="KIND"
        )
    cleared = _with_faults(_sandbox(name, folder), lambda faults: faults.clear(kind, target))
    for item in cleared:
        click.echo(f"cleared: {item}")
    if not cleared:
        click.echo("no such fault is active" if kind else "no faults")


@fault.command(
    short_help="Inject random faults from a seed.",
    epilog="""\b
Examples:
  caphv sandbox fault chaos --seed 7
  caphv sandbox fault chaos --seed 7 --seconds 300 --no-kills
""",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, metavar="NUMBER", help="Seed of the schedule."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Duration of the faults, in seconds.",
)
@click.option(
    "--kills/--no-kills",
    default=True,
    show_default=True,
    help="Also kill the provider with SIGKILL.",
)
@sandbox_options
def chaos(seed: int, seconds: float, name: str | None, folder: Path | None, *, kills: bool) -> None:
    """Inject random transport faults and kill the provider, one after the other.

    The same seed gives the same schedule. At the end no fault is active and the provider is
    running.
    """
    from sandbox import chaos

    box = _sandbox(name, folder)
    steps = chaos.schedule(seed, seconds, kills=kills)
    _with_faults(box, lambda faults: chaos.run(box, faults, steps, click.echo))
    click.echo(f"{len(steps)} steps done; no fault is active")


def _command(kind: "Kind") -> click.Command:
    """Return the command that injects faults of a kind, with the options that the kind has."""

    @sandbox_options
    def call(
        name: str | None,
        folder: Path | None,
        target: str = "",
        share: float | None = None,
        delay: float | None = None,
    ) -> None:
        from sandbox.harvester.faults import Fault

        # Without these options, the defaults of `Fault` hold.
        options = {"share": share, "delay": delay}
        settings: dict[str, Any] = {
            option: value for option, value in options.items() if value is not None
        }
        fault = Fault(kind.name, target, **settings)
        click.echo(_with_faults(_sandbox(name, folder), lambda faults: faults.inject(fault)))

    return click.command(
        kind.name, params=_parameters(kind), help=_help_text(kind), short_help=kind.summary
    )(call)


def _parameters(kind: "Kind") -> list[click.Parameter]:
    """Return the argument and the options that faults of a kind take."""
    parameters: list[click.Parameter] = []
    if kind.target:
        parameters.append(click.Argument(["target"], metavar=kind.target))
    if kind.in_transport:
        share = click.FloatRange(0, 1, min_open=True)
        parameters.append(
            click.Option(
                ["--share"],
                type=share,
                default=1.0,
                show_default=True,
                metavar="FRACTION",
                help="Fraction of the requests to affect.",
            )
        )
    if kind.name == "slow":
        delay = click.FloatRange(0, min_open=True)
        parameters.append(
            click.Option(
                ["--delay"],
                type=delay,
                default=2.0,
                show_default=True,
                metavar="SECONDS",
                help="Delay of a response, in seconds.",
            )
        )
    return parameters


def _help_text(kind: "Kind") -> str:
    if not kind.lasting:
        return f"{kind.summary} Happens once."
    return f"{kind.summary} `caphv sandbox fault clear {kind.name}` ends it."


def _sandbox(name: str | None, folder: Path | None) -> "Sandbox":
    """Return the sandbox that the options of a command or of its group select."""
    from commands.sandbox.common import running_sandbox

    group_name, group_folder = click.get_current_context().obj
    return running_sandbox(name or group_name, folder or group_folder)


def _with_faults(box: "Sandbox", work: Callable[["Faults"], Awaitable[_Answer]]) -> _Answer:
    """Run `work` on the faults of a sandbox."""
    from caphv.runtime.kubeconfig import parse_kubeconfig
    from commands.sandbox.common import failures
    from sandbox.harvester.fault_actions import FaultError
    from sandbox.harvester.faults import Faults

    async def call() -> _Answer:
        access = parse_kubeconfig(box.kubeconfig("harvester-direct").read_bytes())
        client = access.client(name="harvester", user_agent="caphv-sandbox")
        try:
            return await work(Faults(client))
        finally:
            await client.close()

    try:
        with failures():
            return asyncio.run(call())
    except FaultError as error:
        raise click.ClickException(str(error)) from None
