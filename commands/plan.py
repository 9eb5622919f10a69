"""`caphv plan`: what applying manifests would do, on the management cluster and on Harvester."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api import remedies
from commands.access.management import management_client, run
from commands.errors import InputError
from commands.options.completion import complete_clusters
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.harvesters import insecure_option
from commands.options.management import (
    ManagementOptions,
    ScopeOptions,
    Selection,
    management_options,
    namespace_option,
    selection,
)
from commands.output.data import fields_of, print_data
from commands.output.echo import echo
from commands.output.progress import Step, patient_progress

if TYPE_CHECKING:
    from caphv.api.object import Obj
    from operations.change.plan.model import Plan

_MAX_BYTES = 16 * 1024 * 1024


@click.command(
    short_help="Show what applying manifests would create, change, replace and delete.",
    epilog="""\b
Examples:
  caphv plan -f cluster.yaml
  caphv generate --definition production.yaml | caphv plan -f -
  caphv plan -f clusters/ -f classes/
  caphv plan team-a/production                          pending changes of a cluster
  caphv plan -f cluster.yaml -o json | jq '.items[].pools[] | select(.replaced > 0)'

Exit status: 0 nothing would change, 1 an object is refused or capacity is insufficient, 2 the
management cluster or a file cannot be read, 3 something would change.
""",
)
@click.argument("cluster", required=False, default="", shell_complete=complete_clusters)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE|DIRECTORY|-",
    help="Manifests: a file, a directory, or - for standard input. Repeatable.",
)
@namespace_option("Namespace of CLUSTER, and of objects that name none.  [default: the context's]")
@click.option("--no-harvester", is_flag=True, help="Do not read free capacity from Harvester.")
@output_option()
@insecure_option
@management_options
@fill(scope=ScopeOptions)
def plan(
    cluster: str, files: tuple[Path, ...], *, no_harvester: bool, output: str, scope: ScopeOptions
) -> None:
    """Show what applying manifests would change: objects on the management cluster, machines, and
    VMs on Harvester.

    The API server merges, defaults and validates the manifests in dry runs; nothing is changed. The
    output says which machines would be created, replaced or deleted, and compares the capacity that
    they need with what is free, including the machines that a rollout adds temporarily. With
    CLUSTER instead of manifests, it shows the pending changes of a cluster.
    """
    if bool(cluster) == bool(files):
        raise click.UsageError("give either CLUSTER or manifests with -f")
    chosen = selection((cluster,) if cluster else (), scope)
    manifests = _read_files(files) if files else []
    with patient_progress() as step:
        changes = run(_plan(scope, chosen, manifests, step, with_harvester=not no_harvester))

    if output == "text":
        from commands.output import plan as out

        out.show(changes)
    else:
        print_data(output, **fields_of(changes, items="clusters"))
    for unseen in changes.unseen:
        echo(f"not seen: {unseen}", err=True)

    if changes.refused or changes.short:
        sys.exit(1)
    sys.exit(3 if changes.changes else 0)


async def _plan(
    management: ManagementOptions,
    chosen: Selection,
    manifests: Sequence[Obj],
    step: Step,
    *,
    with_harvester: bool,
) -> Plan:
    """Plan the manifests, or without manifests the remaining changes of the chosen cluster.

    :param management: the management cluster
    :param chosen: the cluster, or the namespace of manifests that name none
    :param manifests: the objects of the files
    :param step: called with a description of each step
    :param with_harvester: whether to ask Harvester for its free capacity
    """
    from operations.change.plan.planning import plan_of_cluster, plan_of_manifests

    async with management_client(management) as client:
        step("reading the management cluster")
        if manifests:
            return await plan_of_manifests(
                client, manifests, chosen.namespace, with_harvester=with_harvester
            )

        key = chosen.keys[0]
        changes = await plan_of_cluster(client, key, with_harvester=with_harvester)
        if changes is None:
            raise InputError(f"no such cluster on Harvester: {key}")
        return changes


def _read_files(files: Sequence[Path]) -> list[Obj]:
    """Return the objects of files, with those of Lists. Raises `InputError` with all problems."""
    objects: list[Obj] = []
    problems: list[str] = []
    for file in files:
        for path in _list_files(file, problems):
            objects += _read_objects(path, problems)

    if not objects and not problems:
        problems.append("the files hold no object")
    if problems:
        raise InputError(*problems)
    return objects


def _list_files(file: Path, problems: list[str]) -> list[Path]:
    """Return the manifests of a directory, at any depth, or the file itself."""
    if not file.is_dir():
        return [file]
    paths = sorted(
        path
        for path in file.rglob("*")
        if path.suffix in (".yaml", ".yml", ".json") and path.is_file()
    )
    if not paths:
        problems.append(f"{file}: the directory holds no .yaml, .yml or .json file")
    return paths


def _read_objects(path: Path, problems: list[str]) -> list[Obj]:
    """Return the objects of a file, and add its errors to the problems."""
    from caphv.runtime.text import Limits, TextError, load_yaml_all

    try:
        # One byte more than allowed is enough to detect an oversized input.
        text = sys.stdin.buffer.read(_MAX_BYTES + 1) if str(path) == "-" else path.read_bytes()
        documents = load_yaml_all(text, Limits(size=_MAX_BYTES, nodes=1_000_000))
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return []
    except TextError as error:
        problems.append(f"{path} {error}")
        return []

    objects = []
    for number, document in enumerate(documents, 1):
        for obj in _items_of(document):
            if obj is None:
                continue  # nothing between two lines of dashes
            if not _is_object(obj):
                problems.append(
                    f"{path}: document {number} is not an object: it needs apiVersion, kind and "
                    "metadata.name"
                )
            elif obj["kind"] == "ClusterDefinition":
                problems.append(
                    f"{path}: document {number} is a ClusterDefinition: pass its objects, "
                    f"{remedies.PLAN_DEFINITION(path=shlex.quote(str(path)))}"
                )
            else:
                objects.append(obj)
    return objects


def _items_of(document: Any) -> list[Any]:
    """Return the items of a List, or the document itself."""
    if not (isinstance(document, dict) and document.get("kind") == "List"):
        return [document]
    items = document.get("items")
    return items if isinstance(items, list) else [items]


def _is_object(value: Any) -> bool:
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return False
    return all(isinstance(value.get(name), str) for name in ("apiVersion", "kind"))
