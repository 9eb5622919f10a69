"""Kinds of Harvester and KubeVirt that the simulator serves, and their annotations."""

from __future__ import annotations

from datetime import UTC, datetime

from caphv.api.object import Obj, Resource

VIRTUAL_MACHINES = Resource("kubevirt.io", "v1", "virtualmachines", "VirtualMachine")
INSTANCES = Resource("kubevirt.io", "v1", "virtualmachineinstances", "VirtualMachineInstance")
IMAGES = Resource("harvesterhci.io", "v1beta1", "virtualmachineimages", "VirtualMachineImage")
KEY_PAIRS = Resource("harvesterhci.io", "v1beta1", "keypairs", "KeyPair")
LOAD_BALANCERS = Resource("loadbalancer.harvesterhci.io", "v1beta1", "loadbalancers", "LoadBalancer")
IP_POOLS = Resource("loadbalancer.harvesterhci.io", "v1beta1", "ippools", "IPPool", namespaced=False)
NETWORKS = Resource("k8s.cni.cncf.io", "v1", "network-attachment-definitions", "NetworkAttachmentDefinition")
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")

CLAIM_TEMPLATES = "harvesterhci.io/volumeClaimTemplates"
REMOVED_CLAIMS = "harvesterhci.io/removedPersistentVolumeClaims"
RUN_STRATEGY = "harvesterhci.io/vmRunStrategy"
IMAGE_ID = "harvesterhci.io/imageId"
NETWORK_ROUTE = "network.harvesterhci.io/route"
# Range of a network's simulated DHCP server, "<first>-<last>"; a real Harvester has no DHCP servers of its own.
NETWORK_DHCP = "sandbox.caphv.io/dhcp"
# On an instance: a new value makes the DHCP server give the guest new addresses.
RENEWAL = "sandbox.caphv.io/renewal"
CLUSTER_NETWORK = "network.harvesterhci.io/mgmt"
VM_FINALIZER = "kubevirt.io/virtualMachineControllerFinalize"


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
