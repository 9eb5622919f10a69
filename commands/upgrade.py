"""`caphv upgrade`: another version of Kubernetes for a cluster, checked and followed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from caphv.api import remedies
from commands.access.changes import agree, apply_plan, report, until_done
from commands.access.management import management_client, run
from commands.errors import InputError
from commands.options.changes import ChangeOptions, WaitOptions, change_options, wait_options
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ManagementOptions,
    ScopeOptions,
    Selection,
    cluster_argument,
    management_options,
    selection,
)
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from commands.output.progress import Step
    from operations.change.changes import Plan
    from operations.read.objects import ManagementObjects

_PENDING = 3


@click.command(
    short_help="Upgrade a cluster to another version of Kubernetes.",
    epilog="""\b
Examples:
  caphv upgrade team-a/production --version v1.36.3+rke2r1 --dry-run    only run the checks
  caphv upgrade team-a/production --version v1.36.3+rke2r1 --wait
  caphv upgrade team-a/production --version v1.36.3+rke2r1 --wait --yes -o json

Exit status: 0 done or nothing to do, 1 a check failed, aborted or timed out, 2 usage error or a
server cannot be read, 3 the control plane is being upgraded: run the command again afterwards to
upgrade the workers.
""",
)
@cluster_argument
@click.option(
    "--version",
    "version",
    required=True,
    metavar="VERSION",
    help="Version of Kubernetes, such as v1.36.3+rke2r1.",
)
@click.option("--force", is_flag=True, help="Upgrade even if a check fails.")
@wait_options("2h")
@change_options
@insecure_option
@management_options
@fill(wait=WaitOptions, change=ChangeOptions, scope=ScopeOptions)
def upgrade(
    cluster: str,
    version: str,
    *,
    force: bool,
    wait: WaitOptions,
    change: ChangeOptions,
    scope: ScopeOptions,
) -> None:
    """Upgrade a cluster to another version of Kubernetes, one machine at a time.

    Before any change, the command checks that the version exists for the cluster's distribution, is
    not a downgrade and skips no minor version. It also checks the health of the cluster, addresses
    and capacity for the additional machines, and PodDisruptionBudgets that block a drain.

    Without a topology, workers are upgraded after the control plane: by the same command with
    --wait, otherwise by running it again. The upgrade continues even if you interrupt the command;
    run it again to wait for the end, or to upgrade workers without a topology.
    """
    from operations.change.changes import ChangeError

    chosen = selection((cluster,), scope)
    try:
        with patient_progress() as step:
            plan = run(_plan(scope, chosen, version, step))
    except ChangeError as error:
        raise InputError(*error.problems) from None

    question = f"Upgrade cluster {plan.cluster} to {version}?"
    if agree(plan, change, question, force=force, wait=wait.wait):
        apply_plan(plan, scope)
        report(plan, change, applied=bool(plan.changes))
    elif change.dry_run:
        return

    # Wait even without a change, because an earlier call may have made it.
    if wait.wait:
        _wait(plan, version, scope, wait.timeout, to_stderr=not change.is_text)
    elif plan.pending:
        number = len(plan.pending)
        subject = "1 MachineDeployment is upgraded"
        if number > 1:
            subject = f"{number} MachineDeployments are upgraded"
        click.echo(
            f"{subject} after the control plane: run this command again then, or now with --wait",
            err=True,
        )
        sys.exit(_PENDING)
    elif plan.changes and change.is_text:
        click.echo(
            f"Upgrading cluster {plan.cluster}: to follow it, run this command again with --wait"
        )


async def _plan(management: ManagementOptions, chosen: Selection, version: str, step: Step) -> Plan:
    """Plan the upgrade, with checks of capacity and PodDisruptionBudgets. Raises `ChangeError`.

    :param management: the management cluster
    :param chosen: the cluster to upgrade
    :param version: the version of Kubernetes to upgrade it to
    :param step: called with a description of each step
    """
    from caphv.api.object import key_of
    from operations.change.upgrade import plan_with_checks
    from operations.status.query import ask

    async with management_client(management) as client:
        answer = await ask(client, chosen.query(deep=True), step)
        chosen.require(
            {cluster.key for cluster in answer.overview.clusters},
            map(key_of, answer.objects.clusters),
        )
        return await plan_with_checks(client, answer, chosen.keys[0], version, step)


def _wait(
    plan: Plan, version: str, scope: ScopeOptions, seconds: float, *, to_stderr: bool
) -> None:
    """Show the progress until all machines are upgraded; exit with status 1 after the timeout.

    The MachineDeployments of a cluster without a topology are changed once its control plane is
    upgraded.

    :param plan: the plan that was applied
    :param version: the version of Kubernetes to wait for
    :param scope: the management cluster
    :param seconds: the longest time to wait
    :param to_stderr: whether the progress goes to the standard error, because the output is data
    """
    from commands.output.changes import Progress
    from operations.change.upgrade import advance_rollout, observe_rollout

    progress = Progress(to_stderr=to_stderr)

    async def step(objects: ManagementObjects) -> bool:
        rollout = observe_rollout(objects, plan.cluster, version)
        progress.say(f"{rollout.progress} run {version}")
        progress.problems(rollout.cluster)

        # The client that follows objects belongs to the watches, so that a change needs another.
        if rollout.due:
            async with management_client(scope) as client:
                await advance_rollout(client, rollout.due)
            return False
        return rollout.is_complete

    interrupted = (
        "Interrupted. The rollout continues without this command. Follow it: "
        f"{remedies.FOLLOW(ref=plan.cluster)}"
    )
    if plan.pending:
        interrupted += ". MachineDeployments are upgraded only when you run this command again"
    if not run(until_done(scope, plan.cluster, step, seconds), interrupted):
        progress.give_up(
            f"Timed out. Replaced machines keep {version}, and the others keep running; nothing is "
            "lost.",
            "Solve the problems above; the rollout then continues. Run this command again to wait "
            "for it.",
        )
