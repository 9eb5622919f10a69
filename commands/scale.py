"""`caphv scale`: other numbers of machines for a cluster, with and without a topology."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from caphv.api import remedies
from commands.options.changes import agreed, apply_plan, change_options, report, until_done, wait_options
from commands.options.clusters import InputError
from commands.options.harvesters import insecure_option
from commands.options.management import (
    cluster_argument,
    management_options,
    patient_progress,
    read_overview,
    run,
    selection,
)

if TYPE_CHECKING:
    from caphv.api.object import Key
    from overview.changes import Plan
    from overview.objects import ManagementObjects
    from overview.query import Answer
    from overview.scaling import Scale

_MOST = 1000


@click.command(
    short_help="Change the number of a cluster's machines.",
    epilog="""\b
Examples:
  caphv scale team-a/production --workers 5               the only worker pool
  caphv scale team-a/production --workers md-0=5 --workers gpu=2
  caphv scale team-a/production --control-plane 3 --wait
  caphv scale team-a/production --workers 5 --dry-run

\b
Exit status: 0 done or nothing to do, 1 a check failed, aborted or not done in time, 2 invalid usage or cannot be read.
""",
)
@cluster_argument
@click.option("--control-plane", type=click.IntRange(0, 99), metavar="N", help="Control plane machines; an odd number.")
@click.option("--workers", "pools", multiple=True, metavar="[POOL=]N", help="Machines of a worker pool; repeatable.")
@click.option("--force", is_flag=True, help="Change it although a check failed.")
@wait_options("30m")
@change_options
@insecure_option
@management_options
def scale(cluster: str, **flags: Any) -> None:
    """Change the number of control plane machines or workers of a cluster.

    With a topology the Cluster is changed, without one the control plane object and the MachineDeployments. Before any
    change, the command checks that the cluster is not paused, deleted or managed by GitOps. It also checks the quorum
    of etcd and, for more machines, free addresses and room on hosts. POOL is the name in the topology, or of the
    MachineDeployment.
    """
    from overview.changes import ChangeError

    wanted = _wanted(flags)
    chosen = selection((cluster,), {**flags, "all_namespaces": False})
    with patient_progress() as step:
        answer = read_overview(flags, chosen, step, deep=True)
    try:
        plan = _plan(answer, chosen.keys[0], wanted)
    except ChangeError as error:
        raise InputError(*error.problems) from None
    if agreed(plan, flags, f"Scale cluster {plan.cluster}?"):
        apply_plan(plan, flags)
        report(plan, flags, applied=True)
    elif flags["dry_run"]:
        return
    if flags["wait"]:
        _wait(plan, wanted, flags)
    elif plan.changes and flags["output"] == "text":
        click.echo(f"Scaling cluster {plan.cluster}: {remedies.FOLLOW(ref=plan.cluster)}")


def _wanted(flags: dict[str, Any]) -> Scale:
    from overview.scaling import Scale

    workers: dict[str, int] = {}
    for text in flags["pools"]:
        name, _, number = text.rpartition("=")
        if not (number.isascii() and number.isdigit()) or int(number) > _MOST:
            raise click.BadParameter(f"{text!r}: write POOL=N with N from 0 to {_MOST}", param_hint="--workers")
        if name in workers:
            raise click.BadParameter(
                f"{text!r}: pool {name or 'without a name'} is there twice", param_hint="--workers"
            )
        workers[name] = int(number)
    if flags["control_plane"] is None and not workers:
        raise click.UsageError("nothing to do: give --control-plane N or --workers POOL=N")
    return Scale(flags["control_plane"], workers)


def _plan(answer: Answer, key: Key, wanted: Scale) -> Plan:
    from dataclasses import replace

    from overview.clusterparts import parts_and_deployments
    from overview.preflight import Demand, room, size_of
    from overview.scaling import growth, plan_scale

    parts, deployments = parts_and_deployments(answer.objects, key)
    plan = plan_scale(parts, deployments, wanted)
    harvester = answer.harvesters.of(parts.harvester_cluster) if parts.harvester_cluster else None
    demand = Demand(growth(plan), size_of(parts, parts.harvester_machines.values(), harvester))
    return replace(plan, checks=(*plan.checks, *room(parts, harvester, demand)))


def _wait(plan: Plan, wanted: Scale, flags: dict[str, Any]) -> None:
    from commands.output.changes import Progress
    from overview.clusterparts import cluster_and_parts
    from overview.model import Cluster
    from overview.scaling import numbers, scaled

    progress, last = Progress(to_stderr=flags["output"] != "text"), list[Cluster]()

    async def step(objects: ManagementObjects) -> bool:
        parts, deployments, cluster = cluster_and_parts(objects, plan.cluster)
        last[:] = [cluster]
        progress.say(numbers(cluster))
        progress.problems(cluster)
        return scaled(parts, deployments, cluster, wanted)

    interrupted = f"Interrupted. The change continues without this command: {remedies.FOLLOW(ref=plan.cluster)}"
    if not run(until_done(flags, plan.cluster, step), interrupted):
        progress.stopped(last[0] if last else None)
        click.echo("Not done in time. It continues without this command; run it again to wait for it.", err=True)
        sys.exit(1)
