"""Find the reasons that block a move.

Most errors stop any move, because an object or a VM could be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caphv.api import parking, remedies
from caphv.api.clusterapi import externally_managed, is_of_rancher
from caphv.api.object import key_of
from operations.backup.adoption import VirtualMachines
from operations.backup.dryrun import DryRun
from operations.backup.files import Backup
from operations.backup.movedobjects import (
    CLUSTER,
    harvester_objects,
    interrupted_moves,
    is_resumed,
    objects_to_delete,
    of_kind,
)
from operations.backup.order import Action, is_paused
from operations.backup.writing import Restore
from operations.status.check import Check, Result, ok
from operations.status.remedies import resume_command

_CONFIG_MAPS = "configmaps"
_VMS = "vms"
_CREATION = "creation"
# A user may override these errors, because no controller replaces a machine when they are ignored.
# A wrong class, template or identity could cost VMs.
_OVERRIDABLE = (_CONFIG_MAPS, _VMS, _CREATION)


def checks(backup: Backup, target: Restore, vms: VirtualMachines) -> list[Check]:
    """Check whether clusters can be moved, and whether their adoption can be verified.

    :param backup: the objects of the source, as `backup_of_move` returns them
    :param target: the move, compared with the target
    :param vms: the VMs on Harvester
    """
    result = [
        *_check_sides(backup, target),
        *_check_objects(backup, target),
        *_check_other_moves(target),
        *_check_rancher(backup),
        *_check_adoption(backup),
        *_check_completeness(backup),
        *_check_vms(vms),
    ]

    if is_resumed(target):
        message = "the clusters run there already: an interrupted move is completed"
        result.append(ok("resumed", _target_name(target), message))
    return result


def creation_checks(target: Restore, tried: DryRun) -> list[Check]:
    """Report refusals of the target's dry runs, which would stop the move after the pause."""
    remedy = "Correct it there: the move would stop after the pause"
    result = [
        Check(
            _CREATION,
            _target_name(target),
            Result.ERROR,
            message=f"refused there: {text}",
            remedy=remedy,
        )
        for text in tried.refused
    ]

    # Objects of a namespace that does not exist cannot be tried.
    if tried.namespaces:
        names = ", ".join(tried.namespaces)
        message = (
            f"creates namespace {names}; their objects are validated when they are created, not "
            "before"
        )
        result.append(ok(_CREATION, _target_name(target), message))
    return result


def blocking_errors(checks: Iterable[Check], *, force: bool) -> list[Check]:
    """Return the errors that stop a move; `force` overrides the harmless ones."""
    return [
        check
        for check in checks
        if check.result is Result.ERROR and not (force and check.id in _OVERRIDABLE)
    ]


def _check_sides(backup: Backup, target: Restore) -> Iterator[Check]:
    """Check that source and target are known and different, and serve the same kinds."""
    there = _target_name(target)
    source = backup.origin.uid if backup.origin else ""
    # A VM names its management cluster by this uid.
    for subject, uid in (("source", source), (there, target.uid)):
        if not uid:
            message = f"the uid of namespace kube-system of the {subject} cannot be read"
            remedy = "Use an account that may get namespace kube-system"
            yield Check("target", subject, Result.ERROR, message=message, remedy=remedy)

    if source and source == target.uid:
        message = "source and target are the same"
        yield Check(
            "target", there, Result.ERROR, message=message, remedy="Name another --to-kubeconfig"
        )
    for problem in target.problems:
        remedy = "Install the same providers as on the source"
        yield Check("kinds", there, Result.ERROR, message=problem, remedy=remedy)


def _check_objects(backup: Backup, target: Restore) -> Iterator[Check]:
    """Check that objects that exist on the target are the same."""
    moved = objects_to_delete(backup)
    for step in target.steps():
        if step.action is not Action.DIFFERENT:
            continue
        # Nothing depends on a ConfigMap that stays on the source, so `force` may override the
        # error.
        stays = step.identity not in moved
        check = _CONFIG_MAPS if stays and step.identity[:2] == ("", "ConfigMap") else "objects"
        message = f"{step.identity} exists there and is different"
        remedy = "Make both equal. A Cluster that is deleted on the target takes its VMs with it"
        yield Check(check, _target_name(target), Result.ERROR, message=message, remedy=remedy)


def _check_other_moves(target: Restore) -> Iterator[Check]:
    """Check that no other move is under way, because this move would not resume its clusters."""
    for clusters, is_complete in interrupted_moves(target):
        message = (
            f"an interrupted move of other clusters than these left {', '.join(clusters)} paused "
            "there"
        )
        # Only a move of the same clusters has the same identity, and completes it.
        command = "caphv move with exactly its clusters"
        if is_complete:
            command = str(remedies.MOVE_CLUSTERS(clusters=" ".join(clusters)))
        remedy = f"Complete that move first: {command}"
        yield Check(
            "interrupted", _target_name(target), Result.ERROR, message=message, remedy=remedy
        )


def clusters_of_rancher(backup: Backup) -> list[str]:
    """Return the clusters of a backup that Rancher provisions. Nothing has Rancher's objects."""
    return [str(key_of(obj)) for obj in of_kind(backup, *CLUSTER) if is_of_rancher(obj)]


def _check_rancher(backup: Backup) -> Iterator[Check]:
    """Find clusters that Rancher provisions, whose objects Rancher would make on the source."""
    for cluster in (*clusters_of_rancher(backup), *backup.left_out):
        message = (
            f"Rancher provisions Cluster {cluster}: its control plane and bootstrap objects are "
            "Rancher's, and are not moved"
        )
        remedy = "Move it with Rancher itself; name the other clusters to move these alone"
        yield Check("rancher", "source", Result.ERROR, message=message, remedy=remedy)


def _check_adoption(backup: Backup) -> Iterator[Check]:
    """Find objects whose pause or foreign controller keeps the target from adopting VMs."""
    for obj in (*of_kind(backup, *CLUSTER), *harvester_objects(backup)):
        name = f"{obj['kind']} {key_of(obj)}"

        if obj["kind"] == "Cluster" and parking.concerns(obj):
            message = f"{name} is parked: the target would not start its VMs"
            remedy = f"Resume it first: {remedies.RESUME_PARKED(ref=key_of(obj))}"
            yield Check("parked", "source", Result.ERROR, message=message, remedy=remedy)
            continue

        # The pause of a former call of this move does not count: `backup_of_move` has removed it.
        if is_paused(obj):
            message = f"{name} is paused: the target would not adopt its VMs"
            remedy = f"Resume it: {resume_command(obj)}"
            yield Check("paused", "source", Result.ERROR, message=message, remedy=remedy)
        elif obj["kind"] == "HarvesterCluster" and externally_managed(obj):
            message = f"{name} is managed by another controller, which is not moved"
            remedy = (
                "Run that controller for the target: VMs are adopted once it has set the status "
                "there"
            )
            yield Check("managed", "source", Result.WARNING, message=message, remedy=remedy)


def _check_completeness(backup: Backup) -> Iterator[Check]:
    """Check that everything was read.

    Kubernetes would delete a dependent that is not moved together with its owner.
    """
    for unseen in backup.unseen:
        message = f"not read: {unseen}"
        remedy = "Use an account that may read it"
        yield Check("source", "source", Result.ERROR, message=message, remedy=remedy)


def _check_vms(vms: VirtualMachines) -> Iterator[Check]:
    """Check that the VMs of all machines can be read, and exist."""
    if vms.unread:
        message = f"the VM of {', '.join(sorted(vms.unread))} cannot be read"
        remedy = (
            "Check Harvester and the identity with caphv doctor. Adoption could not be verified"
        )
        yield Check("harvester", "source", Result.ERROR, message=message, remedy=remedy)

    if vms.absent:
        message = f"the VM of {', '.join(sorted(vms.absent))} does not exist on Harvester"
        remedy = "Delete these Machines on the source first"
        yield Check(_VMS, "source", Result.ERROR, message=message, remedy=remedy)

    if not vms.unread and not vms.absent:
        message = f"Harvester shows the VMs of all machines: {len(vms.states)}"
        yield ok("harvester", "source", message)


def _target_name(target: Restore) -> str:
    return f"management cluster {target.server}"
