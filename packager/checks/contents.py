"""What the files of one cluster install: bundles with their manifests, and the Helm releases among them.

A chart comes from `fleet.yaml`, from a HelmChart manifest, or is RKE2's own, to which a HelmChartConfig gives values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj
from caphv.runtime.text import Limits, TextError, load_yaml, load_yaml_all
from caphv.validation.finding import FieldPath
from packager.addons.merge import at
from packager.rendering.bundles import FLEET_YAML
from packager.rendering.vendored import CHART_FOLDER
from packager.tree import Tree

HELM_CONTROLLER = "helm.cattle.io/v1"
_OCI = "oci://"
_LIMITS = Limits(size=16 * 1024 * 1024, nodes=1_000_000)


@dataclass(frozen=True)
class ChartRef:
    """A chart: `repo` may be empty for RKE2's own, and `version` where it is the distribution's."""

    name: str
    repo: str
    version: str

    def __str__(self) -> str:
        return f"chart {self.name} {self.version}".rstrip()


@dataclass(frozen=True)
class Release:
    """One Helm release. `values` stand at `path` in `file`; `by_fleet` says who installs it: Fleet or the cluster."""

    name: str
    namespace: str
    chart: ChartRef
    values: Mapping[str, Any]
    file: str
    path: FieldPath
    by_fleet: bool
    chart_files: Tree | None = None
    """Files of a chart that the bundle holds itself."""


@dataclass(frozen=True)
class Bundle:
    """A folder that Fleet reads: manifests with the files that hold them, and releases."""

    folder: str
    name: str
    namespace: str
    depends_on: tuple[str, ...]
    manifests: tuple[tuple[str, Obj], ...]
    releases: tuple[Release, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fleet_yaml(self) -> str:
        """Path of its `fleet.yaml`."""
        return f"{self.folder}/{FLEET_YAML}"


def bundles_of(tree: Tree) -> list[Bundle]:
    """Return the bundles among the files of one cluster, by folder. Raises ValueError with the path of a bad file."""
    folders = sorted(path.rpartition("/")[0] for path in tree if path.endswith(f"/{FLEET_YAML}"))
    return [_bundle(tree, folder) for folder in folders]


def _bundle(tree: Tree, folder: str) -> Bundle:
    settings = next(iter(_documents(tree, f"{folder}/{FLEET_YAML}")), {})
    namespace = str(settings.get("defaultNamespace") or "default")
    manifests = tuple(
        (path, obj) for path in sorted(tree) if _is_manifest(path, folder) for obj in _documents(tree, path)
    )
    top = f"{folder}/{CHART_FOLDER}/"
    own = {path.removeprefix(top): tree[path] for path in tree if path.startswith(top)}
    releases = (*_of_fleet(settings, namespace, f"{folder}/{FLEET_YAML}", own), *_of_manifests(manifests))
    depends = tuple(str(row.get("name")) for row in settings.get("dependsOn", ()) if isinstance(row, dict))
    return Bundle(folder, str(settings.get("name")), namespace, depends, manifests, releases, settings)


def _is_manifest(path: str, folder: str) -> bool:
    """Whether a file is a manifest, and neither fleet.yaml nor a file of a chart."""
    inner = path.removeprefix(f"{folder}/")
    return inner not in (path, FLEET_YAML) and "/" not in inner and inner.endswith((".yaml", ".yml"))


def _documents(tree: Tree, path: str) -> list[Obj]:
    try:
        return [found for found in load_yaml_all(tree[path], _LIMITS) if isinstance(found, dict)]
    except TextError as error:
        raise ValueError(f"{path} {error}") from None


def _of_fleet(settings: Obj, namespace: str, file: str, own: Tree) -> Iterator[Release]:
    helm = settings.get("helm") or {}
    if not (helm.get("chart") or helm.get("repo")):
        return
    ref = _chart(str(helm.get("chart") or ""), str(helm.get("repo") or ""), str(helm.get("version") or ""))
    vendored = bool(own) and helm.get("chart") == CHART_FOLDER
    if vendored:
        ref = ChartRef(_name(own.get("Chart.yaml", b""), file), "", ref.version)
    values = helm.get("values") or {}
    yield Release(
        str(helm.get("releaseName") or settings.get("name")),
        namespace,
        ref,
        values,
        file,
        ("helm", "values"),
        True,
        own if vendored else None,
    )


def _of_manifests(manifests: Sequence[tuple[str, Obj]]) -> Iterator[Release]:
    path: FieldPath = ("spec", "valuesContent")
    for file, obj in manifests:
        if obj.get("apiVersion") != HELM_CONTROLLER or obj.get("kind") not in ("HelmChart", "HelmChartConfig"):
            continue
        spec, name = obj.get("spec") or {}, str(at(obj, "metadata", "name"))
        own = obj["kind"] == "HelmChartConfig"
        ref = ChartRef(name, "", "") if own else _chart(*(str(spec.get(key) or "") for key in _FIELDS))
        namespace = str(spec.get("targetNamespace") or at(obj, "metadata", "namespace") or "kube-system")
        yield Release(name, namespace, ref, _content(spec, file), file, path, by_fleet=False)


def _name(chart_yaml: bytes, file: str) -> str:
    try:
        return str(load_yaml(chart_yaml, _LIMITS)["name"])
    except (TextError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: the chart next to it has no name: {error}") from None


_FIELDS = ("chart", "repo", "version")


def _chart(chart: str, repo: str, version: str) -> ChartRef:
    """Return a chart whose OCI address may be in either field."""
    address = chart if chart.startswith(_OCI) else repo if repo.startswith(_OCI) and not chart else ""
    if address:
        repo, _, chart = address.rpartition("/")
    return ChartRef(chart, repo, version)


def _content(spec: Obj, file: str) -> Mapping[str, Any]:
    try:
        values = load_yaml(str(spec.get("valuesContent") or ""), _LIMITS)
    except TextError as error:
        raise ValueError(f"{file}: spec.valuesContent {error}") from None
    return values if isinstance(values, dict) else {}
