"""Plan to restore etcd of a cluster from a snapshot: pure.

Restoring needs a shell on the servers, which no controller has. The plan pauses the Cluster, so
that nothing replaces machines meanwhile, and ends the pause once the cluster works. The steps on
the servers are in `operations.change.etcdsteps`.

A reset gives the server's etcd a new name (k3s-io/k3s `pkg/etcd/etcd.go` `Reset`), which servers
write on their Nodes (`metadata_controller.go`). So the name tells whether a snapshot was restored.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from caphv.api import names, parking, remedies
from caphv.api.counting import name_some
from caphv.api.names import ETCD_RESTORE_ANNOTATION
from caphv.api.object import Key, Obj, annotations_of, at, being_deleted, key_of, list_at
from caphv.runtime.text import TextError, load_json, load_yaml
from operations.change.changes import Change, ChangeError, Plan, patch_of
from operations.change.etcdsteps import address_of, control_planes
from operations.read.etcdsnapshots import READY, EtcdSnapshot, is_name, is_path
from operations.read.objects import condition_of
from operations.status.check import Check, Result, ok, skipped
from operations.status.model import Cluster, Machine
from operations.status.parts import Parts

_NAMED = 5
# A kubelet renews its Lease every ten seconds.
_FRESH = timedelta(minutes=1)
_CLOCK_SKEW = timedelta(minutes=5)
_MEMBER_ANNOTATIONS = ("etcd.rke2.cattle.io/node-name", "etcd.k3s.cattle.io/node-name")
# It becomes part of names of files on the machines.
_ID = re.compile(r"[0-9a-f]{8}")
_SNAPSHOT_FILE = "config.yaml.d/55-etcd-snapshots.yaml"


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

    if snapshot.startswith("/") or not is_name(snapshot):
        if not is_path(snapshot):
            raise ChangeError([f"{snapshot!r} is neither an absolute path nor the name of a file"])
        return Choice(Restore(snapshot, False, machine or _only(servers)), None)
    if snapshots is None:
        # A name alone means the store, because files have paths.
        return Choice(Restore(snapshot, True, machine or _only(servers)), None)

    copies = [copy for copy in snapshots if copy.name == snapshot]
    if not copies:
        good = list(dict.fromkeys(copy.name for copy in snapshots if not copy.wrong))
        listed = name_some(good, _NAMED) or "none that can be restored"
        raise ChangeError([f"the cluster has no snapshot {snapshot}; there are {listed}"])
    # A server records a failed upload in addition to the file that it wrote.
    copies = [copy for copy in copies if not copy.wrong] or copies

    # A copy on a disk is only good for its machine.
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
        where = f"on Node {copy.node} only"
        remedy = f"leave out --on, to use Machine {owner}" if owner else "choose another one"
        raise ChangeError([f"snapshot {snapshot} is {where}: {remedy}"])
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
    nodes = [node_name(server) for server in _servers(cluster) if server.name == restore.machine]
    member = members.get(nodes[0], "") if nodes else ""
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


def begin_checks(
    parts: Parts, cluster: Cluster, restore: Restore, copy: EtcdSnapshot | None, why: str
) -> list[Check]:
    """Check that a restore may begin.

    Raises `ChangeError` for a cluster that is parked, moved or deleted, which is never restored.

    :param parts: the objects of the cluster
    :param cluster: their model
    :param restore: which snapshot, on which machine
    :param copy: the record of the snapshot, None if there is none
    :param why: why the workload cluster does not answer, or empty
    """
    subject = f"Cluster {parts.key}"
    if refusals := list(_refusals(parts.cluster)):
        raise ChangeError(refusals)

    checks: list[Check] = []
    if copy is not None and copy.state != READY:
        message = f"snapshot {copy.name} is {copy.state}: {copy.error or 'it cannot be restored'}"
        checks.append(Check("snapshot", subject, Result.ERROR, message, "Choose another snapshot"))
    elif copy is not None:
        checks.append(ok("snapshot", subject, f"taken {copy.created} on Node {copy.node}"))
    else:
        reason = f"the workload cluster does not answer: {why}" if why else "a path is not checked"
        checks.append(skipped("snapshot", subject, reason))

    if restore.s3:
        checks += _store_checks(parts, copy, subject)
    checks += _server_checks(cluster, subject)

    if parking.schedule_of(parts.cluster) is not None:
        message = "its schedule may park it as soon as the restore is finished"
        remedy = f"Keep it running afterwards: {_keep_running(parts.key)}"
        checks.append(Check("schedule", subject, Result.WARNING, message, remedy))
    if not why:
        message = "the workload cluster answers: what was written to it since the snapshot is lost"
        remedy = "Stale members alone need no snapshot: " + remedies.REMOVE_MEMBERS(ref=parts.key)
        checks.append(Check("api", subject, Result.WARNING, message, remedy))
    return checks


def _server_checks(cluster: Cluster, subject: str) -> Iterator[Check]:
    """Report the control plane machines that are not as the steps need them."""
    for server in control_planes(cluster):
        if server.deleting:
            message = f"Machine {server.name} is being deleted, and is not part of the new cluster"
            remedy = "Stop it with the others; its deletion continues after --finish"
            yield Check("machine", subject, Result.WARNING, message, remedy)
        elif not address_of(server):
            message = f"Machine {server.name} has no address, so its server cannot be stopped"
            remedy = "Shut its VM down in Harvester, give --force, and replace it afterwards"
            yield Check("machine", subject, Result.ERROR, message, remedy)


def finish_checks(
    parts: Parts,
    cluster: Cluster,
    restore: Restore,
    nodes: Mapping[str, bool] | str,
    members: Mapping[str, str],
) -> list[Check]:
    """Check that a restored cluster works.

    :param parts: the objects of the cluster
    :param cluster: their model
    :param restore: the restore that has begun
    :param nodes: the Nodes of the workload cluster and whether they are ready, as `ready_nodes`
        returns them, or why it does not answer
    :param members: the names of etcd by Node, as `member_names` returns them
    """
    subject = f"Cluster {parts.key}"
    if being_deleted(parts.cluster):
        return [skipped("api", subject, "it is being deleted and need not answer")]

    checks: list[Check] = []
    if restore.machine not in {machine.name for machine in cluster.machines}:
        message = f"Machine {restore.machine}, on which the snapshot was restored, does not exist"
        remedy = "End this restore with --force, and begin again on another machine"
        checks.append(Check("machine", subject, Result.ERROR, message, remedy))
    if isinstance(nodes, str):
        remedy = f"Restore the snapshot on Machine {restore.machine}, and start its server"
        message = f"the workload cluster does not answer: {nodes}"
        return [*checks, Check("api", subject, Result.ERROR, message, remedy)]

    checks.append(ok("api", subject, "the workload cluster answers"))
    for machine in cluster.machines:
        if machine.name == restore.machine:
            checks.append(_database_check(subject, node_name(machine), restore, members))
        checks += _node_checks(
            parts.key, machine, nodes, is_restored=machine.name == restore.machine
        )

    expected = {node_name(machine) for machine in cluster.machines}
    for node in sorted(nodes.keys() - expected):
        message = f"Node {node} is in the snapshot, but its machine no longer exists"
        remedy = "Delete the Node in the workload cluster"
        checks.append(Check("node", subject, Result.WARNING, message, remedy))
    return checks


def _node_checks(
    cluster: Key, machine: Machine, nodes: Mapping[str, bool], *, is_restored: bool
) -> Iterator[Check]:
    """Check that the Node of a machine is ready. A worker whose Node is ready needs no mention.

    :param cluster: the Cluster
    :param machine: a machine of it
    :param nodes: the Nodes and whether they are ready
    :param is_restored: whether the snapshot was restored on this machine
    """
    subject = f"Cluster {cluster}"
    node = node_name(machine)
    if nodes.get(node):
        if machine.control_plane:
            yield ok("machine", subject, f"Node {node} is ready")
        return

    state = "is not ready, or silent since the restore" if node in nodes else "does not exist"
    message = f"Node {node} of Machine {machine.name} {state}"
    if is_restored:
        remedy = "Start its server, and read its log"
        yield Check("machine", subject, Result.ERROR, message, remedy)
        return
    delete = remedies.DELETE_MACHINE(machine=machine.name, namespace=cluster.namespace)
    remedy = f"Start its service again, or replace the machine afterwards: {delete}"
    # Without the pause, controllers delete servers while etcd has a single member.
    is_server = machine.control_plane and not machine.deleting
    result = Result.ERROR if is_server else Result.WARNING
    yield Check("machine", subject, result, message, remedy)


def _database_check(subject: str, node: str, restore: Restore, members: Mapping[str, str]) -> Check:
    """Check that the database is that of the snapshot."""
    if not restore.member:
        reason = "whether the database is that of the snapshot is unknown: its API did not answer"
        return skipped("database", subject, f"{reason} when the restore began")
    if members.get(node) == restore.member:
        message = f"etcd of Node {node} is the one from before: the snapshot was not restored"
        remedy = "Run the steps, or end the restore with --force"
        return Check("database", subject, Result.ERROR, message, remedy)
    return ok("database", subject, f"etcd of Node {node} was reset")


def node_name(machine: Machine) -> str:
    """Return the name of a machine's Node, which is that of its HarvesterMachine."""
    return machine.node.name if machine.node else machine.infrastructure or machine.name


def member_names(nodes: Iterable[Obj]) -> dict[str, str]:
    """Return the names of etcd by Node, as servers write them on their Nodes."""
    result: dict[str, str] = {}
    for node in nodes:
        annotations = annotations_of(node)
        for annotation in _MEMBER_ANNOTATIONS:
            member = annotations.get(annotation)
            # The workload cluster writes it, and the Cluster records it.
            if isinstance(member, str) and is_name(member):
                result[str(at(node, "metadata", "name"))] = member
    return result


def ready_nodes(nodes: Iterable[Obj], leases: Iterable[Obj], now: datetime) -> dict[str, bool]:
    """Return the Nodes and whether each is ready, and its kubelet has renewed its Lease.

    A snapshot contains the conditions of its time, which a server that is still stopped keeps
    until the grace period is over. Times of Leases are compared with the newest one, because the
    clock of this computer may differ from those of the servers by some minutes.

    :param nodes: the Nodes of the workload cluster
    :param leases: the Leases of namespace `kube-node-lease`
    :param now: the present time, with a zone
    """
    renewed = {str(at(lease, "metadata", "name")): _renewal_of(lease) for lease in leases}
    times = [time for time in renewed.values() if time and abs(time - now) <= _CLOCK_SKEW]
    newest = max(times, default=now)
    alive = {name for name, time in renewed.items() if time and newest - time < _FRESH}

    result: dict[str, bool] = {}
    for node in nodes:
        name = str(at(node, "metadata", "name"))
        result[name] = condition_of(node, "Ready").get("status") == "True" and name in alive
    return result


def _renewal_of(lease: Obj) -> datetime | None:
    """Return when a Lease was renewed; None if that is no time with a zone."""
    try:
        renewed = datetime.fromisoformat(str(at(lease, "spec", "renewTime")))
    except ValueError:
        return None
    return renewed if renewed.tzinfo else None


def _store_checks(parts: Parts, copy: EtcdSnapshot | None, subject: str) -> Iterator[Check]:
    """Yield what keeps servers from finding the snapshot in their S3 store."""
    flags = "Restore a file with its path, or add --etcd-s3-… flags to the command"
    store = _store_of(parts.control_plane)
    if store is None:
        message = "no S3 store is configured on its machines, as far as the control plane says"
        yield Check("store", subject, Result.WARNING, message, flags)
    elif copy is not None and copy.location != f"s3://{posixpath.join(*store, copy.name)}":
        message = f"the snapshot is in {copy.location}, and not in the store that is configured"
        yield Check("store", subject, Result.ERROR, message, flags)


def _store_of(control_plane: Obj | None) -> tuple[str, str] | None:
    """Return bucket and folder that servers are configured with; None if no store is known."""
    store = at(control_plane, "spec", "serverConfig", "etcd", "backupConfig", "s3")
    if isinstance(store, dict):
        return str(store.get("bucket") or ""), str(store.get("folder") or "").strip("/")

    for file in list_at(control_plane, "spec", "kthreesConfigSpec", "files"):
        if not str(at(file, "path") or "").endswith(_SNAPSHOT_FILE):
            continue
        try:
            config = load_yaml(str(at(file, "content") or ""))
        except TextError:
            continue
        if isinstance(config, dict) and config.get("etcd-s3") is True:
            folder = str(config.get("etcd-s3-folder") or "").strip("/")
            return str(config.get("etcd-s3-bucket") or ""), folder
    return None


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


def _refusals(cluster: Obj) -> Iterator[str]:
    """Yield what forbids a restore, with a remedy."""
    if being_deleted(cluster):
        yield "the Cluster is being deleted: wait for its end"
    if parking.concerns(cluster):
        yield f"the Cluster is parked: resume it: {remedies.RESUME_PARKED(ref=key_of(cluster))}"
    if names.MOVING_ANNOTATION in annotations_of(cluster):
        yield "the Cluster is being moved: complete the move, and restore it there"


def _keep_running(key: Key) -> str:
    return remedies.SET_ANNOTATION(
        kind="cluster",
        name=key.name,
        namespace=key.namespace,
        annotation=names.PARK_ANNOTATION,
        value="false",
    )
