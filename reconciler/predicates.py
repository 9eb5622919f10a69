"""Decide which changes of an object matter, by the fields that reconciles read."""

from __future__ import annotations

from collections.abc import Callable, ItemsView

from caphv.api import clusterapi, conditions, ippool, names
from caphv.api.guestparts import hotplugged_claims, used_claims
from caphv.api.hosts import accepts_machines
from caphv.api.names import ConditionType
from caphv.api.object import (
    Obj,
    annotations_of,
    at,
    being_deleted,
    labels_of,
    list_at,
    uid_of,
)
from caphv.runtime.cache import Change
from reconciler.machine.guestlabels import VM_LABELS
from reconciler.machine.images import PROGRESS_STEP
from reconciler.machine.node import initialization
from reconciler.machine.vmstatus import is_agent_connected, is_paused
from reconciler.machinetemplate.controller import ARCHITECTURE

Fields = list[object]
"""The values of the fields that matter, in a fixed order. They are compared, and never read."""

_METADATA = (
    "generation",
    "deletionTimestamp",
    "finalizers",
    "ownerReferences",
    "annotations",
    "labels",
)


def differs(change: Change, fields: Callable[[Obj], object]) -> bool:
    """Return whether an object appeared, was deleted, or has changed in fields that matter."""
    return change.old is None or change.new is None or fields(change.old) != fields(change.new)


def image_fields(image: Obj) -> Fields:
    """Return the fields of a VirtualMachineImage that machines and clusters read.

    Harvester writes the progress of an import in steps of 1 %, and conditions report each tenth.
    """
    status = dict(image.get("status") or {})
    if isinstance(progress := status.pop("progress", None), int):
        status["progress"] = progress // PROGRESS_STEP
    deleted = image["metadata"].get("deletionTimestamp")
    return [image["metadata"].get("labels"), deleted, image.get("spec"), status]


def metadata_fields(obj: Obj) -> Fields:
    """Return the metadata that the reconcile of one of our objects reads."""
    return [obj["metadata"].get(name) for name in _METADATA]


def fields_for_machines(obj: Obj) -> Fields:
    """Return the fields of a HarvesterCluster that its machines and templates read."""
    status = obj.get("status") or {}
    return [obj["metadata"].get("generation"), status.get("ready"), status.get("failureDomains")]


def handover_fields(obj: Obj) -> Fields:
    """Return the fields by which a machine counts as a replacement."""
    # Cluster API sets the owner after it has created a machine, and the cache may see it later
    # still.
    return [obj["metadata"].get("ownerReferences"), at(obj, "status", "ready")]


def failure_domain(obj: Obj) -> object:
    """Return the failure domain in which a machine was placed."""
    return at(obj, "status", "failureDomain")


def is_ready(obj: Obj) -> bool:
    """Return whether a cluster waits for nothing."""
    reported = list_at(obj, "status", "conditions")
    return conditions.is_true(reported, ConditionType.READY) and not being_deleted(obj)


def awaits_backup_check(cluster: Obj) -> bool:
    """Return whether a HarvesterCluster wants backups, and does not report yet if it gets them."""
    reported = list_at(cluster, "status", "conditions")
    kind = ConditionType.CONTROL_PLANE_BACKUPS_READY
    return bool(at(cluster, "spec", "controlPlaneBackups")) and not any(
        condition.get("type") == kind for condition in reported
    )


def has_unavailable_domain(obj: Obj) -> bool:
    """Return whether a cluster has a domain that takes no control plane machines."""
    domains = list_at(obj, "status", "failureDomains")
    return any(not domain.get("controlPlane") for domain in domains)


def cluster_fields(obj: Obj) -> Fields:
    """Return the fields of a Cluster that reconciles read."""
    spec = obj.get("spec") or {}
    labels = labels_of(obj)
    return [
        spec.get("paused"),
        spec.get("infrastructureRef"),
        clusterapi.infrastructure_provisioned(obj),
        obj["metadata"].get("deletionTimestamp"),
        annotations_of(obj).get(names.SUSPEND_ADDONS_ANNOTATION),
        annotations_of(obj).get(names.PARK_ANNOTATION),
        annotations_of(obj).get(names.PARK_SCHEDULE_ANNOTATION),
        annotations_of(obj).get(names.PARKED_BY_SCHEDULE_ANNOTATION),
        annotations_of(obj).get(names.PARKED_SINCE_ANNOTATION),
        annotations_of(obj).get(names.PAUSED_BY_PARK_ANNOTATION),
        annotations_of(obj).get(names.MOVING_ANNOTATION),
        annotations_of(obj).get(names.ETCD_RESTORE_ANNOTATION),
        labels.get(names.WATCH_FILTER_LABEL),
        labels.get(names.AUTO_IMPORT_LABEL),
        *(labels.get(name) for name in names.FLEET_LABELS),
    ]


def machine_fields(obj: Obj) -> Fields:
    """Return the fields of a Machine that reconciles read."""
    return [
        clusterapi.bootstrap_secret_name(obj),
        clusterapi.failure_domain(obj),
        obj["metadata"].get("deletionTimestamp"),
        clusterapi.is_control_plane(obj, cluster=None),
        clusterapi.has_etcd(obj, cluster=None),
        names.RANCHER_HOOK in annotations_of(obj),
    ]


# Conditions by which KubeVirt reports that it does not start a VM, for example because a device is
# not permitted. The VM may keep its `printableStatus`, and the instance its phase.
_REFUSALS = (("Failure", "True"), ("Synchronized", "False"))


def vm_fields(obj: Obj) -> Fields:
    """Return the fields of a VM or its instance that reconciles of machines read.

    One list serves both kinds, because a field that only one of them has is None in the other.
    Messages of conditions are not compared, although conditions of machines repeat them: the
    scheduler counts hosts and their resources in its message, so each change on a host would
    requeue all machines that wait for one. `reconciler.resync` updates the message in time.
    """
    status = obj.get("status") or {}
    refusals = [
        condition.get("type")
        for condition in list_at(status, "conditions")
        if (condition.get("type"), condition.get("status")) in _REFUSALS
    ]
    return [
        obj["metadata"].get("uid"),
        obj["metadata"].get("deletionTimestamp"),
        refusals,
        # A VM: its spec, the marks of Harvester and of the provider, and its state.
        obj["metadata"].get("generation"),
        obj["metadata"].get("annotations"),
        status.get("printableStatus"),
        # An instance: its state, host and addresses, and whether the guest answers.
        status.get("phase"),
        status.get("nodeName"),
        status.get("interfaces"),
        is_paused(obj),
        is_agent_connected(obj),
    ]


def restored_labels(vm: Obj) -> list[str | None]:
    """Return the labels of a VM that the reconcile of its machine restores."""
    return [labels_of(vm).get(name) for name in VM_LABELS]


def without_status(change: Change) -> bool:
    """Return whether a change adds a VM that KubeVirt has not reconciled yet.

    The provider's own write causes such a change, and another change with the status follows.
    """
    added = change.old is None and change.new is not None
    return added and change.resource.kind == "VirtualMachine" and not change.obj.get("status")


def backend_fields(obj: Obj) -> Fields:
    """Return the fields of a VM or its instance that make it a backend of a load balancer."""
    return [labels_of(obj), annotations_of(obj).get(names.OWNER_UID_ANNOTATION)]


def guest_fields(balancer: Obj) -> Fields:
    """Return the fields of a LoadBalancer that say whose it is, and whether it stays."""
    return [
        balancer["metadata"].get("uid"),
        balancer["metadata"].get("deletionTimestamp"),
        labels_of(balancer).get(names.BALANCER_CLUSTER_LABEL),
    ]


def volume_fields(vm: Obj) -> Fields:
    """Return the fields of a VM that say whose it is, and which volumes it has."""
    cluster = labels_of(vm).get(names.CLUSTER_LABEL)
    return [cluster, used_claims([vm]), hotplugged_claims(vm)]


_HOST_ANNOTATIONS = (
    names.EVACUATE_ANNOTATION,
    names.DRAIN_REQUESTED_ANNOTATION,
    names.DRAIN_FORCED_ANNOTATION,
    names.MAINTENANCE_ANNOTATION,
)


def host_fields(obj: Obj) -> Fields:
    """Return the fields of a Node or Deployment on Harvester that reconciles read."""
    return [
        obj["metadata"].get("labels"),
        obj.get("spec"),
        at(obj, "status", "conditions"),
        accepts_machines(obj),
        *(annotations_of(obj).get(name) for name in _HOST_ANNOTATIONS),
    ]


def may_serve_more(change: Change) -> bool:
    """Return whether a pool may have an address for a request that it refused before.

    That is possible after any change except new allocations.
    """
    if change.old is None or change.new is None:
        return True
    has_released = bool(entries(change.old) - entries(change.new))
    return has_released or pool_fields(change.old) != pool_fields(change.new)


def entries(pool: Obj | None) -> ItemsView[str, str]:
    """Return the addresses of a pool with their holders."""
    return ippool.allocated(pool or {}).items()


def pool_fields(obj: Obj) -> Fields:
    """Return the fields of an IPPool, besides allocations, that decide which addresses are free."""
    # These annotations make no address available: each allocation marks its addresses, and a write
    # that supersedes an unanswered one leaves another mark.
    marks = (names.ADDRESS_HOLDER_PREFIX, names.SUPERSEDED_ANNOTATION)
    annotations = {
        name: value for name, value in annotations_of(obj).items() if not name.startswith(marks)
    }
    return [obj.get("spec"), annotations, obj["metadata"].get("deletionTimestamp")]


def architecture(obj: Obj) -> str | None:
    """Return the CPU architecture of a host."""
    return labels_of(obj).get(ARCHITECTURE)


def node_fields(obj: Obj) -> Fields:
    """Return the fields of a Node of a workload cluster that reconciles of machines read."""
    # Labels are omitted. Otherwise, if another client set zone and region, too, both would
    # overwrite each other forever.
    return [
        obj["spec"].get("providerID"),
        obj["spec"].get("taints"),
        obj["metadata"].get("uid"),
        _system_uuid(obj),
    ]


def _system_uuid(node: Obj) -> object:
    """Return the UUID by which a Node proves whose guest it is."""
    return at(node, "status", "nodeInfo", "systemUUID")


def is_initialization(change: Change, machine: Obj) -> bool:
    """Return whether a change completes the initialization of a Node, as our own write does.

    :param machine: the HarvesterMachine of the Node, whose providerID the Node has to have
    """
    if change.old is None or change.new is None or uid_of(change.old) != uid_of(change.new):
        return False
    if _system_uuid(change.old) != _system_uuid(change.new):
        return False
    provider_id = change.new["spec"].get("providerID")
    if provider_id != machine["spec"].get("providerID"):
        return False
    remaining_patch = initialization(change.new, provider_id)
    return not remaining_patch
