"""Kinds of Harvester and KubeVirt that the simulator serves, and their annotations."""

from __future__ import annotations

from caphv.api import resources
from caphv.api.conditions import current_time
from caphv.api.object import RESOURCE_QUOTAS, STORAGE_CLASSES, Obj, Resource, list_at
from caphv.api.resources import (
    DATA_VOLUMES,
    IMAGES,
    IP_POOLS,
    KEY_PAIRS,
    LOAD_BALANCERS,
    NETWORKS,
    VIRTUAL_MACHINES,
    VM_BACKUPS,
)

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
    "VM_BACKUPS",
]

INSTANCES = resources.VIRTUAL_MACHINE_INSTANCES

# Annotations of VMs. Harvester records in MAC_ADDRESSES the addresses that KubeVirt gave to the
# instance.
CLAIM_TEMPLATES = "harvesterhci.io/volumeClaimTemplates"
REMOVED_CLAIMS = "harvesterhci.io/removedPersistentVolumeClaims"
RUN_STRATEGY = "harvesterhci.io/vmRunStrategy"
INSUFFICIENT_QUOTA = "harvesterhci.io/insufficient-resource-quota"
MAC_ADDRESSES = "harvesterhci.io/mac-address"

# The label of hosts that can pin CPUs.
CPU_MANAGER = "cpumanager"

# The annotation of claims and claim templates with the image of a disk.
IMAGE_ID = "harvesterhci.io/imageId"

# An annotation of an instance. With a new value, the DHCP server gives the guest new addresses.
RENEWAL = "sandbox.caphv.io/renewal"

# Annotations of networks. NETWORK_DHCP is the range of a simulated DHCP server, "<first>-<last>";
# a real Harvester has no DHCP servers of its own.
NETWORK_ROUTE = "network.harvesterhci.io/route"
NETWORK_DHCP = "sandbox.caphv.io/dhcp"

# The labels of networks with their cluster network and type.
NETWORK_GROUP = "network.harvesterhci.io"
NETWORK_CLUSTER_NETWORK = f"{NETWORK_GROUP}/clusternetwork"
NETWORK_TYPE = f"{NETWORK_GROUP}/type"
OVERLAY = "OverlayNetwork"
MANAGED_TAP = "managedtap"
MANAGEMENT_NETWORK = "mgmt"

# The label of the hosts of the management network.
CLUSTER_NETWORK = f"{NETWORK_GROUP}/{MANAGEMENT_NETWORK}"

# Phases of an instance that no longer has a Pod.
ENDED_PHASES = ("Failed", "Succeeded")

# Finalizers of VMs, by KubeVirt, by Harvester, and by Harvester's load balancer controller.
VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"
VM_CLEANUP = "wrangler.cattle.io/VMController.CleanupPVCAndSnapshot"
VM_GUARD = "wrangler.cattle.io/harvester-lb-vm-controller"

# The Deployment of that controller, in namespace `SYSTEM`.
SYSTEM = "harvester-system"
BALANCER_CONTROLLER = "harvester-load-balancer"


def typed(resource: Resource, obj: Obj) -> Obj:
    """Return the object with the `apiVersion` and `kind` of its resource."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def condition(kind: str, status: bool, reason: str = "", message: str = "") -> Obj:
    """Return a condition in KubeVirt's form, without empty fields."""
    entry = {
        "type": kind,
        "status": str(status),
        "lastTransitionTime": current_time(),
        "reason": reason,
        "message": message,
    }
    return {name: value for name, value in entry.items() if value}


def with_condition(obj: Obj, entry: Obj) -> list[Obj]:
    """Return the conditions of an object's status, with `entry` in place of any of its type."""
    conditions = list_at(obj, "status", "conditions")
    return [*(other for other in conditions if other["type"] != entry["type"]), entry]


def finalizers_of(obj: Obj) -> list[str]:
    """Return the finalizers, empty when there are none."""
    return obj["metadata"].get("finalizers") or []


def finalizers_patch(obj: Obj, finalizers: list[str]) -> Obj:
    """Return the patch that sets the finalizers.

    A merge patch replaces the whole list of finalizers. The resourceVersion prevents that the patch
    drops a finalizer that another controller has added meanwhile.
    """
    version = obj["metadata"]["resourceVersion"]
    return {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
