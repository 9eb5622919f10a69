"""`caphv etcd restore`: restore a cluster's etcd from a snapshot, with scripts for its servers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING

import click

from caphv.api.plaintext import one_line
from commands.access.changes import agree, apply_plan, confirm, plan_item, report
from commands.access.management import management_client, run
from commands.access.workload import workload_client
from commands.errors import CommandError, InputError
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
    from operations.change.etcddistribution import Distribution
    from operations.change.etcdnodes import EtcdNodes
    from operations.change.etcdrestore import Restore
    from operations.change.etcdsteps import Step
    from operations.read.etcdsnapshots import EtcdSnapshot
    from operations.status.check import Check
    from operations.status.model import Cluster
    from operations.status.parts import Parts


@dataclass(frozen=True, slots=True)
class _State:
    """A cluster as it is now.

    `snapshots` and `nodes` come from the workload cluster; `silence` says why they do not.
    `authority` has the certificates of its CA, PEM; empty if its kubeconfig cannot be read.
    """

    parts: Parts
    cluster: Cluster
    snapshots: tuple[EtcdSnapshot, ...] | None
    nodes: EtcdNodes
    silence: str
    authority: str


@click.command(
    short_help="Restore a cluster's etcd from a snapshot.",
    epilog="""\b
Examples:
  caphv etcd snapshots team-a/production
  caphv etcd restore team-a/production etcd-snapshot-cp-1-1767268800 --dry-run
  caphv etcd restore team-a/production etcd-snapshot-cp-1-1767268800 --ssh
  caphv etcd restore team-a/production                 print the steps and the progress again
  caphv etcd restore team-a/production --finish        once the servers run again

Exit status: 0 done, 1 a check failed or aborted, 2 usage error or a server cannot be read.
""",
)
@cluster_argument
@click.argument("snapshot", default="")
@click.option(
    "--on",
    "machine",
    default="",
    metavar="MACHINE",
    help=(
        "Control plane Machine on which to restore the snapshot.  [default: one that has the "
        "snapshot; for S3, a ready one]"
    ),
)
@click.option(
    "--ssh",
    is_flag=True,
    help="Run the scripts over SSH; needs sudo without a password on the machines.",
)
@click.option("--finish", is_flag=True, help="Check the restored cluster, and end its pause.")
@click.option("--force", is_flag=True, help="Begin or finish even if a check fails.")
@change_options
@insecure_option
@management_options
@fill(change=ChangeOptions, scope=ScopeOptions)
def restore(
    cluster: str,
    snapshot: str,
    *,
    machine: str,
    ssh: bool,
    finish: bool,
    force: bool,
    change: ChangeOptions,
    scope: ScopeOptions,
) -> None:
    """Restore a cluster's etcd from a snapshot.

    SNAPSHOT is a name in the output of `caphv etcd snapshots`, or a path on a control plane
    machine. The command runs checks, pauses the Cluster so that no machine is replaced, and prints
    the scripts to run on the machines, in the order that RKE2 or K3s requires. With --ssh, it runs
    them. When the servers run again, use --finish to check the Nodes and end the pause.

    The Cluster records the restore, so that you can continue it on any computer, and repeat each
    step. --finish --force ends the pause without a restore.
    """
    from operations.change.changes import ChangeError

    key = selection((cluster,), scope).keys[0]
    if finish and (snapshot or machine or ssh):
        raise click.UsageError("--finish takes neither a snapshot nor --on nor --ssh")

    with patient_progress() as step:
        step("reading the cluster")
        state = run(_read(scope, key))
    try:
        if finish:
            _finish(state, change, scope, force=force)
        else:
            _begin_or_continue(state, snapshot, machine, change, scope, ssh=ssh, force=force)
    except ChangeError as error:
        raise InputError(*error.problems) from None


def _begin_or_continue(
    state: _State,
    snapshot: str,
    machine: str,
    change: ChangeOptions,
    scope: ScopeOptions,
    *,
    ssh: bool,
    force: bool,
) -> None:
    """Begin a restore, or continue one that has begun. Raises `ChangeError`."""
    from operations.change import etcdrestore
    from operations.change.changes import ChangeError
    from operations.change.etcddistribution import distribution_of

    distribution = distribution_of(state.parts.cluster, state.parts.control_plane)
    begun = etcdrestore.restore_of(state.parts.cluster)
    if begun is None:
        _begin(state, distribution, snapshot, change, scope, machine=machine, ssh=ssh, force=force)
        return
    if snapshot not in ("", begun.snapshot) or machine not in ("", begun.machine):
        raise ChangeError(
            [
                f"a restore of {begun.snapshot} on Machine {begun.machine} has begun: complete "
                "it, or end it with --finish --force"
            ]
        )
    steps = _steps(state, distribution, begun)
    if ssh:
        _check_addresses(steps)
    _continue(state, begun, steps, change, scope, ssh=ssh)


def _begin(
    state: _State,
    distribution: Distribution,
    snapshot: str,
    change: ChangeOptions,
    scope: ScopeOptions,
    *,
    machine: str,
    ssh: bool,
    force: bool,
) -> None:
    """Record a restore, pause the Cluster, and show or run the steps. Raises `ChangeError`."""
    from commands.output import etcdrestore as out
    from operations.change import etcdrestore
    from operations.change.changes import ChangeError
    from operations.change.etcdrestorechecks import begin_checks

    if not snapshot:
        raise ChangeError([f"no restore of {state.parts.key} has begun: name a snapshot"])
    restore, copy = etcdrestore.choose(state.cluster, snapshot, machine, state.snapshots)
    restore = etcdrestore.identify(restore, state.cluster, token_hex(4), state.nodes.members)
    steps = _steps(state, distribution, restore)
    if ssh:
        _check_addresses(steps)
    checks = begin_checks(state.parts, state.cluster, restore, copy, state.silence)
    plan = etcdrestore.begin(state.parts, restore, checks)

    what = f"restore {restore.snapshot} on Machine {restore.machine}"
    question = f"Pause cluster {state.parts.key}, to {what}?"
    if ssh:
        question = f"Stop all servers of cluster {state.parts.key}, and {what}?"
    if change.is_text and change.dry_run:
        out.show(state.parts.key, steps)
    if not change.is_text and (change.dry_run or (plan.errors and not force)):
        _print(plan, restore, steps, change, applied=False)
        sys.exit(1 if plan.errors and not force else 0)
    if not agree(plan, change, question, force=force, wait=False):
        return
    if ssh:
        _run(state, steps, checks=True)
    apply_plan(plan, scope)
    if ssh:
        _run(state, steps, checks=False)
    elif change.is_text:
        out.show(state.parts.key, steps)
    if not change.is_text:
        _print(plan, restore, steps, change, applied=True)


def _continue(
    state: _State,
    begun: Restore,
    steps: Sequence[Step],
    change: ChangeOptions,
    scope: ScopeOptions,
    *,
    ssh: bool,
) -> None:
    """Show or run a restore that has begun, after a pause of the Cluster if that has ended."""
    from commands.output import changes
    from commands.output import etcdrestore as out
    from operations.change import etcdrestore
    from operations.change.changes import Plan

    plan = etcdrestore.pause_again(state.parts, begun)
    question = f"Pause cluster {state.parts.key} again?"
    applied = bool(plan.changes) and agree(plan, change, question, force=False, wait=False)
    if applied:
        apply_plan(plan, scope)

    if ssh and not change.dry_run:
        if plan.changes and not applied:
            return
        confirm(change, f"Run the steps on the servers of cluster {state.parts.key}?")
        _run(state, steps, checks=True)
        _run(state, steps, checks=False)
        if not change.is_text:
            _print(plan, begun, steps, change, applied=applied)
        return

    checks = _finish_checks(state, begun)
    if change.is_text:
        out.show(state.parts.key, steps)
        changes.show_checks(checks)
    elif not (plan.changes and change.dry_run):
        checked = Plan(plan.cluster, plan.patches, (*plan.checks, *checks))
        _print(checked, begun, steps, change, applied=applied)


def _steps(state: _State, distribution: Distribution, restore: Restore) -> tuple[Step, ...]:
    """Return the steps on the servers. Raises `ChangeError` if one cannot be written."""
    from operations.change.etcdsteps import steps

    users = _ssh_users(state.parts)
    return steps(
        state.cluster,
        distribution,
        restore.snapshot,
        restore.machine,
        users,
        identity=restore.id,
        s3=restore.s3,
        authority=state.authority,
    )


def _check_addresses(steps: Sequence[Step]) -> None:
    """Raise `ChangeError` if a step must be done by hand."""
    from operations.change.changes import ChangeError

    if problems := [
        f"Machine {step.machine} has no address for --ssh: run the steps by hand, without --ssh"
        for step in steps
        if not step.script
    ]:
        raise ChangeError(problems)


def _run(state: _State, steps: Sequence[Step], *, checks: bool) -> None:
    """Run the checks, or the other steps, in order.

    Raises `CommandError` at the first that fails.
    """
    from caphv.api import remedies
    from commands.access.ssh import run_script

    key = state.parts.key
    for number, step in enumerate(steps, 1):
        if step.is_check is not checks:
            continue
        title = f"{number}/{len(steps)} {step.title}: Machine {step.machine}"
        click.echo(one_line(title), err=True)
        command = f"{remedies.CONTINUE_RESTORE(ref=key)} --ssh"
        try:
            status = run_script(step.user, step.address, step.script)
        except KeyboardInterrupt:
            if checks:
                raise
            raise CommandError(
                f"Interrupted. The step may still run on Machine {step.machine}; then continue "
                f"with {command}"
            ) from None
        if status:
            failure = (
                f"step {number}, {step.title}, failed on Machine {step.machine} ({step.login}) "
                f"with status {status}: correct the cause, and "
            )
            if checks:
                raise CommandError(f"{failure}run the command again; nothing was changed")
            raise CommandError(f"{failure}continue with {command}")
    if not checks:
        click.echo(f"When all Nodes are ready: {remedies.FINISH_RESTORE(ref=key)}", err=True)


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
        if plan.errors:
            click.echo(
                "Servers that the steps have stopped stay disabled. Start one that was not "
                "restored with: systemctl enable --now rke2-server (or k3s)",
                err=True,
            )


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
    """Check that the restored cluster works."""
    from operations.change.etcdrestorechecks import finish_checks

    return finish_checks(state.parts, state.cluster, begun, state.nodes, state.silence)


def _print(
    plan: Plan, restore: Restore, steps: Sequence[Step], change: ChangeOptions, *, applied: bool
) -> None:
    """Write a plan with its commands as data."""
    item = {
        **plan_item(plan, applied=applied),
        "snapshot": restore.snapshot,
        "machine": restore.machine,
        "steps": steps,
    }
    print_data(change.output, items=[item])


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
    from operations.change.etcdnodes import EtcdNodes
    from operations.status.query import Query, ask

    async with management_client(management) as client:
        answer = await ask(client, Query(key.namespace, frozenset({key})))
        authority = await _read_authority(client, key)
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
            snapshots = await _read_snapshots(client)
            return _State(parts, cluster, snapshots, nodes, "", authority)
    except (InputError, RequestError) as error:
        silence = str(error) or "no answer"
        return _State(parts, cluster, None, EtcdNodes(), silence, authority)


async def _read_authority(management: ApiClient, key: Key) -> str:
    """Return the certificates of the workload cluster's CA, PEM; empty if they cannot be read."""
    from caphv.api.object import Key
    from caphv.runtime.errors import RequestError
    from caphv.runtime.kubeconfig import KubeconfigError
    from operations.read.accounts import read_kubeconfig

    secret = Key(key.namespace, f"{key.name}-kubeconfig")
    try:
        return (await read_kubeconfig(management, secret, "value")).ca
    except (RequestError, KubeconfigError):
        return ""


async def _read_nodes(client: ApiClient) -> EtcdNodes:
    """Read the Nodes of the workload cluster."""
    from datetime import UTC, datetime

    from caphv.api.object import LEASES, NODES
    from operations.change.etcdnodes import EtcdNodes, member_names, ready_nodes
    from operations.read.management import list_all

    nodes = await list_all(client, NODES)
    leases = await list_all(client, LEASES, "kube-node-lease")
    return EtcdNodes(ready_nodes(nodes, leases, datetime.now(UTC)), member_names(nodes))


async def _read_snapshots(client: ApiClient) -> tuple[EtcdSnapshot, ...]:
    from caphv.runtime.errors import NotFound
    from operations.read.etcdsnapshots import read_snapshots

    try:
        return await read_snapshots(client)
    except NotFound:
        return ()
