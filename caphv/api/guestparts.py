"""Decide which objects on Harvester a guest created, and whether they are deleted with it.

The cloud provider in a guest creates LoadBalancers, and its CSI driver creates
PersistentVolumeClaims. Neither records an owner, and the names of these objects prove nothing.
Objects on Harvester prove the owner while VMs of the cluster exist:

- A LoadBalancer has the name of its guest. Only VMs of this cluster may have the same name.
- A claim is hot-plugged to a VM of this cluster, and was never seen with any other VM.

Annotation `caphv.io/guest-of` of the object keeps the proof, because the object may outlive the
VMs. Pure functions.
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
    :param former: its HarvesterCluster before `caphv move` or `caphv restore` created it again
    """

    owner: Owner
    label: str
    name: str
    created: str = ""
    former_clusters: frozenset[str] = frozenset()
    former: Owner | None = None


class Proof(Enum):
    """Whether a guest owns an object."""

    OURS = "ours"
    UNPROVEN = "unproven"
    """Nothing shows who owns the object."""
    CONTESTED = "contested"
    """Another cluster owns the object, or may own it."""


def is_vm_of(vm: Obj, guest: Guest) -> bool:
    """Whether label and record of a VM say that it is a node of this guest."""
    recorded = annotations_of(vm).get(names.OWNER_CLUSTER_ANNOTATION)
    same_cluster = labels_of(vm).get(names.CLUSTER_LABEL) == guest.label
    return same_cluster and recorded == guest.owner.management_cluster


def former_clusters(vm: Obj) -> list[str]:
    """Return the uids of the management clusters that provably had a VM before, oldest first."""
    text = annotations_of(vm).get(names.FORMER_CLUSTERS_ANNOTATION, "")
    return [uid for uid in text.split(",") if uid]


def moved_from(vm: Obj, owner: Owner, by_hand: bool) -> dict[str, str | None]:
    """Return the annotation with the former management clusters of a VM that is adopted.

    With it, objects that the guest created under a former management cluster still count as its
    own. A VM that a user adopts by hand gets no annotation, because its former cluster may still
    run and own these objects.

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
    """Return the HarvesterCluster of the guest that owns an object, as the annotation proves it.

    None if there is no proof, or if the annotation names several owners.
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
    """Return the entry of a HarvesterCluster in the annotation."""
    return f"{owner.management_cluster}/{owner.namespace}/{owner.name}/{owner.uid}"


def proof_entries(obj: Obj) -> frozenset[str]:
    """Return the entries of the annotation: one for each HarvesterCluster, or for other VMs.

    There are none if the annotation was written for another object.
    """
    # A claim that is restored from a backup or snapshot has the annotation of the original claim,
    # and perhaps no guest ever owned it. So the annotation begins with the uid of its object.
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
    """Yield the entries without those of this HarvesterCluster before it was moved or restored.

    A moved or restored HarvesterCluster has the same name and another uid. In another management
    cluster, a HarvesterCluster of this name may belong to a cluster that still runs. So its entry
    is left out only if that management cluster provably had this guest before.
    """
    owner = guest.owner
    management_clusters = {owner.management_cluster, *guest.former_clusters}
    for entry in entries:
        recorded = _owner(entry)
        is_former_self = (
            recorded is not None
            and (recorded.namespace, recorded.name) == (owner.namespace, owner.name)
            and recorded.management_cluster in management_clusters
        )
        if not is_former_self or entry == entry_of(owner):
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
    """Return whether the guest owns a LoadBalancer.

    VMs prove it while they exist. The annotation, which is written meanwhile, proves it after that.
    A LoadBalancer without the annotation that is older than the cluster belongs to a former guest
    of the same name.

    :param balancer: the LoadBalancer
    :param guest: the guest
    :param vms: all VMs of the LoadBalancer's namespace
    """
    if not guest.name or guest_name(balancer) != guest.name:
        return Proof.CONTESTED

    # If another cluster has the same name, the LoadBalancer may serve either of them.
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
    """Return the entries that the annotation of a claim must have after these VMs were seen.

    Entries of the annotation stay, and each VM that uses the claim adds the entry of its owner. So
    there are no entries until a VM was seen with the claim. That of the former HarvesterCluster
    becomes the entry of the present one.

    :param claim: the claim
    :param guest: the guest
    :param vms: all VMs of the claim's namespace
    """
    name = claim["metadata"]["name"]
    own_entry = entry_of(guest.owner)
    entries = set(proof_entries(claim))
    if guest.former and entry_of(guest.former) in entries:
        entries = {*entries - {entry_of(guest.former)}, own_entry}
    for vm in vms:
        if name not in used_claims([vm]):
            continue
        if not is_vm_of(vm, guest):
            entries.add(_ANOTHER)
        # The claim of a machine's disk may be hot-plugged, too, and has an owner record.
        elif name in hotplugged_claims(vm) and not _has_owner(claim):
            entries = {*_without_former_selves(entries, guest), own_entry}
    return frozenset(entries)


def _has_owner(claim: Obj) -> bool:
    """Whether a claim has an owner record, which only those of machines have."""
    return names.OWNER_ANNOTATION in annotations_of(claim)


def reclaim_policy(claim: Obj) -> str:
    """Return the reclaim policy of a volume as the annotation records it; empty if unknown."""
    if not proof_entries(claim):
        return ""  # the annotation may be a copy of the annotation of another claim
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
