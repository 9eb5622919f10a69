"""Kinds of Harvester and KubeVirt that the simulator serves, and their annotations."""

from __future__ import annotations

from datetime import UTC, datetime

from caphv.api import resources
from caphv.api.object import RESOURCE_QUOTAS, STORAGE_CLASSES, Obj, Resource
from caphv.api.resources import DATA_VOLUMES, IMAGES, IP_POOLS, KEY_PAIRS, LOAD_BALANCERS, NETWORKS, VIRTUAL_MACHINES

__all__ = [
    "DATA_VOLUMES",
    "IMAGES",
    "INSTANCES",
    "IP_POOLS",
    "KEY_PAIRS",
    "LOAD_BALANCERS",
    "NETWORKS",
    "RESOURCE_QUOTAS",
    "STORAGE_CLASSES",
    "VIRTUAL_MACHINES",
]

INSTANCES = resources.VIRTUAL_MACHINE_INSTANCES
CLAIM_TEMPLATES = "harvesterhci.io/volumeClaimTemplates"
REMOVED_CLAIMS = "harvesterhci.io/removedPersistentVolumeClaims"
RUN_STRATEGY = "harvesterhci.io/vmRunStrategy"
INSUFFICIENT_QUOTA = "harvesterhci.io/insufficient-resource-quota"
IMAGE_ID = "harvesterhci.io/imageId"
NETWORK_ROUTE = "network.harvesterhci.io/route"
# Range of a network's simulated DHCP server, "<first>-<last>"; a real Harvester has no DHCP servers of its own.
NETWORK_DHCP = "sandbox.caphv.io/dhcp"
# On an instance: a new value makes the DHCP server give the guest new addresses.
RENEWAL = "sandbox.caphv.io/renewal"
MAC_ADDRESSES = "harvesterhci.io/mac-address"
NETWORK_GROUP = "network.harvesterhci.io"
# Labels of a network: its cluster network, and its type.
NETWORK_CLUSTER_NETWORK, NETWORK_TYPE = f"{NETWORK_GROUP}/clusternetwork", f"{NETWORK_GROUP}/type"
OVERLAY = "OverlayNetwork"
MANAGED_TAP = "managedtap"
MANAGEMENT_NETWORK = "mgmt"
# Label of the hosts of the management network.
CLUSTER_NETWORK = f"{NETWORK_GROUP}/{MANAGEMENT_NETWORK}"
VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
# Of Harvester's load balancer controller.
VM_GUARD = "wrangler.cattle.io/harvester-lb-vm-controller"
# The Deployment of that controller, in `SYSTEM`.
SYSTEM, BALANCER_CONTROLLER = "harvester-system", "harvester-load-balancer"


def typed(resource: Resource, obj: Obj) -> Obj:
    """The object with the `apiVersion` and `kind` of its resource."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def now() -> str:
    """The current time in the API's format."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: bool, reason: str = "", message: str = "") -> Obj:
    """A condition in KubeVirt's form, without empty fields."""
    entry = {"type": kind, "status": str(status), "lastTransitionTime": now(), "reason": reason, "message": message}
    return {name: value for name, value in entry.items() if value}


def with_condition(obj: Obj, entry: Obj) -> list[Obj]:
    """The conditions of an object's status, with this one replacing the one of its type."""
    others = [c for c in obj.get("status", {}).get("conditions") or () if c["type"] != entry["type"]]
    return [*others, entry]
