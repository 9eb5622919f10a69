"""The objects that somebody applies to get a cluster in a sandbox, as a user of the management cluster writes them.

There is no control plane provider in a sandbox, so the user does what Cluster API documents for that case: control
plane Machines stand alone, bootstrap data is named in the Machines, and the CA of the cluster is brought along in the
Secret `<cluster>-ca`, from which the core makes the kubeconfig.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from caphv.runtime.resource import Obj
from sandbox import pki
from sandbox.join import CA_FILES, CONTROL_PLANE, JOIN_FILE, WORKER

KUBERNETES_VERSION = "v1.36.3"
CORE_VERSION = "cluster.x-k8s.io/v1beta2"
INFRASTRUCTURE_VERSION = "infrastructure.cluster.x-k8s.io/v1beta1"
CLUSTER_LABEL = "cluster.x-k8s.io/cluster-name"
CONTROL_PLANE_LABEL = "cluster.x-k8s.io/control-plane"
IDENTITY = "harvester-identity"


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster to build. `load_balancer` and `machines` name IPPools; without `machines` VMs ask DHCP."""

    name: str = "demo"
    namespace: str = "demo"
    target_namespace: str = "demo"
    control_planes: int = 3
    workers: int = 2
    zones: Sequence[str] = ("zone-1", "zone-2", "zone-3")
    load_balancer: str = "load-balancers"
    machines: Sequence[str] = ("machines-a", "machines-b")
    gateway: str = ""
    mask: str = "255.255.128.0"
    networks: Sequence[str] = ("default/production",)
    node_startup_seconds: int = 120
    unhealthy_seconds: int = 2
    authority: pki.CA = field(default_factory=lambda: pki.CA.create("demo"), repr=False)
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


def infrastructure(spec: ClusterSpec, harvester_kubeconfig: bytes) -> list[Obj]:
    """Namespace, identity, CA, Cluster and HarvesterCluster: what the endpoint of the control plane needs."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": spec.namespace}},
        _secret(spec, IDENTITY, {"kubeconfig": harvester_kubeconfig}),
        _secret(
            spec,
            f"{spec.name}-ca",
            {"tls.crt": spec.authority.certificate, "tls.key": spec.authority.pair.key},
            cluster_secret=True,
        ),
        {
            "apiVersion": INFRASTRUCTURE_VERSION,
            "kind": "HarvesterCluster",
            "metadata": _metadata(spec, spec.name),
            "spec": harvester_cluster_spec(spec),
        },
        {
            "apiVersion": CORE_VERSION,
            "kind": "Cluster",
            "metadata": _metadata(spec, spec.name),
            "spec": {
                "clusterNetwork": {"pods": {"cidrBlocks": ["10.52.0.0/16"]}},
                "infrastructureRef": _reference("HarvesterCluster", spec.name),
            },
        },
    ]


def machines(spec: ClusterSpec, endpoint: str) -> list[Obj]:
    """Bootstrap data, control plane Machines, a MachineDeployment and its MachineHealthCheck."""
    objects = [_bootstrap(spec, CONTROL_PLANE, endpoint), _bootstrap(spec, WORKER, endpoint)]
    for number in range(spec.control_planes):
        objects += control_plane_machine(spec, number)
    return [*objects, _template(spec), machine_deployment(spec), _health_check(spec)]


def harvester_cluster_spec(spec: ClusterSpec) -> Obj:
    """Spec of the HarvesterCluster."""
    balancer: Obj = (
        {"ipamType": "pool", "ipPoolRef": spec.load_balancer} if spec.load_balancer else {"ipamType": "dhcp"}
    )
    found: Obj = {
        "targetNamespace": spec.target_namespace,
        "identitySecret": {"name": IDENTITY, "namespace": spec.namespace},
        "loadBalancerConfig": balancer,
    }
    if spec.machines:
        found["vmNetworkConfig"] = {
            "gateway": spec.gateway,
            "subnetMask": spec.mask,
            "ipPoolRefs": list(spec.machines),
            "dnsServers": [spec.gateway],
        }
    return found


def harvester_machine_spec(spec: ClusterSpec) -> Obj:
    """Spec of a HarvesterMachine with a boot disk and a data disk."""
    return {
        "cpu": 2,
        "memory": "4Gi",
        "sshUser": "sles",
        "sshKeyPair": "default/caphv",
        "networks": list(spec.networks),
        "volumes": [
            {"volumeType": "image", "imageName": "default/sles-15", "volumeSize": "40Gi", "bootOrder": 1},
            {"volumeType": "storageClass", "storageClass": "harvester-longhorn", "volumeSize": "10Gi"},
        ],
    }


def control_plane_machine(spec: ClusterSpec, number: int) -> list[Obj]:
    """A Machine of the control plane and its HarvesterMachine; the zones take turns."""
    name = f"{spec.name}-cp-{number}"
    labels = {CLUSTER_LABEL: spec.name, CONTROL_PLANE_LABEL: ""}
    machine: Obj = {
        "apiVersion": CORE_VERSION,
        "kind": "Machine",
        "metadata": {**_metadata(spec, name), "labels": labels},
        "spec": {
            "clusterName": spec.name,
            "version": KUBERNETES_VERSION,
            "bootstrap": {"dataSecretName": bootstrap_name(spec, CONTROL_PLANE)},
            "infrastructureRef": _reference("HarvesterMachine", name),
        },
    }
    if spec.zones:
        machine["spec"]["failureDomain"] = spec.zones[number % len(spec.zones)]
    return [
        {
            "apiVersion": INFRASTRUCTURE_VERSION,
            "kind": "HarvesterMachine",
            "metadata": {**_metadata(spec, name), "labels": labels},
            "spec": harvester_machine_spec(spec),
        },
        machine,
    ]


def machine_deployment(spec: ClusterSpec) -> Obj:
    """The workers; their order of deletion and replacement is the core's."""
    selector = {"cluster.x-k8s.io/deployment-name": f"{spec.name}-workers"}
    return {
        "apiVersion": CORE_VERSION,
        "kind": "MachineDeployment",
        "metadata": {**_metadata(spec, f"{spec.name}-workers"), "labels": {CLUSTER_LABEL: spec.name}},
        "spec": {
            "clusterName": spec.name,
            "replicas": spec.workers,
            "selector": {"matchLabels": selector},
            "template": {
                "metadata": {"labels": {CLUSTER_LABEL: spec.name, **selector}},
                "spec": {
                    "clusterName": spec.name,
                    "version": KUBERNETES_VERSION,
                    "bootstrap": {"dataSecretName": bootstrap_name(spec, WORKER)},
                    "infrastructureRef": _reference("HarvesterMachineTemplate", f"{spec.name}-workers"),
                },
            },
        },
    }


def bootstrap_name(spec: ClusterSpec, role: str) -> str:
    """Name of the Secret with the bootstrap data of a role."""
    return f"{spec.name}-{role}-bootstrap"


def bootstrap_data(spec: ClusterSpec, role: str, endpoint: str) -> str:
    """cloud-config that joins a guest: see `docs/sandbox.md` for the file it leaves in the guest."""
    certificate = spec.authority.certificate.decode()
    join = {
        "role": role,
        "server": endpoint,
        "token": spec.token,
        "ca": certificate,
        "version": KUBERNETES_VERSION,
        "cni": True,
    }
    files: list[Obj] = [{"path": JOIN_FILE, "permissions": "0600", "content": yaml.safe_dump(join)}]
    if role == CONTROL_PLANE:
        contents = (certificate, spec.authority.pair.key.decode())
        files += [
            {"path": path, "permissions": "0600", "content": content}
            for path, content in zip(CA_FILES, contents, strict=True)
        ]
    return "#cloud-config\n" + yaml.safe_dump({"write_files": files, "runcmd": ["caphv-sandbox-join"]})


def _bootstrap(spec: ClusterSpec, role: str, endpoint: str) -> Obj:
    data = bootstrap_data(spec, role, endpoint).encode()
    return _secret(spec, bootstrap_name(spec, role), {"value": data, "format": b"cloud-config"}, cluster_secret=True)


def _template(spec: ClusterSpec) -> Obj:
    return {
        "apiVersion": INFRASTRUCTURE_VERSION,
        "kind": "HarvesterMachineTemplate",
        "metadata": _metadata(spec, f"{spec.name}-workers"),
        "spec": {"template": {"spec": harvester_machine_spec(spec)}},
    }


def _health_check(spec: ClusterSpec) -> Obj:
    return {
        "apiVersion": CORE_VERSION,
        "kind": "MachineHealthCheck",
        "metadata": _metadata(spec, f"{spec.name}-workers"),
        "spec": {
            "clusterName": spec.name,
            "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": f"{spec.name}-workers"}},
            "checks": {
                "nodeStartupTimeoutSeconds": spec.node_startup_seconds,
                "unhealthyNodeConditions": [
                    {"type": "Ready", "status": status, "timeoutSeconds": spec.unhealthy_seconds}
                    for status in ("False", "Unknown")
                ],
            },
        },
    }


def _secret(spec: ClusterSpec, name: str, data: dict[str, bytes], *, cluster_secret: bool = False) -> Obj:
    metadata = _metadata(spec, name)
    kind = "Opaque"
    if cluster_secret:
        metadata["labels"] = {CLUSTER_LABEL: spec.name}
        kind = "cluster.x-k8s.io/secret"
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata, "data": encoded}


def _metadata(spec: ClusterSpec, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": spec.namespace}


def _reference(kind: str, name: str) -> Obj:
    return {"apiGroup": INFRASTRUCTURE_VERSION.partition("/")[0], "kind": kind, "name": name}
