"""What stands in the way of a move: pure. Most of it could lose an object or a VM, and stops the move in any case."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from overview.backup.adoption import VirtualMachines
from overview.backup.files import Backup
from overview.backup.moving import is_resumed, owned
from overview.backup.order import Action
from overview.backup.writing import Restore
from overview.doctor.model import Check, Result, ok

_SHARED, _VMS = "shared", "vms"
# Nothing that is deleted on the source depends on these.
_OVERRIDABLE = (_SHARED, _VMS)


def checks(backup: Backup, target: Restore, vms: VirtualMachines) -> list[Check]:
    """Check the objects of the source, `as_moved`, against the target, and whether adoption can be verified."""
    found = [*_sides(backup, target), *_objects(backup, target), *_unseen(backup), *_vms(vms)]
    if is_resumed(target):
        message = "the clusters run there already: an interrupted move is completed"
        found.append(ok("resumed", _there(target), message))
    return found


def stopping(found: Iterable[Check], *, force: bool) -> list[Check]:
    """Return the errors that stop a move; `force` overrides those that cannot lose anything."""
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
            check = "objects" if step.identity in moved else _SHARED
            message = f"{step.identity} exists there and is different"
            yield Check(check, _there(target), Result.ERROR, message, "Delete or rename it on the target")


def _unseen(backup: Backup) -> Iterator[Check]:
    for each in backup.unseen:
        # Kubernetes deletes it with its owner, although it was not moved.
        yield Check("source", "source", Result.ERROR, f"not read: {each}", "Use an account that may read it")


def _vms(vms: VirtualMachines) -> Iterator[Check]:
    if vms.unread:
        message = f"the VM of {', '.join(sorted(vms.unread))} cannot be read"
        remedy = "Check Harvester and the identity: caphv doctor. Adoption could not be verified"
        yield Check("harvester", "source", Result.ERROR, message, remedy)
    if vms.gone:
        message = f"the VM of {', '.join(sorted(vms.gone))} does not exist on Harvester"
        yield Check(_VMS, "source", Result.ERROR, message, "Delete these Machines on the source first")
    if not vms.unread and not vms.gone:
        yield ok("harvester", "source", f"Harvester shows all {len(vms.states)} VMs of machines")


def _there(target: Restore) -> str:
    return f"management cluster {target.server}"
