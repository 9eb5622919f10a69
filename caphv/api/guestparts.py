"""Decide which objects on Harvester a guest created, and whether they are deleted with it.

The cloud provider in a guest creates LoadBalancers, its CSI driver PersistentVolumeClaims. Neither
records an owner, and names prove nothing. So Harvester itself has to show whose they are, while VMs
of the cluster exist: a LoadBalancer by the name of its guest, which VMs of this cluster and of no
other one have, a claim by being hot-plugged to a VM of this cluster and never to another VM. The
proof is kept in annotation `caphv.io/guest-of` of the object, because it has to outlive the VMs.
Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from caphv.api import names, resources
from caphv.api.object import Obj, annotations_of, at, labels_of, list_at, text_at, uid_of
from caphv.api.ownership import Owner

DELETE = "Delete"
"""The reclaim policy of volumes that are deleted with what uses them."""

# The value of a label that is too long: its start and a hash.
_HASHED = re.compile(r"(.{32,52})-[0-9a-f]{10}")
# Entry of the annotation for a VM that no HarvesterCluster has.
_ANOTHER = "another"
# Management clusters before the present one that a VM names.
_MOST_FORMER = 8


@dataclass(frozen=True, slots=True)
class Guest:
    """A cluster as Harvester knows it.

    :param owner: its HarvesterCluster
    :param label: value of label `caphv.io/cluster` on its VMs
    :param name: the name that its cloud provider has for it
    :param created: the time when its HarvesterCluster was created
    :param former_clusters: uids of the management clusters that provably had it before
    """

    owner: Owner
    label: str
    name: str
    created: str = ""
    former_clusters: frozenset[str] = frozenset()


class Proof(Enum):
    """Whether an object is a guest's."""

    OURS = "ours"
    UNPROVEN = "unproven"
    """Nothing shows whose it is."""
    CONTESTED = "contested"
    """Another owner has it, or may have it."""


def is_vm_of(vm: Obj, guest: Guest) -> bool:
    """Whether label and record of a VM say that it is a node of this guest."""
    recorded = annotations_of(vm).get(names.OWNER_CLUSTER_ANNOTATION)
    same_cluster = labels_of(vm).get(names.CLUSTER_LABEL) == guest.label
    return same_cluster and recorded == guest.owner.management_cluster


def former_clusters(vm: Obj) -> list[str]:
    """Return the management clusters that provably had a VM before, the last at the end."""
    text = annotations_of(vm).get(names.FORMER_CLUSTERS_ANNOTATION, "")
    return [uid for uid in text.split(",") if uid]


def moved_from(vm: Obj, owner: Owner, by_hand: bool) -> dict[str, str | None]:
    """Return the annotation of a VM that is adopted: its former management clusters.

    They prove what its guest created before. A VM that a user adopts proves nothing: it may be of a
    cluster that still runs.

    :param vm: the VM with its former record
    :param owner: the machine that adopts it
    :param by_hand: whether a user has requested the adoption
    """
    if by_hand:
        return {names.FORMER_CLUSTERS_ANNOTATION: None}
    former = annotations_of(vm).get(names.OWNER_CLUSTER_ANNOTATION)
    if not former or former == owner.management_cluster:
        return {}
    uids = [uid for uid in former_clusters(vm) if uid not in (former, owner.management_cluster)]
    return {names.FORMER_CLUSTERS_ANNOTATION: ",".join([*uids, former][-_MOST_FORMER:])}


# The proof that an object carries


def recorded_guest(obj: Obj) -> Owner | None:
    """Return the HarvesterCluster whose guest an object is.

    None without a proof, and for an object that others have had, too.
    """
    entries = proof_entries(obj)
    return _owner(next(iter(entries))) if len(entries) == 1 else None


def belongs_to_others(obj: Obj) -> bool:
    """Whether the proof on an object names several owners, or a VM without one."""
    entries = proof_entries(obj)
    return len(entries) > 1 or any(_owner(entry) is None for entry in entries)


def proof_annotations(obj: Obj, entries: Iterable[str]) -> dict[str, str]:
    """Return the annotation that keeps a proof on an object."""
    return {names.GUEST_OF_ANNOTATION: f"{uid_of(obj)}:{','.join(sorted(entries))}"}


def entry_of(owner: Owner) -> str:
    """Return what the annotation has for a HarvesterCluster."""
    return f"{owner.management_cluster}/{owner.namespace}/{owner.name}/{owner.uid}"


def proof_entries(obj: Obj) -> frozenset[str]:
    """Return what the annotation has: HarvesterClusters, and VMs without one.

    Empty for the proof of another object, which this one is a copy of.
    """
    # A backup or snapshot on Harvester keeps annotations, and a claim that is restored from it was
    # perhaps never a guest's.
    uid, _, text = annotations_of(obj).get(names.GUEST_OF_ANNOTATION, "").partition(":")
    if not uid or uid != uid_of(obj):
        return frozenset()
    return frozenset(entry.strip() for entry in text.split(",")) - {""}


def _owner(entry: str) -> Owner | None:
    parts = entry.split("/")
    if len(parts) != 4 or not all(parts):
        return None
    management_cluster, namespace, name, uid = parts
    kind = resources.HARVESTER_CLUSTERS.kind
    return Owner(kind, namespace, name, uid, management_cluster)


def _without_former_selves(entries: Iterable[str], guest: Guest) -> Iterator[str]:
    """Yield the entries but those of this HarvesterCluster before it was moved or restored.

    One of another management cluster may be of a cluster that still runs, unless it is proven.
    """
    owner = guest.owner
    management_clusters = {owner.management_cluster, *guest.former_clusters}
    for entry in entries:
        recorded = _owner(entry)
        same = recorded and (recorded.namespace, recorded.name) == (owner.namespace, owner.name)
        was_ours = recorded and same and recorded.management_cluster in management_clusters
        if not was_ours or entry == entry_of(owner):
            yield entry


# Load balancers


def guest_name(balancer: Obj) -> str:
    """Return the name of the guest that created a LoadBalancer; empty if none did."""
    if at(balancer, "spec", "workloadType") != "cluster":
        return ""
    return labels_of(balancer).get(names.BALANCER_CLUSTER_LABEL, "")


def service_of(balancer: Obj) -> str:
    """Return namespace and name of the Service in the guest; empty if that is not known."""
    labels = labels_of(balancer)
    namespace = labels.get(names.BALANCER_SERVICE_NAMESPACE_LABEL)
    name = labels.get(names.BALANCER_SERVICE_LABEL)
    return f"{namespace}/{name}" if namespace and name else ""


def balancer_proof(balancer: Obj, guest: Guest, vms: Iterable[Obj]) -> Proof:
    """Return whether a LoadBalancer is the guest's.

    VMs prove it while they exist, and after that the annotation which was written meanwhile. One
    without it that is older than the cluster is of a former guest with the name.

    :param vms: all VMs of the LoadBalancer's namespace
    """
    if not guest.name or guest_name(balancer) != guest.name:
        return Proof.CONTESTED

    nodes = [vm for vm in vms if may_serve(vm, guest.name)]
    if not all(is_vm_of(vm, guest) for vm in nodes):
        return Proof.CONTESTED

    entries = proof_entries(balancer)
    own_entry = entry_of(guest.owner)
    if any(_without_former_selves(entries - {own_entry}, guest)):
        return Proof.CONTESTED
    if own_entry in entries:
        return Proof.OURS
    is_older = text_at(balancer, "metadata", "creationTimestamp") < guest.created
    return Proof.OURS if nodes and (entries or not is_older) else Proof.UNPROVEN


def may_serve(vm: Obj, name: str) -> bool:
    """Whether a VM is a node of a guest that has this name, or may be one.

    Of two clusters with the same name, one has VMs without the label of guests. VMs of the Go
    provider name their cluster in a label of the control plane only.
    """
    labels = labels_of(vm)
    if labels.get(names.GUEST_CLUSTER_LABEL) == name:
        return True
    if _may_name(labels.get(names.MACHINE_TYPE_LABEL, ""), f"controlplane-{name}"):
        return True

    cluster = labels.get(names.CLUSTER_LABEL, "")
    if cluster.endswith(f".{name}"):
        return True
    if names.GUEST_CLUSTER_LABEL in labels:
        return False
    hashed = _HASHED.fullmatch(cluster)
    return hashed is not None and name.startswith(hashed[1].partition(".")[2])


def _may_name(value: str, text: str) -> bool:
    """Whether a label has this text, or its start and a hash because it is too long."""
    hashed = _HASHED.fullmatch(value)
    return value == text or (hashed is not None and text.startswith(hashed[1]))


# Volumes


def hotplugged_claims(vm: Obj) -> set[str]:
    """Return the names of the claims that are hot-plugged to a VM."""
    return {
        source["claimName"]
        for source in _sources(vm, "persistentVolumeClaim")
        if source.get("hotpluggable") and source.get("claimName")
    }


def used_claims(vms: Iterable[Obj]) -> set[str]:
    """Return the names of the claims that VMs have as volumes, also by a DataVolume."""
    claims = set()
    for vm in vms:
        claims |= {str(source.get("claimName")) for source in _sources(vm, "persistentVolumeClaim")}
        claims |= {str(source.get("name")) for source in _sources(vm, "dataVolume")}
    return claims


def _sources(vm: Obj, kind: str) -> Iterator[Obj]:
    for volume in list_at(vm, "spec", "template", "spec", "volumes"):
        if source := volume.get(kind):
            yield source


def volume_entries(claim: Obj, guest: Guest, vms: Iterable[Obj]) -> frozenset[str]:
    """Return all that the annotation of a claim has to say after VMs were seen with it.

    Empty while it was seen with none. An entry of another owner stays for as long as the claim.

    :param vms: all VMs of the claim's namespace
    """
    name = claim["metadata"]["name"]
    own_entry = entry_of(guest.owner)
    entries = set(proof_entries(claim))
    for vm in vms:
        if name not in used_claims([vm]):
            continue
        if not is_vm_of(vm, guest):
            entries.add(_ANOTHER)
        elif name in hotplugged_claims(vm) and not _has_owner(claim):
            entries = {*_without_former_selves(entries, guest), own_entry}
    return frozenset(entries)


def _has_owner(claim: Obj) -> bool:
    """Whether a claim has an owner record, which only those of machines have."""
    return names.OWNER_ANNOTATION in annotations_of(claim)


def reclaim_policy(claim: Obj) -> str:
    """Return the reclaim policy that was learnt of a volume; empty if it was not."""
    if not proof_entries(claim):
        return ""  # nothing was learnt of this one: the annotation may be a copy
    return annotations_of(claim).get(names.RECLAIM_POLICY_ANNOTATION, "")


def why_kept(claim: Obj, owner: Owner, users: Collection[str]) -> str:
    """Return why a volume is not deleted with its guest; empty if it is.

    :param owner: the HarvesterCluster of the guest, which lets volumes be deleted
    :param users: names of the claims that VMs of the namespace have as volumes
    """
    entries = proof_entries(claim)
    policy = reclaim_policy(claim)
    if entry_of(owner) not in entries:
        return "was never hot-plugged to a VM of this cluster"
    if _has_owner(claim):
        return "has the record of another owner, as disks of machines do"
    if len(entries) > 1:
        return "was used by a VM of another owner"
    if claim["metadata"]["name"] in users:
        return "is still a volume of a VM"
    if not policy:
        return "has an unknown reclaim policy: the workload cluster does not report its volume"
    return "" if policy == DELETE else f"has reclaim policy {policy}"
