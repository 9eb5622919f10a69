"""Plan to restore etcd of a cluster from a snapshot, with the order of RKE2 and K3s: pure.

Restoring needs a shell on the servers, which no controller has. The plan pauses the Cluster, so
that nothing replaces machines meanwhile, lists the commands for each server, and ends the pause
once the cluster works.

The order is that of rancher/rke2-docs `docs/datastore/backup_restore.md` and k3s-io/docs
`docs/cli/etcd-snapshot.md` (August 2026), "Restoring Snapshots", "Multiple Servers". Databases are
set aside and not deleted, because the snapshots of a server are next to them. A server that joined
another one refuses the reset while its configuration names that server (rancher/rke2#3178,
k3s-io/k3s#8488).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api import names, parking, remedies
from caphv.api.counting import name_some
from caphv.api.names import ETCD_RESTORE_ANNOTATION
from caphv.api.object import Key, Obj, annotations_of, at, being_deleted
from caphv.runtime.text import load_json
from operations.change.changes import Change, ChangeError, Plan, patch_of
from operations.read.etcdsnapshots import READY, EtcdSnapshot
from operations.status.check import Check, Result, ok, skipped
from operations.status.model import Cluster, Machine
from operations.status.parts import Parts

_NAMED = 5
# The tar archive is unpacked to the last folder where /usr/local is read-only.
_PROGRAM_PATH = "$PATH:/usr/local/bin:/opt/rke2/bin"


@dataclass(frozen=True, slots=True)
class Distribution:
    """What differs between RKE2 and K3s on a server."""

    program: str
    service: str
    data: str
    join_port: int

    @property
    def config(self) -> str:
        """The file of configuration that the bootstrap provider writes."""
        return f"/etc/rancher/{self.program}/config.yaml"


@dataclass(frozen=True, slots=True)
class Restore:
    """A restore, as the Cluster records it.

    `snapshot` is a path on the machine, or a name in the S3 store. `paused` says whether the
    command has paused the Cluster, so that its end ends the pause.
    """

    snapshot: str
    s3: bool
    machine: str
    paused: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """Commands for the shell of one machine; `login` is `user@address`, empty if unknown."""

    title: str
    machine: str
    login: str
    commands: tuple[str, ...]


def restore_of(cluster: Obj) -> Restore | None:
    """Return the restore that a Cluster records; None if none has begun.

    Raises `ChangeError` for a record that cannot be read.
    """
    text = annotations_of(cluster).get(ETCD_RESTORE_ANNOTATION)
    if text is None:
        return None
    try:
        record = load_json(text)
        return Restore(
            str(record["snapshot"]),
            record["s3"] is True,
            str(record["machine"]),
            record["paused"] is True,
        )
    except (ValueError, TypeError, KeyError):
        raise ChangeError(
            [f"annotation {ETCD_RESTORE_ANNOTATION} is no record of a restore: remove it"]
        ) from None


def distribution_of(cluster: Obj, control_plane: Obj | None) -> Distribution:
    """Return the distribution of a cluster. Raises `ChangeError` for one without snapshots.

    :param cluster: the Cluster
    :param control_plane: its control plane object, None if the user may not read it
    """
    kind = str(at(cluster, "spec", "controlPlaneRef", "kind") or "")
    if kind == "RKE2ControlPlane":
        data = at(control_plane, "spec", "agentConfig", "dataDir") or "/var/lib/rancher/rke2"
        return Distribution("rke2", "rke2-server", str(data), 9345)
    if kind == "KThreesControlPlane":
        return Distribution("k3s", "k3s", "/var/lib/rancher/k3s", 6443)
    raise ChangeError([f"{kind or 'the control plane'} takes no snapshots: RKE2 and K3s do"])


def choose(
    cluster: Cluster,
    snapshot: str,
    machine: str,
    snapshots: Sequence[EtcdSnapshot] | None,
) -> tuple[Restore, EtcdSnapshot | None]:
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
        raise ChangeError([f"{machine} is no control plane machine of the cluster: {listed}"])

    if snapshot.startswith("/"):
        return Restore(snapshot, False, machine or _only(servers)), None
    if snapshots is None:
        # A name alone means the store, because files have paths.
        return Restore(snapshot, True, machine or _only(servers)), None

    copies = [copy for copy in snapshots if copy.name == snapshot]
    if not copies:
        known = list(dict.fromkeys(copy.name for copy in snapshots if not copy.wrong))
        listed = name_some(known, _NAMED) or "none that can be restored"
        raise ChangeError([f"the cluster has no snapshot {snapshot}; there are {listed}"])

    # A copy on a disk is only good for its machine.
    owners = {name: server.node.name for name, server in servers.items() if server.node}
    local = [copy for copy in copies if not copy.s3]
    for copy in local:
        owner = next((name for name, node in owners.items() if node == copy.node), "")
        if owner and owner == machine:
            return Restore(copy.location.removeprefix("file://"), False, owner), copy
    for copy in copies:
        if copy.s3:
            return Restore(copy.name, True, machine or _readiest(servers)), copy

    copy = local[0]
    owner = next((name for name, node in owners.items() if node == copy.node), "")
    if not owner or machine:
        where = f"on Node {copy.node} only"
        remedy = f"leave --on away: that is Machine {owner}" if owner else "choose another one"
        raise ChangeError([f"snapshot {snapshot} is {where}: {remedy}"])
    return Restore(copy.location.removeprefix("file://"), False, owner), copy


def begin(parts: Parts, restore: Restore, checks: Sequence[Check]) -> Plan:
    """Return the plan that records a restore and pauses the Cluster."""
    cluster = parts.cluster
    is_paused = bool(at(cluster, "spec", "paused"))
    record = {
        "snapshot": restore.snapshot,
        "s3": restore.s3,
        "machine": restore.machine,
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

    :param parts: the objects of the cluster
    :param cluster: their model
    :param restore: which snapshot, on which machine
    :param copy: the record of the snapshot, None if there is none
    :param why: why the workload cluster does not answer, or empty
    """
    subject = f"Cluster {parts.key}"
    checks = list(_refusals(parts.cluster, subject))
    if copy is not None and copy.state != READY:
        message = f"snapshot {copy.name} is {copy.state}: {copy.error or 'it cannot be restored'}"
        checks.append(Check("snapshot", subject, Result.ERROR, message, "Choose another snapshot"))
    elif copy is not None:
        checks.append(ok("snapshot", subject, f"taken {copy.created} on Node {copy.node}"))
    else:
        reason = f"the workload cluster does not answer: {why}" if why else "a path is not checked"
        checks.append(skipped("snapshot", subject, reason))

    for server in _servers(cluster):
        if server.addresses:
            continue
        is_target = server.name == restore.machine
        result = Result.ERROR if is_target else Result.WARNING
        message = f"Machine {server.name} has no address"
        remedy = "Choose another one with --on" if is_target else "Replace it afterwards"
        checks.append(Check("machine", subject, result, message, remedy))
    if not why:
        message = "the workload cluster answers: what was written to it since the snapshot is lost"
        remedy = "Stale members alone need no snapshot: " + remedies.REMOVE_MEMBERS(ref=parts.key)
        checks.append(Check("api", subject, Result.WARNING, message, remedy))
    return checks


def finish_checks(
    parts: Parts, cluster: Cluster, restore: Restore, nodes: Mapping[str, bool] | str
) -> list[Check]:
    """Check that a restored cluster works.

    :param parts: the objects of the cluster
    :param cluster: their model
    :param restore: the restore that has begun
    :param nodes: the Nodes of the workload cluster and whether they are ready, or why it does not
        answer
    """
    subject = f"Cluster {parts.key}"
    if isinstance(nodes, str):
        remedy = f"Restore the snapshot on Machine {restore.machine}, and start its server"
        message = f"the workload cluster does not answer: {nodes}"
        return [Check("api", subject, Result.ERROR, message, remedy)]

    checks = [ok("api", subject, "the workload cluster answers")]
    expected: set[str] = set()
    for machine in cluster.machines:
        node = machine.node.name if machine.node else machine.infrastructure or machine.name
        expected.add(node)
        if nodes.get(node):
            if machine.control_plane:
                checks.append(ok("machine", subject, f"Node {node} is ready"))
            continue
        state = "is not ready" if node in nodes else "does not exist"
        message = f"Node {node} of Machine {machine.name} {state}"
        if machine.name == restore.machine:
            remedy = "Start its server, and read its log"
            checks.append(Check("machine", subject, Result.ERROR, message, remedy))
        else:
            delete = remedies.DELETE_MACHINE(machine=machine.name, namespace=parts.key.namespace)
            remedy = f"Start its service again, or replace the machine afterwards: {delete}"
            checks.append(Check("machine", subject, Result.WARNING, message, remedy))

    for node in sorted(nodes.keys() - expected):
        message = f"Node {node} is in the snapshot, but its machine no longer exists"
        remedy = "Delete the Node in the workload cluster"
        checks.append(Check("node", subject, Result.WARNING, message, remedy))
    return checks


def steps(
    cluster: Cluster, distribution: Distribution, restore: Restore, users: Mapping[str, str]
) -> tuple[Step, ...]:
    """Return the commands in order, for each server.

    :param cluster: the cluster
    :param distribution: RKE2 or K3s
    :param restore: which snapshot, on which machine
    :param users: the user for SSH by name of the HarvesterMachine
    """
    servers = _servers(cluster)
    target = [server for server in servers if server.name == restore.machine]
    others = [server for server in servers if server.name != restore.machine]
    program, service = distribution.program, distribution.service
    run = f'sudo env "PATH={_PROGRAM_PATH}"'

    # The containers of the old cluster outlive the service, and would answer clients.
    stop = (f"sudo systemctl stop {service}", f"{run} {program}-killall.sh")
    source = f"--cluster-reset-restore-path={shlex.quote(restore.snapshot)}"
    # A server with a store would look for a file there.
    local = "" if restore.s3 else "--etcd-s3=false "
    database = shlex.quote(f"{distribution.data}/server/db")
    # The first server of a cluster joined none. Without its database it would begin a new cluster.
    address = next((server.addresses[0] for server in target if server.addresses), "")
    joined = shlex.quote(f"\\nserver: https://{address}:{distribution.join_port}\\n")
    join = (
        f"sudo grep -q '^server:' {distribution.config} || "
        f"printf {joined} | sudo tee -a {distribution.config}"
    )

    result = [_step("Stop the server", server, users, stop) for server in (*target, *others)]
    result += [
        _step(
            "Restore the snapshot, and start the server",
            server,
            users,
            (
                f"sudo sed -i.before-restore 's/^server:/#server:/' {distribution.config}",
                f"{run} {program} server --cluster-reset {local}{source}",
                f"sudo systemctl start {service}",
            ),
        )
        for server in target
    ]
    result += [
        _step(
            "Set the old database aside, and join",
            server,
            users,
            (
                f'sudo mv {database} {database}.before-restore-"$(date +%s)"',
                join,
                f"sudo systemctl start {service}",
            ),
        )
        for server in others
    ]
    return tuple(result)


def _step(title: str, machine: Machine, users: Mapping[str, str], commands: Sequence[str]) -> Step:
    user = users.get(machine.infrastructure or machine.name, "")
    login = "@".join(filter(None, (user, machine.addresses[0]))) if machine.addresses else ""
    return Step(title, machine.name, login, tuple(commands))


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
        return (not is_ready, not server.addresses, server.name)

    return min(servers.values(), key=rank).name


def _refusals(cluster: Obj, subject: str) -> Iterator[Check]:
    """Yield what forbids a restore."""
    refusals = [
        (being_deleted(cluster), "it is being deleted", "Wait for its end"),
        (parking.concerns(cluster), "it is parked", f"Resume it: {_resume(cluster)}"),
        (
            names.MOVING_ANNOTATION in annotations_of(cluster),
            "it is being moved to another management cluster",
            "Complete the move, and restore there",
        ),
    ]
    for refused, message, remedy in refusals:
        if refused:
            yield Check("cluster", subject, Result.ERROR, message, remedy)


def _resume(cluster: Obj) -> str:
    metadata = cluster["metadata"]
    return remedies.RESUME_PARKED(ref=Key(metadata["namespace"], metadata["name"]))
