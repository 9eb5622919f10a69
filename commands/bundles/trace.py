"""`caphv bundles trace`: where a setting of a cluster is, and where it stopped."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from commands.access.repository import names_repository, open_store
from commands.bundles.common import (
    DIFFERENT,
    DONE,
    RenderOptions,
    bundler_of,
    render_options,
)
from commands.errors import InputError
from commands.options.completion import complete_clusters
from commands.options.formats import output_option
from commands.options.groups import fill
from commands.options.management import CONTEXT, KUBECONFIG, ManagementOptions, object_key
from commands.options.repository import RepositoryOptions, repository_options
from commands.output.progress import progress

if TYPE_CHECKING:
    from caphv.api.object import Key
    from packager.addons.facts import ClusterFacts
    from packager.git.history import Change
    from packager.planning.commitplan import Store
    from packager.rendering.rendered import Rendered
    from packager.trace import BranchState, LiveState
    from packager.tree import Tree


@dataclass(frozen=True, kw_only=True)
class TraceOptions(ManagementOptions, RenderOptions, RepositoryOptions):
    """The cluster and the setting to follow, and where to look for them."""

    cluster: str
    setting: str
    definitions: Path | None
    output: str


@click.command(
    short_help="Trace a setting to the objects in a cluster.",
    epilog="""\b
Examples:
  caphv bundles trace team-a/demo cni.mtu --repo https://git.example.com/fleet.git
  caphv bundles trace team-a/demo --repo https://git.example.com/fleet.git    all bundles
  caphv bundles trace team-a/demo ccm --definitions clusters/ --folder fleet/ -o json
                              also show the line of the definition

Exit status: 0 the value arrived, or a stage cannot be read, 1 it stopped or was reverted, 2 usage
error or unreadable input.
""",
)
@click.argument("cluster", metavar="NAMESPACE/NAME", shell_complete=complete_clusters)
@click.argument("setting", default="")
@click.option(
    "--definitions",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with definitions, to show file and line of the setting.",
)
@KUBECONFIG
@CONTEXT
@render_options
@repository_options
@output_option()
@fill(options=TraceOptions)
def trace(options: TraceOptions) -> None:
    """Trace a setting of a cluster's add-ons: definition, commit, GitRepo, Bundle,
    BundleDeployment, object.

    The command shows each stage, and the first one at which the value stopped, or who reverted it.
    SETTING is a field of the add-ons, such as cni.mtu; without it, the command traces all bundles.
    It reads objects in the cluster with the kubeconfig that Cluster API keeps for it, and changes
    nothing.
    """
    from commands.output.trace import TRACED
    from packager.trace import bundles_of, setting_stage
    from packager.trace import trace as trace_bundle

    key = object_key(options.cluster, "CLUSTER")
    path = _setting(options.setting)
    line = _line_of(options, key, path) if path else _Line()
    with progress() as step, contextlib.ExitStack() as stack:
        store = stack.enter_context(open_store(options)) if names_repository(options) else None
        snapshot = store.sync() if store else None
        step("reading the management cluster")
        read = asyncio.run(_read(options, key, snapshot.tree if snapshot else {}))
        setting = None
        if path:
            setting = setting_stage(read.facts, path, line.place, line.change)
        traces = [
            trace_bundle(
                read.rendered,
                name,
                snapshot,
                read.live,
                _branch(store, read.rendered, name),
                path=options.inner,
            )
            for name in bundles_of(read.rendered, path)
        ]
    click.echo(TRACED[options.output](key, setting, traces), nl=False)
    sys.exit(DIFFERENT if any(bundle.stopped for bundle in traces) else DONE)


def _setting(text: str) -> tuple[str, ...]:
    """Return the path of a setting. Raises `click.UsageError` if there is no such setting."""
    from caphv.validation import schema
    from caphv.validation.finding import Fault
    from packager.addons.gather import SCHEMA

    # The schema of settings validates values, so a value with an empty leaf is built for the path.
    path = tuple(part for part in text.split(".") if part)
    value: Any = None
    for part in reversed(path):
        value = {part: value}
    unknown = [
        finding
        for finding in schema.load(SCHEMA).findings(value or {})
        if finding.fault is Fault.UNKNOWN
    ]
    if unknown:
        raise click.UsageError(f"setting {text!r}: {unknown[0].field}: {unknown[0].detail}")
    return path


class _Read(NamedTuple):
    """Facts about a cluster, its rendered bundles, and their live objects."""

    facts: ClusterFacts
    rendered: Rendered
    live: LiveState


class _Line(NamedTuple):
    """File and line of a setting, and the commit of the line; empty without definitions."""

    place: str = ""
    change: Change | None = None


async def _read(options: TraceOptions, key: Key, tree: Tree) -> _Read:
    """Read the cluster, render its bundles, and read their live objects. Raises `InputError`."""
    from caphv.api import names
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration
    from caphv.runtime.errors import RequestError
    from caphv.runtime.kubeconfig import KubeconfigError
    from packager import trace_reader
    from packager.addons import cluster_reader
    from packager.addons.cluster_objects import facts_of
    from packager.trace import bundles_of, manifests

    bundler = bundler_of(options, lambda _: None)
    try:
        client = ApiClient(
            await own_configuration(options.kubeconfig, options.context), name="management"
        )
        try:
            clusters = facts_of(await cluster_reader.objects(client, key.namespace))
            facts = next((cluster for cluster in clusters if cluster.key == key), None)
            if facts is None:
                raise InputError(f"the management cluster has no Cluster {key} on Harvester")
            (rendered,) = bundler.render([facts], tree).rendered or (None,)
            if rendered is None or rendered.settings is None or not rendered.ok:
                faults = f"its annotation {names.SUSPEND_ADDONS_ANNOTATION} suspends its bundles"
                if rendered:
                    faults = "; ".join(map(str, rendered.findings))
                raise InputError(f"cluster {key} cannot be rendered: {faults}")
            objects = [
                obj for name in bundles_of(rendered, ()) for obj in manifests(rendered, name)
            ]
            live = await trace_reader.read(client, rendered.settings, objects)
            return _Read(facts, rendered, live)
        finally:
            await client.close()
    except (KubeconfigError, RequestError) as error:
        raise InputError(f"cannot read the management cluster: {error}") from None


def _branch(store: Store | None, rendered: Rendered, bundle: str) -> BranchState:
    """Return the newest commit of a bundle's branch, and the last change of the bundle."""
    from packager.git.repository import Repository
    from packager.trace import BranchState
    from packager.tree import cluster_folder

    if store is None:
        return BranchState()
    head = store.sync().commit if isinstance(store, Repository) else ""
    change = store.last_change(f"{cluster_folder(*rendered.cluster)}/{bundle}")
    return BranchState(head, change)


def _line_of(options: TraceOptions, key: Key, path: tuple[str, ...]) -> _Line:
    """Return the line of a setting in the definition of its cluster. Raises `InputError`."""
    from caphv.validation.finding import Fault, Finding
    from packager.definitions.source import Reader
    from packager.git.history import of_line
    from webhooks import crossobject

    folder: Path | None = options.definitions
    if folder is None:
        return _Line()
    files = {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }
    for entry in Reader(crossobject.check).read(files).clusters:
        if entry.key == key:
            problem = entry.head.problem(Finding(("spec", "addons", *path), Fault.INVALID, "", ""))
            change = of_line(folder / problem.file, problem.line)
            return _Line(f"{problem.file}:{problem.line}", change)
    raise InputError(f"{folder}: no file defines cluster {key}")
