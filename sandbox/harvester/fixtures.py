"""The objects on the simulated Harvester from the start: hosts, networks, images, pools."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from caphv.api.conditions import current_time
from caphv.api.object import DEPLOYMENTS, NAMESPACES, NODES, Obj, Resource
from caphv.api.resources import STORAGE_PROFILES
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, Invalid, NotFound
from sandbox import manifests
from sandbox.harvester import ippools, kinds
from sandbox.harvester.config import Host, Image, Network, Pool, SimulatorConfig

log = logging.getLogger(__name__)

CRDS = Path(__file__).parent.parent / "crds"
IMAGE_STORAGE_PARAMETERS = {"migratable": "true", "numberOfReplicas": "3"}
_HARVESTER = "harvester"


def custom_resource_definitions() -> list[Obj]:
    """Return the CRDs of Harvester, KubeVirt and Multus, from the files in `sandbox/crds`."""
    return manifests.read(sorted(CRDS.glob("*.yaml")))


async def define(client: ApiClient) -> None:
    """Install the CRDs of Harvester."""
    await manifests.apply(client, custom_resource_definitions())


async def seed(client: ApiClient, config: SimulatorConfig) -> None:
    """Create missing objects. Existing objects keep the users' changes.

    Raise Invalid for a refused object at the first start, when only a setting can be wrong. Later,
    objects of users may be in its place, such as another pool with its addresses.
    """
    is_first = await _is_missing(client, DEPLOYMENTS, _deployment(_HARVESTER, ""))

    async def ensure(resource: Resource, obj: Obj) -> None:
        if not await _is_missing(client, resource, obj):
            return
        try:
            await client.create(resource, kinds.typed(resource, obj))
        except AlreadyExists:
            return  # the API server creates namespace `default` itself
        except Invalid as error:
            if is_first:
                raise
            log.warning("%s %s is missing: %s", resource.kind, obj["metadata"]["name"], error)

    namespaces = [{"metadata": {"name": name}} for name in config.namespaces]
    await asyncio.gather(*(ensure(NAMESPACES, obj) for obj in namespaces))
    await asyncio.gather(*(ensure(resource, obj) for resource, obj in _objects(config)))

    # Report Harvester's own Deployment as available, because the provider reads that and nothing
    # runs the Deployment here.
    available = {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}
    status = {
        "replicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "conditions": [available],
    }
    await client.patch(
        DEPLOYMENTS, _HARVESTER, kinds.SYSTEM, {"status": status}, subresource="status"
    )


def storage_class(name: str) -> Obj:
    """Return a StorageClass of Longhorn whose volumes can be migrated."""
    return {
        "metadata": {"name": name},
        "provisioner": "driver.longhorn.io",
        "parameters": IMAGE_STORAGE_PARAMETERS,
        "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": True,
    }


def storage_profile(name: str) -> Obj:
    """Return the StorageProfile that CDI has for such a class."""
    # CDI fills claims with the modes that come first.
    modes = [
        {"accessModes": [mode], "volumeMode": "Block"}
        for mode in ("ReadWriteMany", "ReadWriteOnce")
    ]
    status = {
        "storageClass": name,
        "provisioner": "driver.longhorn.io",
        "claimPropertySets": modes,
    }
    return {"metadata": {"name": name}, "spec": {}, "status": status}


async def _is_missing(client: ApiClient, resource: Resource, obj: Obj) -> bool:
    # Webhooks may refuse the creation of an object that exists, because of other objects.
    try:
        await client.get(resource, obj["metadata"]["name"], obj["metadata"].get("namespace", ""))
    except NotFound:
        return True
    return False


def _objects(config: SimulatorConfig) -> list[tuple[Resource, Obj]]:
    return [
        (DEPLOYMENTS, _deployment(_HARVESTER, f"rancher/harvester:v{config.harvester}")),
        (DEPLOYMENTS, _deployment(kinds.BALANCER_CONTROLLER, kinds.BALANCER_CONTROLLER)),
        *((NODES, _node(host)) for host in config.hosts),
        *((kinds.STORAGE_CLASSES, storage_class(name)) for name in config.storage_classes),
        *((STORAGE_PROFILES, storage_profile(name)) for name in config.storage_classes),
        *((kinds.IMAGES, _image(image)) for image in config.images),
        *((kinds.KEY_PAIRS, _key_pair(name)) for name in config.key_pairs),
        *((kinds.NETWORKS, _network(network)) for network in config.networks),
        *((kinds.IP_POOLS, _pool(pool)) for pool in config.pools),
    ]


def _metadata(qualified: str) -> Obj:
    namespace, _, name = qualified.rpartition("/")
    return {"name": name, "namespace": namespace} if namespace else {"name": name}


def _deployment(name: str, image: str) -> Obj:
    labels = {"app.kubernetes.io/name": name}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": name, "image": image}]},
    }
    return {
        "metadata": {"name": name, "namespace": kinds.SYSTEM},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


def _node(host: Host) -> Obj:
    labels = {
        "kubernetes.io/hostname": host.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        kinds.CLUSTER_NETWORK: "true",
        "kubevirt.io/schedulable": "true",
    }
    if host.zone:
        labels["topology.kubernetes.io/zone"] = host.zone

    spec: Obj = {}
    if host.witness:
        # Modelled after Harvester's pkg/util/constants.go and pkg/installer/config/config.go.
        labels["node-role.harvesterhci.io/witness"] = "true"
        spec["taints"] = [
            {"key": "node-role.kubernetes.io/etcd", "value": "true", "effect": "NoExecute"}
        ]

    devices = {name: str(amount) for name, amount in host.devices.items()}
    capacity = {"cpu": str(host.cpu), "memory": host.memory, "pods": "200", **devices}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "lastTransitionTime": current_time(),
    }
    return {
        "metadata": {"name": host.name, "labels": labels},
        "spec": spec,
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]},
    }


def _image(image: Image) -> Obj:
    spec = {
        "displayName": image.display_name,
        "sourceType": "download",
        "url": f"https://images.example.com/{image.display_name}.qcow2",
        "backend": "backingimage",
    }
    return {"metadata": _metadata(image.name), "spec": spec}


def _key_pair(name: str) -> Obj:
    public_key = (
        Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        .decode()
    )
    # `ssh-keygen -l` prints a fingerprint in this form.
    digest = hashlib.sha256(base64.b64decode(public_key.split()[1])).digest()
    fingerprint = "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    return {
        "metadata": _metadata(name),
        "spec": {"publicKey": public_key},
        "status": {"fingerPrint": fingerprint},
    }


def _network(network: Network) -> Obj:
    metadata = _metadata(network.name)

    route = {
        "mode": "manual",
        "cidr": network.cidr,
        "gateway": network.gateway,
        "connectivity": "true",
    }
    metadata["annotations"] = {
        kinds.NETWORK_ROUTE: json.dumps(route),
        kinds.NETWORK_DHCP: network.dhcp,
    }
    metadata["labels"] = {
        kinds.NETWORK_CLUSTER_NETWORK: kinds.MANAGEMENT_NETWORK,
        kinds.NETWORK_TYPE: "L2VlanNetwork",
    }

    # CNI configurations are JSON in a string.
    config = {
        "cniVersion": "0.3.1",
        "name": metadata["name"],
        "type": "bridge",
        "bridge": "mgmt-br",
    }
    return {"metadata": metadata, "spec": {"config": json.dumps(config)}}


def _pool(pool: Pool) -> Obj:
    addresses = {"rangeStart": pool.first, "rangeEnd": pool.last, "gateway": pool.gateway}
    spec: Obj = {"ranges": [{"subnet": pool.subnet, **addresses}]}
    if pool.network:
        spec["selector"] = {"network": pool.network}

    # IPPools have no subresource `status`, so the API server keeps the status at the creation.
    total = ippools.total(spec)
    status = {"total": total, "available": total, "lastAllocated": ""}
    return {"metadata": {"name": pool.name}, "spec": spec, "status": status}
