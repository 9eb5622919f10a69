"""Show a plan, ask, make its changes, and wait for the end."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from commands.access.management import management_client, run
from commands.errors import CommandError, InputError
from commands.options.changes import ChangeOptions
from commands.options.management import ManagementOptions
from commands.output.data import print_data
from commands.output.quiet import quiet

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from operations.change.changes import Plan
    from operations.read.objects import ManagementObjects


def confirm(change: ChangeOptions, question: str) -> None:
    """Ask on a terminal, unless `--yes` was given.

    Raises `click.Abort` when the user refuses, and `click.UsageError` without a terminal.
    """
    if change.yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("confirmation needs a terminal: use --yes or --dry-run")
    from caphv.api.plaintext import one_line

    # Names in the question may come from a workload cluster.
    click.confirm(one_line(question), abort=True, err=not change.is_text)


def agree(plan: Plan, change: ChangeOptions, question: str, *, force: bool, wait: bool) -> bool:
    """Show a plan, ask for consent, and return whether to make the changes.

    Ends the command with status 1 when a check forbids the change.

    :param plan: the plan to show
    :param change: options for questions and output
    :param question: the question to the user
    :param force: whether to make the changes although a check failed
    :param wait: whether the command waits until it can make the pending changes as well
    """
    from commands.output import changes as out

    # Only a command that waits makes pending changes.
    forbidden = bool(plan.errors and not force)
    has_changes = bool(plan.changes or (plan.pending and wait))
    # If the output is data, an applied plan is reported only once, after the change.
    if change.is_text:
        out.show(plan)
    elif change.dry_run or forbidden or not has_changes:
        report(plan, change, applied=False)

    if forbidden and (plan.changes or plan.pending):
        click.echo(
            "Nothing was changed: a check failed. Correct the cause, or override it with --force.",
            err=True,
        )
        sys.exit(1)

    if not has_changes or change.dry_run:
        return False
    confirm(change, question)
    return True


def report(plan: Plan, change: ChangeOptions, *, applied: bool) -> None:
    """Write a plan as data, unless the output is text."""
    if not change.is_text:
        print_data(change.output, items=[plan_item(plan, applied=applied)])


def plan_item(plan: Plan, *, applied: bool) -> Obj:
    """Return the plan of a cluster as an item of a document."""
    return {
        "cluster": str(plan.cluster),
        "changes": plan.changes,
        "pending": plan.pending,
        "checks": plan.checks,
        "applied": applied,
    }


def apply_plan(plan: Plan, management: ManagementOptions) -> None:
    """Make the changes of a plan.

    Raises `CommandError` if an object was changed meanwhile, or after a part of the changes.
    """
    from caphv.runtime.errors import Conflict, RequestError

    async def write_all() -> None:
        from operations.change.patchwriter import write_patches

        written: list[str] = []
        async with management_client(management) as client:
            try:
                for patch in plan.patches:
                    await write_patches(client, [patch])
                    written.append(f"{patch.kind} {patch.key}")
            except RequestError as error:
                done = f"{', '.join(written)} changed, and nothing else: " if written else ""
                if isinstance(error, Conflict):
                    raise CommandError(
                        f"{done}cluster {plan.cluster} was modified meanwhile; run the command "
                        f"again: {error}"
                    ) from None
                if written:
                    raise CommandError(f"{done}{error}") from None
                raise

    run(write_all())


@asynccontextmanager
async def following(
    management: ManagementOptions, cluster: Key
) -> AsyncIterator[AsyncIterator[ManagementObjects]]:
    """Lend the changes of a cluster's objects."""
    from operations.read.follow import Follower

    # Hide reconnects of watches, which are not interesting for the user.
    with quiet("caphv.runtime", logging.CRITICAL):
        async with (
            management_client(management) as client,
            Follower(client, cluster.namespace) as follower,
        ):
            yield follower.changes()


async def until_done(
    management: ManagementOptions,
    cluster: Key,
    step: Callable[[ManagementObjects], Awaitable[bool]],
    seconds: float,
) -> bool:
    """Call `step` for each change until it returns true; return False when the time is over.

    :param management: the management cluster
    :param cluster: the cluster whose namespace is watched
    :param step: called with the objects after each change, returns whether the wait is over
    :param seconds: the longest time to wait
    """
    from operations.change.changes import ChangeError

    try:
        async with asyncio.timeout(seconds), following(management, cluster) as changes:
            async for objects in changes:
                if await step(objects):
                    return True
    except TimeoutError:
        return False
    except ChangeError as error:
        raise InputError(*error.problems) from None
    return False
