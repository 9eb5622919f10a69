"""`caphv etcd`: members of a cluster's etcd against its machines, and their removal."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from caphv.api.counting import counted
from commands.access.changes import confirm
from commands.access.management import management_client, run
from commands.access.workload import workload_client
from commands.errors import CommandError, InputError
from commands.etcd_restore import restore
from commands.etcd_snapshots import snapshots
from commands.options.changes import ChangeOptions, change_options
from commands.options.formats import output_option
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
from commands.output.echo import echo
from commands.output.progress import patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from caphv.runtime.client import ApiClient
    from caphv.runtime.etcd import Member
    from operations.change.etcd import EtcdMember
    from operations.status.model import Cluster


@click.group(
    epilog="""\b
Examples:
  caphv etcd members team-a/production
  caphv etcd remove team-a/production --dry-run
"""
)
def etcd() -> None:
    """List etcd members and snapshots, remove stale members, and restore a snapshot."""


etcd.add_command(snapshots)
etcd.add_command(restore)


@etcd.command(
    short_help="List the members of a cluster's etcd with their machines.",
    epilog="""\b
Examples:
  caphv etcd members team-a/production
  caphv etcd members team-a/production -o json | jq '.items[] | select(.wrong)'

Exit status: 0 all members are healthy, 1 a member is not, 2 etcd or the machines cannot be read.
""",
)
@cluster_argument
@output_option()
@insecure_option
@management_options
@fill(scope=ScopeOptions)
def members(cluster: str, *, output: str, scope: ScopeOptions) -> None:
    """List the members of a cluster's etcd with their machines.

    A `stale` member has no machine: it counts for the quorum, but never answers. The command runs
    etcdctl in an etcd Pod of the workload cluster, with the kubeconfig that Cluster API keeps for
    the cluster.
    """
    key = selection((cluster,), scope).keys[0]
    with patient_progress() as step:
        step("reading etcd")
        etcd_members = run(_read_members(scope, key))
    from commands.output import etcd as out

    if output == "text":
        out.show(etcd_members)
    else:
        print_data(output, items=etcd_members)
    sys.exit(1 if any(member.wrong for member in etcd_members) else 0)


@etcd.command(
    short_help="Remove members of etcd that have no machine.",
    epilog="""\b
Examples:
  caphv etcd remove team-a/production --dry-run
  caphv etcd remove team-a/production                         all stale members
  caphv etcd remove team-a/production w-7xk2p-1a2b3c4d --yes

Exit status: 0 done or nothing to do, 1 a check failed or aborted, 2 etcd or the machines cannot
be read.
""",
)
@cluster_argument
@click.argument("names", metavar="[MEMBER]...", nargs=-1)
@click.option("--force", is_flag=True, help="Remove the members even if a check fails.")
@change_options
@insecure_option
@management_options
@fill(change=ChangeOptions, scope=ScopeOptions)
def remove(
    cluster: str,
    names: tuple[str, ...],
    *,
    force: bool,
    change: ChangeOptions,
    scope: ScopeOptions,
) -> None:
    """Remove members from a cluster's etcd: those named, or all that have no machine.

    MEMBER is a name or an ID. Before any change, the command checks that no machine uses the
    members, and that the remaining members have a quorum. It removes one member at a time, and
    reads etcd again before each.

    The command also unblocks stuck deletions of Machines: RKE2's control plane provider learns from
    a Machine's Node that its etcd member was removed, and waits forever if the Node was deleted
    first. If etcd has no member for such a Machine, the command removes the provider's hook from
    it.
    """
    from commands.output import changes
    from commands.output import etcd as out
    from operations.change.changes import ChangeError
    from operations.change.etcd import choose_members, removal_checks
    from operations.status.check import Result

    key = selection((cluster,), scope).keys[0]
    etcd_state = run(_read_state(scope, key))
    machines = etcd_state.stuck_machines
    try:
        removals = choose_members(etcd_state.members, names)
    except ChangeError as error:
        raise InputError(*error.problems) from None

    checks = removal_checks(key, etcd_state.members, removals) if removals else []

    def report(*, applied: bool) -> None:
        """Write the result as data, if the user asked for data."""
        if change.is_text:
            return
        item = {
            "cluster": str(key),
            "remove": removals,
            "release": machines,
            "checks": checks,
            "applied": applied,
        }
        print_data(change.output, items=[item])

    if change.is_text:
        changes.show_checks(checks)
        out.show_removal(removals, machines)
    if not (removals or machines) or change.dry_run:
        report(applied=False)
        return

    if any(check.result is Result.ERROR for check in checks) and not force:
        report(applied=False)
        click.echo(
            "Nothing was changed: a check failed. Correct the cause, or override it with --force.",
            err=True,
        )
        sys.exit(1)

    confirm(change, _question(key, len(removals), len(machines)))

    # Members are removed first, because a Machine is released only if etcd has no member of it.
    to_stderr = not change.is_text
    run(_remove(scope, key, {member.id for member in removals}, to_stderr=to_stderr))
    run(_release(scope, key, machines, to_stderr=to_stderr))
    report(applied=True)


@dataclass(frozen=True, slots=True)
class _ReadCluster:
    """The model of a cluster, and its Machines."""

    model: Cluster
    machines: Sequence[Obj]


@dataclass(frozen=True, slots=True)
class _EtcdState:
    """The members of etcd, and the Machines whose deletion waits for a member that is absent."""

    members: tuple[EtcdMember, ...]
    stuck_machines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of an etcd Pod, and the means to ask it again."""

    client: ApiClient
    pod: Obj
    members: list[Member]


def _question(key: Key, members: int, machines: int) -> str:
    parts = [f"remove {counted(members, 'member')} from etcd"] if members else []
    parts += [f"release {counted(machines, 'Machine')}"] if machines else []
    text = " and ".join(parts)
    return f"{text[0].upper()}{text[1:]} of cluster {key}?"


async def _read_state(management: ManagementOptions, key: Key) -> _EtcdState:
    """Ask etcd and the workload cluster. Raises `InputError`."""
    from caphv.api.object import NODES
    from caphv.runtime.listing import list_pages
    from operations.change.etcd import members_with_machines, unreleased_machines

    cluster = await _read_cluster(management, key)
    async with _ask_etcd(management, key) as answer:
        members = members_with_machines(cluster.model, answer.members)
        nodes = {
            node["metadata"]["name"]
            async for page in list_pages(answer.client, NODES)
            for node in page
        }
    return _EtcdState(members, unreleased_machines(cluster.machines, nodes, members))


async def _release(
    management: ManagementOptions, key: Key, names: Iterable[str], *, to_stderr: bool
) -> None:
    """Remove the hook from Machines.

    Before each, the servers are asked again, because neither its Node nor its member may exist.

    :param management: the management cluster
    :param key: the cluster
    :param names: the Machines
    :param to_stderr: whether messages go to the standard error, because the output is data
    """
    from caphv.api.names import RKE2_HOOK
    from caphv.runtime.errors import NotFound
    from operations.read.management import kinds_of

    for name in names:
        if name not in (await _read_state(management, key)).stuck_machines:
            continue  # released meanwhile
        async with management_client(management) as client:
            patch = {"metadata": {"annotations": {RKE2_HOOK: None}}}
            with suppress(NotFound):
                await client.patch((await kinds_of(client))["machines"], name, key.namespace, patch)
        echo(f"released Machine {name}", err=to_stderr)


async def _read_members(management: ManagementOptions, key: Key) -> tuple[EtcdMember, ...]:
    """Return the members of etcd with their machines. Raises `InputError`."""
    from operations.change.etcd import members_with_machines

    cluster = await _read_cluster(management, key)
    async with _ask_etcd(management, key) as answer:
        return members_with_machines(cluster.model, answer.members)


async def _remove(
    management: ManagementOptions, key: Key, ids: set[str], *, to_stderr: bool
) -> None:
    """Remove members, and ask etcd again before each. Raises `CommandError`.

    :param management: the management cluster
    :param key: the cluster
    :param ids: the members
    :param to_stderr: whether messages go to the standard error, because the output is data
    """
    from caphv.runtime.errors import RequestError
    from caphv.runtime.etcd import remove_member
    from caphv.runtime.exec import ExecError

    for member_id in sorted(ids):
        # The Pod that answered last may belong to the member that was just removed.
        async with _ask_etcd(management, key) as answer:
            members_by_id = {f"{member.id:x}": member for member in answer.members}
            member = members_by_id.get(member_id)
            if member is None:
                continue  # removed meanwhile
            try:
                await remove_member(answer.client, answer.pod, member)
            except (RequestError, ExecError) as error:
                raise CommandError(f"member {member.name} was not removed: {error}") from None
            echo(f"removed member {member.name} ({member_id})", err=to_stderr)


async def _read_cluster(management: ManagementOptions, key: Key) -> _ReadCluster:
    """Read the cluster with its machines.

    Raises `InputError` if the machines cannot be read, because all members would look stale.
    """
    from caphv.api.object import key_of
    from commands.options.management import Selection
    from operations.change.etcd import unseen_machines
    from operations.read.objects import by_cluster
    from operations.status.query import Query, ask

    async with management_client(management) as client:
        answer = await ask(client, Query(key.namespace, frozenset({key})))

    if hidden := unseen_machines(answer.objects):
        raise InputError(
            f"the machines of the cluster cannot be read: {'; '.join(map(str, hidden))}"
        )

    clusters = answer.overview.clusters
    Selection(key.namespace, (key,)).require(
        {cluster.key for cluster in clusters}, map(key_of, answer.objects.clusters)
    )
    return _ReadCluster(clusters[0], by_cluster(answer.objects.machines).get(key, ()))


@asynccontextmanager
async def _ask_etcd(options: ManagementOptions, key: Key) -> AsyncIterator[_Answer]:
    """Lend the first etcd Pod that answers. Raises `InputError` if no Pod answers."""
    from caphv.runtime.errors import RequestError
    from caphv.runtime.etcd import find_pods, list_members
    from caphv.runtime.exec import ExecError

    async with workload_client(options, key) as client:
        errors = []
        try:
            pods = await find_pods(client)
        except RequestError as error:
            raise InputError(f"the workload cluster cannot be read: {error}") from None

        # The Pods of lost members do not answer, but every other Pod knows all members.
        for pod in pods:
            try:
                etcd_members = await list_members(client, pod)
            except (RequestError, ExecError) as error:
                errors.append(f"Pod {pod['metadata']['name']}: {error}")
                continue
            yield _Answer(client, pod, etcd_members)
            return

        hint = (
            "there is no etcd Pod in kube-system; K3s and Talos run etcd outside of Pods, where "
            "this command cannot read it"
        )
        raise InputError(f"etcd cannot be read: {'; '.join(errors) or hint}")
