"""LoadBalancers that a cluster's guest created on Harvester for its Services.

While VMs prove that one is the guest's, the proof is written on it. It is deleted with the cluster,
after the VMs: before that, the cloud provider in the guest would create it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from caphv.api import names, resources
from caphv.api.conditions import seconds_since
from caphv.api.guestparts import (
    Guest,
    Proof,
    balancer_proof,
    entry_of,
    former_clusters,
    is_vm_of,
    proof_annotations,
    recorded_guest,
    service_of,
)
from caphv.api.labels import cluster_label
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of, uid_of
from caphv.api.ownership import former_owner
from caphv.runtime.errors import ApiError, Conflict, NotFound, Unauthorized
from reconciler.blocked import Blocked
from reconciler.cluster.scope import ClusterScope
from reconciler.machine.guestlabels import guest_cluster_name
from reconciler.triggers import Delay, Watched

log = logging.getLogger(__name__)

# Seconds until a proof that is missing, or that Harvester refused, is looked for again.
_RETRY = 300.0
# Seconds after a conflict.
_NEXT_ATTEMPT = 1.0
# Seconds that Harvester's controller gets to release the address of a deleted LoadBalancer.
_RELEASE_SECONDS = 120.0
# Seconds that it gets for all of a cluster: a guest that still runs, because the deletion of its VM
# was forced, creates them again and again.
_CLUSTER_SECONDS = 600.0


def guest_of(scope: ClusterScope) -> Guest:
    """Return the cluster as Harvester knows it."""
    cluster = scope.cluster_key
    former = former_owner(scope.obj, scope.owner)
    guest = Guest(
        scope.owner,
        cluster_label(cluster),
        guest_cluster_name(cluster),
        str(scope.obj["metadata"].get("creationTimestamp") or ""),
    )
    uids = {former.management_cluster} if former else set()
    for machine in scope.context.caches.machines_of(scope.cluster):
        vm = scope.namespace().vms.get(scope.target_namespace, key_of(machine).name)
        if vm is not None and is_vm_of(vm, guest):
            uids.update(former_clusters(vm))
    return replace(guest, former_clusters=frozenset(uids), former=former)


async def record_guest(scope: ClusterScope) -> None:
    """Record whose the LoadBalancers of the guest are, while its VMs prove it.

    Never blocks the cluster: what is refused is tried again later.
    """
    for balancer in _balancers(scope):
        if being_deleted(balancer) or recorded_guest(balancer) == scope.owner:
            continue
        if _proof(scope, balancer) is Proof.OURS:
            await _record(scope, balancer)
        else:
            scope.requeue_within(_RETRY)  # VMs that get their labels later do not requeue it


async def delete_balancers(scope: ClusterScope) -> None:
    """Delete the LoadBalancers of the guest, and let Harvester release their addresses.

    Raises `Blocked` while one exists, but not for longer than Harvester's controller should need.
    """
    waiting = [
        balancer for balancer in deletable_balancers(scope) if not await _delete(scope, balancer)
    ]
    if not waiting:
        return

    informer = scope.namespace().load_balancers
    remaining = [informer.get(*key_of(balancer)) or balancer for balancer in waiting]
    patience = min(max(map(_patience, remaining)), _patience_of_cluster(scope))
    if not all(being_deleted(balancer) for balancer in remaining):
        patience = _NEXT_ATTEMPT  # it was written meanwhile, and has to be read again
    if patience <= 0:
        return  # its deletion was requested: Harvester completes it without us
    raise Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        f"waiting for Harvester to release the addresses of {describe(remaining)}; if it does not, "
        "check Deployment harvester-load-balancer in namespace harvester-system",
        Watched.LOAD_BALANCER,
        Delay(patience),
    )


def deletable_balancers(scope: ClusterScope) -> list[Obj]:
    """Return the LoadBalancers that are proven to be the guest's; none of a forced deletion."""
    if is_forced(scope):
        return []
    return [balancer for balancer in _balancers(scope) if _proof(scope, balancer) is Proof.OURS]


def report_kept_balancers(scope: ClusterScope) -> None:
    """Emit an Event about LoadBalancers that may be the guest's and stay on Harvester."""
    deletable = {key_of(balancer) for balancer in deletable_balancers(scope)}
    unproven = []
    unfinished = []
    for balancer in _balancers(scope):
        if key_of(balancer) in deletable:
            unfinished.append(balancer)
        elif recorded_guest(balancer) in (None, scope.owner):
            unproven.append(balancer)

    if unfinished:
        scope.warning_event(
            "GuestLoadBalancersRemain",
            f"Harvester has not released the addresses of {describe(unfinished)}, which are being "
            "deleted; check Deployment harvester-load-balancer in namespace harvester-system",
        )
    if unproven:
        reason = "the deletion is forced" if is_forced(scope) else "nothing proves whose they are"
        scope.warning_event(
            "GuestLoadBalancersKept",
            f"kept {describe(unproven)} on Harvester, because {reason}; delete them there if no "
            "other cluster uses them",
        )


def is_forced(scope: ClusterScope) -> bool:
    """Whether the user forces the deletion, which then deletes nothing that a guest created."""
    return annotations_of(scope.obj).get(names.FORCE_DELETE_ANNOTATION) == "true"


def describe(balancers: list[Obj]) -> str:
    """Return a text that names the first LoadBalancers with their Services."""
    shown = [_describe_one(balancer) for balancer in sorted(balancers, key=key_of)[:5]]
    number = f" and {len(balancers) - 5} more" if len(balancers) > 5 else ""
    return f"LoadBalancer {', '.join(shown)}{number}"


def _describe_one(balancer: Obj) -> str:
    """Return the key of a LoadBalancer, and the Service of the guest that it serves."""
    service = service_of(balancer)
    return f"{key_of(balancer)} (Service {service})" if service else str(key_of(balancer))


def _balancers(scope: ClusterScope) -> list[Obj]:
    """Return the LoadBalancers of the target namespace that name this guest."""
    store = scope.namespace().load_balancers.store
    return store.by_index("guest", guest_cluster_name(scope.cluster_key))


def _proof(scope: ClusterScope, balancer: Obj) -> Proof:
    """Return whether a LoadBalancer is the guest's, and of no namesake."""
    if next(_namesakes(scope), None) is not None:
        return Proof.CONTESTED
    return balancer_proof(balancer, guest_of(scope), scope.namespace().vms.store)


def _namesakes(scope: ClusterScope) -> Iterator[Key]:
    """Yield other HarvesterClusters with the guest's name in its target namespace.

    Their VMs may not exist yet, or no longer.
    """
    caches = scope.context.caches
    uid = scope.require_session().uid
    for cluster in caches.clusters.store:
        key = key_of(cluster)
        if key.name != scope.cluster_key.name or key == scope.cluster_key:
            continue
        other = caches.harvester_cluster_of(cluster)
        if other is None or other["spec"].get("targetNamespace") != scope.target_namespace:
            continue
        session = scope.context.sessions.of(key_of(other))
        # One Harvester may have several addresses, so its uid tells it from others. A cluster
        # counts as a namesake while one of the uids is not known.
        is_elsewhere = session is not None and bool(session.uid and uid) and session.uid != uid
        if not is_elsewhere:
            yield key_of(other)


async def _record(scope: ClusterScope, balancer: Obj) -> None:
    """Write the proof on a LoadBalancer. The cloud provider keeps annotations of others."""
    metadata = balancer["metadata"]
    informer = scope.namespace().load_balancers
    patch = {
        "resourceVersion": metadata["resourceVersion"],
        "annotations": proof_annotations(balancer, [entry_of(scope.owner)]),
    }

    try:
        recorded = await scope.require_session().client.patch(
            resources.LOAD_BALANCERS, metadata["name"], metadata["namespace"], {"metadata": patch}
        )

    except Unauthorized:
        raise
    except (Conflict, NotFound):
        scope.requeue_within(_NEXT_ATTEMPT)  # Harvester writes a new one several times
        return
    except ApiError as error:
        log.info("cannot record the owner of LoadBalancer %s: %s", key_of(balancer), error)
        scope.requeue_within(_RETRY)
        return

    informer.observe(recorded)


async def _delete(scope: ClusterScope, balancer: Obj) -> bool:
    """Request the deletion of a LoadBalancer, and return whether it is deleted at once."""
    if being_deleted(balancer):
        return False

    informer = scope.namespace().load_balancers
    key = key_of(balancer)
    try:
        answer = await scope.require_session().client.delete(
            resources.LOAD_BALANCERS,
            key.name,
            key.namespace,
            uid=uid_of(balancer),
            resource_version=balancer["metadata"]["resourceVersion"],
        )
    except NotFound:
        informer.forget(*key)
        return True
    except Conflict:
        return False  # what was written meanwhile may say that it is not the guest's

    scope.event("GuestLoadBalancerDeleted", f"deleting LoadBalancer {_describe_one(balancer)}")
    return informer.observe_deletion(*key, answer)


def _patience_of_cluster(scope: ClusterScope) -> float:
    """Return for how many seconds the cluster's deletion may still wait for its LoadBalancers."""
    return _CLUSTER_SECONDS - seconds_since(str(scope.obj["metadata"]["deletionTimestamp"]))


def _patience(balancer: Obj) -> float:
    """Return for how many seconds Harvester may still release the address of a LoadBalancer."""
    return _RELEASE_SECONDS - seconds_since(str(balancer["metadata"].get("deletionTimestamp")))
