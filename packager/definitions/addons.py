"""Delivers add-ons to a cluster by bundles of Fleet, or by ClusterResourceSets.

In a ClusterResourceSet, charts are HelmChart manifests, which the Helm controller of RKE2 and K3s
installs. So no chart is copied into the management cluster, and versions are the same as in
bundles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from caphv.api import names
from caphv.api.object import Obj
from caphv.validation.finding import Finding
from packager.addons.settings import AddonSettings, Packaging
from packager.definitions.model import CLUSTER_RESOURCE_SET, Definition
from packager.definitions.nodeconfig import NodeConfig
from packager.definitions.rules.metadata import ADDONS_LABEL
from packager.rendering.bundles import FLEET_YAML, bundle_name, workspace
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.tree import cluster_folder

_RESOURCE_SETS = "addons.cluster.x-k8s.io/v1beta2"


def labels(definition: Definition, node_config: NodeConfig) -> dict[str, str]:
    """Return labels of the Cluster by which add-ons and Rancher find it."""
    csi = definition.addons.get("csi", {}).get("enabled", True)
    addons_label = {ADDONS_LABEL: definition.key.name}

    return {
        names.CNI_LABEL: node_config.cni,
        names.CSI_LABEL: "harvester" if csi else "none",
        **({names.AUTO_IMPORT_LABEL: "true"} if definition.rancher_auto_import else {}),
        **(addons_label if definition.delivery == CLUSTER_RESOURCE_SET else {}),
    }


class ResourceSets(NamedTuple):
    """ClusterResourceSets and their ConfigMaps, and findings of rendering the add-ons for them."""

    objects: list[Obj]
    findings: list[Finding]


def resource_sets(definition: Definition, rendered: Rendered, renderer: Renderer) -> ResourceSets:
    """Return a ConfigMap and a ClusterResourceSet for each add-on of a rendered cluster."""
    if rendered.settings is None or rendered.versions is None:
        return ResourceSets([], list(rendered.findings))
    settings = rendered.settings
    # Fleet does not install the charts of these clusters, but their Helm controller can.
    if settings.packaging is Packaging.CHART:
        settings = replace(settings, packaging=Packaging.HELM_CHART)
    folder = cluster_folder(*settings.cluster)
    bundle_files = renderer.files(settings, rendered.versions, folder)

    manifests: dict[str, list[str]] = {}
    for path, content in sorted(bundle_files.files.items()):
        bundle, _, name = path.removeprefix(f"{folder}/").partition("/")
        if name != FLEET_YAML:
            manifests.setdefault(bundle, []).append(content.decode())

    objects: list[Obj] = []
    for bundle, texts in manifests.items():
        objects += _resource_set(definition, bundle, texts)
    return ResourceSets(objects, bundle_files.findings)


def _resource_set(definition: Definition, bundle: str, texts: list[str]) -> Iterator[Obj]:
    metadata = {"name": f"{definition.key.name}-{bundle}", "namespace": definition.key.namespace}

    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {f"{bundle}.yaml": "---\n".join(texts)},
    }
    # `Reconcile` applies a changed ConfigMap; the default applies it only once.
    yield {
        "apiVersion": _RESOURCE_SETS,
        "kind": "ClusterResourceSet",
        "metadata": metadata,
        "spec": {
            "strategy": "Reconcile",
            "clusterSelector": {"matchLabels": {ADDONS_LABEL: definition.key.name}},
            "resources": [{"kind": "ConfigMap", "name": metadata["name"]}],
        },
    }


def git_repo(definition: Definition, settings: AddonSettings) -> Obj | None:
    """Return the GitRepo that makes Fleet read the cluster's bundles.

    Returns None if the definition names no repository.
    """
    source = definition.fleet
    if source is None:
        return None

    # The star excludes the lockfile.
    path = "/".join(filter(None, (source.path, cluster_folder(*definition.key), "*")))
    secrets = {}
    if source.client_secret_name:
        secrets["clientSecretName"] = source.client_secret_name
    if source.helm_secret_name:
        secrets["helmSecretName"] = source.helm_secret_name
        secrets["helmRepoURLRegex"] = source.helm_repo_regex

    # A workspace may hold clusters of several namespaces, so the name must be unique.
    name = bundle_name(definition.key, "gitrepo")
    return {
        "apiVersion": "fleet.cattle.io/v1alpha1",
        "kind": "GitRepo",
        "metadata": {"name": name, "namespace": workspace(settings)},
        "spec": {"repo": source.repo, "branch": source.branch, **secrets, "paths": [path]},
    }
