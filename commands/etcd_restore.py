"""`caphv etcd restore`: restore a cluster's etcd from a snapshot, with commands for its servers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from commands.access.changes import agree, apply_plan, report
from commands.access.management import management_client, run
from commands.access.workload import workload_client
from commands.errors import InputError
from commands.options.changes import ChangeOptions, change_options
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ManagementOptions,
    ScopeOptions,
    cluster_argument,
    management_options,
    selection,
)
from commands.output.data import print_data
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from caphv.api.object import Key
    from caphv.runtime.client import ApiClient
    from operations.change.changes import Plan
    from operations.change.etcdrestore import Restore
    from operations.change.etcdsteps import Distribution, Step
    from operations.read.etcdsnapshots import EtcdSnapshot
    from operations.status.check import Check
    from operations.status.model import Cluster
    from operations.status.parts import Parts


@dataclass(frozen=True, slots=True)
class _State:
    """A cluster as it is now.

    `snapshots` and `nodes` come from the workload cluster; `silence` says why they do not.
    """

    parts: Parts
    cluster: Cluster
    snapshots: tuple[EtcdSnapshot, ...] | None
    nodes: dict[str, bool]
    silence: str


@click.command(
    short_help="Restore a cluster's etcd from a snapshot.",
    epilog="""\b
Examples:
  caphv etcd snapshots team-a/production
  caphv etcd restore team-a/production etcd-snapshot-cp-1-1767268800 --dry-run
  caphv etcd restore team-a/production etcd-snapshot-cp-1-1767268800
  caphv etcd restore team-a/production                 the commands again, and how far it is
  caphv etcd restore team-a/production --finish        when the servers run again

\b
Exit status: 0 done, 1 a check failed or aborted, 2 invalid usage or cannot be read.
""",
)
@cluster_argument
@click.argument("snapshot", default="")
@click.option("--on", "machine", default="", metavar="MACHINE", help="Restore on this Machine.")
@click.option("--finish", is_flag=True, help="Check the restored cluster, and end the pause.")
@click.option("--force", is_flag=True, help="Begin or finish although a check failed.")
@change_options
@insecure_option
@management_options
@fill(change=ChangeOptions, scope=ScopeOptions)
def restore(
    cluster: str,
    snapshot: str,
    *,
    machine: str,
    finish: bool,
    force: bool,
    change: ChangeOptions,
    scope: ScopeOptions,
) -> None:
    """Restore a cluster's etcd from SNAPSHOT, a name of `caphv etcd snapshots` or a path.

    Restoring needs a shell on the control plane machines, which this command does not have. It
    checks, pauses the Cluster so that no machine is replaced meanwhile, and lists the commands for
    each machine in the order of RKE2 or K3s. Run them, then run the command with --finish: it
    checks the Nodes and ends the pause.

    The Cluster records the restore, so any computer can continue it. --finish --force ends the
    pause without a restore.
    """
    from operations.change.changes import ChangeError

    key = selection((cluster,), scope).keys[0]
    if finish and (snapshot or machine):
        raise click.UsageError("--finish needs neither a snapshot nor --on: the Cluster has both")

    with patient_progress() as step:
        step("reading the cluster")
        state = run(_read(scope, key))
    try:
        if finish:
            _finish(state, change, scope, force=force)
        else:
            _begin_or_continue(state, snapshot, machine, change, scope, force=force)
    except ChangeError as error:
        raise InputError(*error.problems) from None


def _begin_or_continue(
    state: _State,
    snapshot: str,
    machine: str,
    change: ChangeOptions,
    scope: ScopeOptions,
    *,
    force: bool,
) -> None:
    """Begin a restore, or show one that has begun. Raises `ChangeError`."""
    from commands.output import etcdrestore as out
    from operations.change import etcdrestore
    from operations.change.changes import ChangeError
    from operations.change.etcdsteps import distribution_of

    distribution = distribution_of(state.parts.cluster, state.parts.control_plane)
    begun = etcdrestore.restore_of(state.parts.cluster)
    if begun is not None:
        if snapshot not in ("", begun.snapshot) or machine not in ("", begun.machine):
            raise ChangeError(
                [
                    f"a restore of {begun.snapshot} on Machine {begun.machine} has begun: complete "
                    "it, or end it with --finish --force"
                ]
            )
        _continue(state, begun, _steps(state, distribution, begun), change, scope)
        return

    if not snapshot:
        raise ChangeError([f"no restore of {state.parts.key} has begun: name a snapshot"])
    restore, copy = etcdrestore.choose(state.cluster, snapshot, machine, state.snapshots)
    steps = _steps(state, distribution, restore)
    checks = etcdrestore.begin_checks(state.parts, state.cluster, restore, copy, state.silence)
    plan = etcdrestore.begin(state.parts, restore, checks)

    question = (
        f"Pause cluster {state.parts.key}, to restore {restore.snapshot} on Machine "
        f"{restore.machine}?"
    )
    if change.is_text and change.dry_run:
        out.show(state.parts.key, steps)
    if not change.is_text and (change.dry_run or (plan.errors and not force)):
        _print(plan, restore, steps, change, applied=False)
        sys.exit(1 if plan.errors and not force else 0)
    if not agree(plan, change, question, force=force, wait=False):
        return
    apply_plan(plan, scope)
    if change.is_text:
        out.show(state.parts.key, steps)
    else:
        _print(plan, restore, steps, change, applied=True)


def _continue(
    state: _State,
    begun: Restore,
    steps: Sequence[Step],
    change: ChangeOptions,
    scope: ScopeOptions,
) -> None:
    """Show a restore that has begun, and pause the Cluster again if its pause has ended."""
    from commands.output import changes
    from commands.output import etcdrestore as out
    from operations.change import etcdrestore
    from operations.change.changes import Plan

    plan = etcdrestore.pause_again(state.parts, begun)
    question = f"Pause cluster {state.parts.key} again?"
    applied = bool(plan.changes) and agree(plan, change, question, force=False, wait=False)
    if applied:
        apply_plan(plan, scope)

    checks = _finish_checks(state, begun)
    if change.is_text:
        out.show(state.parts.key, steps)
        changes.show_checks(checks)
    elif not (plan.changes and change.dry_run):
        whole = Plan(plan.cluster, plan.patches, (*plan.checks, *checks))
        _print(whole, begun, steps, change, applied=applied)


def _steps(state: _State, distribution: Distribution, restore: Restore) -> tuple[Step, ...]:
    from operations.change.etcdsteps import steps

    users = _ssh_users(state.parts)
    return steps(
        state.cluster, distribution, restore.snapshot, restore.machine, users, s3=restore.s3
    )


def _finish(state: _State, change: ChangeOptions, scope: ScopeOptions, *, force: bool) -> None:
    """End a restore. Raises `ChangeError`."""
    from operations.change import etcdrestore
    from operations.change.changes import ChangeError

    try:
        begun = etcdrestore.restore_of(state.parts.cluster)
    except ChangeError:
        if not force:
            raise
        _discard(state, change, scope)
        return
    if begun is None:
        raise ChangeError([f"no restore of {state.parts.key} has begun"])
    plan = etcdrestore.finish(state.parts, begun, _finish_checks(state, begun))
    question = f"End the restore of cluster {state.parts.key}, and its pause?"
    if agree(plan, change, question, force=force, wait=False):
        apply_plan(plan, scope)
        report(plan, change, applied=True)


def _discard(state: _State, change: ChangeOptions, scope: ScopeOptions) -> None:
    """Remove a record that cannot be read, and say that the pause stays."""
    from caphv.api import remedies
    from caphv.api.object import at
    from operations.change import etcdrestore

    key = state.parts.key
    plan = etcdrestore.discard(state.parts)
    if not agree(plan, change, f"Remove the record of cluster {key}?", force=True, wait=False):
        return
    apply_plan(plan, scope)
    report(plan, change, applied=True)
    if at(state.parts.cluster, "spec", "paused"):
        command = remedies.RESUME_CLUSTER(kind="cluster", name=key.name, namespace=key.namespace)
        click.echo(f"The Cluster stays paused. Resume it: {command}", err=True)


def _finish_checks(state: _State, begun: Restore) -> list[Check]:
    from operations.change import etcdrestore

    nodes = state.silence or state.nodes
    return etcdrestore.finish_checks(state.parts, state.cluster, begun, nodes)


def _print(
    plan: Plan, restore: Restore, steps: Sequence[Step], change: ChangeOptions, *, applied: bool
) -> None:
    """Write a plan with its commands as data."""
    from operations.status.model import as_json

    content = {
        "cluster": str(plan.cluster),
        "snapshot": restore.snapshot,
        "machine": restore.machine,
        "changes": as_json(plan.changes),
        "checks": as_json(plan.checks),
        "steps": as_json(steps),
        "applied": applied,
    }
    print_data(content, change.output)


def _ssh_users(parts: Parts) -> dict[str, str]:
    """Return the user of the machines' images by name of the HarvesterMachine."""
    from caphv.api.object import at

    return {
        key.name: str(at(machine, "spec", "sshUser") or "")
        for key, machine in parts.harvester_machines.items()
    }


async def _read(management: ManagementOptions, key: Key) -> _State:
    """Read a cluster, its snapshots and Nodes.

    Raises `InputError` if its machines cannot be read, because commands would be missing.
    """
    from caphv.runtime.errors import RequestError
    from operations.change.changes import ChangeError
    from operations.change.clusterparts import cluster_and_parts
    from operations.change.etcd import unseen_machines
    from operations.status.query import Query, ask

    async with management_client(management) as client:
        answer = await ask(client, Query(key.namespace, frozenset({key})))
    if hidden := unseen_machines(answer.objects):
        raise InputError(
            f"the machines of the cluster cannot be read: {'; '.join(map(str, hidden))}"
        )
    try:
        parts, _, cluster = cluster_and_parts(answer.objects, key)
    except ChangeError as error:
        raise InputError(*error.problems) from None

    try:
        async with workload_client(management, key) as client:
            nodes = await _read_nodes(client)
            return _State(parts, cluster, await _read_snapshots(client), nodes, "")
    except (InputError, RequestError) as error:
        return _State(parts, cluster, None, {}, str(error) or "no answer")


async def _read_nodes(client: ApiClient) -> dict[str, bool]:
    from datetime import UTC, datetime

    from caphv.api.object import LEASES, NODES
    from operations.change.etcdrestore import ready_nodes
    from operations.read.management import list_all

    nodes = await list_all(client, NODES)
    leases = await list_all(client, LEASES, "kube-node-lease")
    return ready_nodes(nodes, leases, datetime.now(UTC))


async def _read_snapshots(client: ApiClient) -> tuple[EtcdSnapshot, ...]:
    from caphv.runtime.errors import NotFound
    from operations.read.etcdsnapshots import read_snapshots

    try:
        return await read_snapshots(client)
    except NotFound:
        return ()
