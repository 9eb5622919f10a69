"""`caphv scale`: change the number of a cluster's machines, with or without a topology."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from caphv.api import remedies
from commands.access.changes import agree, apply_plan, report, until_done
from commands.access.management import management_client, read_overview, run
from commands.errors import InputError
from commands.options.changes import ChangeOptions, WaitOptions, change_options, wait_options
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ScopeOptions,
    cluster_argument,
    management_options,
    selection,
)
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from operations.change.changes import Plan
    from operations.change.scaling import Scale
    from operations.read.objects import ManagementObjects
    from operations.status.query import Answer

_MAX_MACHINES = 1000


@click.command(
    short_help="Change the number of machines of a cluster.",
    epilog="""\b
Examples:
  caphv scale team-a/production --workers 5               for a single worker pool
  caphv scale team-a/production --workers md-0=5 --workers gpu=2
  caphv scale team-a/production --control-plane 3 --wait
  caphv scale team-a/production --workers 5 --dry-run

Exit status: 0 done or nothing to do, 1 a check failed, aborted or timed out, 2 usage error or a
server cannot be read.
""",
)
@cluster_argument
@click.option(
    "--control-plane",
    type=click.IntRange(0, 99),
    metavar="REPLICAS",
    help="Number of control plane machines; must be odd.",
)
@click.option(
    "--workers",
    "pools",
    multiple=True,
    metavar="[POOL=]REPLICAS",
    help="Number of machines of a worker pool. Repeatable.",
)
@click.option("--force", is_flag=True, help="Scale even if a check fails.")
@wait_options("30m")
@change_options
@insecure_option
@management_options
@fill(wait=WaitOptions, change=ChangeOptions, scope=ScopeOptions)
def scale(
    cluster: str,
    control_plane: int | None,
    pools: tuple[str, ...],
    *,
    force: bool,
    wait: WaitOptions,
    change: ChangeOptions,
    scope: ScopeOptions,
) -> None:
    """Change the number of control plane machines or workers of a cluster.

    POOL is the name of a machine deployment in the topology, or of a MachineDeployment; leave it
    out if there is only one. With a topology the command changes the Cluster, otherwise the control
    plane object and the MachineDeployments.

    Before any change, the command checks that the cluster is not paused, being deleted or managed
    by GitOps, and that etcd keeps its quorum. For more machines, it also checks free addresses and
    capacity on the hosts.
    """
    from operations.change.changes import ChangeError

    target = _parse_numbers(control_plane, pools)
    chosen = selection((cluster,), scope)
    with patient_progress() as step:
        answer = read_overview(scope, chosen, step, deep=True)
    try:
        plan = _plan(answer, chosen.keys[0], target, scope)
    except ChangeError as error:
        raise InputError(*error.problems) from None

    question = f"Scale cluster {plan.cluster}?"
    if agree(plan, change, question, force=force, wait=wait.wait):
        apply_plan(plan, scope)
        report(plan, change, applied=True)
    elif change.dry_run:
        return

    # Wait even without a change, because an earlier call may have made it.
    if wait.wait:
        _wait(plan, target, scope, wait.timeout, to_stderr=not change.is_text)
    elif plan.changes and change.is_text:
        click.echo(
            f"Scaling cluster {plan.cluster}. Follow it: {remedies.FOLLOW(ref=plan.cluster)}"
        )


def _parse_numbers(control_plane: int | None, pools: tuple[str, ...]) -> Scale:
    """Parse the requested numbers of machines. Raises `click.UsageError`."""
    from operations.change.scaling import Scale

    workers: dict[str, int] = {}
    for text in pools:
        # N without a name refers to the only pool.
        name, _, number = text.rpartition("=")
        if not (number.isascii() and number.isdigit()) or int(number) > _MAX_MACHINES:
            raise click.BadParameter(
                f"{text!r} is not [POOL=]REPLICAS with 0 to {_MAX_MACHINES} replicas",
                param_hint="--workers",
            )
        if name in workers:
            raise click.BadParameter(
                f"{text!r}: pool {name or 'without a name'} is given twice", param_hint="--workers"
            )
        workers[name] = int(number)

    if control_plane is None and not workers:
        raise click.UsageError("nothing to do: use --control-plane or --workers")
    return Scale(control_plane, workers)


def _plan(answer: Answer, key: Key, target: Scale, scope: ScopeOptions) -> Plan:
    """Plan the change, with checks of the required capacity. Raises `ChangeError`."""
    from dataclasses import replace

    from caphv.api.object import at
    from operations.capacity.preflight import (
        Demand,
        check_room,
        size_of,
    )
    from operations.change.clusterparts import parts_and_deployments, require_read, unread_kinds
    from operations.change.scaling import (
        growing_devices,
        growth,
        plan_scale,
        templates_of_empty_pools,
    )

    parts, deployments = parts_and_deployments(answer.objects, key)
    unread = unread_kinds(answer.objects, parts.cluster)
    # Without a topology, what is not seen would count as absent.
    if not at(parts.cluster, "spec", "topology"):
        require_read(key, unread.deployments if target.workers else ())
        require_read(key, unread.control_plane if target.control_plane is not None else ())
    plan = plan_scale(parts, deployments, target)
    harvester = answer.harvesters.of(parts.harvester_cluster) if parts.harvester_cluster else None
    machines = list(parts.harvester_machines.values())
    size = size_of(parts, machines, harvester)
    # The devices of a pool without machines are known only from its template.
    keys = templates_of_empty_pools(parts, deployments, target)
    templates = _read_templates(keys, scope) if keys else {}
    devices = growing_devices(parts, deployments, target, templates)
    demand = Demand(growth(plan), size, [devices])
    checks = (*plan.checks, *unread.checks(key), *check_room(parts, harvester, demand))
    return replace(plan, checks=checks)


def _read_templates(keys: list[Key], scope: ScopeOptions) -> dict[Key, Obj]:
    """Return those of the HarvesterMachineTemplates that exist and may be read."""
    from caphv.api.resources import HARVESTER_MACHINE_TEMPLATES
    from caphv.runtime.errors import Forbidden, NotFound

    async def read() -> dict[Key, Obj]:
        templates = {}
        async with management_client(scope) as client:
            for key in keys:
                with suppress(Forbidden, NotFound):
                    templates[key] = await client.get(
                        HARVESTER_MACHINE_TEMPLATES, key.name, key.namespace
                    )
        return templates

    return run(read())


def _wait(
    plan: Plan, target: Scale, scope: ScopeOptions, seconds: float, *, to_stderr: bool
) -> None:
    """Show the progress until the cluster has its machines; exit with status 1 after the timeout.

    :param plan: the plan that was applied
    :param target: the numbers of machines to wait for
    :param scope: the management cluster
    :param seconds: the timeout
    :param to_stderr: write the progress to standard error, because the output is data
    """
    from commands.output.changes import Progress
    from operations.change.clusterparts import cluster_and_parts
    from operations.change.scaling import is_scaled, numbers

    progress = Progress(to_stderr=to_stderr)

    async def step(objects: ManagementObjects) -> bool:
        parts, deployments, cluster = cluster_and_parts(objects, plan.cluster)
        progress.say(numbers(cluster))
        progress.problems(cluster)
        return is_scaled(parts, deployments, cluster, target)

    interrupted = (
        "Interrupted. The change continues without this command. Follow it: "
        f"{remedies.FOLLOW(ref=plan.cluster)}"
    )
    if not run(until_done(scope, plan.cluster, step, seconds), interrupted):
        progress.give_up(
            "Timed out. The change continues without this command; run it again to wait."
        )
