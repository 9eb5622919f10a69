"""`caphv evacuate`: move guests that Harvester cannot migrate off one of its hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import click

from caphv.api import remedies
from caphv.api.object import NODES
from commands.access.changes import confirm, until_done
from commands.access.harvesters import harvester_clients
from commands.access.management import management_client, run
from commands.errors import InputError
from commands.options.changes import ChangeOptions, WaitOptions, change_options, wait_options
from commands.options.completion import complete_on_harvester
from commands.options.groups import fill
from commands.options.harvesters import (
    HarvesterOptions,
    harvester_namespace_options,
    harvester_option,
    insecure_option,
)
from commands.options.management import management_options
from commands.output.data import print_data
from commands.output.echo import echo
from commands.output.progress import Step, patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Obj
    from operations.change.changes import Plan
    from operations.change.evacuation import HostMachines
    from operations.read.harvesterclient import HarvesterClient
    from operations.read.objects import ManagementObjects, Unseen


@dataclass(frozen=True, kw_only=True)
class EvacuateOptions(HarvesterOptions, ChangeOptions, WaitOptions):
    """How to evacuate a host, or to cancel that, and how to ask and wait."""

    force: bool
    cancel: bool

    @property
    def value(self) -> str | None:
        """The value of the annotation; None to remove it."""
        if self.cancel:
            return None
        return "force" if self.force else "true"


@dataclass(frozen=True, slots=True)
class _Prepared:
    plan: Plan
    server: str
    machines: tuple[HostMachines, ...]


@click.command(
    short_help="Move VMs that cannot be live-migrated off a host.",
    epilog="""\b
Examples:
  caphv evacuate harvester-2 --harvester-kubeconfig harvester.yaml --wait
  caphv evacuate harvester-2 --harvester-kubeconfig harvester.yaml --dry-run
  caphv evacuate harvester-2 --harvester-kubeconfig harvester.yaml --cancel   after the maintenance

Exit status: 0 done or nothing to do, 1 a check failed, aborted or timed out, 2 usage error or a
server cannot be read.
""",
)
@click.argument("host", shell_complete=complete_on_harvester(NODES))
@harvester_namespace_options
@harvester_option
@click.option(
    "--force",
    is_flag=True,
    help="Stop VMs even if their Nodes cannot be drained within five minutes.",
)
@click.option(
    "--cancel", is_flag=True, help="End the evacuation, so that the host takes machines again."
)
@wait_options("60m")
@change_options
@insecure_option
@management_options
@fill(options=EvacuateOptions)
def evacuate(host: str, options: EvacuateOptions) -> None:
    """Move machines off a Harvester host before its maintenance or upgrade.

    VMs with host devices cannot be live-migrated: the provider drains their Nodes, stops the VMs
    and starts them on other hosts, one machine of a cluster at a time. Harvester migrates the other
    VMs when you start the maintenance. The command lists VMs whose disks may be local to the host.

    The command sets annotation caphv.io/evacuate on the host, which needs an administrator's
    kubeconfig for Harvester. The provider continues even if you interrupt the command.
    """
    if options.force and options.cancel:
        raise click.UsageError("--force and --cancel are mutually exclusive")
    from operations.change.changes import ChangeError

    try:
        with patient_progress() as step:
            prepared = run(_prepare(host, options, step))
    except ChangeError as error:
        raise InputError(*error.problems) from None
    plan = prepared.plan
    _show(prepared, options)
    if plan.errors or options.dry_run or not plan.changes:
        _report(prepared, options, applied=False)
    if plan.errors:
        echo("Nothing was changed: a check failed.", err=True)
        sys.exit(1)
    if options.dry_run:
        return

    if plan.changes:
        verb = "End the evacuation of" if options.cancel else "Evacuate"
        confirm(options, f"{verb} host {host}?")
        run(_write(prepared, options))
        _report(prepared, options, applied=True)
    if options.wait:
        _wait(prepared, options)
    elif plan.changes and options.is_text:
        click.echo(f"The provider continues. Follow it: {remedies.FOLLOW_ALL}")


async def _prepare(host: str, options: EvacuateOptions, step: Step) -> _Prepared:
    """Read the Harvester with this host, and plan the change. Raises `ChangeError`."""
    from caphv.api.object import NAMESPACES, uid_of
    from caphv.api.resources import HARVESTER_CLUSTERS, VIRTUAL_MACHINE_INSTANCES
    from operations.change.changes import ChangeError
    from operations.change.evacuation import clusters_on, find_host, machines_on, plan_evacuation
    from operations.read.harvesterclient import list_everywhere
    from operations.read.management import read_management
    from operations.read.objects import by_key
    from operations.status.check import skipped

    async with (
        management_client(options) as management,
        harvester_clients(management, options) as (harvesters, hidden),
    ):
        step(f"looking for host {host}")
        harvester, hosts = await _owner_of(host, harvesters, hidden)
        system = await harvester.client.get(NAMESPACES, "kube-system")
        objects = await read_management(management, options.namespace, step)
        if not objects.sees(str(HARVESTER_CLUSTERS)):
            # Without them, the host would seem to have no machine.
            reasons = [str(item) for item in objects.unseen if item.what == str(HARVESTER_CLUSTERS)]
            raise ChangeError(["the clusters on this Harvester are not known", *reasons])
        clusters = clusters_on(objects.clusters, by_key(objects.harvester_clusters), uid_of(system))
        unseen: list[Unseen] = []
        instances, _ = await list_everywhere(harvester, VIRTUAL_MACHINE_INSTANCES, unseen)
    machines = machines_on(host, hosts, clusters, instances)
    plan = plan_evacuation(find_host(hosts, host), hosts, machines, options.value)
    # Machines that are not seen are moved as well, but no check says so.
    access = [skipped("access", f"Host {host}", str(item)) for item in unseen]
    plan = replace(plan, checks=(*plan.checks, *(() if options.cancel else access)))
    return _Prepared(plan, harvester.server, tuple(machines))


class _Owner(NamedTuple):
    """A Harvester, and its hosts."""

    harvester: HarvesterClient
    hosts: list[Obj]


async def _owner_of(
    host: str, harvesters: list[HarvesterClient], hidden: Iterable[Unseen]
) -> _Owner:
    """Return the only Harvester with a host of this name. Raises `ChangeError`.

    :param hidden: why other Harvesters cannot be read; one of them may have the host
    """
    from caphv.api.object import NODES, key_of
    from caphv.runtime.errors import RequestError
    from operations.change.changes import ChangeError
    from operations.read.management import list_all

    owners = []
    unread = list(map(str, hidden))
    host_names: set[str] = set()
    for harvester in harvesters:
        try:
            hosts = await list_all(harvester.client, NODES)
        except RequestError as error:
            unread.append(f"{harvester.server}: {error}")
            continue
        names = {key_of(node).name for node in hosts}
        host_names |= names
        if host in names:
            owners.append(_Owner(harvester, hosts))

    if len(owners) == 1:
        return owners[0]
    if owners:
        servers = ", ".join(owner.harvester.server for owner in owners)
        raise ChangeError(
            [
                f"several Harvesters have a host {host}: choose one of {servers} with "
                "--harvester-kubeconfig"
            ]
        )
    listed = f"; hosts: {', '.join(sorted(host_names))}" if host_names else ""
    raise ChangeError([f"no Harvester has a host {host}{listed}", *unread])


async def _write(prepared: _Prepared, options: EvacuateOptions) -> None:
    """Write the annotation with the account that has read the host."""
    from caphv.api.object import NODES
    from caphv.runtime.errors import Forbidden

    async with (
        management_client(options) as management,
        harvester_clients(management, options) as (harvesters, hidden),
    ):
        by_server = {harvester.server: harvester.client for harvester in harvesters}
        client = by_server.get(prepared.server)
        if client is None:  # while the command asked
            why = f"no identity for {prepared.server} can be used any more, nothing was changed"
            raise InputError(why, *map(str, hidden))
        try:
            for patch in prepared.plan.patches:
                await client.patch(NODES, patch.key.name, "", patch.body)
        except Forbidden as error:
            raise InputError(
                f"the account may not change hosts of Harvester: use an administrator's kubeconfig "
                f"with --harvester-kubeconfig; {error}"
            ) from None


def _show(prepared: _Prepared, options: EvacuateOptions) -> None:
    from commands.output import changes as out

    if options.is_text:
        out.show(prepared.plan, f"host {prepared.plan.cluster}")


def _report(prepared: _Prepared, options: EvacuateOptions, *, applied: bool) -> None:
    """Write the plan as data, unless the output is text."""
    if options.is_text:
        return
    plan = prepared.plan
    item = {
        "host": plan.cluster.name,
        "harvester": prepared.server,
        "changes": plan.changes,
        "checks": plan.checks,
        "machines": prepared.machines,
        "applied": applied,
    }
    print_data(options.output, items=[item])


def _wait(prepared: _Prepared, options: EvacuateOptions) -> None:
    """Show the progress until all clusters are done; exit with status 1 after the timeout."""
    from caphv.api.object import Key
    from commands.output.clusterprogress import ClustersProgress
    from operations.change.clusterparts import parts_and_deployments
    from operations.change.evacuation import progress_of

    host = prepared.plan.cluster.name
    keys = [group.cluster for group in prepared.machines if not group.paused]
    progress = ClustersProgress(keys, to_stderr=not options.is_text)

    async def step(objects: ManagementObjects) -> bool:
        for key in keys:
            infrastructure = parts_and_deployments(objects, key)[0].harvester_cluster
            progress.say(key, progress_of(infrastructure, host, cancel=options.cancel))
        return progress.has_ended()

    interrupted = "Interrupted. The provider continues without this command."
    all_clusters = Key(options.namespace, "")  # an empty name means the whole namespace
    in_time = not keys or run(until_done(options, all_clusters, step, options.timeout), interrupted)
    if not (in_time and progress.is_done()):
        progress.explain(in_time=in_time)
        sys.exit(1)

    if options.is_text and not options.cancel:
        scope = f" of namespace {options.namespace}" if options.namespace else ""
        echo(
            f"Host {host} is free of machines{scope} that the provider moves. Start its "
            "maintenance in Harvester, which lists any other VMs in the way. Afterwards run: "
            f"{remedies.CANCEL_EVACUATION(host=host)}"
        )
