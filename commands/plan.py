"""`caphv plan`: what applying manifests would do, on the management cluster and on Harvester."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api import remedies
from commands.options.clusters import InputError, Step
from commands.options.completion import complete_clusters
from commands.options.harvesters import insecure_option
from commands.options.management import (
    Selection,
    management_client,
    management_options,
    namespace_option,
    patient_progress,
    print_data,
    run,
    selection,
)
from commands.output.echo import echo

if TYPE_CHECKING:
    from caphv.api.object import Obj
    from overview.plan.model import Plan

_MOST_BYTES = 16 * 1024 * 1024


@click.command(
    short_help="Show what applying manifests would create, change, replace and delete.",
    epilog="""\b
Examples:
  caphv plan -f cluster.yaml
  caphv generate --definition production.yaml | caphv plan -f -
  caphv plan -f clusters/ -f classes/
  caphv plan team-a/production                          what is still to be done
  caphv plan -f cluster.yaml -o json | jq '.clusters[].pools[] | select(.replaced > 0)'

\b
Exit status: 0 nothing would change, 1 an object is refused or capacity is insufficient, 2 the management cluster or
a file cannot be read, 3 something would change.
""",
)
@click.argument("cluster", required=False, default="", shell_complete=complete_clusters)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="Manifests: a file, a directory, or - for standard input; repeatable.",
)
@namespace_option("Namespace of what names none.  [default: the context's]")
@click.option("--no-harvester", is_flag=True, help="Do not ask Harvester for what is free.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@insecure_option
@management_options
def plan(cluster: str, files: tuple[Path, ...], **flags: Any) -> None:
    """Show what applying manifests would do: objects on the management cluster, machines, and VMs on Harvester.

    The API server merges, defaults and validates the manifests in dry runs; nothing is changed. The result
    shows which machines are created, replaced or deleted, and what these need compared with what is free, including
    the machines that a rollout adds temporarily. With CLUSTER instead of files: what is still to be done for it.
    """
    if bool(cluster) == bool(files):
        raise click.UsageError("give either CLUSTER or manifests with -f")
    chosen = selection((cluster,) if cluster else (), {**flags, "all_namespaces": False})
    manifests = _read_files(files) if files else []
    with patient_progress() as step:
        found = run(_plan(flags, chosen, manifests, step))
    if flags["output"] == "text":
        from commands.output import plan as out

        out.show(found)
    else:
        print_data(found, flags["output"])
    for each in found.unseen:
        echo(f"not seen: {each}", err=True)
    sys.exit(1 if found.refused or found.short else 3 if found.changes else 0)


async def _plan(flags: dict[str, Any], chosen: Selection, manifests: Sequence[Obj], step: Step) -> Plan:
    from overview.plan.planning import plan_of_cluster, plan_of_manifests

    deep = not flags["no_harvester"]
    async with management_client(flags) as client:
        step("reading the management cluster")
        if manifests:
            return await plan_of_manifests(client, manifests, chosen.namespace, with_harvester=deep)
        found = await plan_of_cluster(client, chosen.keys[0], with_harvester=deep)
        if found is None:
            raise InputError(f"no such cluster on Harvester: {chosen.keys[0]}")
        return found


def _read_files(files: Sequence[Path]) -> list[Obj]:
    """All objects of files; lists are taken apart. Raises `InputError` with all problems."""
    found: list[Obj] = []
    problems: list[str] = []
    for file in files:
        for path in _expanded(file, problems):
            found += _objects(path, problems)
    if not found and not problems:
        problems.append("the files hold no object")
    if problems:
        raise InputError(*problems)
    return found


def _expanded(file: Path, problems: list[str]) -> list[Path]:
    if not file.is_dir():
        return [file]
    found = sorted(path for path in file.rglob("*") if path.suffix in (".yaml", ".yml", ".json") and path.is_file())
    if not found:
        problems.append(f"{file}: the directory holds no .yaml, .yml or .json file")
    return found


def _objects(path: Path, problems: list[str]) -> list[Obj]:
    from caphv.runtime.text import Limits, TextError, load_yaml_all

    try:
        text = sys.stdin.buffer.read(_MOST_BYTES + 1) if str(path) == "-" else path.read_bytes()
        documents = load_yaml_all(text, Limits(size=_MOST_BYTES, nodes=1_000_000))
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return []
    except TextError as error:
        problems.append(f"{path} {error}")
        return []
    found = []
    for number, document in enumerate(documents, 1):
        items = document.get("items") if isinstance(document, dict) and document.get("kind") == "List" else [document]
        for obj in items if isinstance(items, list) else [items]:
            if obj is None:
                continue
            metadata = obj.get("metadata") if isinstance(obj, dict) else None
            named = isinstance(metadata, dict) and isinstance(metadata.get("name"), str)
            if not named or not all(isinstance(obj.get(name), str) for name in ("apiVersion", "kind")):
                problems.append(
                    f"{path}: document {number} is not an object: it needs apiVersion, kind and metadata.name"
                )
            elif obj["kind"] == "ClusterDefinition":
                problems.append(
                    f"{path}: document {number} is a ClusterDefinition: pass its objects, "
                    f"{remedies.PLAN_DEFINITION(path=path)}"
                )
            else:
                found.append(obj)
    return found
