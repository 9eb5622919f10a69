"""Backups of control plane machines that a rollout replaces: spec, objects and pure decisions.

A VirtualMachineBackup of type `snapshot` would not outlive its VM: when a VM is deleted, Harvester
deletes the snapshots of all VMs of this name, and keeps the VM while a part of one is missing
(harvester v1.6.1 to v1.9.0-rc6, `removeVMBackupSnapshot` in
pkg/controller/master/virtualmachine/vm_controller.go). One of type `backup` is copied to the backup
target of Harvester, and stays. Its source must not be in deletion (`getBackupSource` in
pkg/controller/master/backup/backup.go), so it is complete before the VM is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from caphv.api import clusterapi, names, resources
from caphv.api.conditions import get_condition
from caphv.api.object import Obj, annotations_of, at, being_deleted, dict_at, list_at, text_at
from caphv.api.ownership import Owner, record

_DEFAULT_SECONDS = 1800
_SUFFIX = "-replaced"


@dataclass(frozen=True, slots=True)
class BackupPolicy:
    """What `spec.controlPlaneBackups` of a HarvesterCluster asks for.

    :param keep: how many backups stay, the newest ones
    :param seconds: how long the deletion of a machine waits for its backup
    :param retain: whether the backups outlive the cluster
    """

    keep: int
    seconds: int = _DEFAULT_SECONDS
    retain: bool = False


@dataclass(frozen=True, slots=True)
class BackupsCheck:
    """The last check of the backups of a cluster.

    :param policy: the policy that they were checked against
    :param checked_at: when that was, of the monotonic clock
    :param requested: the request of a user for an attempt that it has answered
    :param pending: names of machines with a backup that was not complete
    :param refused: whether Harvester refused to delete one, so that the check has to be repeated
    """

    policy: BackupPolicy | None
    checked_at: float
    requested: str = ""
    pending: frozenset[str] = frozenset()
    refused: bool = False


def backup_policy(spec: Obj) -> BackupPolicy | None:
    """Return the policy in the spec of a HarvesterCluster, None without the field."""
    settings = dict_at(spec, "controlPlaneBackups")
    if not settings:
        return None
    return BackupPolicy(
        keep=int(settings["keep"]),
        seconds=int(settings.get("timeoutSeconds") or _DEFAULT_SECONDS),
        retain=settings.get("deletionPolicy") == "Retain",
    )


def backup_name(vm: str) -> str:
    """Return the name of the backup of a VM."""
    return f"{vm}{_SUFFIX}"


def is_backup_name(name: str) -> bool:
    """Return whether the provider may have given a backup this name."""
    return name.endswith(_SUFFIX) and name != _SUFFIX


def is_retained(backup: Obj) -> bool:
    """Return whether a backup outlives its cluster."""
    return annotations_of(backup).get(names.RETAINED_ANNOTATION) == "true"


def backup_object(
    vm: str, namespace: str, cluster: str, owner: Owner, *, retain: bool = False
) -> Obj:
    """Return the VirtualMachineBackup to create.

    :param vm: name of the VM
    :param namespace: its namespace on Harvester
    :param cluster: the label value of its Cluster
    :param owner: record of the HarvesterCluster, because the machine will not exist any more
    :param retain: whether it outlives the cluster
    """
    annotations = record(owner)
    if retain:
        annotations[names.RETAINED_ANNOTATION] = "true"
    source = {
        "apiGroup": resources.VIRTUAL_MACHINES.group,
        "kind": resources.VIRTUAL_MACHINES.kind,
        "name": vm,
    }
    return {
        "apiVersion": resources.VM_BACKUPS.api_version,
        "kind": resources.VM_BACKUPS.kind,
        "metadata": {
            "name": backup_name(vm),
            "namespace": namespace,
            "labels": {names.CLUSTER_LABEL: cluster},
            "annotations": annotations,
        },
        "spec": {"source": source, "type": "backup"},
    }


def is_ready(backup: Obj, vm_uid: str) -> bool:
    """Return whether a backup can be restored, and is of the VM with this uid."""
    return at(backup, "status", "readyToUse") is True and (
        text_at(backup, "status", "sourceUID") == vm_uid
    )


def backup_problem(backup: Obj) -> str:
    """Return the error that Harvester reports about a backup, empty for none."""
    return text_at(backup, "status", "error", "message")


def surplus(backups: Iterable[Obj], machines: Collection[str], keep: int) -> list[Obj]:
    """Return the backups to delete so that only the newest ones stay, the oldest first.

    :param backups: the backups of one cluster
    :param machines: names of the machines that exist: their backups may not be complete
    :param keep: how many stay
    """
    in_progress = {backup_name(machine) for machine in machines}
    complete = [
        backup
        for backup in backups
        if backup["metadata"]["name"] not in in_progress and not being_deleted(backup)
    ]
    complete.sort(key=creation_order)
    return complete[: max(0, len(complete) - keep)]


def creation_order(obj: Obj) -> tuple[str, str]:
    """Return the key to sort objects by age. Names decide within the same second."""
    return text_at(obj, "metadata", "creationTimestamp"), text_at(obj, "metadata", "name")


def is_replaced(machine: Obj, cluster: Obj, others: Iterable[Obj]) -> bool:
    """Return whether a rollout replaces a control plane Machine that is being deleted.

    A failed machine, one that a scale-down or a user removes, and those of a deleted cluster are
    not replaced by a rollout.

    :param machine: the Machine
    :param cluster: its Cluster
    :param others: the other control plane Machines of the Cluster
    """
    if being_deleted(cluster) or _has_failed(machine):
        return False
    # KubeadmControlPlane and RKE2ControlPlane report whether a machine is as they want it.
    up_to_date = (_condition(machine, "UpToDate") or {}).get("status")
    if up_to_date in ("True", "False"):
        return up_to_date == "False"

    # Other control planes, such as K3s, report nothing, so compare versions: a rollout replaces a
    # machine whose version is not that of the topology, or that of a newer machine.
    version = text_at(machine, "spec", "version")
    intended = text_at(cluster, "spec", "topology", "version")
    if intended:
        return version != intended
    return any(
        text_at(other, "spec", "version") != version
        and creation_order(other) > creation_order(machine)
        for other in others
        if not being_deleted(other) and clusterapi.is_control_plane(other, cluster)
    )


def _has_failed(machine: Obj) -> bool:
    """Return whether a health check or a user has a Machine replaced because it is broken."""
    if names.REMEDIATE_ANNOTATION in annotations_of(machine):
        return True
    healthy = _condition(machine, "HealthCheckSucceeded")
    remediated = _condition(machine, "OwnerRemediated")
    return (healthy is not None and healthy.get("status") == "False") or remediated is not None


def _condition(machine: Obj, kind: str) -> Obj | None:
    """Return a condition of a Machine, wherever its API version has it."""
    places = (("conditions",), ("v1beta2", "conditions"), ("deprecated", "v1beta1", "conditions"))
    conditions = (get_condition(list_at(machine, "status", *place), kind) for place in places)
    return next(filter(None, conditions), None)
