"""Reads bundles with their manifests and Helm releases from the files of one cluster.

`fleet.yaml` or a HelmChart manifest names a chart. A HelmChartConfig gives values to one of RKE2's
own charts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj, at, dict_at, list_at
from caphv.runtime.text import Limits, TextError, load_yaml, load_yaml_all
from caphv.validation.finding import FieldPath
from packager.rendering.bundles import FLEET_YAML
from packager.rendering.vendored import CHART_FOLDER
from packager.tree import Tree

HELM_CONTROLLER = "helm.cattle.io/v1"
_OCI = "oci://"
_LIMITS = Limits(size=16 * 1024 * 1024, nodes=1_000_000)


@dataclass(frozen=True)
class ChartRef:
    """A chart. `repo` and `version` are empty for a chart that comes with the distribution."""

    name: str
    repo: str
    version: str

    def __str__(self) -> str:
        return f"chart {self.name} {self.version}".rstrip()


@dataclass(frozen=True)
class Release:
    """One Helm release.

    Its `values` are at `path` in `file`. Fleet installs it (`by_fleet`), or a Helm controller in
    the cluster.
    """

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
    """Return the bundles of a cluster by folder.

    Raises `ValueError` with the path of a bad file.
    """
    folders = sorted(path.rpartition("/")[0] for path in tree if path.endswith(f"/{FLEET_YAML}"))
    return [_bundle(tree, folder) for folder in folders]


def _bundle(tree: Tree, folder: str) -> Bundle:
    """Return the bundle of a folder. A user may have edited its files, so they may hold anything.

    Raises `ValueError` with the path of a bad file.
    """
    fleet_yaml = f"{folder}/{FLEET_YAML}"
    documents = _documents(tree, fleet_yaml)
    settings = documents[0] if documents else {}
    namespace = str(settings.get("defaultNamespace") or "default")

    manifests: list[tuple[str, Obj]] = []
    for path in sorted(tree):
        if _is_manifest(path, folder):
            manifests += ((path, obj) for obj in _documents(tree, path))

    chart_folder = f"{folder}/{CHART_FOLDER}/"
    chart_files = {
        path.removeprefix(chart_folder): content
        for path, content in tree.items()
        if path.startswith(chart_folder)
    }
    return Bundle(
        folder=folder,
        name=str(settings.get("name")),
        namespace=namespace,
        depends_on=tuple(
            str(at(row, "name")) for row in list_at(settings, "dependsOn") if isinstance(row, dict)
        ),
        manifests=tuple(manifests),
        releases=(
            *_fleet_release(settings, namespace, fleet_yaml, chart_files),
            *_manifest_releases(manifests),
        ),
        settings=settings,
    )


def _is_manifest(path: str, folder: str) -> bool:
    """Whether a file is a manifest, and neither fleet.yaml nor a file of a chart."""
    name = path.removeprefix(f"{folder}/")
    if name in (path, FLEET_YAML) or "/" in name:
        return False
    return name.endswith((".yaml", ".yml"))


def _documents(tree: Tree, path: str) -> list[Obj]:
    try:
        documents = load_yaml_all(tree[path], _LIMITS)
    except TextError as error:
        raise ValueError(f"{path} {error}") from None
    return [document for document in documents if isinstance(document, dict)]


def _fleet_release(
    settings: Obj, namespace: str, file: str, chart_files: Tree
) -> Iterator[Release]:
    """Yield the release that a fleet.yaml describes, if it describes one.

    :param settings: content of the fleet.yaml
    :param namespace: namespace of the release
    :param file: path of the fleet.yaml
    :param chart_files: files of a vendored chart, empty without one
    """
    helm = dict_at(settings, "helm")
    if not (helm.get("chart") or helm.get("repo")):
        return
    chart = _chart_ref(helm)
    is_vendored = bool(chart_files) and helm.get("chart") == CHART_FOLDER
    if is_vendored:
        chart = ChartRef(_name(chart_files.get("Chart.yaml", b""), file), "", chart.version)

    yield Release(
        name=str(helm.get("releaseName") or settings.get("name")),
        namespace=namespace,
        chart=chart,
        values=dict_at(helm, "values"),
        file=file,
        path=("helm", "values"),
        by_fleet=True,
        chart_files=chart_files if is_vendored else None,
    )


def _manifest_releases(manifests: Sequence[tuple[str, Obj]]) -> Iterator[Release]:
    """Yield the releases that Helm controllers install for manifests."""
    for file, obj in manifests:
        kind = obj.get("kind")
        # Kinds of other groups may have the same names.
        if obj.get("apiVersion") != HELM_CONTROLLER:
            continue
        if kind not in ("HelmChart", "HelmChartConfig"):
            continue

        spec = dict_at(obj, "spec")
        name = str(at(obj, "metadata", "name"))
        namespace = spec.get("targetNamespace") or at(obj, "metadata", "namespace")
        # A HelmChartConfig has the name of one of RKE2's own charts.
        chart = ChartRef(name, "", "") if kind == "HelmChartConfig" else _chart_ref(spec)
        yield Release(
            name=name,
            namespace=str(namespace or "kube-system"),
            chart=chart,
            values=_values_content(spec, file),
            file=file,
            path=("spec", "valuesContent"),
            by_fleet=False,
        )


def _name(chart_yaml: bytes, file: str) -> str:
    try:
        return str(load_yaml(chart_yaml, _LIMITS)["name"])
    except (TextError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: the chart next to it has no name: {error}") from None


def _chart_ref(fields: Obj) -> ChartRef:
    """Return the chart that fields `chart`, `repo` and `version` name.

    `chart` or `repo` may be an OCI address.
    """
    chart = str(fields.get("chart") or "")
    repo = str(fields.get("repo") or "")
    version = str(fields.get("version") or "")

    # Helm takes an OCI address as chart, Fleet as repo. Both end with the chart's name.
    address = ""
    if chart.startswith(_OCI):
        address = chart
    elif repo.startswith(_OCI) and not chart:
        address = repo
    if address:
        repo, _, chart = address.rpartition("/")
    return ChartRef(chart, repo, version)


def _values_content(spec: Obj, file: str) -> Mapping[str, Any]:
    try:
        values = load_yaml(str(spec.get("valuesContent") or ""), _LIMITS)
    except TextError as error:
        raise ValueError(f"{file}: spec.valuesContent {error}") from None
    return values if isinstance(values, dict) else {}
