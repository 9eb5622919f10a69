"""What blocks a move: pure. Most of it could lose an object or a VM, and stops the move in any case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caphv.api import remedies
from caphv.api.clusterapi import externally_managed
from caphv.api.object import key_of
from overview.backup.adoption import VirtualMachines
from overview.backup.dryrun import DryRun
from overview.backup.files import Backup
from overview.backup.moving import CLUSTER, harvester_objects, interrupted, is_resumed, of_kind, owned
from overview.backup.order import Action, is_paused
from overview.backup.writing import Restore
from overview.doctor.model import Check, Result, ok
from overview.remedies import resume_command

_CONFIG_MAPS, _VMS, _CREATION = "configmaps", "vms", "creation"
# No controller replaces a machine because of these. A class, a template or an identity could cost VMs.
_OVERRIDABLE = (_CONFIG_MAPS, _VMS, _CREATION)


def checks(backup: Backup, target: Restore, vms: VirtualMachines) -> list[Check]:
    """Check the objects of the source, `as_moved`, against the target, and whether adoption can be verified."""
    found = [*_sides(backup, target), *_objects(backup, target), *_interrupted(target)]
    found += [*_paused(backup), *_unseen(backup), *_vms(vms)]
    if is_resumed(target):
        message = "the clusters run there already: an interrupted move is completed"
        found.append(ok("resumed", _there(target), message))
    return found


def creation_checks(target: Restore, tried: DryRun) -> list[Check]:
    """Check what the target answers to dry runs of the creation: a refusal would stop the move after the pause."""
    remedy = "Correct it there: the move would stop after the pause"
    found = [Check(_CREATION, _there(target), Result.ERROR, f"refused there: {text}", remedy) for text in tried.refused]
    if tried.namespaces:
        names = ", ".join(tried.namespaces)
        message = f"creates namespace {names}; their objects are validated when they are created, not before"
        found.append(ok(_CREATION, _there(target), message))
    return found


def stopping(found: Iterable[Check], *, force: bool) -> list[Check]:
    """Return the errors that stop a move; `force` overrides those that cost no object and no VM."""
    return [check for check in found if check.result is Result.ERROR and not (force and check.id in _OVERRIDABLE)]


def _sides(backup: Backup, target: Restore) -> Iterator[Check]:
    source = backup.origin.uid if backup.origin else ""
    for subject, uid in (("source", source), (_there(target), target.uid)):
        if not uid:  # by it VMs name their management cluster
            message = f"the uid of namespace kube-system of the {subject} cannot be read"
            yield Check("target", subject, Result.ERROR, message, "Use an account that may get namespace kube-system")
    if source and source == target.uid:
        message = "source and target are the same"
        yield Check("target", _there(target), Result.ERROR, message, "Name another --to-kubeconfig")
    for problem in target.problems:
        yield Check("kinds", _there(target), Result.ERROR, problem, "Install the same providers as on the source")


def _objects(backup: Backup, target: Restore) -> Iterator[Check]:
    moved = owned(backup)
    for step in target.steps():
        if step.action is Action.DIFFERENT:
            stays = step.identity not in moved
            check = _CONFIG_MAPS if stays and step.identity[:2] == ("", "ConfigMap") else "objects"
            message = f"{step.identity} exists there and is different"
            remedy = "Make both equal. A Cluster that is deleted on the target takes its VMs with it"
            yield Check(check, _there(target), Result.ERROR, message, remedy)


def _interrupted(target: Restore) -> Iterator[Check]:
    for clusters, whole in interrupted(target):
        message = f"an interrupted move of other clusters than these left {', '.join(clusters)} paused there"
        command = remedies.MOVE_CLUSTERS(clusters=" ".join(clusters))
        which = command if whole else "caphv move with exactly its clusters"
        yield Check("interrupted", _there(target), Result.ERROR, message, f"Complete that move first: {which}")


def _paused(backup: Backup) -> Iterator[Check]:
    """What the target would not adopt, because it would be paused or managed by another controller there, too.

    The pause of a former call of this move does not count: `as_moved` has removed it.
    """
    for obj in (*of_kind(backup, *CLUSTER), *harvester_objects(backup)):
        name = f"{obj['kind']} {key_of(obj)}"
        if is_paused(obj):
            message = f"{name} is paused: the target would not adopt its VMs"
            yield Check("paused", "source", Result.ERROR, message, f"Resume it: {resume_command(obj)}")
        elif obj["kind"] == "HarvesterCluster" and externally_managed(obj):
            message = f"{name} is managed by another controller, which is not moved"
            remedy = "Run that controller for the target: VMs are adopted once it has set the status there"
            yield Check("managed", "source", Result.WARNING, message, remedy)


def _unseen(backup: Backup) -> Iterator[Check]:
    for each in backup.unseen:
        # Kubernetes deletes it with its owner, although it was not moved.
        yield Check("source", "source", Result.ERROR, f"not read: {each}", "Use an account that may read it")


def _vms(vms: VirtualMachines) -> Iterator[Check]:
    if vms.unread:
        message = f"the VM of {', '.join(sorted(vms.unread))} cannot be read"
        remedy = "Check Harvester and the identity with caphv doctor. Adoption could not be verified"
        yield Check("harvester", "source", Result.ERROR, message, remedy)
    if vms.absent:
        message = f"the VM of {', '.join(sorted(vms.absent))} does not exist on Harvester"
        yield Check(_VMS, "source", Result.ERROR, message, "Delete these Machines on the source first")
    if not vms.unread and not vms.absent:
        yield ok("harvester", "source", f"Harvester shows the VMs of all machines: {len(vms.states)}")


def _there(target: Restore) -> str:
    return f"management cluster {target.server}"
