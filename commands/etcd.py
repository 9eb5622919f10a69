"""`caphv etcd`: members of a cluster's etcd against its machines, and the removal of those that were left."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from caphv.api.counting import counted
from commands.options.changes import change_options, confirm
from commands.options.clusters import CommandError, InputError
from commands.options.harvesters import insecure_option
from commands.options.management import (
    cluster_argument,
    management_client,
    management_options,
    patient_progress,
    print_data,
    run,
    selection,
)
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from caphv.runtime.client import ApiClient
    from caphv.runtime.etcd import Member
    from overview.etcd import EtcdMember
    from overview.model import Cluster


@click.group(
    epilog="""\b
Examples:
  caphv etcd members team-a/production
  caphv etcd remove team-a/production --dry-run
"""
)
def etcd() -> None:
    """List etcd members and remove stale ones."""


@etcd.command(
    short_help="List the members of a cluster's etcd with their machines.",
    epilog="""\b
Examples:
  caphv etcd members team-a/production
  caphv etcd members team-a/production -o json | jq '.items[] | select(.wrong)'

\b
Exit status: 0 all members are healthy, 1 one is not, 2 etcd or the machines cannot be read.
""",
)
@cluster_argument
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@insecure_option
@management_options
def members(cluster: str, **flags: Any) -> None:
    """List the members of a cluster's etcd: `stale` ones have no machine, count for the quorum, and never answer.

    It runs etcdctl in an etcd Pod of the workload cluster, with the kubeconfig that Cluster API keeps for it.
    """
    key = selection((cluster,), {**flags, "all_namespaces": False}).keys[0]
    with patient_progress() as step:
        step("asking etcd")
        found = run(_members(flags, key))
    from commands.output import etcd as out

    if flags["output"] == "text":
        out.show(found)
    else:
        print_data(found, flags["output"])
    sys.exit(1 if any(member.wrong for member in found) else 0)


@etcd.command(
    short_help="Remove members of etcd that have no machine.",
    epilog="""\b
Examples:
  caphv etcd remove team-a/production --dry-run
  caphv etcd remove team-a/production                         all stale members
  caphv etcd remove team-a/production w-7xk2p-1a2b3c4d --yes

\b
Exit status: 0 done or nothing to do, 1 a check failed or aborted, 2 etcd or the machines cannot be read.
""",
)
@cluster_argument
@click.argument("names", metavar="[MEMBER]...", nargs=-1)
@click.option("--force", is_flag=True, help="Remove them although a check failed.")
@change_options
@insecure_option
@management_options
def remove(cluster: str, names: tuple[str, ...], **flags: Any) -> None:
    """Remove members from a cluster's etcd: by name or id, by default all that have no machine.

    It also ends the deletion of Machines that waits without end: RKE2's provider reads from a Node that its member was
    removed. If the Node was deleted first, and etcd has no member of it, the provider's hook is removed from the
    Machine.

    Before any change, the command checks that no machine uses the member, and that the remaining ones have a quorum.
    Members are removed one by one, and etcd is asked again before each.
    """
    from commands.output import changes
    from commands.output import etcd as out
    from overview.changes import ChangeError
    from overview.doctor.model import Result
    from overview.etcd import chosen, removal_checks
    from overview.model import as_json

    key = selection((cluster,), {**flags, "all_namespaces": False}).keys[0]
    found, machines = run(_state(flags, key))
    try:
        wanted = chosen(found, names)
    except ChangeError as error:
        raise InputError(*error.problems) from None
    checks = removal_checks(key, found, wanted) if wanted else []

    def report(*, applied: bool) -> None:
        if flags["output"] != "text":
            content = {"remove": as_json(wanted), "release": list(machines), "checks": as_json(checks)}
            print_data({**content, "applied": applied}, flags["output"])

    if flags["output"] == "text":
        changes.show_checks(checks)
        out.show_removal(wanted, machines)
    if not (wanted or machines) or flags["dry_run"]:
        report(applied=False)
        return
    if any(check.result is Result.ERROR for check in checks) and not flags["force"]:
        report(applied=False)
        click.echo("Not changed: a check failed. Correct it, or give --force to remove them nevertheless.", err=True)
        sys.exit(1)
    confirm(flags, _question(key, len(wanted), len(machines)))
    run(_remove(flags, key, {member.id for member in wanted}))
    run(_release(flags, key, machines))
    report(applied=True)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one etcd Pod says, and how to ask it again."""

    client: ApiClient
    pod: Obj
    program: tuple[str, ...]
    found: list[Member]


def _question(key: Key, members: int, machines: int) -> str:
    parts = [f"remove {counted(members, 'member')} from etcd"] if members else []
    parts += [f"release {counted(machines, 'Machine')}"] if machines else []
    text = " and ".join(parts)
    return f"{text[0].upper()}{text[1:]} of cluster {key}?"


async def _state(flags: dict[str, Any], key: Key) -> tuple[tuple[EtcdMember, ...], tuple[str, ...]]:
    """Return the members of etcd, and the Machines whose deletion waits for a member that does not exist."""
    from caphv.api.object import NODES
    from caphv.runtime.listing import list_pages
    from overview.etcd import members_with_machines, unreleased_machines
    from overview.objects import by_cluster

    objects: list[Obj] = []
    cluster = await _cluster(flags, key, objects)
    async with _asked(flags, key, cluster) as answer:
        members = members_with_machines(cluster, answer.found)
        nodes = {node["metadata"]["name"] async for page in list_pages(answer.client, NODES) for node in page}
    return members, unreleased_machines(by_cluster(objects).get(key, ()), nodes, members)


async def _release(flags: dict[str, Any], key: Key, wanted: tuple[str, ...]) -> None:
    """Remove the hook from Machines, each after another proof that neither Node nor member exists."""
    from caphv.api.names import RKE2_HOOK
    from caphv.runtime.errors import NotFound
    from overview.reader import kinds_of

    for name in wanted:
        _, machines = await _state(flags, key)
        if name not in machines:
            continue  # released meanwhile
        async with management_client(flags) as client:
            patch = {"metadata": {"annotations": {RKE2_HOOK: None}}}
            with suppress(NotFound):
                await client.patch((await kinds_of(client))["machines"], name, key.namespace, patch)
        echo(f"released Machine {name}", err=flags["output"] != "text")


async def _members(flags: dict[str, Any], key: Key) -> tuple[EtcdMember, ...]:
    from overview.etcd import members_with_machines

    cluster = await _cluster(flags, key)
    async with _asked(flags, key, cluster) as answer:
        return members_with_machines(cluster, answer.found)


async def _remove(flags: dict[str, Any], key: Key, ids: set[str]) -> None:
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.etcd import remove_member
    from caphv.runtime.exec import ExecError

    cluster = await _cluster(flags, key)
    for wanted in sorted(ids):
        async with _asked(flags, key, cluster) as answer:
            member = next((each for each in answer.found if f"{each.id:x}" == wanted), None)
            if member is None:
                continue  # removed meanwhile
            try:
                await remove_member(answer.client, answer.pod, member, answer.program)
            except (ApiError, Unreachable, ExecError) as error:
                raise CommandError(f"member {member.name} was not removed: {error}") from None
            echo(f"removed member {member.name} ({wanted})", err=flags["output"] != "text")


async def _cluster(flags: dict[str, Any], key: Key, machines: list[Obj] | None = None) -> Cluster:
    """Read the cluster with its machines. Raises `InputError` if they may not be read: all members would look stale.

    :param machines: takes the Machines of the namespace
    """
    from caphv.api.object import key_of
    from commands.options.management import Selection
    from overview.etcd import unseen_machines
    from overview.query import Query, ask

    async with management_client(flags) as client:
        answer = await ask(client, Query(key.namespace, frozenset({key})))
    if hidden := unseen_machines(answer.objects):
        raise InputError(f"the machines of the cluster cannot be read: {'; '.join(map(str, hidden))}")
    if machines is not None:
        machines += answer.objects.machines
    found = answer.overview.clusters
    Selection(key.namespace, (key,)).require({cluster.key for cluster in found}, map(key_of, answer.objects.clusters))
    return found[0]


@asynccontextmanager
async def _asked(flags: dict[str, Any], key: Key, cluster: Cluster) -> AsyncIterator[_Answer]:
    """Lend the first etcd Pod that answers. Raises `InputError` when none does."""
    from caphv.api.object import Key as ObjectKey
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.etcd import ETCDCTL, ETCDCTL_KUBEADM, find_pods, list_members
    from caphv.runtime.exec import ExecError
    from caphv.runtime.kubeconfig import KubeconfigError
    from overview.harvester import read_access

    kind = next((group.kind for group in cluster.groups if group.kind != "MachineDeployment"), "")
    program = ETCDCTL_KUBEADM if kind == "KubeadmControlPlane" else ETCDCTL
    async with management_client(flags) as management:
        try:
            access = await read_access(management, ObjectKey(key.namespace, f"{key.name}-kubeconfig"), "value")
            client = access.client(name="workload", user_agent="caphv-cli", timeout=10)
        except (ApiError, KubeconfigError) as error:
            raise InputError(f"the workload cluster cannot be queried: {error}") from None
    try:
        errors = []
        try:
            pods = await find_pods(client)
        except (ApiError, Unreachable) as error:
            raise InputError(f"the workload cluster cannot be queried: {error}") from None
        for pod in pods:
            try:
                found = await list_members(client, pod, program)
            except (ApiError, Unreachable, ExecError) as error:
                errors.append(f"Pod {pod['metadata']['name']}: {error}")
                continue
            yield _Answer(client, pod, program, found)
            return
        hint = "no Pod of etcd in kube-system: K3s and Talos run it outside of Pods, ask it on a server"
        raise InputError(f"etcd cannot be queried: {'; '.join(errors) or hint}")
    finally:
        await client.close()
