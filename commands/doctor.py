"""`caphv doctor`: checks of everything that clusters depend on, each with a remedy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from commands.options.clusters import Step
from commands.options.management import (
    Selection,
    management_client,
    management_options,
    namespace_options,
    patient_progress,
    print_data,
    run,
    selection,
)

if TYPE_CHECKING:
    from overview.doctor.model import Check


@click.command(
    short_help="Check everything that clusters depend on.",
    epilog="""\b
Examples:
  caphv doctor                                   the Harvesters of clusters in the current namespace
  caphv doctor team-a/production
  caphv doctor --harvester team-a/harvester-identity
  caphv doctor -A -o json | jq '.[] | select(.wrong)'

\b
Exit status: 0 nothing is wrong, 1 something is, 2 the management cluster cannot be read.
""",
)
@click.argument("clusters", metavar="[CLUSTER]...", nargs=-1)
@namespace_options
@click.option(
    "--harvester", default="", metavar="[NAMESPACE/]SECRET", help="Only the Harvester of this identity Secret."
)
@click.option("--provider-namespace", default="caphv-system", show_default=True, help="Where the provider runs.")
@click.option("--all", "everything", is_flag=True, help="Show checks that are ok, too.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@management_options
def doctor(clusters: tuple[str, ...], **flags: Any) -> None:
    """Check the management cluster, identities, Harvesters and clusters, and say what to do about each finding.

    Checked are versions, CRDs, the provider, webhooks and certificates; credentials with their ends and the rights of
    the account; hosts, zones, pools, images, networks, key pairs, guest agents and replicas of volumes; objects whose
    owner is gone; and the clusters themselves.
    """
    chosen = selection(clusters, flags)
    with patient_progress() as step:
        checks = run(_checks(flags, chosen, step))
    if flags["output"] == "text":
        from commands.output import doctor as out

        out.show(checks, everything=flags["everything"])
    else:
        print_data(checks, flags["output"])
    sys.exit(1 if any(check.wrong for check in checks) else 0)


async def _checks(flags: dict[str, Any], chosen: Selection, step: Step) -> list[Check]:
    from datetime import UTC, datetime

    from caphv.api.object import Key
    from overview.doctor import clusters, harvester, management
    from overview.doctor.reading import read_harvester_facts, read_management_facts
    from overview.query import Query, ask

    async with management_client(flags) as client:
        facts = await read_management_facts(client, flags["provider_namespace"])
        answer = await ask(client, Query(chosen.namespace, frozenset(chosen.keys)), step)
        chosen.require({cluster.key for cluster in answer.overview.clusters})
        found = list(answer.overview.clusters)
        if flags["harvester"]:
            namespace, _, name = flags["harvester"].rpartition("/")
            wanted = Key(namespace or chosen.namespace or "default", name)
            found = [cluster for cluster in found if cluster.identity == str(wanted)]
            identities = {wanted}
        else:
            identities = {Key(*cluster.identity.split("/", 1)) for cluster in found if cluster.identity}
        step(f"asking {len(identities)} Harvesters")
        harvesters = await read_harvester_facts(client, answer.objects, identities, chosen.namespace)
    now = datetime.now(UTC)
    checks = [*management.checks(facts, now)]
    for each in harvesters:
        checks += harvester.checks(each, now)
    checks += clusters.checks(found)
    # Several identities lead to one Harvester, of which they say the same.
    return list(dict.fromkeys([*checks, *harvester.unreadable(answer.objects.unseen)]))
