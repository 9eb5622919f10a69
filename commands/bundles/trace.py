"""`caphv bundles trace`: where a setting of a cluster is, and where it stopped."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commands.bundles.common import DIFFERENT, DONE, bundler_of, output, render_options
from commands.options.clusters import InputError, progress
from commands.options.completion import complete_clusters
from commands.options.management import object_key
from commands.options.repository import names_repository, open_store, repository_options

if TYPE_CHECKING:
    from caphv.api.object import Key
    from packager.addons.settings import ClusterFacts
    from packager.git.history import Change
    from packager.planner import Store
    from packager.rendering.renderer import Rendered
    from packager.trace import BranchState, LiveState
    from packager.tree import Tree


@click.command(
    short_help="Follow a setting to the object in the cluster.",
    epilog="""\b
Examples:
  caphv bundles trace team-a/demo cni.mtu --repo https://git.example.com/fleet.git
  caphv bundles trace team-a/demo --repo https://git.example.com/fleet.git    all bundles
  caphv bundles trace team-a/demo ccm --definitions clusters/ --folder fleet/ -o json
                              and name the line of the definition

\b
Exit status: 0 it arrived, or a stage cannot be read, 1 it stopped, or was reverted, 2 unreadable input, or wrong usage.
""",
)
@click.argument("cluster", metavar="NAMESPACE/NAME", shell_complete=complete_clusters)
@click.argument("setting", default="")
@click.option(
    "--definitions",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with definitions, to name file and line of the setting.",
)
@click.option("--kubeconfig", default="", help="Kubeconfig of the management cluster.")
@click.option("--context", default="", help="Context in the kubeconfig.")
@render_options
@repository_options
@output("table", "json", "yaml")
def trace(**flags: Any) -> None:
    """Follow a setting of a cluster's add-ons: definition, commit, GitRepo, Bundle, BundleDeployment, object.

    Shows each stage, and the first one at which the value stopped, or who reverted it. SETTING is a field of the
    add-ons, for example cni.mtu; without one, all bundles are followed. Objects are read with the kubeconfig that
    Cluster API stores for the cluster. Nothing is changed.
    """
    from commands.output.trace import TRACED
    from packager.addons.gather import gather
    from packager.trace import bundles_of, setting_stage
    from packager.trace import trace as trace_bundle

    key = object_key(flags["cluster"], "CLUSTER")
    path = _setting(flags["setting"])
    place, change = _place(flags, key, path) if path else ("", None)
    with progress() as step, contextlib.ExitStack() as stack:
        store = stack.enter_context(open_store(flags)) if names_repository(flags) else None
        snapshot = store.sync() if store else None
        step("reading the management cluster")
        facts, rendered, live = asyncio.run(_read(flags, key, snapshot.tree if snapshot else {}))
        setting = setting_stage(gather(facts), path, place, change) if path else None
        traces = [
            trace_bundle(rendered, name, snapshot, live, _branch(store, rendered, name), path=flags["inner"])
            for name in bundles_of(rendered, path)
        ]
    click.echo(TRACED[flags["output"]](key, setting, traces), nl=False)
    sys.exit(DIFFERENT if any(found.stopped for found in traces) else DONE)


def _setting(text: str) -> tuple[str, ...]:
    """Return the path of a setting; one that does not exist is wrong usage."""
    from caphv.validation import schema
    from caphv.validation.finding import Fault
    from packager.addons.gather import SCHEMA

    path = tuple(part for part in text.split(".") if part)
    value: Any = None
    for part in reversed(path):
        value = {part: value}
    unknown = [found for found in schema.load(SCHEMA).findings(value or {}) if found.fault is Fault.UNKNOWN]
    if unknown:
        raise click.UsageError(f"setting {text!r}: {unknown[0].field}: {unknown[0].detail}")
    return path


async def _read(flags: dict[str, Any], key: Key, tree: Tree) -> tuple[ClusterFacts, Rendered, LiveState]:
    """Read the cluster, render its bundles, and read what became of them."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import ApiError, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError, own_configuration
    from packager import cluster_reader, trace_reader
    from packager.cluster_objects import facts_of
    from packager.trace import bundles_of, manifests

    bundler = bundler_of(flags, lambda _: None)
    try:
        client = ApiClient(await own_configuration(flags["kubeconfig"], flags["context"]), name="management")
        try:
            found = facts_of(await cluster_reader.objects(client, key.namespace))
            facts = next((one for one in found if one.key == key), None)
            if facts is None:
                raise InputError(f"the management cluster has no Cluster {key} on Harvester")
            (rendered,) = bundler.render([facts], tree).rendered or (None,)
            if rendered is None or rendered.settings is None or not rendered.ok:
                faults = "; ".join(map(str, rendered.findings)) if rendered else "its bundles are suspended"
                raise InputError(f"cluster {key} cannot be rendered: {faults}")
            wanted = [obj for name in bundles_of(rendered, ()) for obj in manifests(rendered, name)]
            return facts, rendered, await trace_reader.read(client, rendered.settings, wanted)
        finally:
            await client.close()
    except (KubeconfigError, ApiError, Unreachable) as error:
        raise InputError(f"cannot read the management cluster: {error}") from None


def _branch(store: Store | None, rendered: Rendered, bundle: str) -> BranchState:
    """Return from which branch Fleet reads a bundle, and which commit last changed it."""
    from packager.trace import BranchState
    from packager.tree import cluster_folder

    if store is None:
        return BranchState()
    name, head = store.branch_of(rendered.branch)
    change = store.last_change(f"{cluster_folder(*rendered.cluster)}/{bundle}")
    return BranchState(name, head, change, bool(rendered.branch and name), name in store.stale())


def _place(flags: dict[str, Any], key: Key, path: tuple[str, ...]) -> tuple[str, Change | None]:
    """Return file and line of a setting in its definition, and the commit of that line; none without definitions."""
    from caphv.validation.finding import Fault, Finding
    from packager.definitions.source import Reader
    from packager.git.history import of_line
    from webhooks import crossobject

    folder: Path | None = flags["definitions"]
    if folder is None:
        return "", None
    files = {str(found.relative_to(folder)): found.read_bytes() for found in folder.rglob("*") if found.is_file()}
    for entry in Reader(crossobject.check).read(files).clusters:
        if entry.key == key:
            problem = entry.head.problem(Finding(("spec", "addons", *path), Fault.INVALID, "", ""))
            return f"{problem.file}:{problem.line}", of_line(folder / problem.file, problem.line)
    raise InputError(f"{folder}: no file defines cluster {key}")
