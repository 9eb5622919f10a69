"""Volumes that a cluster's guest created on Harvester for its PersistentVolumes.

With `guestVolumes: Delete`, the claims on Harvester that were hot-plugged to VMs of the cluster are
deleted after the VMs, if their volume in the workload cluster had reclaim policy Delete. Both are
learnt while the cluster runs, and kept on the claims. Without it, claims are kept and reported.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

from caphv.api import names
from caphv.api.conditions import seconds_since
from caphv.api.counting import name_some
from caphv.api.guestparts import (
    DELETE,
    Guest,
    entry_of,
    hotplugged_claims,
    is_vm_of,
    proof_annotations,
    proof_entries,
    reclaim_policy,
    used_claims,
    volume_entries,
    why_kept,
)
from caphv.api.names import ConditionType, Reason
from caphv.api.object import (
    PERSISTENT_VOLUME_CLAIMS,
    Obj,
    annotations_of,
    being_deleted,
    key_of,
    uid_of,
)
from caphv.api.ownership import former_owner
from caphv.api.plaintext import one_line
from caphv.runtime.errors import (
    ApiError,
    Conflict,
    Invalid,
    NotFound,
    RequestError,
    Unauthorized,
)
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.cluster.guestbalancers import guest_of, is_forced
from reconciler.cluster.scope import ClusterScope
from reconciler.memory.cluster import RefusedDeletion
from reconciler.triggers import Delay, Watched

log = logging.getLogger(__name__)

# Seconds that the workload API of a deleted cluster gets to report its volumes again.
_LEARN_SECONDS = 60.0
# Seconds until a claim that was written meanwhile is read again.
_NEXT_ATTEMPT = 2.0
# Seconds until a claim that does not exist is looked for again, or a refused record is written.
_RETRY = 300.0
# The same while VMs of a deleted cluster wait for it.
_RETRY_OF_DELETED = 10.0
# Seconds for which a deletion that Harvester refused is tried again.
_REFUSED_SECONDS = 30.0
# Characters of Harvester's reason in an Event, which names other volumes, too.
_MAX_REASON = 200
# Seconds that Harvester gets to delete a volume.
_DELETE_SECONDS = 120.0


def deletes_volumes(scope: ClusterScope) -> bool:
    """Whether the user lets volumes of the guest be deleted with the cluster."""
    return bool(scope.obj["spec"].get("guestVolumes") == DELETE)


async def connect(scope: ClusterScope) -> None:
    """Connect to the workload API of a deleted cluster, which this process may not know yet.

    An error delays nothing but the policies.
    """
    if not (deletes_volumes(scope) and _is_deleted(scope)):
        return
    try:
        await scope.context.workloads.ensure(scope.cluster_key)
    except RequestError as error:
        log.info("cannot connect to workload cluster %s: %s", scope.cluster_key, error)
        scope.requeue_within(_RETRY_OF_DELETED)


async def record_volumes(scope: ClusterScope) -> bool:
    """Record on claims which guests had them, and what their reclaim policy is.

    Returns whether all is recorded. Never blocks the cluster. Without `guestVolumes`, only claims
    that a guest had before are written, perhaps that of a lost cluster, until the cluster is
    deleted.
    """
    records_all = deletes_volumes(scope) or _is_deleted(scope)
    if not records_all and not any(map(proof_entries, scope.namespace().claims.store)):
        return True

    policies = None
    if deletes_volumes(scope):
        policies = scope.context.workloads.reclaim_policies(scope.cluster_key)
    claims = scope.namespace().claims
    guest = guest_of(scope)
    users = _users(scope, guest)
    is_complete = True
    for name in {*users, *(claim["metadata"]["name"] for claim in _own_claims(scope))}:
        claim = claims.get(scope.target_namespace, name)
        if claim is None:
            if records_all:
                scope.requeue_within(_RETRY)  # it does not exist, or its event comes soon
        elif not being_deleted(claim) and (records_all or proof_entries(claim)):
            is_recorded = await _record(scope, guest, claim, users.get(name, []), policies)
            is_complete = is_complete and is_recorded
    return is_complete


def _wait_for_last_report(scope: ClusterScope) -> bool:
    """Return whether a deleted cluster still waits for the last report of its workload API.

    Requeues the cluster at the end of that time, and then emits an Event.
    """
    if not deletes_volumes(scope) or scope.memory.volumes.recorded or is_forced(scope):
        return False
    if scope.context.workloads.reclaim_policies(scope.cluster_key) is not None:
        return False
    if not scope.context.caches.machines_of(scope.cluster):
        return False  # no machine answers

    patience = _LEARN_SECONDS - seconds_since(_deleted_at(scope))
    if patience > 0:
        scope.requeue_within(patience)
        return True
    scope.warning_event(
        "GuestVolumesNotLearnt",
        f"the workload API did not answer within {_LEARN_SECONDS:.0f} s after the cluster was "
        "deleted: the reclaim policies that it reported last apply, and volumes of which it "
        "reported none are kept",
    )
    return False


def finish_recording(scope: ClusterScope) -> None:
    """Release the VMs of a deleted cluster: nothing else depends on their proof."""
    if not _is_deleted(scope) or scope.memory.volumes.recorded:
        return
    if not _wait_for_last_report(scope):
        scope.memory.volumes.recorded = True
        scope.context.topics.notify(triggers.guest_parts(scope.key))


async def delete_volumes(scope: ClusterScope) -> None:
    """Delete the volumes of the guest. Raises `Blocked` for a bounded time while one exists."""
    if not deletes_volumes(scope) or is_forced(scope):
        return
    claims = scope.namespace().claims
    refused = []
    for claim in list(_own_claims(scope)):
        deletable = not being_deleted(claim) and not _why_kept(scope, claim)
        if deletable and not await _delete(scope, claim):
            refused.append(claim)
    _require_accepted(scope, refused)

    remaining = [claim for claim in _own_claims(scope) if being_deleted(claim)]
    patience = max((_patience(claim) for claim in remaining), default=0.0)
    if patience <= 0:
        return
    raise Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        f"waiting for Harvester to delete {_list_names(remaining)} of the guest, "
        f"{claims.resource.plural} in namespace {scope.target_namespace}",
        Watched.VM,
        Delay(patience),
    )


def _require_accepted(scope: ClusterScope, refused: list[Obj]) -> None:
    """Raise `Blocked` while Harvester may still accept a deletion that it has refused."""
    refusals = [scope.memory.volumes.refused[uid_of(claim)] for claim in refused]
    elapsed = [time.monotonic() - refusal.since for refusal in refusals]
    if min(elapsed, default=_REFUSED_SECONDS) < _REFUSED_SECONDS:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            f"Harvester does not delete {_list_names(refused)} of the guest, in namespace "
            f"{scope.target_namespace}; that is tried again for {_REFUSED_SECONDS:.0f} s: "
            f"{refusals[0].message}",
            Watched.VM,
            Delay(_NEXT_ATTEMPT),
        )


def report_kept_volumes(scope: ClusterScope) -> None:
    """Emit Events about volumes of the guest that stay on Harvester, with the reason for each."""
    remaining = []
    claims_by_reason = defaultdict(list)
    for claim in _own_claims(scope):
        if being_deleted(claim):
            remaining.append(claim)
        else:
            refusal = scope.memory.volumes.refused.get(uid_of(claim))
            message = refusal.message if refusal else ""
            reason = _why_kept(scope, claim) or f"Harvester refused: {message}"
            claims_by_reason[reason].append(claim)

    if remaining:
        scope.warning_event(
            "GuestVolumesRemain",
            f"Harvester has not deleted {_list_names(remaining)} in namespace "
            f"{scope.target_namespace}, which are being deleted; see their finalizers",
        )
    if claims_by_reason:
        reasons = "; ".join(
            f"{_list_names(claims)}: {reason}"
            for reason, claims in sorted(claims_by_reason.items())
        )
        scope.warning_event(
            "GuestVolumesKept",
            f"kept volumes of the guest on Harvester, in namespace {scope.target_namespace}: "
            f"{reasons}",
        )


def _is_deleted(scope: ClusterScope) -> bool:
    """Return whether Cluster or HarvesterCluster is being deleted."""
    return being_deleted(scope.cluster) or being_deleted(scope.obj)


def _deleted_at(scope: ClusterScope) -> str:
    """Return since when a cluster is being deleted."""
    metadata = scope.cluster["metadata"]
    return str(metadata.get("deletionTimestamp") or scope.obj["metadata"]["deletionTimestamp"])


def _own_claims(scope: ClusterScope) -> Iterator[Obj]:
    """Yield the claims of the target namespace that this cluster's guest has had.

    After `caphv move` or `caphv restore`, these include the claims that it had before.
    """
    own_entry = entry_of(scope.owner)
    former = former_owner(scope.obj, scope.owner)
    # A VM that is not adopted yet would count as that of another owner.
    used = used_claims(scope.namespace().vms.store) if former else set()
    for claim in scope.namespace().claims.store:
        entries = proof_entries(claim)
        was_ours = former is not None and entry_of(former) in entries
        if own_entry in entries or (was_ours and claim["metadata"]["name"] not in used):
            yield claim


def _users(scope: ClusterScope, guest: Guest) -> dict[str, list[Obj]]:
    """Return the VMs that use a claim, by the name of the claim.

    Only claims count that a VM of the guest has hot-plugged now, or that the guest has had before.
    """
    vms = scope.namespace().vms.store
    users: dict[str, list[Obj]] = defaultdict(list)
    hotplugged: set[str] = set()
    for vm in vms:
        if is_vm_of(vm, guest):
            hotplugged |= hotplugged_claims(vm)
        for name in used_claims([vm]):
            users[name].append(vm)
    own_claims = {claim["metadata"]["name"] for claim in _own_claims(scope)}
    return {name: vms for name, vms in users.items() if name in hotplugged | own_claims}


async def _record(
    scope: ClusterScope,
    guest: Guest,
    claim: Obj,
    users: list[Obj],
    policies: dict[str, str] | None,
) -> bool:
    """Write on a claim what is not on it yet, and return whether all is on it.

    :param scope: of the cluster
    :param guest: the cluster as Harvester knows it
    :param claim: the claim
    :param users: the VMs that have it
    :param policies: reclaim policies that the workload cluster reports; None if it does not answer
    """
    entries = volume_entries(claim, guest, users)
    if not entries:
        return True

    name = claim["metadata"]["name"]
    unrecorded = scope.memory.volumes.unrecorded_claims
    # A claim whose last record failed may name a former reclaim policy, by which it must not be
    # deleted. A later record helps only if it was made with the present policies.
    is_policy_known = policies is not None or not deletes_volumes(scope)
    changes = _missing_annotations(scope, claim, entries, policies)
    if not changes:
        if is_policy_known:
            unrecorded.discard(uid_of(claim))
        return uid_of(claim) not in unrecorded

    patch = {"resourceVersion": claim["metadata"]["resourceVersion"], "annotations": changes}
    try:
        recorded = await scope.require_session().client.patch(
            PERSISTENT_VOLUME_CLAIMS, name, scope.target_namespace, {"metadata": patch}
        )
    except Unauthorized:
        raise
    except NotFound:
        scope.requeue_within(_NEXT_ATTEMPT)
        return True
    except ApiError as error:
        log.info("cannot record the guest of PersistentVolumeClaim %s: %s", key_of(claim), error)
        unrecorded.add(uid_of(claim))
        scope.requeue_within(_NEXT_ATTEMPT if isinstance(error, Conflict) else _retry(scope))
        return False
    if is_policy_known:
        unrecorded.discard(uid_of(claim))
    scope.namespace().claims.observe(recorded)
    return uid_of(claim) not in unrecorded


def _missing_annotations(
    scope: ClusterScope, claim: Obj, entries: Iterable[str], policies: dict[str, str] | None
) -> dict[str, str | None]:
    """Return proof and reclaim policy as a claim has to record them; empty if it does.

    :param scope: of the cluster
    :param claim: the claim
    :param entries: the guests that the claim has had
    :param policies: reclaim policies that the workload cluster reports; None if it does not answer
    """
    annotations: dict[str, str | None] = {**proof_annotations(claim, entries)}
    if deletes_volumes(scope) and policies is not None:
        # Without its volume, nothing says that the claim may be deleted.
        annotations[names.RECLAIM_POLICY_ANNOTATION] = policies.get(claim["metadata"]["name"])
    elif not deletes_volumes(scope) or not proof_entries(claim):
        # A copy of a claim may have the annotation of the original.
        annotations[names.RECLAIM_POLICY_ANNOTATION] = None

    present = annotations_of(claim)
    is_recorded = all(present.get(key) == value for key, value in annotations.items())
    return {} if is_recorded else annotations


def _retry(scope: ClusterScope) -> float:
    """Return after how many seconds a refused record is written again."""
    return _RETRY_OF_DELETED if _is_deleted(scope) else _RETRY


def _why_kept(scope: ClusterScope, claim: Obj) -> str:
    """Return why a claim of the guest is not deleted; empty if it is."""
    if is_forced(scope):
        return "the deletion is forced"
    if not deletes_volumes(scope):
        return f"guestVolumes is not {DELETE}"
    if uid_of(claim) in scope.memory.volumes.unrecorded_claims:
        return "has a reclaim policy that could not be recorded"
    used = used_claims(scope.namespace().vms.store)
    return why_kept(claim, scope.owner, used)


async def _delete(scope: ClusterScope, claim: Obj) -> bool:
    """Request the deletion of a claim, and return whether Harvester accepts that.

    It does not if a VM has the claim again, or if something else has written it meanwhile.
    """
    informer = scope.namespace().claims
    key = key_of(claim)
    try:
        answer = await scope.require_session().client.delete(
            PERSISTENT_VOLUME_CLAIMS,
            key.name,
            key.namespace,
            uid=uid_of(claim),
            resource_version=claim["metadata"]["resourceVersion"],
        )
    except NotFound:
        informer.forget(*key)
        return True
    except (Conflict, Invalid) as error:
        log.info("Harvester does not delete PersistentVolumeClaim %s: %s", key, error)
        refusals = scope.memory.volumes.refused
        former = refusals.get(uid_of(claim))
        since = former.since if former else time.monotonic()
        message = one_line(str(error))[:_MAX_REASON]
        refusals[uid_of(claim)] = RefusedDeletion(since, message)
        return False
    informer.observe_deletion(*key, answer)
    policy = reclaim_policy(claim)
    scope.event("GuestVolumeDeleted", f"deleting volume {key}, which has reclaim policy {policy}")
    return True


def _patience(claim: Obj) -> float:
    """Return for how many seconds Harvester may still delete a claim."""
    return _DELETE_SECONDS - seconds_since(str(claim["metadata"].get("deletionTimestamp")))


def _list_names(claims: list[Obj]) -> str:
    """Return a text that names the first claims."""
    return name_some(sorted(claim["metadata"]["name"] for claim in claims), 10)
