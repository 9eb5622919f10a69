"""Follows a setting of a cluster's add-ons to the object in the cluster, and finds where it stopped or was reverted.

The way has these stages: setting, rendered bundle, repository, GitRepo, Bundle, BundleDeployment, object. Facts in,
stages out; `trace_reader` reads the facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from caphv.api.object import Obj
from caphv.runtime.text import Limits, load_yaml, load_yaml_all
from packager.addons.gather import Gathered
from packager.addons.merge import at
from packager.controller.fleet import (
    NOT_APPLIED,
    NOT_PROCESSED,
    changes,
    explained,
    is_processed,
    reading_fault,
    reads,
    without_patch,
)
from packager.git.history import Change
from packager.git.paths import joined
from packager.git.snapshot import Snapshot
from packager.rendering.bundles import FLEET_YAML, bundle_name, workspace
from packager.rendering.renderer import Rendered
from packager.rendering.vendored import CHART_FILE
from packager.tree import cluster_folder

_BUNDLES = {
    "cni": ("cni", "cni-crds"),
    "ccm": ("ccm", "load-balancers"),
    "csi": ("csi", "csi-crds", "snapshot-controller", "storage-classes"),
}
"""Bundles that the settings of an add-on end up in; all other settings may be in any bundle."""
_COMMIT = "fleet.cattle.io/commit"
_DEPLOYING = ("Deployed", "Installed")
"""Conditions of a BundleDeployment about what it should deploy; the others are about what it deployed before."""
_REPORTED = (*_DEPLOYING, "Ready", "Monitored")
_SHORT = 12
# What the packager rendered.
_LIMITS = Limits(size=16 * 1024 * 1024, nodes=1_000_000, seconds=30)
ObjectKey = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True)
class Stage:
    """A stage of the way. `ok` is None where it cannot be read. `detail` says what is there, or what is wrong."""

    name: str
    place: str
    ok: bool | None
    detail: str = ""


@dataclass(frozen=True)
class LiveState:
    """What management and workload cluster have. None: not visible, for the reason in `why` or `unreachable`.

    `bundles` and `deployments` are by name of the bundle in Fleet.
    """

    git_repos: Sequence[Obj] | None = None
    bundles: Mapping[str, Obj] | None = None
    deployments: Mapping[str, Obj] | None = None
    why: str = "Fleet is not visible"
    objects: Mapping[ObjectKey, Obj] | None = None
    unreachable: str = "the workload cluster was not read"


@dataclass(frozen=True)
class BranchState:
    """The branch from which Fleet reads a bundle, and its newest commit. `change` last changed the bundle.

    `name` is empty for a folder. `is_own`: it has only the bundles of the cluster's group; `is_stale`: it does not
    follow the common branch.
    """

    name: str = ""
    head: str = ""
    change: Change | None = None
    is_own: bool = False
    is_stale: bool = False


@dataclass(frozen=True)
class Trace:
    """The stages of one bundle."""

    bundle: str
    stages: tuple[Stage, ...]

    @property
    def stopped(self) -> Stage | None:
        """The first stage that is not as it should be."""
        return next((stage for stage in self.stages if stage.ok is False), None)


def setting_stage(gathered: Gathered, path: tuple[str, ...], place: str, change: Change | None = None) -> Stage:
    """Return the stage of a setting; `place` is its file and line, empty where it was not read from a file.

    `change` is the commit that last changed this line.
    """
    value = at(gathered.values, *path)
    sources = [found for known, found in sorted(gathered.origins.items()) if known[: len(path)] == path]
    shown = yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
    if value is None or not sources:
        return Stage("setting", ".".join(path), None, "is not set: the default applies")
    origin = ".".join(map(str, sources[0]))
    parts = [f"{'.'.join(path)} = {shown}", f"from {origin}" if place else "", f"line by {change}" if change else ""]
    return Stage("setting", place or origin, True, ", ".join(filter(None, parts)))


def bundles_of(rendered: Rendered, setting: tuple[str, ...]) -> list[str]:
    """Return the rendered bundles that a setting may end up in; all without a setting."""
    folder = cluster_folder(*rendered.cluster)
    all_bundles = {path.removeprefix(f"{folder}/").split("/")[0] for path in rendered.tree if path.endswith(FLEET_YAML)}
    wanted = _BUNDLES.get(setting[0]) if setting else None
    return sorted(all_bundles if wanted is None else all_bundles & {*wanted})


def manifests(rendered: Rendered, bundle: str) -> list[Obj]:
    """Return the manifests of a rendered bundle; files of a vendored chart are templates, not manifests."""
    folder = f"{cluster_folder(*rendered.cluster)}/{bundle}/"
    texts = [
        text
        for path, text in sorted(rendered.tree.items())
        if path.startswith(folder) and path != f"{folder}{FLEET_YAML}" and "/" not in path.removeprefix(folder)
    ]
    return [obj for text in texts for obj in load_yaml_all(text, _LIMITS) if isinstance(obj, dict)]


def trace(
    rendered: Rendered,
    bundle: str,
    snapshot: Snapshot | None,
    live: LiveState,
    branch: BranchState = BranchState(),
    *,
    path: str = "",
) -> Trace:
    """Return the stages of one bundle of a cluster that could be rendered; `path` is the folder in the repository."""
    name = bundle_name(rendered.cluster, bundle)
    stages = [_rendered(rendered, bundle), *_repository(rendered, bundle, snapshot, branch)]
    if branch.is_own:
        detail = "does not follow the common branch: push" if branch.is_stale else f"commit {branch.head[:_SHORT]}"
        stages.append(Stage("branch", branch.name, not branch.is_stale, detail))
    stages += _fleet(rendered, name, branch.head, live, path)
    stages += _objects(rendered, bundle, live)
    return Trace(bundle, tuple(stages))


def _rendered(rendered: Rendered, bundle: str) -> Stage:
    folder = f"{cluster_folder(*rendered.cluster)}/{bundle}"
    helm = at(load_yaml(rendered.tree[f"{folder}/{FLEET_YAML}"], _LIMITS), "helm") or {}
    kinds = ", ".join(f"{obj['kind']} {obj['metadata']['name']}" for obj in manifests(rendered, bundle))
    return Stage("rendered", folder, True, _chart(helm, rendered.tree.get(f"{folder}/{CHART_FILE}")) or kinds)


def _chart(helm: Mapping[str, Any], vendored: bytes | None) -> str:
    """Return name, version and, unless it is a named repository, source of a bundle's chart; empty without one."""
    version = str(helm.get("version", ""))
    if vendored is not None:
        return f"chart {at(load_yaml(vendored, _LIMITS), 'name')} {version} from the repository"
    chart, repository = str(helm.get("chart", "")), str(helm.get("repo", ""))
    if not chart and repository:
        address, _, chart = repository.rpartition("/")
        return f"chart {chart} {version} from {address}"
    return f"chart {chart} {version}".strip() if chart else ""


def _repository(rendered: Rendered, bundle: str, snapshot: Snapshot | None, branch: BranchState) -> Iterator[Stage]:
    folder = f"{cluster_folder(*rendered.cluster)}/{bundle}/"
    if snapshot is None:
        yield Stage("repository", folder, None, "no repository was given: --repo or --folder")
        return
    files = {path: text for path, text in rendered.tree.items() if path.startswith(folder)}
    different = [path.removeprefix(folder) for path, text in sorted(files.items()) if snapshot.read(path) != text]
    commit = f"commit {snapshot.commit[:_SHORT]}" if branch.name else "the folder"
    if len(different) == len(files) and all(snapshot.read(path) is None for path in files):
        yield Stage("repository", folder, False, f"{commit} does not have the bundle: push it")
    elif different:
        yield Stage("repository", folder, False, f"{commit} differs in {', '.join(different)}: push it")
    else:
        yield Stage("repository", folder, True, f"last changed by {branch.change}" if branch.change else commit)


def _fleet(rendered: Rendered, name: str, head: str, live: LiveState, path: str) -> Iterator[Stage]:
    if rendered.settings is None or live.git_repos is None or live.bundles is None:
        yield Stage("Fleet", "", None, live.why)
        return
    place = workspace(rendered.settings)
    yield _git_repo(joined(path, cluster_folder(*rendered.cluster)), place, head, live.git_repos)
    found = live.bundles.get(name)
    if found is None:
        yield Stage("Bundle", f"{place}/{name}", False, "does not exist: Fleet has not read the folder")
        return
    yield _bundle(found, f"{place}/{name}", head)
    deployment = (live.deployments or {}).get(name)
    if deployment is None:
        yield Stage("BundleDeployment", name, False, "does not exist: no Fleet Cluster matches the target")
    else:
        yield _deployment(deployment)


def _git_repo(folder: str, place: str, head: str, git_repos: Sequence[Obj]) -> Stage:
    readers = [repo for repo in git_repos if reads(repo, folder)]
    if not readers:
        return Stage("GitRepo", place, False, f"none in this namespace has a path for {folder}/*; create one")
    repo = readers[0]
    name = f"{place}/{repo['metadata']['name']}"
    commit = str(at(repo, "status", "commit") or "")
    if fault := reading_fault(repo):
        return Stage("GitRepo", name, False, fault)
    if head and commit and commit != head:
        return Stage("GitRepo", name, False, f"is at commit {commit[:_SHORT]}, the branch at {head[:_SHORT]}")
    return Stage(
        "GitRepo", name, True if commit else None, f"commit {commit[:_SHORT]}" if commit else "has read no commit yet"
    )


def _bundle(bundle: Obj, place: str, head: str) -> Stage:
    commit = str(at(bundle, "metadata", "labels", _COMMIT) or "")
    summary = at(bundle, "status", "summary") or {}
    messages = map(explained, summary.get("nonReadyResources") or ())
    state = str(at(bundle, "status", "display", "state") or "") if is_processed(bundle) else NOT_PROCESSED
    detail = ", ".join(filter(None, (f"commit {commit[:_SHORT]}" if commit else "", state, *messages)))
    desired = int(summary.get("desiredReady") or 0)
    ready = is_processed(bundle) and desired and int(summary.get("ready") or 0) >= desired
    return Stage("Bundle", place, bool(ready), detail or "is not ready")


def _deployment(deployment: Obj) -> Stage:
    metadata, status = deployment["metadata"], deployment.get("status") or {}
    place = f"{metadata['namespace']}/{metadata['name']}"
    wanted, applied = str(at(deployment, "spec", "deploymentID") or ""), str(status.get("appliedDeploymentID") or "")
    if wanted != applied:
        before = f". What it applied before: {'; '.join(changes(status))}" if changes(status) else ""
        return Stage("BundleDeployment", place, False, _reason(status, _DEPLOYING) or f"{NOT_APPLIED}{before}")
    if changes(status):
        return Stage("BundleDeployment", place, False, "; ".join(changes(status)))
    reason = _reason(status, _REPORTED)
    return Stage(
        "BundleDeployment",
        place,
        bool(status.get("ready")),
        ": ".join(filter(None, (f"release {status.get('release', '')}", reason))),
    )


def _reason(status: Mapping[str, Any], kinds: Sequence[str]) -> str:
    """Return the first message of conditions of these types that are false."""
    rows = status.get("conditions") or ()
    messages = (row.get("message") for row in rows if row.get("status") == "False" and row.get("type") in kinds)
    return next((without_patch(str(message)) for message in messages if message), "")


def _objects(rendered: Rendered, bundle: str, live: LiveState) -> Iterator[Stage]:
    if live.objects is None:
        yield Stage("object", "", None, live.unreachable)
        return
    for obj in manifests(rendered, bundle):
        key = obj["kind"], str(obj["metadata"].get("namespace") or ""), str(obj["metadata"]["name"])
        place = f"{key[0]} {'/'.join(filter(None, key[1:]))}"
        found = live.objects.get(key)
        if found is None:
            yield Stage("object", place, False, "does not exist in the cluster")
            continue
        changed = next(differences(obj, found), None)
        if changed:
            by = writer(found, changed)
            detail = f"{'.'.join(changed)} was changed" + (f" by {by}: a later writer reverted it" if by else "")
            yield Stage("object", place, False, detail)
        else:
            failed = _job(found)
            yield Stage("object", place, not failed, failed or "as rendered")


def differences(wanted: Any, live: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of fields that a live object lacks or contradicts; lists are compared as a whole."""
    if isinstance(wanted, Mapping) and isinstance(live, Mapping):
        for name, value in wanted.items():
            yield from differences(value, live.get(name), (*path, str(name)))
    elif wanted != live:
        yield path


def writer(obj: Obj, path: Sequence[str]) -> str:
    """Return who wrote a field last, and when, as the API server recorded it; empty where it did not."""
    found = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in at(obj, "metadata", "managedFields") or ()
        if at(entry.get("fieldsV1"), *(f"f:{name}" for name in path)) is not None
    ]
    time, manager = max(found, default=("", ""))
    return f"{manager} at {time}" if manager else ""


def _job(obj: Obj) -> str:
    """Return why the Helm controller cannot install a HelmChart; Fleet does not see that."""
    rows = at(obj, "status", "conditions") or ()
    failed = [str(row.get("message")) for row in rows if row.get("type") == "Failed" and row.get("status") == "True"]
    return f"the Helm controller failed: {failed[0]}" if failed else ""
