"""Clusters that together take every way through settings and templates; `tests/golden` holds what they render to.

`python -m tests.support.packager.examples` writes that folder again.
"""

import shutil
from pathlib import Path
from typing import Any

from caphv.api.object import Obj
from packager.addons.facts import ClusterFacts
from packager.rendering import yaml
from packager.rendering.gitrepo import GitRepoOptions, git_repos
from packager.rendering.nodefiles import node_files
from packager.rendering.options import RenderOptions
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def cluster(name: str, addons: Obj | None = None, *, namespace: str = "clusters", **more: Any) -> ClusterFacts:
    """A Cluster with the settings as its annotation; `labels`, `spec`, `harvester`, `control_plane` add to it."""
    metadata: Obj = {"name": name, "namespace": namespace, "labels": more.get("labels", {})}
    if addons is not None:
        metadata["annotations"] = {"addons.caphv.io/values": yaml.dump(addons)}
    obj = {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": metadata,
        "spec": {"topology": {"version": "v1.36.1+rke2r1"}, **more.get("spec", {})},
    }
    harvester = {"spec": more["harvester"]} if "harvester" in more else None
    control_plane = more.get("control_plane")
    return ClusterFacts(obj, harvester, control_plane)


TOLERATION = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
K3S = {"topology": {"version": "v1.36.3+k3s1"}}
PODS = {"pods": {"cidrBlocks": ["10.42.0.0/16"]}}
KUBEADM = {"topology": {"version": "v1.36.1", "classRef": {"name": "harvester-kubeadm"}}, "clusterNetwork": PODS}
TALOS = {
    "topology": None,
    "controlPlaneRef": {"kind": "TalosControlPlane", "name": "control-plane"},
    "clusterNetwork": PODS,
}
TAKEN = {"takeOwnership": True, "keepResources": False}
IPV6 = {"podCIDRs": ["fd00:1::/56"], "serviceCIDRs": ["fd00:2::/112"]}
DUAL_STACK = {"pods": {"cidrBlocks": ["10.42.0.0/16", "fd00:1::/56"]}}

EXAMPLES = [
    cluster("plain"),
    cluster(
        "calico-everything",
        {
            "cni": {
                "name": "calico",
                "mtu": 1450,
                "encapsulation": "IPIP",
                "bgp": "Enabled",
                "kubeProxyReplacement": True,
                "podCIDRs": ["10.1.0.0/16", "fd00:1::/56"],
                "serviceCIDRs": ["10.2.0.0/16", "fd00:2::/112"],
                "values": {"felixConfiguration": {"logSeverityScreen": "Info"}},
            },
            "ccm": {
                "version": "0.2.12",
                "replicas": 2,
                "loadBalancer": {"ipam": "dhcp", "kubeVip": True},
                "managementNetwork": "default/vlan-100",
                "nodeIPCIDR": "192.168.1.0/24",
                "nodeExcludeIPRanges": ["192.168.1.1", "192.168.1.254"],
                "tolerations": [TOLERATION],
                "values": {"resources": {"requests": {"cpu": "${CPU}"}}},
            },
            "csi": {
                "version": "0.1.30",
                "storageClasses": [
                    {"name": "fast", "hostStorageClass": "longhorn-nvme", "default": True},
                    {
                        "name": "kept",
                        "hostStorageClass": "longhorn",
                        "reclaimPolicy": "Retain",
                        "allowVolumeExpansion": False,
                        "volumeBindingMode": "WaitForFirstConsumer",
                    },
                ],
                "tolerations": [TOLERATION],
            },
            "fleet": {"takeOwnership": True, "keepResources": False, "group": "production"},
        },
    ),
    cluster(
        "rancher-single-node",
        {"cni": {"mtu": 1400}, "ccm": {"loadBalancer": {"kubeVip": False}}},
        labels={"cni": "canal", "csi": "harvester", "cluster-api.cattle.io/rancher-auto-import": "true"},
        spec={"topology": {"version": "v1.34.1", "controlPlane": {"replicas": 1}}},
        harvester={"cloudConfig": {"delivery": "File"}},
    ),
    cluster("canal-wireguard", {"cni": {"name": "canal", "encapsulation": "WireGuard"}, "csi": {"enabled": False}}),
    cluster("canal-routed", {"cni": {"name": "canal", "encapsulation": "None"}, "ccm": {"enabled": False}}),
    cluster(
        "cilium-routed",
        {
            "cni": {
                "name": "cilium",
                "mtu": 9000,
                "encapsulation": "None",
                "bgp": "Enabled",
                "kubeProxyReplacement": True,
                "podCIDRs": ["10.1.0.0/16", "fd00:1::/56"],
            }
        },
    ),
    cluster("cilium-geneve", {"cni": {"name": "cilium", "encapsulation": "Geneve"}}),
    cluster(
        "rke2-bundled",
        {"cni": {"name": "none"}, "cloudProviderName": "harvester"},
        harvester={
            "updateCloudProviderConfig": {
                "cloudConfigCredentialsSecretName": "cloud-config",
                "cloudConfigCredentialsSecretKey": "config",
            }
        },
    ),
    cluster("k3s-flannel", {"singleNode": True}, spec=K3S),
    cluster("k3s-calico", {"cni": {"name": "calico", "kubeProxyReplacement": True}}, spec=K3S, namespace="edge"),
    cluster("k3s-cilium", {"cni": {"name": "cilium", "version": "1.20.102"}}, spec=K3S, namespace="edge"),
    cluster("k3s-cilium-ipv6", {"cni": {"name": "cilium", **IPV6}}, spec=K3S, namespace="edge"),
    cluster(
        "k3s-air-gapped",
        {
            "imageRegistry": "registry.example.com:5000",
            "charts": {"secretName": "charts", "caConfigMapName": "charts-ca"},
            "cni": {"name": "calico", "valuesFrom": [{"secretKeyRef": {"name": "cni", "key": "values.yaml"}}]},
            "ccm": {"valuesFrom": [{"secretKeyRef": {"name": "ccm", "key": "values.yaml"}}]},
            "csi": {"valuesFrom": [{"secretKeyRef": {"name": "csi", "key": "values.yaml"}}]},
        },
        spec=K3S,
        namespace="edge",
    ),
    cluster(
        "kubeadm-air-gapped",
        {
            "imageRegistry": "registry.example.com",
            "cni": {"name": "cilium", "valuesFrom": [{"configMapKeyRef": {"name": "cni", "key": "cni.yaml"}}]},
            "ccm": {"valuesFrom": [{"secretKeyRef": {"name": "ccm", "key": "ccm.yaml"}}]},
            "csi": {"valuesFrom": [{"secretKeyRef": {"name": "csi", "key": "csi.yaml"}}]},
        },
        spec=KUBEADM,
        namespace="upstream",
    ),
    cluster(
        "rke2-air-gapped",
        {
            "imageRegistry": "registry.example.com/mirror",
            "cni": {"name": "canal", "valuesFrom": [{"secretKeyRef": {"name": "cni", "key": "values.yaml"}}]},
            "ccm": {"valuesFrom": [{"secretKeyRef": {"name": "ccm", "key": "values.yaml"}}]},
            "csi": {"valuesFrom": [{"secretKeyRef": {"name": "csi", "key": "values.yaml"}}]},
            "cloudProviderName": "harvester",
        },
    ),
    cluster("rke2-helm-controller", {"charts": {"installedBy": "HelmController", "secretName": "charts"}}),
    cluster("kubeadm-calico", {"cni": {"name": "calico", "version": "v3.32.100"}}, spec=KUBEADM, namespace="upstream"),
    cluster("talos-calico", {"cni": {"name": "calico"}, "fleet": TAKEN}, spec=TALOS, namespace="upstream"),
    cluster(
        "talos-cilium",
        {"cni": {"name": "cilium", "mtu": 1400}},
        spec={**TALOS, "clusterNetwork": DUAL_STACK},
        namespace="upstream",
    ),
]
# An air-gapped site has all charts in one registry.
MIRRORED = [one for one in EXAMPLES if one.key.name in ("plain", "k3s-calico", "k3s-air-gapped", "kubeadm-calico")]
MIRROR = "oci://registry.example.com/charts"
OPTIONS = GitRepoOptions(
    "ssh://git@git.example.com/fleet.git", client_secret_name="git-access", ca_bundle="PEM", folder="add-ons"
)


def rendered(examples: list[ClusterFacts] = EXAMPLES, **options: Any) -> list[Rendered]:
    """The examples as a new repository has them."""
    return Renderer(RenderOptions(**options)).render(examples, {})


def golden_files() -> dict[str, bytes]:
    """Everything that `tests/golden` holds: bundles, GitRepos, and the first boot of each cluster."""
    results = rendered()
    files = {path: content for result in results for path, content in result.tree.items()}
    settings = [result.settings for result in results if result.settings]
    files["gitrepos.yaml"] = yaml.dump_all(git_repos(settings, OPTIONS)).encode()
    for result in results:
        boot = node_files(result)
        content = {
            "serverConfig": dict(boot.server_config),
            "serverFiles": {path: text.decode() for path, text in boot.server_files.items()},
            "agentFiles": {path: text.decode() for path, text in boot.agent_files.items()},
        }
        files[f"first-boot/{result.cluster.name}.yaml"] = yaml.dump(content).encode()
    for result in rendered(MIRRORED, chart_repository=MIRROR):
        files.update({f"mirrored/{path}": content for path, content in result.tree.items()})
    return files


def main() -> None:
    """Write the folder again."""
    if GOLDEN.exists():
        shutil.rmtree(GOLDEN)
    for path, content in golden_files().items():
        file = GOLDEN / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


if __name__ == "__main__":
    main()
