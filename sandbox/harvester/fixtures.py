"""What stands on the simulated Harvester before anybody asks it for something: hosts, networks, images, pools.

All addresses of the guests lie in one loopback network (127.<n>.0.0/16), so that real TCP listeners stand on them and
two sandboxes with different networks never meet.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from caphv.api.object import DEPLOYMENTS, NAMESPACES, NODES, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists
from sandbox import manifests
from sandbox.harvester import ippools, kinds

CRDS = Path(__file__).parent.parent / "crds"
IMAGE_STORAGE_PARAMETERS = {"migratable": "true", "numberOfReplicas": "3"}


@dataclass(frozen=True, slots=True)
class Host:
    """A physical host; `memory` is a Kubernetes quantity, `zone` may be empty."""

    name: str
    zone: str = ""
    cpu: int = 64
    memory: str = "1Ti"


@dataclass(frozen=True, slots=True)
class Network:
    """A VM network `<namespace>/<name>`; the simulated DHCP server gives addresses from `dhcp`, `<first>-<last>`."""

    name: str
    cidr: str
    gateway: str
    dhcp: str


@dataclass(frozen=True, slots=True)
class Image:
    """A VM image `<namespace>/<name>`; its storage class is `longhorn-<name>`."""

    name: str
    display_name: str


@dataclass(frozen=True, slots=True)
class Pool:
    """An IPPool with one range; `network` is the VM network that it serves, empty for all."""

    name: str
    subnet: str
    first: str
    last: str
    gateway: str
    network: str = ""


@dataclass(frozen=True, slots=True)
class World:
    """Settings of the simulation; all times in seconds, `boot_spread` as a part of `boot_seconds`.

    A VM starts for `start_seconds` until its instance runs, boots for `boot_seconds` until the guest agent answers, and
    registers its Node `register_seconds` later. It stops within `stop_seconds`. `node_lost_seconds` after the end of a
    guest its Node's state is unknown. Between the release of a duplicate address and its new reservation by the load
    balancer controller lie `takeover_seconds`.
    """

    network: str = "127.64.0.0/16"
    start_seconds: float = 0.2
    boot_seconds: float = 2.0
    boot_spread: float = 0.25
    register_seconds: float = 1.0
    stop_seconds: float = 0.5
    node_lost_seconds: float = 1.0
    takeover_seconds: float = 0.1
    cpu_overcommit: int = 1600
    memory_overcommit: int = 150
    namespaces: tuple[str, ...] = ("default", "harvester-public", "harvester-system")
    storage_classes: tuple[str, ...] = ("harvester-longhorn",)
    key_pairs: tuple[str, ...] = ("default/caphv",)
    hosts: tuple[Host, ...] = field(default=())
    networks: tuple[Network, ...] = field(default=())
    images: tuple[Image, ...] = (Image("default/sles-15", "sles-15"),)
    pools: tuple[Pool, ...] = field(default=())

    @classmethod
    def from_settings(cls, network: str, settings: Mapping[str, Any] | None = None) -> World:
        """A world in a loopback network; `settings` replace fields by name, lists of mappings for the structured ones.

        Raises ValueError that names a setting which is unknown or not a loopback network.
        """
        prefix = network.removesuffix(".0.0/16")
        if not ipaddress.ip_network(network).is_loopback or prefix == network:
            raise ValueError(f"network: {network} is not of the form 127.<n>.0.0/16")
        standard = cls(
            network=network,
            hosts=tuple(Host(f"harvester-{n}", f"zone-{n}") for n in (1, 2, 3)),
            networks=(
                Network("default/production", f"{prefix}.0.0/17", f"{prefix}.0.1", f"{prefix}.32.1-{prefix}.47.254"),
                Network("default/storage", f"{prefix}.128.0/17", f"{prefix}.128.1", f"{prefix}.160.1-{prefix}.175.254"),
            ),
            pools=tuple(
                Pool(name, f"{prefix}.0.0/17", f"{prefix}.{first}", f"{prefix}.{last}", f"{prefix}.0.1")
                for name, first, last in (
                    ("machines-a", "8.1", "8.4"),
                    ("machines-b", "9.1", "9.254"),
                    ("load-balancers", "10.1", "10.254"),
                    ("machines-large", "16.1", "31.254"),
                )
            ),
        )
        return replace(standard, **{name: _setting(name, value) for name, value in (settings or {}).items()})


_STRUCTURED: dict[str, Callable[..., Any]] = {"hosts": Host, "networks": Network, "images": Image, "pools": Pool}


def _setting(name: str, value: Any) -> Any:
    if name not in {item.name for item in fields(World)}:
        raise ValueError(f"{name}: not a setting of the sandbox; see docs/sandbox.md")
    if name in _STRUCTURED:
        return tuple(_STRUCTURED[name](**entry) for entry in value)
    return tuple(value) if isinstance(value, list) else value


def custom_resource_definitions() -> list[Obj]:
    """The CRDs of Harvester, KubeVirt and Multus, from the files in `sandbox/crds`."""
    return manifests.read(sorted(CRDS.glob("*.yaml")))


async def define(client: ApiClient) -> None:
    """Have the API server serve the kinds of Harvester."""
    await manifests.apply(client, custom_resource_definitions())


async def seed(client: ApiClient, world: World) -> None:
    """Create what is not there yet; what is there stays as users changed it."""
    await asyncio.gather(*(_ensure(client, NAMESPACES, {"metadata": {"name": name}}) for name in world.namespaces))
    await asyncio.gather(*(_ensure(client, resource, obj) for resource, obj in _objects(world)))
    await client.patch(DEPLOYMENTS, "harvester", "harvester-system", _AVAILABLE, subresource="status")


_AVAILABLE = {
    "status": {
        "replicas": 1,
        "readyReplicas": 1,
        "availableReplicas": 1,
        "conditions": [{"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}],
    }
}


def _objects(world: World) -> list[tuple[Resource, Obj]]:
    objects = [(DEPLOYMENTS, _deployment())]
    objects += [(NODES, _node(host)) for host in world.hosts]
    objects += [(kinds.STORAGE_CLASSES, _storage_class(name)) for name in world.storage_classes]
    objects += [(kinds.STORAGE_CLASSES, _storage_class(_image_class(image))) for image in world.images]
    objects += [(kinds.IMAGES, _image(image)) for image in world.images]
    objects += [(kinds.KEY_PAIRS, _key_pair(name)) for name in world.key_pairs]
    objects += [(kinds.NETWORKS, _network(network)) for network in world.networks]
    objects += [(kinds.IP_POOLS, _pool(pool)) for pool in world.pools]
    return objects


async def _ensure(client: ApiClient, resource: Resource, obj: Obj) -> None:
    try:
        await client.create(resource, kinds.typed(resource, obj))
    except AlreadyExists:
        return


def _metadata(qualified: str, **more: Any) -> Obj:
    namespace, _, name = qualified.rpartition("/")
    return {"name": name, **({"namespace": namespace} if namespace else {}), **more}


def _deployment() -> Obj:
    labels = {"app.kubernetes.io/name": "harvester"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "harvester", "image": "harvester"}]}}
    return {
        "metadata": _metadata("harvester-system/harvester"),
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }


def _node(host: Host) -> Obj:
    labels = {"kubernetes.io/hostname": host.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    labels |= {kinds.CLUSTER_NETWORK: "true", "kubevirt.io/schedulable": "true"}
    if host.zone:
        labels["topology.kubernetes.io/zone"] = host.zone
    capacity = {"cpu": str(host.cpu), "memory": host.memory, "pods": "200"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": kinds.now()}
    return {
        "metadata": {"name": host.name, "labels": labels},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]},
    }


def _storage_class(name: str) -> Obj:
    return {
        "metadata": {"name": name},
        "provisioner": "driver.longhorn.io",
        "parameters": IMAGE_STORAGE_PARAMETERS,
        "volumeBindingMode": "Immediate",
    }


def _image_class(image: Image) -> str:
    return f"longhorn-{image.name.rpartition('/')[2]}"


def _image(image: Image) -> Obj:
    imported = {"type": "Imported", "status": "True"}
    return {
        "metadata": _metadata(image.name),
        "spec": {"displayName": image.display_name, "sourceType": "upload"},
        "status": {"storageClassName": _image_class(image), "progress": 100, "conditions": [imported]},
    }


def _key_pair(name: str) -> Obj:
    public = Ed25519PrivateKey.generate().public_key()
    text = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    digest = hashlib.sha256(base64.b64decode(text.split()[1])).digest()
    fingerprint = "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    return {"metadata": _metadata(name), "spec": {"publicKey": text}, "status": {"fingerPrint": fingerprint}}


def _network(network: Network) -> Obj:
    route = {"mode": "manual", "cidr": network.cidr, "gateway": network.gateway, "connectivity": "true"}
    annotations = {kinds.NETWORK_ROUTE: json.dumps(route), kinds.NETWORK_DHCP: network.dhcp}
    config = {"cniVersion": "0.3.1", "name": network.name.rpartition("/")[2], "type": "bridge", "bridge": "mgmt-br"}
    return {"metadata": _metadata(network.name, annotations=annotations), "spec": {"config": json.dumps(config)}}


def _pool(pool: Pool) -> Obj:
    addresses = {"rangeStart": pool.first, "rangeEnd": pool.last, "gateway": pool.gateway}
    spec: Obj = {"ranges": [{"subnet": pool.subnet, **addresses}]}
    if pool.network:
        spec["selector"] = {"network": pool.network}
    status = {"total": ippools.total(spec), "available": ippools.total(spec), "lastAllocated": ""}
    return {"metadata": {"name": pool.name}, "spec": spec, "status": status}
