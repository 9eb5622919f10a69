"""Plan to restore etcd of a cluster from a snapshot: pure.

Restoring needs a shell on the servers, which no controller has. The plan pauses the Cluster, so
that nothing replaces machines meanwhile, and ends the pause once the cluster works. The steps on
the servers are in `operations.change.etcdsteps`, the checks in
`operations.change.etcdrestorechecks`.

A reset gives the server's etcd a new name (k3s-io/k3s `pkg/etcd/etcd.go` `Reset`), which servers
write on their Nodes (`metadata_controller.go`). So the name tells whether a snapshot was restored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from caphv.api import names
from caphv.api.counting import name_some
from caphv.api.names import ETCD_RESTORE_ANNOTATION
from caphv.api.object import Obj, annotations_of, at, being_deleted
from caphv.runtime.text import load_json
from operations.change.changes import Change, ChangeError, Plan, patch_of
from operations.change.etcdnodes import node_name
from operations.change.etcdsteps import address_of
from operations.read.etcdsnapshots import EtcdSnapshot, is_name, is_path
from operations.status.check import Check, Result
from operations.status.model import Cluster, Machine
from operations.status.parts import Parts

_NAMED = 5
# It becomes part of names of files on the machines.
_ID = re.compile(r"[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore, as the Cluster records it.

    `snapshot` is a path on the machine, or a name in the S3 store. `id` tells this restore from
    others of the same cluster, on its machines. `member` is the name of the machine's etcd before,
    empty if unknown. `paused` says whether the command has paused the Cluster, so that its end ends
    the pause.
    """

    snapshot: str
    s3: bool
    machine: str
    id: str = ""
    member: str = ""
    paused: bool = True


class Choice(NamedTuple):
    """A restore, and the record of its snapshot; None for a file without a record."""

    restore: Restore
    copy: EtcdSnapshot | None


def restore_of(cluster: Obj) -> Restore | None:
    """Return the restore that a Cluster records; None if none has begun.

    Raises `ChangeError` for a record that cannot be read.
    """
    text = annotations_of(cluster).get(ETCD_RESTORE_ANNOTATION)
    if text is None:
        return None
    try:
        record = load_json(text)
        restore = Restore(
            str(record["snapshot"]),
            record["s3"] is True,
            str(record["machine"]),
            str(record["id"]),
            str(record["member"]),
            record["paused"] is True,
        )
        if not _is_file(restore) or not _ID.fullmatch(restore.id):
            raise ValueError("no file or id")
    except (ValueError, TypeError, KeyError):
        raise ChangeError(
            [
                f"annotation {ETCD_RESTORE_ANNOTATION} is not the record of a restore: --finish "
                "--force removes it"
            ]
        ) from None
    return restore


def _is_file(restore: Restore) -> bool:
    """Return whether a restore names a file; a reset without one keeps the old database."""
    return is_name(restore.snapshot) if restore.s3 else is_path(restore.snapshot)


def choose(
    cluster: Cluster,
    snapshot: str,
    machine: str,
    snapshots: Sequence[EtcdSnapshot] | None,
) -> Choice:
    """Return which snapshot to restore on which machine, and its record.

    Raises `ChangeError`.

    :param cluster: the cluster
    :param snapshot: a name in the list of snapshots, or an absolute path on the machine
    :param machine: the machine that the user named, or empty
    :param snapshots: the list, None if the workload cluster does not answer
    """
    servers = {server.name: server for server in _servers(cluster)}
    if machine and machine not in servers:
        listed = ", ".join(sorted(servers)) or "none"
        raise ChangeError([f"{machine} is not a control plane machine of the cluster: {listed}"])

    if not is_name(snapshot):
        if not is_path(snapshot):
            raise ChangeError([f"{snapshot!r} is neither an absolute path nor the name of a file"])
        return Choice(Restore(snapshot, False, machine or _only(servers)), None)
    if snapshots is None:
        # A name alone means the store, because files have paths.
        return Choice(Restore(snapshot, True, machine or _only(servers)), None)
    return _choose_copy(servers, machine, _copies_of(snapshot, snapshots))


def _copies_of(snapshot: str, snapshots: Sequence[EtcdSnapshot]) -> list[EtcdSnapshot]:
    """Return the copies of a snapshot, on disks and in the store. Raises `ChangeError` for none."""
    copies = [copy for copy in snapshots if copy.name == snapshot]
    if not copies:
        usable = list(dict.fromkeys(copy.name for copy in snapshots if not copy.wrong))
        listed = name_some(usable, _NAMED) or "none that can be restored"
        raise ChangeError([f"the cluster has no snapshot {snapshot}; there are {listed}"])

    # A server records a failed upload in addition to the file that it wrote.
    return [copy for copy in copies if not copy.wrong] or copies


def _choose_copy(
    servers: Mapping[str, Machine], machine: str, copies: Sequence[EtcdSnapshot]
) -> Choice:
    """Return which copy of a snapshot to restore, and on which machine.

    A copy on a disk can be restored only on its machine, a copy in the store on any. The order of
    preference: the disk of the machine that the user named, the store, the disk of another machine.

    :param servers: the control plane machines by name
    :param machine: the machine that the user named, or empty
    :param copies: the copies, at least one
    """
    owners = {server.node.name: name for name, server in servers.items() if server.node}
    local = [copy for copy in copies if not copy.s3]
    for copy in local:
        if machine and owners.get(copy.node) == machine:
            return Choice(Restore(copy.path, False, machine), copy)
    for copy in copies:
        if copy.s3:
            return Choice(Restore(copy.name, True, machine or _readiest(servers)), copy)

    copy = local[0]
    owner = owners.get(copy.node, "")
    if not owner or machine:
        remedy = f"leave out --on, to use Machine {owner}" if owner else "choose another one"
        raise ChangeError([f"snapshot {copy.name} is on Node {copy.node} only: {remedy}"])
    return Choice(Restore(copy.path, False, owner), copy)


def identify(
    restore: Restore, cluster: Cluster, identity: str, members: Mapping[str, str]
) -> Restore:
    """Return the restore with what tells it from others, and its database from the old one.

    :param restore: what is going to be restored
    :param cluster: the cluster
    :param identity: eight hexadecimal digits that no other restore has
    :param members: the names of etcd by Node, empty if the workload cluster does not answer
    """
    member = ""
    for server in _servers(cluster):
        if server.name == restore.machine:
            member = members.get(node_name(server), "")
    return replace(restore, id=identity, member=member)


def begin(parts: Parts, restore: Restore, checks: Sequence[Check]) -> Plan:
    """Return the plan that records a restore and pauses the Cluster, also for a second time."""
    cluster = parts.cluster
    is_paused = bool(at(cluster, "spec", "paused"))
    record = {
        "snapshot": restore.snapshot,
        "s3": restore.s3,
        "machine": restore.machine,
        "id": restore.id,
        "member": restore.member,
        "paused": not is_paused,
    }
    subject = f"Cluster {parts.key}"
    text = json.dumps(record)
    body: Obj = {"metadata": {"annotations": {ETCD_RESTORE_ANNOTATION: text}}}
    changes = [Change(subject, f"annotation {ETCD_RESTORE_ANNOTATION}", "", text)]
    if not is_paused:
        body["spec"] = {"paused": True}
        changes.append(Change(subject, "spec.paused", "", "true"))
    return Plan(parts.key, (patch_of(cluster, body, changes),), tuple(checks))


def pause_again(parts: Parts, restore: Restore) -> Plan:
    """Return the plan that pauses a Cluster whose pause has ended before the restore."""
    if is_held(parts.cluster) or being_deleted(parts.cluster):
        return Plan(parts.key)
    subject = f"Cluster {parts.key}"
    message = "its pause has ended: machines may have been replaced since"
    remedy = "Compare its machines with the steps, and pause it again"
    return begin(parts, restore, (Check("pause", subject, Result.WARNING, message, remedy),))


def discard(parts: Parts) -> Plan:
    """Return the plan that removes a record which cannot be read; a pause stays."""
    body: Obj = {"metadata": {"annotations": {ETCD_RESTORE_ANNOTATION: None}}}
    change = Change(
        f"Cluster {parts.key}", f"annotation {ETCD_RESTORE_ANNOTATION}", "unreadable", "(removed)"
    )
    return Plan(parts.key, (patch_of(parts.cluster, body, (change,)),))


def is_held(cluster: Obj) -> bool:
    """Return whether a pause keeps controllers from replacing machines."""
    is_paused = bool(at(cluster, "spec", "paused"))
    return is_paused or names.PAUSED_ANNOTATION in annotations_of(cluster)


def finish(parts: Parts, restore: Restore, checks: Sequence[Check]) -> Plan:
    """Return the plan that removes the record, and ends the pause that the command began."""
    subject = f"Cluster {parts.key}"
    body: Obj = {"metadata": {"annotations": {ETCD_RESTORE_ANNOTATION: None}}}
    changes = [
        Change(subject, f"annotation {ETCD_RESTORE_ANNOTATION}", restore.snapshot, "(removed)")
    ]
    if restore.paused and at(parts.cluster, "spec", "paused"):
        body["spec"] = {"paused": False}
        changes.append(Change(subject, "spec.paused", "true", "false"))
    return Plan(parts.key, (patch_of(parts.cluster, body, changes),), tuple(checks))


def _servers(cluster: Cluster) -> list[Machine]:
    """Return the control plane machines that stay."""
    return [
        machine for machine in cluster.machines if machine.control_plane and not machine.deleting
    ]


def _only(servers: Mapping[str, Machine]) -> str:
    """Return the only machine. Raises `ChangeError` for several."""
    if len(servers) != 1:
        listed = ", ".join(sorted(servers)) or "there is none"
        raise ChangeError([f"name the machine to restore on with --on: {listed}"])
    return next(iter(servers))


def _readiest(servers: Mapping[str, Machine]) -> str:
    """Return the machine whose Node is most likely to work. Raises `ChangeError` for none."""
    if not servers:
        raise ChangeError(["the cluster has no control plane machine to restore on"])

    def rank(server: Machine) -> tuple[bool, bool, str]:
        is_ready = bool(server.node and server.node.ready == "True")
        return (not is_ready, not address_of(server), server.name)

    return min(servers.values(), key=rank).name
