"""`caphv doctor`: checks of everything that clusters depend on, each with a remedy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from commands.options.clusters import Step
from commands.options.harvesters import insecure_option
from commands.options.management import (
    Selection,
    clusters_argument,
    management_client,
    management_options,
    namespace_options,
    object_key,
    patient_progress,
    print_data,
    run,
    selection,
)

if TYPE_CHECKING:
    from caphv.api.object import Key
    from caphv.runtime.client import ApiClient
    from overview.doctor.model import Check
    from overview.query import Answer


@click.command(
    short_help="Check everything that clusters depend on.",
    epilog="""\b
Examples:
  caphv doctor                                   the Harvesters of clusters in the current namespace
  caphv doctor team-a/production
  caphv doctor --harvester team-a/harvester-identity
  caphv doctor -A -o json | jq '.items[] | select(.wrong)'

\b
Exit status: 0 nothing is wrong, 1 something is, 2 the management cluster cannot be read.
""",
)
@clusters_argument()
@namespace_options
@click.option(
    "--harvester", default="", metavar="[NAMESPACE/]SECRET", help="Only the Harvester of this identity Secret."
)
@click.option("--provider-namespace", default="caphv-system", show_default=True, help="Where the provider runs.")
@click.option("--all", "everything", is_flag=True, help="Show checks that are ok, too.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@insecure_option
@management_options
def doctor(clusters: tuple[str, ...], **flags: Any) -> None:
    """Check the management cluster, identities, Harvesters and clusters, and say what to do about each finding.

    Checked are versions, CRDs, the provider, webhooks, cert-manager and certificates; expiry of credentials and the
    rights of the account; hosts, zones, pools, images, networks, key pairs, guest agents and replicas of volumes;
    objects whose owner no longer exists; what Fleet deploys to clusters; and the clusters themselves.
    """
    chosen = selection(clusters, flags)
    wanted = (
        object_key(flags["harvester"], "--harvester", chosen.namespace or "default") if flags["harvester"] else None
    )
    with patient_progress() as step:
        checks = run(_checks(flags, chosen, wanted, step))
    if flags["output"] == "text":
        from commands.output import doctor as out

        out.show(checks, everything=flags["everything"])
    else:
        print_data(checks, flags["output"])
    sys.exit(1 if any(check.wrong for check in checks) else 0)


async def _checks(flags: dict[str, Any], chosen: Selection, wanted: Key | None, step: Step) -> list[Check]:
    from caphv.api.object import key_of
    from overview.doctor.model import skipped
    from overview.query import Query, ask

    async with management_client(flags) as client:
        answer = await ask(client, Query(chosen.namespace, frozenset(chosen.keys)), step)
        chosen.require({cluster.key for cluster in answer.overview.clusters}, map(key_of, answer.objects.clusters))
        step("asking Harvesters")
        checks = await run_checks(client, answer, chosen.namespace, flags["provider_namespace"], wanted)
    if not answer.overview.clusters and wanted is None:
        where = f"in namespace {chosen.namespace}; all namespaces: -A" if chosen.namespace else "in any namespace"
        checks.append(skipped("clusters", "Clusters", f"no cluster was checked: there is none on Harvester {where}"))
    return checks


async def run_checks(
    client: ApiClient, answer: Answer, namespace: str, provider_namespace: str, wanted: Key | None = None
) -> list[Check]:
    """Run all checks of clusters and what they depend on; with an identity only those of its Harvester."""
    from datetime import UTC, datetime

    from caphv.api.object import Key, key_of
    from overview.assembly import parts_of
    from overview.doctor import annotations, bootstrap, clusters, fleet, harvester, management
    from overview.doctor.reading import read_harvester_facts, read_management_facts

    facts = await read_management_facts(client, provider_namespace)
    found = [each for each in answer.overview.clusters if wanted is None or each.identity == str(wanted)]
    identities = {Key(*each.identity.split("/", 1)) for each in found if each.identity}
    harvesters = await read_harvester_facts(client, answer.objects, {wanted} if wanted else identities, namespace)
    now = datetime.now(UTC)
    checks = [*management.checks(facts, now)]
    for each in harvesters:
        checks += harvester.checks(each, now)
    unconnected = {str(each.identity) for each in harvesters if each.objects is None}
    checks += clusters.checks(found, unconnected)
    control_planes = {parts.key: parts.control_plane for parts in parts_of(answer.objects) if parts.control_plane}
    checks += bootstrap.checks(found, control_planes)
    checks += fleet.checks(facts.fleet_clusters, [each.key for each in found], now)
    names = {(each.namespace, name) for each in found for name in (each.name, each.infrastructure)}
    objects = answer.objects
    own = [obj for obj in (*objects.clusters, *objects.harvester_clusters) if tuple(key_of(obj)) in names]
    machines = {(each.namespace, machine.infrastructure) for each in found for machine in each.machines}
    own += [obj for obj in objects.harvester_machines if tuple(key_of(obj)) in machines]
    checks += annotations.checks(own)
    # Several identities lead to one Harvester, of which they say the same.
    return list(dict.fromkeys([*checks, *harvester.unreadable(answer.objects.unseen)]))
