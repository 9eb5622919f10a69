"""Back up the VM of a control plane machine that a rollout replaces, before it is deleted.

Without `spec.controlPlaneBackups` of the HarvesterCluster, nothing of this happens. The deletion
waits for a limited time, because an upgrade must not depend on the backup target forever. The time
begins with Harvester's first answer about the backup, which a refusal or a server fault is, too. A
restart of the provider continues it: an annotation of the HarvesterMachine has its beginning.

Backups are read by name, and not watched: their status has the content of the Secrets of the VM,
which no cache may hold.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import NamedTuple

from caphv.api import names, resources
from caphv.api.conditions import get_condition, rfc3339, seconds_since
from caphv.api.labels import cluster_label
from caphv.api.names import ConditionType
from caphv.api.object import (
    Obj,
    annotations_of,
    being_deleted,
    key_of,
    list_at,
    owner_reference,
    text_at,
    uid_of,
)
from caphv.api.ownership import Ownership, ownership_of
from caphv.api.plaintext import plain
from caphv.api.vmbackup import (
    BackupPolicy,
    backup_name,
    backup_object,
    backup_policy,
    backup_problem,
    is_ready,
    is_replaced,
)
from caphv.runtime.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    ServerFault,
)
from reconciler.harvester.rights import command_for
from reconciler.machine.scope import MachineScope
from reconciler.triggers import Delay, Watched

_LONGEST_REASON = 512
# Seconds between two reads of a backup; the longest are also those between two attempts.
_SHORTEST_POLL, _LONGEST_POLL = 2.0, 30.0
# After so many seconds without an answer about the backup, Harvester or the provider was down.
_OUTAGE_SECONDS = 120.0
# Then Harvester is asked for so many seconds at least, because its webhooks come back later than
# its API, and a backup continues.
_RECOVERY_SECONDS = 300.0
_GIVEN_UP = "given-up"
REFUSALS = (Forbidden, Invalid, NotFound, ServerFault)
"""Refusals that a user, or the end of a migration of the VM, may lift."""


class _BackupState(NamedTuple):
    """What is wrong with the backup of a machine, and the backup if it is the machine's."""

    problem: str
    backup: Obj | None


async def back_up_replaced(scope: MachineScope, vm: Obj) -> None:
    """Return once the VM has a backup, needs none, or has had the time for one.

    Raises `Blocked` while the backup is made, `ApiError` and `Unreachable` for a retry.
    """
    harvester_cluster = scope.harvester_cluster
    if harvester_cluster is None or scope.memory.backup.ended or being_deleted(vm):
        return
    policy = backup_policy(scope.cluster_spec)
    if policy is None or (scope.cluster is not None and being_deleted(scope.cluster)):
        await _abandon(scope, harvester_cluster, vm)
        return
    if annotations_of(scope.obj).get(names.VM_BACKUP_ANNOTATION) == _GIVEN_UP:
        scope.memory.backup.ended = True
        return
    if not _is_replaced(scope):
        return

    state = await _ensure_backup(scope, harvester_cluster, policy)
    backup = state.backup
    if backup is not None and is_ready(backup, uid_of(vm)):
        _end(scope, harvester_cluster)
        scope.event(
            "VMBackedUp",
            f"VirtualMachineBackup {key_of(backup)} on Harvester has the disks of this machine",
        )
        return

    remaining = await _remaining_seconds(scope, policy, backup)
    if remaining > 0:
        poll = _poll_seconds(policy.seconds - remaining) if backup else _LONGEST_POLL
        raise scope.in_progress(
            _describe_wait(scope, policy, state.problem),
            Watched.HARVESTER_CLUSTER,
            Delay(min(poll, remaining)),
            warn=bool(state.problem),
        )

    problem = state.problem or f"it was not ready after {policy.seconds} s"
    await _give_up(scope, harvester_cluster, problem)


async def _give_up(scope: MachineScope, harvester_cluster: Obj, problem: str) -> None:
    """Let the VM be deleted without a backup, and report why."""
    await _delete_unfinished(scope, scope.memory.backup.uid)
    await scope.patch({"metadata": {"annotations": {names.VM_BACKUP_ANNOTATION: _GIVEN_UP}}})
    _end(scope, harvester_cluster, problem)
    scope.warning_event(
        "VMBackupFailed",
        f"deleting the VM without a backup: {problem}; the disks of this machine are lost",
    )


async def _remaining_seconds(
    scope: MachineScope, policy: BackupPolicy, backup: Obj | None
) -> float:
    """Return for how many seconds the deletion still waits for the backup; record since when."""
    begun = annotations_of(scope.obj).get(names.VM_BACKUP_ANNOTATION, "")
    # A time that is invalid or yet to come would never be over. Clocks may have been ahead.
    if not seconds_since(begun):
        created = text_at(backup, "metadata", "creationTimestamp")
        begun = created if seconds_since(created) else rfc3339(datetime.now(UTC))
        await scope.patch({"metadata": {"annotations": {names.VM_BACKUP_ANNOTATION: begun}}})

    memory = scope.memory
    current_time = time.monotonic()
    answered_at = memory.backup.answered_at
    if answered_at is None or current_time - answered_at > _OUTAGE_SECONDS:
        memory.backup.answers_since = current_time
    memory.backup.answered_at = current_time

    recovery = min(_RECOVERY_SECONDS, policy.seconds)
    return max(
        policy.seconds - seconds_since(begun),
        recovery - (current_time - memory.backup.answers_since),
    )


def _is_replaced(scope: MachineScope) -> bool:
    """Return whether a rollout replaces this control plane machine."""
    machine, cluster = scope.machine, scope.cluster
    if machine is None or cluster is None or not scope.control_plane:
        return False

    caches, others = scope.context.caches, []
    for obj in caches.machines_of(cluster):
        reference = owner_reference(obj, "Machine", resources.CLUSTER_API_GROUP)
        if reference is None or reference["name"] == machine["metadata"]["name"]:
            continue
        other = caches.machines.get(scope.key.namespace, reference["name"])
        if other is not None:
            others.append(other)
    return is_replaced(machine, cluster, others)


async def _ensure_backup(
    scope: MachineScope, harvester_cluster: Obj, policy: BackupPolicy
) -> _BackupState:
    """Create the backup if it does not exist, and return its state."""
    client = scope.session().client
    name = backup_name(scope.name)
    owner = scope.context.owner(resources.HARVESTER_CLUSTERS.kind, harvester_cluster)
    try:
        try:
            backup = await client.get(resources.VM_BACKUPS, name, scope.target_namespace)
        except NotFound:
            label = cluster_label(scope.cluster_key) if scope.cluster_key else ""
            intended = backup_object(
                scope.name, scope.target_namespace, label, owner, retain=policy.retain
            )
            backup = await _create(scope, intended)
            scope.event("VMBackupStarted", f"backing up the VM as VirtualMachineBackup {name}")
    except REFUSALS as error:
        return _BackupState(describe_refusal(scope.target_namespace, error), None)

    if ownership_of(backup, owner) is not Ownership.OURS:
        problem = f"VirtualMachineBackup {name} of another owner has the name: delete it"
        return _BackupState(problem, None)
    scope.memory.backup.uid = uid_of(backup)
    return _BackupState(plain(backup_problem(backup), _LONGEST_REASON), backup)


async def _create(scope: MachineScope, backup: Obj) -> Obj:
    """Create a backup, or return the one that was created when the response was lost."""
    client = scope.session().client
    try:
        return await client.create(resources.VM_BACKUPS, backup)
    except (AlreadyExists, Invalid) as error:
        # Harvester's webhook refuses a name that exists as invalid.
        try:
            name = backup_name(scope.name)
            return await client.get(resources.VM_BACKUPS, name, scope.target_namespace)
        except NotFound:
            raise error from None


def _poll_seconds(waited: float) -> float:
    return max(_SHORTEST_POLL, min(_LONGEST_POLL, waited / 10))


def describe_refusal(target_namespace: str, error: ApiError) -> str:
    """Return why Harvester refuses a backup, and the remedy."""
    reason = plain(error.message, _LONGEST_REASON)
    if isinstance(error, Forbidden) and "virtualmachinebackups" in error.message:
        return f"{reason}{command_for(target_namespace, backups=True)}"
    return f"Harvester refuses the backup: {reason}"


def _describe_wait(scope: MachineScope, policy: BackupPolicy, problem: str) -> str:
    wait = f"waiting for VirtualMachineBackup {backup_name(scope.name)} before the VM is deleted"
    if not problem:
        return f"{wait}, for at most {policy.seconds} s"
    return (
        f"{wait}: {problem}; without a backup, it is deleted after {policy.seconds} s, or at once "
        "after spec.controlPlaneBackups of the HarvesterCluster is removed"
    )


async def _abandon(scope: MachineScope, harvester_cluster: Obj, vm: Obj) -> None:
    """Delete an unfinished backup after the field or the Cluster was deleted meanwhile."""
    reported = list_at(harvester_cluster, "status", "conditions")
    had_field = get_condition(reported, ConditionType.CONTROL_PLANE_BACKUPS_READY) is not None
    if not had_field or not scope.control_plane:
        return
    try:
        name = backup_name(scope.name)
        backup = await scope.session().client.get(
            resources.VM_BACKUPS, name, scope.target_namespace
        )
    except REFUSALS:
        return
    owner = scope.context.owner(resources.HARVESTER_CLUSTERS.kind, harvester_cluster)
    if not is_ready(backup, uid_of(vm)) and ownership_of(backup, owner) is Ownership.OURS:
        await _delete_unfinished(scope, uid_of(backup))
        _end(scope, harvester_cluster)


async def _delete_unfinished(scope: MachineScope, uid: str) -> None:
    """Delete a backup that can never be completed: Harvester reads the disks of the VM for it.

    Until it is deleted, the snapshotter may keep the disks (finalizer of their claims).

    :param uid: uid of the backup, empty without one
    """
    if not uid:
        return
    try:
        await scope.session().client.delete(
            resources.VM_BACKUPS, backup_name(scope.name), scope.target_namespace, uid=uid
        )
    except (*REFUSALS, Conflict):
        return


def _end(scope: MachineScope, harvester_cluster: Obj, problem: str = "") -> None:
    """Remember that the VM can be deleted, and have its cluster report the backup."""
    scope.memory.backup.ended = True
    memory = scope.context.memory.cluster(harvester_cluster)
    memory.backups.check = None
    memory.backups.failure = f"machine {scope.name}: {problem}" if problem else ""
    scope.context.queues.clusters.add(key_of(harvester_cluster))
