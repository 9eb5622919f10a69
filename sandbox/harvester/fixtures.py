"""The objects that exist on the simulated Harvester from the start: hosts, networks, images, pools."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from caphv.api.object import DEPLOYMENTS, NAMESPACES, NODES, Obj, Resource
from caphv.api.resources import STORAGE_PROFILES
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists
from sandbox import manifests
from sandbox.harvester import ippools, kinds
from sandbox.harvester.config import Host, Image, Network, Pool, SimulatorConfig

CRDS = Path(__file__).parent.parent / "crds"
_HARVESTER = "harvester"
IMAGE_STORAGE_PARAMETERS = {"migratable": "true", "numberOfReplicas": "3"}


def custom_resource_definitions() -> list[Obj]:
    """The CRDs of Harvester, KubeVirt and Multus, from the files in `sandbox/crds`."""
    return manifests.read(sorted(CRDS.glob("*.yaml")))


async def define(client: ApiClient) -> None:
    """Install the CRDs of Harvester."""
    await manifests.apply(client, custom_resource_definitions())


async def seed(client: ApiClient, config: SimulatorConfig) -> None:
    """Create missing objects; existing ones keep the users' changes."""
    await asyncio.gather(*(_ensure(client, NAMESPACES, {"metadata": {"name": name}}) for name in config.namespaces))
    await asyncio.gather(*(_ensure(client, resource, obj) for resource, obj in _objects(config)))
    await client.patch(DEPLOYMENTS, _HARVESTER, kinds.SYSTEM, _AVAILABLE, subresource="status")


_AVAILABLE = {
    "status": {
        "replicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "conditions": [{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}],
    }
}


def _objects(config: SimulatorConfig) -> list[tuple[Resource, Obj]]:
    objects = [(DEPLOYMENTS, _deployment(name)) for name in (_HARVESTER, kinds.BALANCER_CONTROLLER)]
    objects += [(NODES, _node(host)) for host in config.hosts]
    objects += [(kinds.STORAGE_CLASSES, storage_class(name)) for name in config.storage_classes]
    objects += [(STORAGE_PROFILES, storage_profile(name)) for name in config.storage_classes]
    objects += [(kinds.IMAGES, _image(image)) for image in config.images]
    objects += [(kinds.KEY_PAIRS, _key_pair(name)) for name in config.key_pairs]
    objects += [(kinds.NETWORKS, _network(network)) for network in config.networks]
    objects += [(kinds.IP_POOLS, _pool(pool)) for pool in config.pools]
    return objects


async def _ensure(client: ApiClient, resource: Resource, obj: Obj) -> None:
    try:
        await client.create(resource, kinds.typed(resource, obj))
    except AlreadyExists:
        return


def _metadata(qualified: str, **more: Any) -> Obj:
    namespace, _, name = qualified.rpartition("/")
    return {"name": name, **({"namespace": namespace} if namespace else {}), **more}


def _deployment(name: str) -> Obj:
    labels = {"app.kubernetes.io/name": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": name, "image": name}]}}
    return {
        "metadata": {"name": name, "namespace": kinds.SYSTEM},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


def _node(host: Host) -> Obj:
    labels = {"kubernetes.io/hostname": host.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    labels |= {kinds.CLUSTER_NETWORK: "true", "kubevirt.io/schedulable": "true"}
    if host.zone:
        labels["topology.kubernetes.io/zone"] = host.zone
    spec: Obj = {}
    if host.witness:
        # Harvester's pkg/util/constants.go and pkg/installer/config/config.go.
        labels["node-role.harvesterhci.io/witness"] = "true"
        spec["taints"] = [{"key": "node-role.kubernetes.io/etcd", "value": "true", "effect": "NoExecute"}]
    capacity = {"cpu": str(host.cpu), "memory": host.memory, "pods": "200"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": kinds.now()}
    return {
        "metadata": {"name": host.name, "labels": labels},
        "spec": spec,
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]},
    }


def storage_class(name: str) -> Obj:
    """A StorageClass of Longhorn whose volumes can be migrated."""
    return {
        "metadata": {"name": name},
        "provisioner": "driver.longhorn.io",
        "parameters": IMAGE_STORAGE_PARAMETERS,
        "volumeBindingMode": "Immediate",
    }


def storage_profile(name: str) -> Obj:
    """The StorageProfile that CDI has for such a class."""
    modes = [{"accessModes": [mode], "volumeMode": "Block"} for mode in ("ReadWriteMany", "ReadWriteOnce")]
    status = {"storageClass": name, "provisioner": "driver.longhorn.io", "claimPropertySets": modes}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def _image(image: Image) -> Obj:
    url = f"https://images.example.com/{image.display_name}.qcow2"
    spec = {"displayName": image.display_name, "sourceType": "download", "url": url, "backend": "backingimage"}
    return {"metadata": _metadata(image.name), "spec": spec}


def _key_pair(name: str) -> Obj:
    public = Ed25519PrivateKey.generate().public_key()
    text = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    digest = hashlib.sha256(base64.b64decode(text.split()[1])).digest()
    fingerprint = "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    return {"metadata": _metadata(name), "spec": {"publicKey": text}, "status": {"fingerPrint": fingerprint}}


def _network(network: Network) -> Obj:
    route = {"mode": "manual", "cidr": network.cidr, "gateway": network.gateway, "connectivity": "true"}
    annotations = {kinds.NETWORK_ROUTE: json.dumps(route), kinds.NETWORK_DHCP: network.dhcp}
    labels = {kinds.NETWORK_CLUSTER_NETWORK: kinds.MANAGEMENT_NETWORK, kinds.NETWORK_TYPE: "L2VlanNetwork"}
    config = {"cniVersion": "0.3.1", "name": network.name.rpartition("/")[2], "type": "bridge", "bridge": "mgmt-br"}
    metadata = _metadata(network.name, annotations=annotations, labels=labels)
    return {"metadata": metadata, "spec": {"config": json.dumps(config)}}


def _pool(pool: Pool) -> Obj:
    addresses = {"rangeStart": pool.first, "rangeEnd": pool.last, "gateway": pool.gateway}
    spec: Obj = {"ranges": [{"subnet": pool.subnet, **addresses}]}
    if pool.network:
        spec["selector"] = {"network": pool.network}
    status = {"total": ippools.total(spec), "available": ippools.total(spec), "lastAllocated": ""}
    return {"metadata": {"name": pool.name}, "spec": spec, "status": status}
