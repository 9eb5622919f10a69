"""How a cluster gets its add-ons: by bundles that Fleet reads, or by ConfigMaps that a ClusterResourceSet applies.

In a ClusterResourceSet charts are HelmChart manifests, which the Helm controller of RKE2 and K3s installs: no chart is
copied into the management cluster, and versions are those that bundles would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from caphv.api import names
from caphv.api.object import Obj
from caphv.validation.finding import Finding
from packager.addons.settings import AddonSettings, Packaging
from packager.definitions.model import CLUSTER_RESOURCE_SET, Definition
from packager.definitions.nodeconfig import NodeConfig
from packager.definitions.rules import ADDONS_LABEL
from packager.rendering.bundles import FLEET_YAML, bundle_name, workspace
from packager.rendering.renderer import Rendered, Renderer
from packager.tree import cluster_folder

_RESOURCE_SETS = "addons.cluster.x-k8s.io/v1beta2"


def labels(definition: Definition, boot: NodeConfig) -> dict[str, str]:
    """Return labels of the Cluster by which add-ons and Rancher find it."""
    csi = definition.addons.get("csi", {}).get("enabled", True)
    return {
        names.CNI_LABEL: boot.cni,
        names.CSI_LABEL: "harvester" if csi else "none",
        **({names.AUTO_IMPORT_LABEL: "true"} if definition.rancher_auto_import else {}),
        **({ADDONS_LABEL: definition.key.name} if definition.delivery == CLUSTER_RESOURCE_SET else {}),
    }


def resource_sets(definition: Definition, rendered: Rendered, renderer: Renderer) -> tuple[list[Obj], list[Finding]]:
    """Return a ConfigMap and a ClusterResourceSet for each add-on of a rendered cluster."""
    if rendered.settings is None or rendered.versions is None:
        return [], list(rendered.findings)
    settings = rendered.settings
    if settings.packaging is Packaging.CHART:
        settings = replace(settings, packaging=Packaging.HELM_CHART)
    files, findings = renderer.files(settings, rendered.versions)
    manifests: dict[str, list[str]] = {}
    folder = cluster_folder(*settings.cluster)
    for path, content in sorted(files.items()):
        bundle, _, name = path.removeprefix(f"{folder}/").partition("/")
        if name != FLEET_YAML:
            manifests.setdefault(bundle, []).append(content.decode())
    found = [obj for bundle, texts in manifests.items() for obj in _resource_set(definition, bundle, texts)]
    return found, findings


def _resource_set(definition: Definition, bundle: str, texts: list[str]) -> Iterator[Obj]:
    metadata = {"name": f"{definition.key.name}-{bundle}", "namespace": definition.key.namespace}
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {f"{bundle}.yaml": "---\n".join(texts)},
    }
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
    """Return the GitRepo by which Fleet reads the cluster's bundles; None where the definition names no repository."""
    source = definition.fleet
    if source is None:
        return None
    # The star excludes the lockfile.
    path = "/".join(filter(None, (source.path, cluster_folder(*definition.key), "*")))
    secret = {"clientSecretName": source.client_secret_name} if source.client_secret_name else {}
    if source.helm_secret_name:
        secret |= {"helmSecretName": source.helm_secret_name, "helmRepoURLRegex": source.helm_repo_regex}
    return {
        "apiVersion": "fleet.cattle.io/v1alpha1",
        "kind": "GitRepo",
        # Workspaces hold clusters of several namespaces.
        "metadata": {"name": bundle_name(definition.key, "gitrepo"), "namespace": workspace(settings)},
        "spec": {"repo": source.repo, "branch": source.branch, **secret, "paths": [path]},
    }
