"""What the templates of bundles see, and what every bundle must be: named, and for one cluster only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.validation import schema
from caphv.validation.finding import Fault, FieldPath, Finding
from packager.addons.gather import RANCHER
from packager.addons.settings import AddonSettings
from packager.addons.versions import Chart, Table, Versions
from packager.addons.versions import chart as chart_of
from packager.rendering import secretscan

FLEET_YAML = "fleet.yaml"
RANCHER_WORKSPACE = "fleet-default"
BUNDLE_LABEL = "caphv.io/bundle"
_LONGEST_NAME = 53
_NAME_HASH = 10


def bundle_name(cluster: Key, bundle: str) -> str:
    """Name of the Fleet bundle, unique among all clusters and workspaces: `<bundle>-<cluster>-<hash>`.

    Helm allows 53 characters, so a long name is cut; the hash over namespace, name and bundle keeps two apart.
    """
    digest = hashlib.sha256(f"{cluster.namespace}/{cluster.name}/{bundle}".encode()).hexdigest()[:_NAME_HASH]
    readable = f"{bundle}-{cluster.name}".replace(".", "-").lower()
    return f"{readable[: _LONGEST_NAME - _NAME_HASH - 1].rstrip('-')}-{digest}"


def targets(settings: AddonSettings) -> list[Obj]:
    """The one Fleet Cluster that the bundles of a cluster go to, for `overrideTargets`.

    CAAPF's has the Cluster's own name in a workspace of its namespace, unless CAAPF is configured to name it otherwise.
    Rancher's has a generated name, and labels that say whose it is: only name and namespace together do.
    """
    if settings.fleet.imported_by != RANCHER:
        return [{"clusterName": settings.fleet.cluster_name or settings.cluster.name}]
    owner = {
        names.CAPI_OWNER_LABEL: settings.cluster.name,
        names.CAPI_OWNER_NAMESPACE_LABEL: settings.cluster.namespace,
    }
    return [{"clusterSelector": {"matchLabels": owner}}]


def workspace(settings: AddonSettings) -> str:
    """Namespace on the management cluster in which the GitRepo of a cluster must be."""
    default = RANCHER_WORKSPACE if settings.fleet.imported_by == RANCHER else settings.cluster.namespace
    return settings.fleet.workspace or default


def context(settings: AddonSettings, versions: Versions, table: Table, mirror: str) -> dict[str, Any]:
    """Names that templates may use: `cluster`, `settings`, `targets`, `bundle_name()`, `labels()`, `chart()`."""

    def chart(name: str, version: str = "") -> Chart:
        return chart_of(name, version or versions.charts[name], table=table, mirror=mirror)

    def labels(bundle: str) -> dict[str, str]:
        # A label holds 63 characters; a longer name of a cluster is found by the name of the bundle.
        named = {names.CLUSTER_NAME_LABEL: settings.cluster.name} if len(settings.cluster.name) <= 63 else {}
        return {BUNDLE_LABEL: bundle, **named}

    name: Callable[[str], str] = lambda bundle: bundle_name(settings.cluster, bundle)  # noqa: E731
    return {
        "cluster": {"namespace": settings.cluster.namespace, "name": settings.cluster.name},
        "settings": settings,
        "targets": targets(settings),
        "bundle_name": name,
        "labels": labels,
        "chart": chart,
    }


def check_fleet_yaml(document: Any, path: FieldPath, settings: AddonSettings, bundle: str) -> list[Finding]:
    """Return what is wrong with a rendered fleet.yaml: its form, its name, its target, and secrets in it."""
    found = schema.load("fleet-yaml.json").findings(document, root=path)
    if found:
        return found
    found += _chart_faults(document["helm"], (*path, "helm"))
    if document["name"] != bundle_name(settings.cluster, bundle):
        detail = f'must be {{{{ bundle_name("{bundle}") }}}}: another name can meet that of another cluster'
        found.append(Finding((*path, "name"), Fault.INVALID, detail, "bundle-name", document["name"]))
    if document["overrideTargets"] != targets(settings):
        detail = "must be {{ targets }}: a bundle is for its own cluster only"
        found.append(Finding((*path, "overrideTargets"), Fault.FORBIDDEN, detail, "bundle-target"))
    return found + secretscan.check(document, path)


def _chart_faults(helm: Mapping[str, Any], path: FieldPath) -> list[Finding]:
    """Fleet takes a chart by name from an https repository, or by its whole address from an OCI registry."""
    repo, chart = str(helm.get("repo") or ""), helm.get("chart")
    if repo.startswith("oci://") and chart:
        detail = "must be left out: repo is the whole address of the chart"
        return [Finding((*path, "chart"), Fault.FORBIDDEN, detail, "bundle-chart", chart)]
    if repo and not repo.startswith("oci://") and not chart:
        return [Finding((*path, "chart"), Fault.REQUIRED, "must name a chart of the repository", "bundle-chart")]
    return []


def check_manifest(document: Any, path: FieldPath) -> list[Finding]:
    """Return what is wrong with a rendered manifest: no object of Kubernetes, or secrets in it."""
    if not isinstance(document, Mapping):
        return [Finding(path, Fault.WRONG_TYPE, "must be an object of Kubernetes", "bundle-manifest")]
    found = [
        Finding((*path, field), Fault.REQUIRED, "must be set", "bundle-manifest")
        for field in ("apiVersion", "kind")
        if not isinstance(document.get(field), str)
    ]
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        found.append(Finding((*path, "metadata", "name"), Fault.REQUIRED, "must be set", "bundle-manifest"))
    return found + secretscan.check(document, path)
