"""What a node must have when it first boots, so that the cluster starts with the network its bundles describe.

RKE2 and K3s install their network before Fleet can reach the cluster. With the same manifests on disk, Fleet finds what
it would have made, and does not reconfigure a live network a minute later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packager.addons.merge import Obj
from packager.addons.settings import Settings
from packager.rendering import yaml
from packager.rendering.bundles import FLEET_YAML
from packager.rendering.renderer import Rendered
from packager.tree import cluster_folder

_EARLY = ("cni", "ccm", "csi")
"""Bundles whose manifests a distribution's own Helm controller takes."""


@dataclass(frozen=True)
class NodeFiles:
    """Files by absolute path, for servers and for agents, and the fields of an RKE2ControlPlane's `serverConfig`."""

    server_files: Mapping[str, bytes]
    agent_files: Mapping[str, bytes] = field(default_factory=dict)
    server_config: Mapping[str, object] = field(default_factory=dict)


def node_files(rendered: Rendered) -> NodeFiles:
    """Return what the nodes of a rendered cluster start with. Raises ValueError for a cluster that has no files."""
    settings = rendered.settings
    if settings is None or not rendered.ok:
        msg = f"cluster {rendered.cluster} was not rendered: " + "; ".join(map(str, rendered.findings))
        raise ValueError(msg)
    manifests = _manifests(rendered, settings)
    if settings.distribution == "k3s":
        server, agent = _k3s_config(settings)
        place = "/etc/rancher/k3s/config.yaml.d/50-caphv.yaml"
        return NodeFiles({place: yaml.dump(server).encode(), **manifests}, {place: yaml.dump(agent).encode()})
    # Others have no Helm controller: nothing on their nodes would read manifests.
    return (
        NodeFiles(manifests, server_config=_rke2_config(settings)) if settings.distribution == "rke2" else NodeFiles({})
    )


def _manifests(rendered: Rendered, settings: Settings) -> dict[str, bytes]:
    folder = cluster_folder(*settings.cluster)
    found = {}
    for path, content in sorted(rendered.tree.items()):
        bundle, _, name = path.removeprefix(f"{folder}/").partition("/")
        if bundle in _EARLY and name and name != FLEET_YAML:
            place = f"/var/lib/rancher/{settings.distribution}/server/manifests"
            found[f"{place}/caphv-{bundle}-{name}"] = content
    return found


def _rke2_config(settings: Settings) -> Obj:
    external = settings.packaging.value == "Chart"
    # RKE2's own cloud provider and, without kube-proxy, its replacement's rival are turned off.
    disabled = ["cloudController"] if external and settings.ccm.enabled else []
    disabled += ["kubeProxy"] if settings.cni.kube_proxy_replacement else []
    return {
        "cni": settings.cni.name,
        **({"cloudProviderName": "external" if external else "harvester"} if settings.ccm.enabled else {}),
        **({"disableComponents": {"kubernetesComponents": disabled}} if disabled else {}),
    }


def _k3s_config(settings: Settings) -> tuple[Obj, Obj]:
    """Settings of servers and agents, the first four as the document of Harvester's cloud provider has them."""
    agent: Obj = {}
    server: Obj = {}
    if settings.ccm.enabled:
        agent = {"kubelet-arg": ["cloud-provider=external"], "protect-kernel-defaults": False}
        server = {"disable": ["servicelb"], "disable-cloud-controller": True}
    if settings.cni.name != "none":
        server |= {"flannel-backend": "none", "disable-network-policy": True}
    if settings.cni.kube_proxy_replacement:
        server["disable-kube-proxy"] = True
    network = {
        "cluster-cidr": ",".join(settings.cni.pod_cidrs),
        "service-cidr": ",".join(settings.cni.service_cidrs),
    }
    return {**server, **network, **agent}, agent
