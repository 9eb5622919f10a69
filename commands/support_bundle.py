"""`caphv support-bundle`: one archive with what a support request needs, without Secrets."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from caphv.api.counting import counted
from commands.access.management import management_client, run
from commands.doctor import run_checks
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ScopeOptions,
    Selection,
    clusters_argument,
    management_options,
    namespace_options,
    selection,
)
from commands.options.outputfile import FileOptions, OutputFile, file_options, write_private
from commands.output.data import document, fields_of, print_data
from commands.output.progress import Step, patient_progress


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
@click.option(
    "--provider-namespace",
    default="caphv-system",
    show_default=True,
    metavar="NAMESPACE",
    help="Namespace of the provider.",
)
@file_options("Archive to write, with mode 0600.  [default: caphv-support-TIME.tar.gz]")
@output_option()
@insecure_option
@management_options
@fill(target=FileOptions, scope=ScopeOptions)
def support_bundle(
    clusters: tuple[str, ...],
    provider_namespace: str,
    output: str,
    target: FileOptions,
    *,
    scope: ScopeOptions,
) -> None:
    """Write an archive with clusters, checks, objects on the management cluster and on Harvester,
    Events and the provider's logs.

    The archive contains no Secrets. Fields that hold credentials, cloud-config, or files and
    commands of nodes are removed, and so is anything that looks like a key, token or password.
    Review the archive before you send it.
    """
    name = f"caphv-support-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    # The default file is checked like an option, before the work begins.
    file = target.file or OutputFile().convert(f"{name}.tar.gz", None, None)
    chosen = selection(clusters, scope)
    with patient_progress() as step:
        files = run(_collect(scope, chosen, provider_namespace, step))
    from operations.doctor.supportbundle import archive

    write_private(file, archive(files, name))
    if output == "text":
        click.echo(f"wrote {counted(len(files), 'file')} to {file}, readable only by you")
    else:
        print_data(output, file=str(file), items=[{"name": name} for name in files])


async def _collect(
    scope: ScopeOptions, chosen: Selection, provider_namespace: str, step: Step
) -> dict[str, str]:
    """Return the files of the archive, by name.

    :param scope: the management cluster
    :param chosen: the clusters to collect
    :param provider_namespace: the namespace of the provider
    :param step: called with a description of each step
    """
    from caphv.api.object import key_of
    from caphv.runtime.clientconfig import own_configuration
    from operations.doctor import supportbundle as bundle
    from operations.status.query import ask

    async with management_client(scope) as client:
        answer = await ask(client, chosen.query(deep=True), step)
        keys = {cluster.key for cluster in answer.overview.clusters}
        chosen.require(keys, map(key_of, answer.objects.clusters))

        step("running all checks")
        checks = await run_checks(client, answer, chosen.namespace, provider_namespace)

        # Logs are plain text, which the API client cannot read.
        connection = await own_configuration(scope.kubeconfig, scope.context)
        return {
            "overview.json": bundle.json_file(
                document(**fields_of(answer.overview, items="clusters"))
            ),
            "doctor.json": bundle.json_file(document(items=checks)),
            "events.txt": await bundle.read_events(
                client, {provider_namespace, *(key.namespace for key in keys)}
            ),
            **await bundle.read_logs(client, connection, provider_namespace, step),
            **dict(bundle.files_of_management(answer.objects, keys)),
            **dict(bundle.files_of_harvesters(answer.harvesters)),
        }
