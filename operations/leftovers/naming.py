"""Decide whether the provider has created an object for the owner in its record. No I/O.

The record alone does not prove it: when Harvester restores a backup of a VM, it copies the record
of the VM's machine to disks that hold the data of another user.
"""

from __future__ import annotations

import re

from caphv.api import names, resources
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Key,
    Obj,
    Resource,
    annotations_of,
    key_of,
)
from caphv.api.ownership import Owner, recorded_owner
from caphv.api.virtualmachine import cloud_init_secret_name, is_machine_pvc
from caphv.api.vmbackup import is_backup_name
from operations.capacity.addresspools import Judgement, Verdict
from operations.leftovers.records import ReferencedVMs, check_record
from operations.read.owners import OwnerObjects

_SUFFIXES = {
    resources.LOAD_BALANCERS: (names.LOAD_BALANCER_SUFFIX,),
    SERVICES: (names.LOAD_BALANCER_SUFFIX,),
    resources.IP_POOLS: (names.POOL_SUFFIX, names.VM_POOL_SUFFIX),
}


def check_origin(
    resource: Resource, obj: Obj, owners: OwnerObjects, referenced: ReferencedVMs
) -> Judgement:
    """Return the judgement on an object by its record and its name.

    :param resource: the kind of the object
    :param obj: an object on Harvester
    :param owners: possible owners on the management cluster
    :param referenced: VMs on this Harvester that HarvesterMachines refer to
    """
    judgement = check_record(obj, owners, referenced)
    owner = recorded_owner(obj)
    if judgement.verdict is not Verdict.LEAKED or owner is None:
        return judgement

    if names.RESTORE_ANNOTATION in annotations_of(obj):
        why = "Harvester restored it from a backup, with a copied record: delete it by hand"
        return Judgement(Verdict.UNKNOWN, why)
    if not has_generated_name(resource, key_of(obj).name, owner):
        subject = f"{owner.kind} {Key(owner.namespace, owner.name)}"
        why = f"the provider gives no object of {subject} this name: delete it by hand"
        return Judgement(Verdict.UNKNOWN, why)
    return judgement


def has_generated_name(resource: Resource, name: str, owner: Owner) -> bool:
    """Return whether the provider gives this name to an object that it creates for an owner.

    :param resource: the kind of the object
    :param owner: a HarvesterMachine or HarvesterCluster
    """
    if owner.kind == resources.HARVESTER_MACHINES.kind:
        return _is_of_machine(resource, name, owner)
    return owner.kind == resources.HARVESTER_CLUSTERS.kind and _is_of_cluster(resource, name, owner)


def _is_of_machine(resource: Resource, name: str, owner: Owner) -> bool:
    """Whether the provider gives this name to an object of a HarvesterMachine."""
    if resource is PERSISTENT_VOLUME_CLAIMS:
        return is_machine_pvc(owner.name, name)
    generated = {
        resources.VIRTUAL_MACHINES: owner.name,
        SECRETS: cloud_init_secret_name(owner.name),
    }
    return name == generated.get(resource)


def _is_of_cluster(resource: Resource, name: str, owner: Owner) -> bool:
    """Whether the provider gives this name to an object of a HarvesterCluster."""
    if resource in (SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS):
        return _is_account(name, owner)
    if resource is SECRETS:
        return name.endswith("-token") and _is_account(name.removesuffix("-token"), owner)

    if resource is resources.VM_BACKUPS:
        return is_backup_name(name)

    cluster: Obj = {"metadata": {"namespace": owner.namespace, "name": owner.name}}
    return any(
        name in names.generated_names(cluster, suffix) for suffix in _SUFFIXES.get(resource, ())
    )


def cluster_names(owner: Owner) -> list[str]:
    """Return the names that the Cluster of a HarvesterCluster may have.

    A topology derives the name of the HarvesterCluster by appending characters to that of the
    Cluster. The record has only the former.
    """
    parts = owner.name.split("-")
    return ["-".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _is_account(name: str, owner: Owner) -> bool:
    """Return whether an account has the name of the Cluster, or that name with a hash."""
    clusters = cluster_names(owner)
    return name in clusters or re.sub(r"-[0-9a-f]{8}\Z", "", name) in clusters
