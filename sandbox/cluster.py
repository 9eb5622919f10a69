"""The objects that a user applies to create a cluster in a sandbox.

The Cluster uses a shipped ClusterClass. As for users, everything else follows from its topology.
The core creates the objects. Stand-ins for the providers of RKE2 and K3s, and the real providers of
kubeadm, create control plane machines and bootstrap data.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj
from sandbox.clusterclass import HARVESTER_K3S, HARVESTER_KUBEADM, HARVESTER_RKE2

KUBERNETES_VERSION = "v1.36.3"
# The suffix that each distribution adds to the Kubernetes version.
RELEASES = {HARVESTER_RKE2: "+rke2r1", HARVESTER_K3S: "+k3s1", HARVESTER_KUBEADM: ""}
# The previous patch release, for clusters that will be upgraded.
EARLIER_VERSION = f"v1.36.2{RELEASES[HARVESTER_RKE2]}"
LATER_VERSION = f"{KUBERNETES_VERSION}{RELEASES[HARVESTER_RKE2]}"
CORE_VERSION = "cluster.x-k8s.io/v1beta2"
CLUSTER_LABEL = "cluster.x-k8s.io/cluster-name"
CONTROL_PLANE_LABEL = "cluster.x-k8s.io/control-plane"
IDENTITY = "harvester-identity"
# The namespace in which `up` creates the ClusterClasses.
CLASS_NAMESPACE = "default"
WORKERS = "md-0"
# RKE2 reads this folder at its first start. The file is in the user data of a guest.
CNI_FILE = "/var/lib/rancher/rke2/server/manifests/rke2-calico-config.yaml"
_CNI_CONFIG = """\
apiVersion: helm.cattle.io/v1
kind: HelmChartConfig
metadata: {name: rke2-calico, namespace: kube-system}
spec:
  valuesContent: |-
    installation: {calicoNetwork: {mtu: 1450}}
"""


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster to create.

    `load_balancer` and `machines` name IPPools. Without `machines`, VMs use DHCP.
    """

    name: str = "demo"
    namespace: str = "demo"
    target_namespace: str = "demo"
    control_planes: int = 3
    workers: int = 2
    version: str = EARLIER_VERSION
    cluster_class: str = HARVESTER_RKE2
    load_balancer: str = "load-balancers"
    machines: Sequence[str] = ("machines-a", "machines-b")
    gateway: str = ""
    mask: str = "255.255.128.0"
    networks: Sequence[str] = ("default/production",)
    image: str = "default/sles-15"
    storage_class: str = "harvester-longhorn"
    ssh_key_pair: str = "default/caphv"
    class_namespace: str = CLASS_NAMESPACE
    unhealthy_seconds: int = 2
    # Further variables of the class.
    variables: Mapping[str, Any] = field(default_factory=dict)


def manifest(spec: ClusterSpec) -> Obj:
    """Build the Cluster."""
    return {
        "apiVersion": CORE_VERSION,
        "kind": "Cluster",
        "metadata": {"name": spec.name, "namespace": spec.namespace},
        "spec": {
            "clusterNetwork": {"pods": {"cidrBlocks": ["10.52.0.0/16"]}},
            "topology": topology(spec),
        },
    }


def identity(spec: ClusterSpec, harvester_kubeconfig: bytes) -> list[Obj]:
    """Build the namespace and its identity Secret for Harvester."""
    encoded = base64.b64encode(harvester_kubeconfig).decode()
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": spec.namespace}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": IDENTITY, "namespace": spec.namespace},
            "data": {"kubeconfig": encoded},
        },
    ]


def definition(spec: ClusterSpec, mtu: int) -> Obj:
    """Build the cluster as a ClusterDefinition, whose machines use IPPools.

    `mtu` is the MTU of the Pod network.
    """
    machines = {
        "image": "default/sles-15",
        "cpu": 2,
        "diskSize": "40Gi",
        "extraDisks": [{"size": "10Gi", "storageClass": "harvester-longhorn"}],
        "sshKeyPair": "default/caphv",
        "networks": list(spec.networks),
    }
    addresses = {
        "ipPoolRefs": list(spec.machines),
        "gateway": spec.gateway,
        "subnetMask": spec.mask,
        "dnsServers": [spec.gateway],
    }
    health_check = {
        "unhealthyTimeoutSeconds": spec.unhealthy_seconds,
        "unhealthyLessThanOrEqualTo": 1,
    }

    return {
        "apiVersion": "caphv.io/v1alpha1",
        "kind": "ClusterDefinition",
        "metadata": {"name": spec.name, "namespace": spec.namespace},
        "spec": {
            "kubernetesVersion": spec.version,
            "rancherAutoImport": False,
            "identitySecret": {"name": IDENTITY},
            "targetNamespace": spec.target_namespace,
            "controlPlane": {"replicas": spec.control_planes},
            "workers": [{"name": "workers", "replicas": spec.workers}],
            "machines": machines,
            "addresses": addresses,
            "loadBalancer": {"ipamType": "pool", "ipPoolRef": spec.load_balancer},
            "clusterNetwork": {"podCIDRs": ["10.52.0.0/16"]},
            "healthCheck": health_check,
            "addons": {"cni": {"mtu": mtu}},
        },
    }


def topology(spec: ClusterSpec) -> Obj:
    """Build the topology of the Cluster."""
    # The class's default waits for minutes before it replaces an unhealthy machine.
    health_check = {
        "checks": {
            "unhealthyNodeConditions": [
                {"type": "Ready", "status": status, "timeoutSeconds": spec.unhealthy_seconds}
                for status in ("False", "Unknown")
            ]
        },
        "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": 1}},
    }
    deployment = {
        "class": "default-worker",
        "name": WORKERS,
        "replicas": spec.workers,
        "healthCheck": health_check,
    }

    return {
        "classRef": {"name": spec.cluster_class, "namespace": spec.class_namespace},
        "version": spec.version,
        "controlPlane": {"replicas": spec.control_planes, "healthCheck": health_check},
        "workers": {"machineDeployments": [deployment]},
        "variables": [{"name": name, "value": value} for name, value in variables(spec).items()],
    }


def variables(spec: ClusterSpec) -> dict[str, Any]:
    """Return the class's variables, for machines with two disks and an address by pool or DHCP."""
    values: dict[str, Any] = {
        "identitySecretName": IDENTITY,
        "targetNamespace": spec.target_namespace,
        "vmNetworks": list(spec.networks),
        "sshKeyPair": spec.ssh_key_pair,
        "cpuCount": 2,
        "volumes": [
            {"volumeType": "image", "imageName": spec.image, "volumeSize": "40Gi", "bootOrder": 1},
            {
                "volumeType": "storageClass",
                "storageClass": spec.storage_class,
                "volumeSize": "10Gi",
            },
        ],
        "controlPlaneFiles": [{"path": CNI_FILE, "content": _CNI_CONFIG}],
    }

    if spec.load_balancer:
        values["loadBalancer"] = {"ipamType": "pool", "ipPoolRef": spec.load_balancer}

    if spec.machines:
        values |= {"gateway": spec.gateway, "subnetMask": spec.mask, "dnsServers": [spec.gateway]}
        values["ipPoolRefs"] = list(spec.machines)

    return values | dict(spec.variables)
