"""`caphv doctor`: checks of everything that clusters depend on, each with a remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from commands.access.management import management_client, run
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ManagementOptions,
    ScopeOptions,
    Selection,
    clusters_argument,
    management_options,
    namespace_options,
    object_key,
    selection,
)
from commands.output.data import print_data
from commands.output.progress import Step, patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Key, Obj
    from caphv.runtime.client import ApiClient
    from operations.read.objects import ManagementObjects
    from operations.status.check import Check
    from operations.status.model import Cluster
    from operations.status.query import Answer


@click.command(
    short_help="Check everything that clusters depend on.",
    epilog="""\b
Examples:
  caphv doctor                              clusters in the current namespace and their Harvesters
  caphv doctor team-a/production
  caphv doctor --harvester team-a/harvester-identity
  caphv doctor -A -o json | jq '.items[] | select(.wrong)'

Exit status: 0 no problem, 1 a problem, 2 the management cluster cannot be read.
""",
)
@clusters_argument()
@namespace_options
@click.option(
    "--harvester",
    default="",
    metavar="[NAMESPACE/]SECRET",
    help="Only check the Harvester of this identity Secret.",
)
@click.option(
    "--provider-namespace",
    default="caphv-system",
    show_default=True,
    metavar="NAMESPACE",
    help="Namespace of the provider.",
)
@click.option("--all", "everything", is_flag=True, help="Also show passed checks.")
@output_option()
@insecure_option
@management_options
@fill(scope=ScopeOptions)
def doctor(
    clusters: tuple[str, ...],
    harvester: str,
    provider_namespace: str,
    *,
    everything: bool,
    output: str,
    scope: ScopeOptions,
) -> None:
    """Check the management cluster, identities, Harvesters and clusters, and say how to fix each
    problem.

    On the management cluster: versions, CRDs, the provider, webhooks, cert-manager and
    certificates. On Harvester: expiry of credentials and rights of the account, hosts, zones,
    IPPools, images, networks, key pairs, guest agents, replicas of volumes, and objects whose owner
    no longer exists. For clusters: their problems, and what Fleet deploys to them.
    """
    chosen = selection(clusters, scope)
    identity = None
    if harvester:
        identity = object_key(harvester, "--harvester", chosen.namespace or "default")
    with patient_progress() as step:
        checks = run(_run_selected_checks(scope, chosen, provider_namespace, identity, step))

    if output == "text":
        from commands.output import doctor as out

        out.show(checks, everything=everything)
    else:
        print_data(output, items=checks)
    sys.exit(1 if any(check.wrong for check in checks) else 0)


async def _run_selected_checks(
    management: ManagementOptions,
    chosen: Selection,
    provider_namespace: str,
    identity: Key | None,
    step: Step,
) -> list[Check]:
    """Read the chosen clusters, and check them and everything that they depend on.

    :param management: the management cluster
    :param chosen: the clusters
    :param provider_namespace: the namespace of the provider
    :param identity: limits the checks to the Harvester of this identity Secret
    :param step: called with a description of each step
    """
    from caphv.api.object import key_of
    from operations.status.check import skipped
    from operations.status.query import ask

    async with management_client(management) as client:
        answer = await ask(client, chosen.query(), step)
        chosen.require(
            {cluster.key for cluster in answer.overview.clusters},
            map(key_of, answer.objects.clusters),
        )

        step("reading Harvesters")
        checks = await run_checks(client, answer, chosen.namespace, provider_namespace, identity)

    # A user must not take a missing check for a passed one.
    if not answer.overview.clusters and identity is None:
        where = "in any namespace"
        if chosen.namespace:
            where = f"in namespace {chosen.namespace}; all namespaces: -A"
        message = f"no cluster was checked: there is none on Harvester {where}"
        checks.append(skipped("clusters", "Clusters", message))
    return checks


async def run_checks(
    client: ApiClient,
    answer: Answer,
    namespace: str,
    provider_namespace: str,
    identity: Key | None = None,
) -> list[Check]:
    """Run all checks of clusters and of everything that they depend on.

    :param client: client of the management cluster
    :param answer: the clusters with their objects
    :param namespace: the namespace of owners of addresses, if not all namespaces may be read
    :param provider_namespace: the namespace of the provider
    :param identity: limits the checks to the Harvester of this identity Secret
    """
    from datetime import UTC, datetime

    from caphv.api.compatibility import compatibility
    from caphv.api.object import Key, key_of
    from operations.doctor import (
        annotations,
        bootstrap,
        cloudproviders,
        clusters,
        fleet,
        harvester,
        management,
        rancher,
    )
    from operations.doctor.reading import read_harvester_facts, read_management_facts
    from operations.status.assembly import parts_of

    facts = await read_management_facts(client, provider_namespace)
    selected = [
        cluster
        for cluster in answer.overview.clusters
        if identity is None or cluster.identity == str(identity)
    ]
    names = (cluster.identity.rpartition("/") for cluster in selected if cluster.identity)
    identities = {Key(namespace, name) for namespace, _, name in names}
    harvesters = await read_harvester_facts(
        client,
        answer.objects,
        {identity} if identity else identities,
        namespace,
        provider_namespace,
    )

    now = datetime.now(UTC)
    checks = [*management.checks(facts, now)]
    keys = {cluster.key for cluster in selected}
    objs = [obj for obj in answer.objects.clusters if key_of(obj) in keys]
    checks += rancher.checks(facts, objs, harvesters)
    for harvester_facts in harvesters:
        checks += harvester.checks(harvester_facts, now)

    unconnected = {str(facts.identity) for facts in harvesters if facts.objects is None}
    checks += clusters.checks(selected, unconnected)
    control_planes = {
        parts.key: parts.control_plane for parts in parts_of(answer.objects) if parts.control_plane
    }
    checks += bootstrap.checks(selected, control_planes)
    checks += cloudproviders.checks(compatibility(), selected, harvesters, control_planes)
    checks += fleet.checks(facts.fleet_clusters, selected, now)
    checks += annotations.checks(_objects_of(selected, answer.objects))

    checks += harvester.unreadable(answer.objects.unseen)
    # The checks of a Harvester repeat if several identities lead to it.
    return list(dict.fromkeys(checks))


def _objects_of(clusters: Iterable[Cluster], objects: ManagementObjects) -> list[Obj]:
    """Return the objects of some clusters that users annotate."""
    from caphv.api.object import key_of

    names: set[tuple[str, str]] = set()
    machines: set[tuple[str, str]] = set()
    for cluster in clusters:
        names |= {(cluster.namespace, cluster.name), (cluster.namespace, cluster.infrastructure)}
        machines |= {(cluster.namespace, machine.infrastructure) for machine in cluster.machines}

    candidates = (*objects.clusters, *objects.harvester_clusters)
    return [
        *(obj for obj in candidates if tuple(key_of(obj)) in names),
        *(obj for obj in objects.harvester_machines if tuple(key_of(obj)) in machines),
    ]
