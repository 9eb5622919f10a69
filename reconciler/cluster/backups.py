"""Keep the newest backups of replaced control plane machines, and report them.

The machines make them (`reconciler.machine.vmbackup`). They are listed after a start of the
provider, and after each replaced machine. A dry run of a backup shows before an upgrade what would
fail: a missing right, no backup target, or a storage driver without backups.
"""

from __future__ import annotations

import time
from dataclasses import replace

from caphv.api import clusterapi, remedies, resources
from caphv.api.conditions import get_condition
from caphv.api.counting import name_some
from caphv.api.labels import cluster_label
from caphv.api.names import (
    CLUSTER_LABEL,
    RECONCILE_AT_ANNOTATION,
    RETAINED_ANNOTATION,
    ConditionType,
    Reason,
)
from caphv.api.object import Obj, annotations_of, being_deleted, key_of, list_at, text_at, uid_of
from caphv.api.ownership import Ownership, ownership_of, record, wants_adoption
from caphv.api.vmbackup import (
    BackupPolicy,
    BackupsCheck,
    backup_name,
    backup_object,
    backup_policy,
    creation_order,
    is_retained,
    surplus,
)
from caphv.runtime.errors import AlreadyExists, ApiError, Invalid, NotFound, ServerFault
from caphv.runtime.listing import list_pages
from reconciler.cluster.adoption import is_foreign
from reconciler.cluster.scope import ClusterScope
from reconciler.machine.vmbackup import REFUSALS, describe_refusal
from reconciler.predicates import is_ready

_CONDITION = ConditionType.CONTROL_PLANE_BACKUPS_READY
_SHOWN = 5
# Seconds until a refusal is checked again, because no watch reports its end.
_REFUSED_SECONDS = 300.0
# Seconds for which server faults are retried when the cluster is deleted.
_FAULT_SECONDS = 60.0
# Of refusals that say nothing of later backups: the VM migrates, or has a backup (harvester v1.8.2,
# validator.go and mutator.go in pkg/webhook/resources/virtualmachinebackup).
_HARMLESS = ("is in migration", "is already existent")


async def keep_backups(scope: ClusterScope) -> None:
    """Delete surplus backups, and set the condition; without the field, only report what remains.

    Raises `ApiError`, `Unreachable` for a retry.
    """
    policy = backup_policy(scope.obj["spec"])
    if policy is None and not scope.draft.has(_CONDITION):
        return
    candidate = _candidate(scope)
    if candidate is None and not scope.draft.has(_CONDITION):
        return  # before the first machine runs, there is nothing to back up

    in_progress = _in_progress(scope)
    if _reuse_check(scope, policy, in_progress):
        return
    memory = scope.memory
    requested = annotations_of(scope.obj).get(RECONCILE_AT_ANNOTATION, "")
    check = BackupsCheck(policy, time.monotonic(), requested)
    try:
        backups = await _owned_backups(scope)
        if policy is not None:
            backups = await _delete_surplus(scope, backups, policy, in_progress)
            await _rehearse(scope, candidate)
    except REFUSALS as error:
        memory.backups.check = check
        if policy is not None:
            _report_refusal(scope, error)
        return

    existing = {text_at(backup, "metadata", "name") for backup in backups}
    pending = frozenset(name for name in in_progress if backup_name(name) in existing)
    refused = policy is not None and bool(surplus(backups, in_progress, policy.keep))
    memory.backups.check = replace(check, pending=pending, refused=refused)
    if refused:
        scope.requeue_within(_REFUSED_SECONDS)
    _report(scope, policy, backups)


async def delete_backups(scope: ClusterScope) -> None:
    """Request the deletion of the backups of a deleted cluster, unless its spec retains them.

    The cluster does not wait until they are deleted: Harvester needs the backup target for that,
    which may no longer answer, and nothing else depends on it. Raises `ServerFault` for a retry,
    for 60 s.
    """
    policy = backup_policy(scope.obj["spec"])
    if policy is None and not scope.draft.has(_CONDITION):
        return
    try:
        backups = await _owned_backups(scope)
        if policy is not None and policy.retain:
            for backup in backups:
                await _mark_retained(scope, backup)
            if backups:
                scope.event("BackupsRetained", f"retained on Harvester: {_describe(backups)}")
            return
        # A backup that is being deleted already may have been so for long.
        remaining = [
            backup
            for backup in backups
            if being_deleted(backup) or not await _request_deletion(scope, backup)
        ]
    except REFUSALS as error:
        if isinstance(error, ServerFault) and _record_fault(scope) < _FAULT_SECONDS:
            raise
        # The right is optional, and a deletion must not depend on it.
        refusal = describe_refusal(scope.target_namespace, error)
        scope.warning_event("BackupsKept", f"backups may remain on Harvester: {refusal}")
        return

    requested = [backup for backup in backups if backup not in remaining]
    if requested:
        names = _describe(requested)
        scope.event("BackupsDeleted", f"Harvester deletes {names} once its backup target answers")
    if remaining:
        scope.warning_event(
            "BackupsKept",
            f"{_describe(remaining)} may remain on Harvester, whose backup target does not answer, "
            f"or which restores a VM from them: {remedies.LIST_LEFTOVERS}",
        )


def _record_fault(scope: ClusterScope) -> float:
    """Record a server fault, and return for how many seconds faults have lasted."""
    memory = scope.memory
    current_time = time.monotonic()
    if memory.backups.faults_since is None:
        memory.backups.faults_since = current_time
    return current_time - memory.backups.faults_since


async def _owned_backups(scope: ClusterScope) -> list[Obj]:
    """List the metadata of the cluster's backups, and adopt those that it had before a move."""
    client = scope.require_session().client
    pages = list_pages(
        client,
        resources.VM_BACKUPS,
        scope.target_namespace,
        label_selector=f"{CLUSTER_LABEL}={cluster_label(scope.cluster_key)}",
        metadata_only=True,
    )
    listed = [backup async for page in pages for backup in page]
    owned = [
        backup
        for backup in listed
        if ownership_of(backup, scope.owner) is not Ownership.UNRECORDED
        and not is_foreign(scope, backup)
    ]
    for backup in owned:
        if ownership_of(backup, scope.owner) is Ownership.FOREIGN and not being_deleted(backup):
            version = backup["metadata"]["resourceVersion"]
            metadata = {"resourceVersion": version, "annotations": record(scope.owner)}
            await client.patch(
                resources.VM_BACKUPS,
                text_at(backup, "metadata", "name"),
                scope.target_namespace,
                {"metadata": metadata},
            )
    return sorted(owned, key=creation_order)


def _candidate(scope: ClusterScope) -> str | None:
    """Return the name of a control plane machine that runs, None while there is none."""
    for machine in scope.context.caches.machines_of(scope.cluster):
        if (
            is_ready(machine)
            and clusterapi.is_control_plane(machine, scope.cluster)
            and scope.namespace().vms.get(scope.target_namespace, key_of(machine).name)
        ):
            return key_of(machine).name
    return None


def _in_progress(scope: ClusterScope) -> frozenset[str]:
    """Return the names of machines whose backup, if there is one, may not be complete."""
    return frozenset(
        key_of(machine).name
        for machine in scope.context.caches.machines_of(scope.cluster)
        if not scope.context.memory.machine(machine).backup.ended
    )


def _reuse_check(
    scope: ClusterScope, policy: BackupPolicy | None, in_progress: frozenset[str]
) -> bool:
    """Return whether the last check still holds, and requeue for the time when it does not."""
    check = scope.memory.backups.check
    if check is None or check.policy != policy or wants_adoption(scope.obj):
        return False
    # A backup that was in progress is complete now, so that there may be one too many.
    has_new_backup = bool(check.pending - in_progress)
    if has_new_backup:
        return False
    if not check.refused and not scope.draft.has_reason(_CONDITION, Reason.BACKUPS_REFUSED):
        return True
    if check.requested != annotations_of(scope.obj).get(RECONCILE_AT_ANNOTATION, ""):
        return False
    remaining = check.checked_at + _REFUSED_SECONDS - time.monotonic()
    if remaining <= 0:
        return False
    scope.requeue_within(remaining)
    return True


async def _mark_retained(scope: ClusterScope, backup: Obj) -> None:
    """Note on a backup that it outlives its cluster, so that it is no leftover."""
    if is_retained(backup) or being_deleted(backup):
        return
    await scope.require_session().client.patch(
        resources.VM_BACKUPS,
        text_at(backup, "metadata", "name"),
        scope.target_namespace,
        {"metadata": {"annotations": {RETAINED_ANNOTATION: "true"}}},
    )


async def _delete_surplus(
    scope: ClusterScope, backups: list[Obj], policy: BackupPolicy, in_progress: frozenset[str]
) -> list[Obj]:
    """Delete backups beyond the number to keep; return the others, with those in use."""
    deleted = [
        backup
        for backup in surplus(backups, in_progress, policy.keep)
        if await _request_deletion(scope, backup)
    ]
    if deleted:
        scope.event("BackupsDeleted", f"deleted as {policy.keep} are kept: {_describe(deleted)}")
    return [backup for backup in backups if backup not in deleted and not being_deleted(backup)]


async def _request_deletion(scope: ClusterScope, backup: Obj) -> bool:
    """Have Harvester delete a backup, also from the backup target; return whether it accepts that.

    It refuses to delete a backup while it restores a VM from it (harvester v1.8.2, `Delete` in
    pkg/webhook/resources/virtualmachinebackup/validator.go).
    """
    try:
        await scope.require_session().client.delete(
            resources.VM_BACKUPS,
            text_at(backup, "metadata", "name"),
            scope.target_namespace,
            uid=uid_of(backup),
        )
    except NotFound:
        return True
    except Invalid:
        return False
    return True


async def _rehearse(scope: ClusterScope, machine: str | None) -> None:
    """Have Harvester check the backup of a control plane VM, without making one.

    Raises `ApiError` if Harvester refuses it.
    """
    if machine is None:
        return
    label = cluster_label(scope.cluster_key)
    intended = backup_object(machine, scope.target_namespace, label, scope.owner)
    try:
        await scope.require_session().client.create(resources.VM_BACKUPS, intended, dry_run=True)
    except AlreadyExists:
        return
    except Invalid as error:
        if not any(text in error.message for text in _HARMLESS):
            raise


def _report_refusal(scope: ClusterScope, error: ApiError) -> None:
    """Report that an upgrade would make no backups."""
    message = f"an upgrade would make no backups: {describe_refusal(scope.target_namespace, error)}"
    if not scope.draft.has_message(_CONDITION, message, Reason.BACKUPS_REFUSED):
        scope.warning_event(Reason.BACKUPS_REFUSED, message)
    scope.draft.set_false(_CONDITION, Reason.BACKUPS_REFUSED, message)
    scope.requeue_within(_REFUSED_SECONDS)


def _report(scope: ClusterScope, policy: BackupPolicy | None, backups: list[Obj]) -> None:
    """Set the condition from the backups that exist and the last failure."""
    if policy is None:
        if not backups:
            scope.draft.drop(_CONDITION)
            return
        message = f"no more backups are made; deleted with the cluster: {_describe(backups)}"
        scope.draft.set_true(_CONDITION, message)
        return

    listed = _describe(backups) if backups else "no machine was replaced yet"
    failure = scope.memory.backups.failure
    if failure:
        message = f"the VM was deleted without a backup: {failure}; backups: {listed}"
        scope.draft.set_false(_CONDITION, Reason.BACKUP_FAILED, message)
    elif not _is_failure_newer(scope, backups):
        scope.draft.set_true(_CONDITION, listed)


def _is_failure_newer(scope: ClusterScope, backups: list[Obj]) -> bool:
    """Return whether the condition reports a failure since which no backup was made.

    The memory of the failure is lost with a restart of the provider.
    """
    if not scope.draft.has_reason(_CONDITION, Reason.BACKUP_FAILED):
        return False
    reported = get_condition(list_at(scope.obj, "status", "conditions"), _CONDITION) or {}
    newest = max(
        (text_at(backup, "metadata", "creationTimestamp") for backup in backups), default=""
    )
    return newest <= str(reported.get("lastTransitionTime"))


def _describe(backups: list[Obj]) -> str:
    """Return a text that names the newest backups."""
    newest_first = sorted(backups, key=creation_order, reverse=True)
    shown = [text_at(backup, "metadata", "name") for backup in newest_first]
    return f"VirtualMachineBackup {name_some(shown, _SHOWN)}"
