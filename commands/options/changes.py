"""Options of commands that change something, and how they ask, show and wait."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.clusters import CommandError, InputError
from commands.options.management import management_client, print_data, run
from commands.output.quiet import quiet

if TYPE_CHECKING:
    from caphv.api.object import Key
    from overview.changes import Plan
    from overview.objects import ManagementObjects

_Command = TypeVar("_Command", bound=Callable[..., Any])
_UNITS = {"s": 1, "m": 60, "h": 3600}


class Duration(click.ParamType[float]):
    """A time such as `90s`, `45m` or `2h`; the value is in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the text. Raises `click.BadParameter`."""
        if isinstance(value, (int, float)):
            return float(value)
        match = re.fullmatch(r"([1-9]\d{0,5})([smh])", str(value))
        if match is None:
            self.fail(f"{value!r} is not a time such as 90s, 45m or 2h", param, ctx)
        return float(int(match[1]) * _UNITS[match[2]])


def change_options(command: _Command) -> _Command:
    """Add the options of a command that changes something: `yes`, `dry_run` and `output`."""
    for add in (
        click.option(
            "-o",
            "--output",
            type=click.Choice(["text", "json", "yaml"]),
            default="text",
            show_default=True,
            help="Output format.",
        ),
        click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    ):
        command = add(command)
    return command


def wait_options(timeout: str) -> Callable[[_Command], _Command]:
    """Add `wait` and `timeout` with a default."""

    def add(command: _Command) -> _Command:
        for option in (
            click.option(
                "--timeout",
                type=Duration(),
                default=timeout,
                show_default=True,
                metavar="TIME",
                help="Maximum time to wait.",
            ),
            click.option("--wait", is_flag=True, help="Wait until it is done, and show the progress."),
        ):
            command = option(command)
        return command

    return add


def confirm(flags: dict[str, Any], question: str) -> None:
    """Ask on a terminal, unless `--yes` was given. Raises `click.Abort`, and `click.UsageError` without a terminal."""
    if flags["yes"]:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("confirmation needs a terminal: use --yes or --dry-run")
    click.confirm(question, abort=True, err=flags.get("output", "text") != "text")


def agreed(plan: Plan, flags: dict[str, Any], question: str) -> bool:
    """Show a plan and ask for it. False if there is nothing to change, or only a plan was asked for.

    What is pending is to be changed if the command waits for its time. Ends the command with status 1 when a check
    forbids the change and `--force` was not given.
    """
    from commands.output import changes as out

    forbidden = bool(plan.errors and not flags["force"])
    wanted = bool(plan.changes or (plan.pending and flags["wait"]))
    if flags["output"] == "text":
        out.show(plan)
    elif flags["dry_run"] or forbidden or not wanted:
        report(plan, flags, applied=False)
    if forbidden and (plan.changes or plan.pending):
        click.echo("Not changed: a check failed. Correct it, or give --force to change it nevertheless.", err=True)
        sys.exit(1)
    if not wanted or flags["dry_run"]:
        return False
    confirm(flags, question)
    return True


def report(plan: Plan, flags: dict[str, Any], *, applied: bool) -> None:
    """Write a plan as data."""
    from overview.model import as_json

    if flags["output"] != "text":
        found = {name: as_json(getattr(plan, name)) for name in ("changes", "pending", "checks")}
        print_data({"cluster": str(plan.cluster), **found, "applied": applied}, flags["output"])


def apply_plan(plan: Plan, flags: dict[str, Any]) -> None:
    """Make the changes of a plan. Ends the command with status 1 when an object was changed since it was read."""
    from caphv.runtime.errors import Conflict

    async def write() -> None:
        from overview.patchwriter import apply

        async with management_client(flags) as client:
            try:
                await apply(client, plan.patches)
            except Conflict as error:
                raise CommandError(f"cluster {plan.cluster} was changed meanwhile, try again: {error}") from None

    run(write())


@asynccontextmanager
async def following(flags: dict[str, Any], cluster: Key) -> AsyncIterator[AsyncIterator[ManagementObjects]]:
    """Lend the changes of a cluster's objects."""
    from overview.follow import Follower

    # A watch that breaks and comes back is no news for a reader.
    with quiet("caphv.runtime", logging.CRITICAL):
        async with management_client(flags) as client, Follower(client, cluster.namespace) as follower:
            yield follower.changes()


async def until_done(flags: dict[str, Any], cluster: Key, step: Callable[[ManagementObjects], Awaitable[bool]]) -> bool:
    """Call `step` for each change until it answers true; False when the time is over."""
    from overview.changes import ChangeError

    try:
        async with asyncio.timeout(flags["timeout"]), following(flags, cluster) as changes:
            async for objects in changes:
                if await step(objects):
                    return True
    except TimeoutError:
        return False
    except ChangeError as error:
        raise InputError(*error.problems) from None
    return False
