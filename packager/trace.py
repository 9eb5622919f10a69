"""Follows a setting of a cluster's add-ons to the object in the cluster.

The stages are setting, rendered bundle, repository, GitRepo, Bundle, BundleDeployment and object. A
trace shows the stage at which a setting stopped or was reverted. `trace_reader` reads the objects
that this module compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from caphv.api.object import Obj, at, dict_at, list_at, text_at
from caphv.runtime.text import Limits, load_yaml, load_yaml_all
from packager.addons.facts import ClusterFacts
from packager.addons.gather import SETTINGS_ANNOTATION, gather, is_set
from packager.fleet import (
    COMMIT_LABEL,
    NOT_APPLIED,
    NOT_PROCESSED,
    changes,
    explain,
    is_processed,
    reading_fault,
    reads_folder,
    strip_patch,
)
from packager.git.history import Change
from packager.git.paths import join_path
from packager.git.snapshot import Snapshot
from packager.rendering.bundles import FLEET_YAML, bundle_name, workspace
from packager.rendering.rendered import Rendered
from packager.rendering.vendored import CHART_FILE
from packager.tree import cluster_folder

# Bundles that depend on the settings of an add-on. Other settings may affect any bundle.
_BUNDLES = {
    "cni": ("cni", "cni-crds"),
    "ccm": ("ccm", "load-balancers"),
    "csi": ("csi", "csi-crds", "snapshot-controller", "storage-classes"),
}
# Conditions of a BundleDeployment about the deployment in progress. Other conditions are about the
# last deployment.
_DEPLOYING = ("Deployed", "Installed")
_REPORTED = (*_DEPLOYING, "Ready", "Monitored")
_SHORT_ID_LENGTH = 12
# These limits are wide, because the packager itself rendered the files.
_LIMITS = Limits(size=16 * 1024 * 1024, nodes=1_000_000, seconds=30)
ObjectKey = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True)
class Stage:
    """A stage of a trace; `ok` is None if it is not visible, and `detail` describes its state."""

    name: str
    place: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True)
class LiveState:
    """Objects of management and workload cluster.

    None means that objects are not visible, for the reason in `why` or `unreachable`. The keys of
    `bundles` and `deployments` are names of bundles in Fleet.
    """

    git_repos: Sequence[Obj] | None = None
    bundles: Mapping[str, Obj] | None = None
    deployments: Mapping[str, Obj] | None = None
    why: str = "Fleet is not visible"
    objects: Mapping[ObjectKey, Obj] | None = None
    unreachable: str = "the workload cluster was not read"


@dataclass(frozen=True)
class BranchState:
    """The newest commit of the branch that Fleet reads, and the last change of a bundle in it.

    `head` is empty for a folder.
    """

    head: str = ""
    change: Change | None = None


@dataclass(frozen=True)
class Trace:
    """The stages of one bundle."""

    bundle: str
    stages: tuple[Stage, ...]

    @property
    def stopped(self) -> Stage | None:
        """The first stage with a fault."""
        return next((stage for stage in self.stages if stage.ok is False), None)


def setting_stage(
    facts: ClusterFacts, path: tuple[str, ...], place: str, change: Change | None
) -> Stage:
    """Return the stage of a setting.

    :param facts: objects of the cluster
    :param path: path of the setting
    :param place: file and line of the setting in a definition, empty if none was read
    :param change: commit that last changed this line
    """
    gathered = gather(facts)
    setting = ".".join(path)
    value = at(gathered.values, *path)
    if value is None:
        return Stage("setting", setting, None, "is not set: the default applies")

    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    # PyYAML ends a scalar with the mark of a document's end.
    text = text.removesuffix("...\n").strip()

    # A default has the field as its origin that would override it.
    sources = [
        source
        for field, source in sorted(gathered.origins.items())
        if field[: len(path)] == path and is_set(source, facts)
    ]
    if not sources:
        return Stage("setting", setting, None, f"is not set: {text} applies")

    origin = ".".join(map(str, sources[0]))
    parts = [f"{setting} = {text}"]
    # The line of the definition has what became the annotation, and no other field.
    if not place or sources[0][:3] != SETTINGS_ANNOTATION:
        return Stage("setting", origin, True, ", ".join(parts))
    parts.append(f"from {origin}")
    if change:
        parts.append(f"line by {change}")
    return Stage("setting", place, True, ", ".join(parts))


def bundles_of(rendered: Rendered, setting: tuple[str, ...]) -> list[str]:
    """Return the rendered bundles that may depend on a setting, or all if none is given."""
    folder = cluster_folder(*rendered.cluster)
    bundles = {
        path.removeprefix(f"{folder}/").split("/")[0]
        for path in rendered.tree
        if path.endswith(FLEET_YAML)
    }
    affected = _BUNDLES.get(setting[0]) if setting else None
    return sorted(bundles if affected is None else bundles.intersection(affected))


def manifests(rendered: Rendered, bundle: str) -> list[Obj]:
    """Return the manifests of a rendered bundle."""
    folder = f"{cluster_folder(*rendered.cluster)}/{bundle}/"
    objects: list[Obj] = []
    for path, text in sorted(rendered.tree.items()):
        # Files in a folder of the bundle are templates of a vendored chart.
        name = path.removeprefix(folder)
        if not path.startswith(folder) or name == FLEET_YAML or "/" in name:
            continue
        objects += (obj for obj in load_yaml_all(text, _LIMITS) if isinstance(obj, dict))
    return objects


def trace(
    rendered: Rendered,
    bundle: str,
    snapshot: Snapshot | None,
    live: LiveState,
    branch: BranchState = BranchState(),
    *,
    path: str = "",
) -> Trace:
    """Return the stages of one bundle of a cluster that could be rendered.

    :param rendered: the rendered cluster
    :param bundle: name of the bundle in the cluster's folder
    :param snapshot: the repository, None when it is not read
    :param live: objects of management and workload cluster
    :param branch: state of the branch that Fleet reads
    :param path: folder in the repository
    """
    name = bundle_name(rendered.cluster, bundle)
    return Trace(
        bundle,
        (
            _rendered_stage(rendered, bundle),
            _repository_stage(rendered, bundle, snapshot, branch),
            *_fleet_stages(rendered, name, branch.head, live, path),
            *_object_stages(rendered, bundle, live),
        ),
    )


def _rendered_stage(rendered: Rendered, bundle: str) -> Stage:
    folder = f"{cluster_folder(*rendered.cluster)}/{bundle}"
    helm = dict_at(load_yaml(rendered.tree[f"{folder}/{FLEET_YAML}"], _LIMITS), "helm")
    chart = _chart(helm, rendered.tree.get(f"{folder}/{CHART_FILE}"))
    if chart:
        return Stage("rendered", folder, True, chart)
    objects = manifests(rendered, bundle)
    kinds = ", ".join(f"{obj['kind']} {obj['metadata']['name']}" for obj in objects)
    return Stage("rendered", folder, True, kinds)


def _chart(helm: Mapping[str, Any], vendored: bytes | None) -> str:
    """Return name, version and source of a bundle's chart; empty if it has no chart.

    The repository is left out if the chart is named separately. `vendored` is the Chart.yaml of a
    vendored chart.
    """
    version = str(helm.get("version", ""))
    if vendored is not None:
        return f"chart {at(load_yaml(vendored, _LIMITS), 'name')} {version} from the repository"
    chart = str(helm.get("chart", ""))
    repository = str(helm.get("repo", ""))
    if not chart and repository:
        address, _, chart = repository.rpartition("/")
        return f"chart {chart} {version} from {address}"
    return f"chart {chart} {version}".strip() if chart else ""


def _repository_stage(
    rendered: Rendered, bundle: str, snapshot: Snapshot | None, branch: BranchState
) -> Stage:
    folder = f"{cluster_folder(*rendered.cluster)}/{bundle}/"
    if snapshot is None:
        return Stage("repository", folder, None, "no repository was given: --repo or --folder")

    files = {path: text for path, text in sorted(rendered.tree.items()) if path.startswith(folder)}
    # A bundle also differs if a user edited it in the repository.
    different = [path for path, text in files.items() if snapshot.read(path) != text]
    commit = f"commit {snapshot.commit[:_SHORT_ID_LENGTH]}" if branch.head else "the folder"
    if not different:
        detail = f"last changed by {branch.change}" if branch.change else commit
        return Stage("repository", folder, True, detail)

    if all(snapshot.read(path) is None for path in files):
        detail = f"{commit} does not have the bundle: push it"
    else:
        names = ", ".join(path.removeprefix(folder) for path in different)
        detail = f"{commit} differs in {names}: push it"
    return Stage("repository", folder, False, detail)


def _fleet_stages(
    rendered: Rendered, name: str, head: str, live: LiveState, path: str
) -> Iterator[Stage]:
    """Yield the stages of Fleet up to the first whose object does not exist.

    :param rendered: the rendered cluster
    :param name: name of the Bundle
    :param head: newest commit of the branch that Fleet reads
    :param live: objects of the management cluster
    :param path: folder in the repository
    """
    if rendered.settings is None or live.git_repos is None or live.bundles is None:
        yield Stage("Fleet", "", None, live.why)
        return
    namespace = workspace(rendered.settings)
    folder = join_path(path, cluster_folder(*rendered.cluster))
    yield _git_repo_stage(folder, namespace, head, live.git_repos)

    place = f"{namespace}/{name}"
    bundle = live.bundles.get(name)
    if bundle is None:
        yield Stage("Bundle", place, False, "does not exist: Fleet has not read the folder")
        return
    yield _bundle_stage(bundle, place)

    deployment = (live.deployments or {}).get(name)
    if deployment is None:
        detail = "does not exist: no Fleet Cluster matches the target"
        yield Stage("BundleDeployment", name, False, detail)
    else:
        yield _deployment_stage(deployment)


def _git_repo_stage(folder: str, namespace: str, head: str, git_repos: Sequence[Obj]) -> Stage:
    """Return the stage of the GitRepo that reads a folder.

    :param folder: the cluster's folder in the repository
    :param namespace: workspace of the GitRepo
    :param head: newest commit of its branch
    :param git_repos: all GitRepos of the workspace
    """
    readers = [repo for repo in git_repos if reads_folder(repo, folder)]
    if not readers:
        detail = f"none in this namespace has a path for {folder}/*; create one"
        return Stage("GitRepo", namespace, False, detail)

    repo = readers[0]
    name = f"{namespace}/{repo['metadata']['name']}"
    commit = text_at(repo, "status", "commit")
    if fault := reading_fault(repo):
        return Stage("GitRepo", name, False, fault)
    if not commit:
        return Stage("GitRepo", name, None, "has read no commit yet")
    if head and commit != head:
        detail = (
            f"is at commit {commit[:_SHORT_ID_LENGTH]}, the branch at {head[:_SHORT_ID_LENGTH]}"
        )
        return Stage("GitRepo", name, False, detail)
    return Stage("GitRepo", name, True, f"commit {commit[:_SHORT_ID_LENGTH]}")


def _bundle_stage(bundle: Obj, place: str) -> Stage:
    summary = dict_at(bundle, "status", "summary")
    commit = text_at(bundle, "metadata", "labels", COMMIT_LABEL)
    parts = [f"commit {commit[:_SHORT_ID_LENGTH]}"] if commit else []
    if is_processed(bundle):
        parts.append(text_at(bundle, "status", "display", "state"))
    else:
        parts.append(NOT_PROCESSED)
    parts += map(explain, summary.get("nonReadyResources") or ())

    desired = int(summary.get("desiredReady") or 0)
    ready = int(summary.get("ready") or 0)
    is_ready = is_processed(bundle) and 0 < desired <= ready
    return Stage("Bundle", place, is_ready, ", ".join(filter(None, parts)) or "is not ready")


def _deployment_stage(deployment: Obj) -> Stage:
    status = deployment.get("status") or {}
    place = f"{deployment['metadata']['namespace']}/{deployment['metadata']['name']}"
    changed_objects = "; ".join(changes(status))

    desired = text_at(deployment, "spec", "deploymentID")
    if desired != str(status.get("appliedDeploymentID") or ""):
        detail = _reason(status, _DEPLOYING) or NOT_APPLIED
        if changed_objects and not _reason(status, _DEPLOYING):
            detail += f". What it applied before: {changed_objects}"
        return Stage("BundleDeployment", place, False, detail)

    if changed_objects:
        return Stage("BundleDeployment", place, False, changed_objects)
    detail = f"release {status.get('release', '')}"
    if reason := _reason(status, _REPORTED):
        detail += f": {reason}"
    return Stage("BundleDeployment", place, bool(status.get("ready")), detail)


def _reason(status: Mapping[str, Any], kinds: Sequence[str]) -> str:
    """Return the first message of conditions of these types that are false."""
    for row in status.get("conditions") or ():
        if row.get("status") == "False" and row.get("type") in kinds and row.get("message"):
            return strip_patch(str(row["message"]))
    return ""


def _object_stages(rendered: Rendered, bundle: str, live: LiveState) -> Iterator[Stage]:
    if live.objects is None:
        yield Stage("object", "", None, live.unreachable)
        return
    for obj in manifests(rendered, bundle):
        kind = obj["kind"]
        namespace = text_at(obj, "metadata", "namespace")
        name = str(obj["metadata"]["name"])
        place = f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"

        fault = _object_fault(obj, live.objects.get((kind, namespace, name)))
        yield Stage("object", place, not fault, fault or "as rendered")


def _object_fault(obj: Obj, live: Obj | None) -> str:
    """Return how a live object differs from the rendered one, or why its chart is not installed.

    Empty if there is no fault.
    """
    if live is None:
        return "does not exist in the cluster"
    for field in differences(obj, live):
        detail = f"{'.'.join(field)} was changed"
        if manager := last_writer(live, field):
            detail += f" by {manager}: a later writer reverted it"
        return detail
    return _helm_fault(live)


def differences(rendered: Any, live: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of fields that differ in a live object. Lists are compared as a whole.

    Fields that only the live object has do not count.
    """
    if isinstance(rendered, Mapping) and isinstance(live, Mapping):
        for name, value in rendered.items():
            yield from differences(value, live.get(name), (*path, str(name)))
    elif rendered != live:
        yield path


def last_writer(obj: Obj, path: Sequence[str]) -> str:
    """Return the last manager of a field and its time; empty if the API server has no record."""
    field = [f"f:{name}" for name in path]
    # managedFields have no time for a field. The time of an entry is when its manager last wrote.
    entries = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in list_at(obj, "metadata", "managedFields")
        if at(entry.get("fieldsV1"), *field) is not None
    ]
    time, manager = max(entries, default=("", ""))
    return f"{manager} at {time}" if manager else ""


def _helm_fault(obj: Obj) -> str:
    """Return why the Helm controller cannot install a HelmChart. Fleet does not show that."""
    for row in list_at(obj, "status", "conditions"):
        if row.get("type") == "Failed" and row.get("status") == "True":
            return f"the Helm controller failed: {row.get('message')}"
    return ""
