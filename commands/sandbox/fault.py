"""`caphv sandbox fault`: let something go wrong on the simulated Harvester, and let it get well again."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.main import CONTEXT_SETTINGS, HelpfulGroup
from commands.sandbox.common import sandbox_options

if TYPE_CHECKING:
    from sandbox.harvester.faults import Faults, Kind

_Answer = TypeVar("_Answer")


class FaultGroup(HelpfulGroup):
    """A command for each kind of fault, made from their table when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name `list`, `clear` and all kinds."""
        from sandbox.harvester.faults import KINDS

        return [*super().list_commands(ctx), *KINDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command of our own, or that of a kind."""
        from sandbox.harvester.faults import KINDS

        own = super().get_command(ctx, cmd_name)
        return own if own or cmd_name not in KINDS else _command(KINDS[cmd_name])


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
def fault(**_which: Any) -> None:
    """Let something go wrong on the simulated Harvester.

    Faults of objects (hosts, VMs, images, …) are seen by everybody. Faults in transport (slow, away, refusals) meet
    only clusters whose identity Secret holds `caphv sandbox kubeconfig identity`; watch what the provider makes of them
    with `kubectl get harvesterclusters,harvestermachines -A` and in the Events.

    A fault goes on until `clear`, except for what happens at once: vm-vanishes, migration, address-change.
    """


@fault.command("list")
@sandbox_options
@click.pass_context
def list_faults(ctx: click.Context, /, **_which: Any) -> None:
    """Show the faults that go on."""
    active = _with_faults(ctx, lambda faults: faults.active())
    for item in active:
        click.echo(str(item))
    if not active:
        click.echo("no faults")


@fault.command(short_help="End all faults, or some of them.")
@click.argument("kind", required=False, default="")
@click.argument("target", required=False, default="")
@sandbox_options
@click.pass_context
def clear(ctx: click.Context, /, kind: str, target: str, **_which: Any) -> None:
    """End all faults, or those of a KIND, or that of a KIND and TARGET."""
    from sandbox.harvester.faults import KINDS

    if kind and kind not in KINDS:
        raise click.BadParameter(f"{kind!r} is no kind of fault; see `caphv sandbox fault --help`", param_hint="KIND")
    ended = _with_faults(ctx, lambda faults: faults.clear(kind, target))
    for item in ended:
        click.echo(f"cleared: {item}")
    if not ended:
        click.echo("no such fault goes on" if kind else "no faults")


def _command(kind: "Kind") -> click.Command:
    @sandbox_options
    def call(target: str = "", **options: Any) -> None:
        from sandbox.harvester.faults import Fault

        settings = {name: options[name] for name in options.keys() & {"share", "delay"}}
        ctx = click.get_current_context()
        click.echo(_with_faults(ctx, lambda faults: faults.cause(Fault(kind.name, target, **settings))))

    parameters: list[click.Parameter] = []
    if kind.target:
        parameters.append(click.Argument(["target"], metavar=kind.target))
    if kind.in_transport:
        share, of = click.FloatRange(0, 1, min_open=True), "Which part of the requests meets it."
        parameters.append(click.Option(["--share"], type=share, default=1.0, show_default=True, help=of))
    if kind.name == "slow":
        delay = click.FloatRange(0, min_open=True)
        parameters.append(click.Option(["--delay"], type=delay, default=2.0, show_default=True, help="Seconds."))
    return click.command(kind.name, params=parameters, help=_explained(kind), short_help=kind.summary)(call)


def _explained(kind: "Kind") -> str:
    if not kind.lasting:
        return f"{kind.summary} This happens once."
    clear_it = f"`caphv sandbox fault clear {kind.name}` ends it."
    return f"{kind.summary} {clear_it}" + (" Met with `kubeconfig identity` only." if kind.in_transport else "")


def _with_faults(ctx: click.Context, work: Callable[["Faults"], Awaitable[_Answer]]) -> _Answer:
    """Do something with the faults of the sandbox that the options of the group name."""
    from caphv.runtime.kubeconfig import parse_kubeconfig
    from commands.sandbox.common import failures, running_sandbox
    from sandbox.harvester.fault_actions import FaultError
    from sandbox.harvester.faults import Faults

    # Said before the kind of fault or behind it.
    group = ctx.parent.params if ctx.parent else {}
    box = running_sandbox(ctx.params["name"] or group.get("name"), ctx.params["folder"] or group.get("folder"))

    async def call() -> _Answer:
        access = parse_kubeconfig(box.kubeconfig("harvester").read_bytes())
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
