"""`caphv upgrade`: another version of Kubernetes for a cluster, checked before and followed to its end."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from caphv.api import remedies
from commands.options.changes import agreed, apply_plan, change_options, report, until_done, wait_options
from commands.options.clusters import InputError
from commands.options.harvesters import insecure_option
from commands.options.management import (
    Selection,
    cluster_argument,
    management_client,
    management_options,
    patient_progress,
    run,
    selection,
)

if TYPE_CHECKING:
    from commands.options.clusters import Step
    from overview.changes import Plan
    from overview.model import Cluster
    from overview.objects import ManagementObjects

_PENDING = 3


@click.command(
    short_help="Upgrade the Kubernetes of a cluster.",
    epilog="""\b
Examples:
  caphv upgrade team-a/production --version v1.36.3+rke2r1 --dry-run    only the checks
  caphv upgrade team-a/production --version v1.36.3+rke2r1 --wait
  caphv upgrade team-a/production --version v1.36.3+rke2r1 --wait --yes -o json

\b
Exit status: 0 done or nothing to do, 1 a check failed, aborted or not done in time, 2 invalid usage or cannot be read,
3 the workers follow once the control plane is upgraded: run the command again.
""",
)
@cluster_argument
@click.option("--version", "version", required=True, metavar="VERSION", help="For example v1.36.3+rke2r1.")
@click.option("--force", is_flag=True, help="Change it although a check failed.")
@wait_options("2h")
@change_options
@insecure_option
@management_options
def upgrade(cluster: str, **flags: Any) -> None:
    """Upgrade a cluster to another version of Kubernetes, one machine at a time.

    Before any change, the command checks that the version is one of the cluster's distribution, is not a downgrade and
    skips no minor version. It also checks the health of the cluster, addresses and hosts for the additional machines,
    and PodDisruptionBudgets that stop a drain.
    Without a topology, workers follow once the control plane is upgraded: with --wait in one run, otherwise run the
    command again. Interrupting it stops nothing; run it again to continue.
    """
    from overview.changes import ChangeError

    chosen = selection((cluster,), {**flags, "all_namespaces": False})
    try:
        with patient_progress() as step:
            plan = run(_plan(flags, chosen, step))
    except ChangeError as error:
        raise InputError(*error.problems) from None
    if agreed(plan, flags, f"Upgrade cluster {plan.cluster} to {flags['version']}?"):
        apply_plan(plan, flags)
        report(plan, flags, applied=bool(plan.changes))
    elif flags["dry_run"]:
        return
    if flags["wait"]:
        _wait(plan, flags)
    elif plan.pending:
        number = len(plan.pending)
        what = f"{number} MachineDeployments follow" if number > 1 else "1 MachineDeployment follows"
        click.echo(f"{what} once the control plane is upgraded: run this again then, or now with --wait", err=True)
        sys.exit(_PENDING)
    elif plan.changes and flags["output"] == "text":
        click.echo(f"Upgrading cluster {plan.cluster}: run this again with --wait to follow it")


async def _plan(flags: dict[str, Any], chosen: Selection, step: Step) -> Plan:
    from dataclasses import replace

    from caphv.api.object import key_of
    from overview.clusterparts import cluster_and_parts
    from overview.disruptions import disruption_checks
    from overview.preflight import Demand, room, size_of
    from overview.query import Query, ask
    from overview.upgrading import plan_upgrade, surge

    async with management_client(flags) as client:
        answer = await ask(client, Query(chosen.namespace, frozenset(chosen.keys), deep=True), step)
        chosen.require({each.key for each in answer.overview.clusters}, map(key_of, answer.objects.clusters))
        parts, deployments, cluster = cluster_and_parts(answer.objects, chosen.keys[0])
        plan = plan_upgrade(parts, deployments, cluster, flags["version"])
        if not plan.changes:
            return plan
        harvester = answer.harvesters.of(parts.harvester_cluster) if parts.harvester_cluster else None
        demand = Demand(surge(parts, deployments), size_of(parts, parts.harvester_machines.values(), harvester))
        step("asking the workload cluster")
        budgets = await disruption_checks(client, plan.cluster)
    return replace(plan, checks=(*plan.checks, *room(parts, harvester, demand), *budgets))


def _wait(plan: Plan, flags: dict[str, Any]) -> None:
    from caphv.runtime.errors import Conflict
    from commands.output.changes import Progress
    from overview.clusterparts import cluster_and_parts
    from overview.patchwriter import apply
    from overview.upgrading import plan_upgrade, progress

    lines, last, wanted = Progress(to_stderr=flags["output"] != "text"), list["Cluster"](), flags["version"]

    async def step(objects: ManagementObjects) -> bool:
        parts, deployments, cluster = cluster_and_parts(objects, plan.cluster)
        last[:] = [cluster]
        now = progress(parts, cluster, wanted)
        lines.say(f"{now} run {wanted}")
        lines.problems(cluster)
        following = plan_upgrade(parts, deployments, cluster, wanted)
        if following.changes and "topology" not in parts.cluster["spec"]:
            async with management_client(flags) as client:
                with suppress(Conflict):  # the next change of the objects leads here again
                    await apply(client, following.patches)
            return False
        return now.complete and not following.changes

    interrupted = f"Interrupted. The rollout continues without this command: {remedies.FOLLOW(ref=plan.cluster)}"
    if plan.pending:
        interrupted += ". MachineDeployments follow only when you run this command again"
    if not run(until_done(flags, plan.cluster, step), interrupted):
        lines.stopped(last[0] if last else None)
        click.echo(
            f"Not done in time. Machines that were replaced keep {wanted}, the others keep running; nothing is lost.\n"
            "Correct what is named above; the rollout continues automatically. Run this command again to wait for it.",
            err=True,
        )
        sys.exit(1)
