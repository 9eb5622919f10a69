"""Check that a restore of etcd may begin, and that it may end: pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from caphv.api import names, parking, remedies
from caphv.api.object import Key, Obj, at, being_deleted, key_of, list_at, text_at
from caphv.runtime.text import TextError, load_yaml
from operations.change.changes import ChangeError
from operations.change.etcdnodes import EtcdNodes, node_name
from operations.change.etcdrestore import Restore
from operations.change.etcdsteps import address_of, control_planes
from operations.read.etcdsnapshots import READY, EtcdSnapshot
from operations.status.check import Check, Result, ok, skipped
from operations.status.model import Cluster, Machine
from operations.status.parts import Parts

_SNAPSHOT_FILE = "config.yaml.d/55-etcd-snapshots.yaml"


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


def _refusals(cluster: Obj) -> Iterator[str]:
    """Yield what forbids a restore, with a remedy."""
    if being_deleted(cluster):
        yield "the Cluster is being deleted: wait for its end"
    if parking.concerns(cluster):
        yield f"the Cluster is parked: resume it: {remedies.RESUME_PARKED(ref=key_of(cluster))}"
    if parking.is_moving(cluster):
        yield "the Cluster is being moved: complete the move, and restore it there"


def _store_checks(parts: Parts, copy: EtcdSnapshot | None, subject: str) -> Iterator[Check]:
    """Yield what keeps servers from finding the snapshot in their S3 store."""
    flags = "Restore a file with its path, or add --etcd-s3-… flags to the command"
    store = _store_of(parts.control_plane)
    if store is None:
        message = "no S3 store is configured on its machines, as far as the control plane says"
        yield Check("store", subject, Result.WARNING, message, flags)
    elif copy is not None and copy.location != store.location(copy.name):
        message = f"the snapshot is in {copy.location}, and not in the store that is configured"
        yield Check("store", subject, Result.ERROR, message, flags)


class _Store(NamedTuple):
    """The S3 store that servers are configured with."""

    bucket: str
    folder: str

    def location(self, name: str) -> str:
        """Return the location of a file, as servers record it."""
        return f"s3://{posixpath.join(self.bucket, self.folder, name)}"


def _store_of(control_plane: Obj | None) -> _Store | None:
    """Return the store of servers; None if none is known."""
    store = at(control_plane, "spec", "serverConfig", "etcd", "backupConfig", "s3")
    if isinstance(store, dict):
        folder = text_at(store, "folder").strip("/")
        return _Store(text_at(store, "bucket"), folder)

    for file in list_at(control_plane, "spec", "kthreesConfigSpec", "files"):
        if not text_at(file, "path").endswith(_SNAPSHOT_FILE):
            continue
        try:
            config = load_yaml(text_at(file, "content"))
        except TextError:
            continue
        if isinstance(config, dict) and config.get("etcd-s3") is True:
            folder = text_at(config, "etcd-s3-folder").strip("/")
            return _Store(text_at(config, "etcd-s3-bucket"), folder)
    return None


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


def _keep_running(key: Key) -> str:
    return remedies.SET_ANNOTATION(
        kind="cluster",
        name=key.name,
        namespace=key.namespace,
        annotation=names.PARK_ANNOTATION,
        value="false",
    )


def finish_checks(
    parts: Parts, cluster: Cluster, restore: Restore, nodes: EtcdNodes, why: str
) -> list[Check]:
    """Check that a restored cluster works.

    :param parts: the objects of the cluster
    :param cluster: their model
    :param restore: the restore that has begun
    :param nodes: the Nodes of the workload cluster
    :param why: why the workload cluster does not answer, or empty
    """
    subject = f"Cluster {parts.key}"
    if being_deleted(parts.cluster):
        return [skipped("api", subject, "it is being deleted and need not answer")]

    checks: list[Check] = []
    if restore.machine not in {machine.name for machine in cluster.machines}:
        message = f"Machine {restore.machine}, on which the snapshot was restored, does not exist"
        remedy = "End this restore with --force, and begin again on another machine"
        checks.append(Check("machine", subject, Result.ERROR, message, remedy))
    if why:
        remedy = f"Restore the snapshot on Machine {restore.machine}, and start its server"
        message = f"the workload cluster does not answer: {why}"
        return [*checks, Check("api", subject, Result.ERROR, message, remedy)]

    checks.append(ok("api", subject, "the workload cluster answers"))
    for machine in cluster.machines:
        if machine.name == restore.machine:
            checks.append(_database_check(subject, node_name(machine), restore, nodes.members))
        checks += _node_checks(
            parts.key, machine, nodes.ready, is_restored=machine.name == restore.machine
        )

    expected = {node_name(machine) for machine in cluster.machines}
    for node in sorted(nodes.ready.keys() - expected):
        message = f"Node {node} is in the snapshot, but its machine no longer exists"
        remedy = "Delete the Node in the workload cluster"
        checks.append(Check("node", subject, Result.WARNING, message, remedy))
    return checks


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
