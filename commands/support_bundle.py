"""`caphv support-bundle`: one archive with everything needed for a support request, without Secrets."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from caphv.api.counting import counted
from commands.doctor import run_checks
from commands.options.clusters import Step
from commands.options.harvesters import insecure_option
from commands.options.management import (
    Selection,
    clusters_argument,
    management_client,
    management_options,
    namespace_options,
    patient_progress,
    run,
    selection,
)
from commands.options.outputfile import OutputFile, file_options, write_private


@click.command(
    "support-bundle",
    short_help="Collect diagnostic data for a support request.",
    epilog="""\b
Examples:
  caphv support-bundle team-a/production
  caphv support-bundle -A --file bundle.tar.gz
""",
)
@clusters_argument()
@namespace_options
@click.option("--provider-namespace", default="caphv-system", show_default=True, help="Where the provider runs.")
@file_options("Where to write it.  [default: caphv-support-TIME.tar.gz]")
@insecure_option
@management_options
def support_bundle(clusters: tuple[str, ...], **flags: Any) -> None:
    """Collect clusters, checks, objects of management cluster and Harvesters, Events and the provider's logs.

    Secrets are not read into it. Fields that hold credentials, cloud-config, or files and commands of nodes, and
    whatever looks like a key, token or password, are removed. Review it before you send it.
    """
    name = f"caphv-support-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    file: Path = flags["file"] or OutputFile().convert(f"{name}.tar.gz", None, None)
    chosen = selection(clusters, flags)
    with patient_progress() as step:
        files = run(_collect(flags, chosen, step))
    from overview.bundle import archive

    write_private(file, archive(files, name))
    click.echo(f"wrote {counted(len(files), 'file')} to {file}, readable only by you")


async def _collect(flags: dict[str, Any], chosen: Selection, step: Step) -> dict[str, str]:
    from caphv.api.object import key_of
    from caphv.runtime.kubeconfig import own_configuration
    from overview import bundle
    from overview.query import Query, ask

    async with management_client(flags) as client:
        answer = await ask(client, Query(chosen.namespace, frozenset(chosen.keys), deep=True), step)
        found = {cluster.key for cluster in answer.overview.clusters}
        chosen.require(found, map(key_of, answer.objects.clusters))
        step("running all checks")
        checks = await run_checks(client, answer, chosen.namespace, flags["provider_namespace"])
        connection = await own_configuration(flags["kubeconfig"], flags["context"])
        provider = flags["provider_namespace"]
        return {
            "overview.json": bundle.json_file(answer.overview),
            "doctor.json": bundle.json_file(tuple(checks)),
            "events.txt": await bundle.events(client, {provider, *(key.namespace for key in found)}),
            **await bundle.logs(client, connection, provider, step),
            **dict(bundle.files_of_management(answer.objects, found)),
            **dict(bundle.files_of_harvesters(answer.harvesters)),
        }
