"""Commands that restore etcd of a cluster from a snapshot, for the shell of each server: pure.

The order is that of rancher/rke2-docs `docs/datastore/backup_restore.md` and k3s-io/docs
`docs/cli/etcd-snapshot.md` (August 2026), "Restoring Snapshots", "Multiple Servers", with three
additions. Databases are set aside and not deleted, because the snapshots of a server are next to
them. A server that joined another one refuses the reset while its configuration names that server
(rancher/rke2#3178, k3s-io/k3s#8488). One that joins again names the restored server, because the
server that it joined before may be stopped, or replaced long ago.

The commands of a step are joined by `&&`: a server that starts although its old database is still
there forms a quorum of the old cluster with another such server.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from caphv.api.object import Obj, at
from operations.change.changes import ChangeError
from operations.read.etcdsnapshots import is_name, is_path
from operations.status.model import Cluster, Machine

# The tar archive is unpacked to the last folder where /usr/local is read-only.
_PROGRAM_PATH = "$PATH:/usr/local/bin:/opt/rke2/bin"
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")


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
class Step:
    """A script for the shell of one machine; `login` is `user@address`, empty if unknown.

    All lines of `commands` but the last end with `&&`. They are empty for a machine that cannot be
    reached.
    """

    title: str
    machine: str
    login: str
    commands: tuple[str, ...]


def distribution_of(cluster: Obj, control_plane: Obj | None) -> Distribution:
    """Return the distribution of a cluster.

    Raises `ChangeError` for one without snapshots, and if the place of the database is unknown.

    :param cluster: the Cluster
    :param control_plane: its control plane object, None if the user may not read it
    """
    kind = str(at(cluster, "spec", "controlPlaneRef", "kind") or "")
    if kind == "KThreesControlPlane":
        return Distribution("k3s", "k3s", "/var/lib/rancher/k3s", 6443)
    if kind != "RKE2ControlPlane":
        raise ChangeError([f"{kind or 'the control plane'} takes no snapshots: RKE2 and K3s do"])
    if control_plane is None:
        raise ChangeError(
            [
                "the RKE2ControlPlane, which names the folder of the database, cannot be read: ask "
                "for the right to get and list rke2controlplanes"
            ]
        )

    data = at(control_plane, "spec", "agentConfig", "dataDir") or "/var/lib/rancher/rke2"
    if not (isinstance(data, str) and is_path(data)):
        raise ChangeError(
            ["spec.agentConfig.dataDir of the RKE2ControlPlane is no absolute path: correct it"]
        )
    return Distribution("rke2", "rke2-server", data, 9345)


def address_of(machine: Machine) -> str:
    """Return the first IP address of a machine; empty if it has none."""
    for address in machine.addresses:
        try:
            ip = ip_address(address)
        except ValueError:
            continue
        if not ip.is_link_local:
            return str(ip)
    return ""


def control_planes(cluster: Cluster) -> list[Machine]:
    """Return all control plane machines, those that are being deleted included."""
    return [machine for machine in cluster.machines if machine.control_plane]


def steps(
    cluster: Cluster,
    distribution: Distribution,
    snapshot: str,
    machine: str,
    users: Mapping[str, str],
    *,
    s3: bool,
) -> tuple[Step, ...]:
    """Return the commands in order, for each server.

    Raises `ChangeError` unless the machine exists, stays, and has an address: without a restored
    server, the others would only lose their databases.

    :param cluster: the cluster
    :param distribution: RKE2 or K3s
    :param snapshot: the name in the S3 store, or a path on the machine
    :param machine: the Machine to restore on
    :param users: the user for SSH by name of the HarvesterMachine
    :param s3: whether the snapshot is in the store
    """
    if not (is_name(snapshot) if s3 else is_path(snapshot)):
        raise ChangeError([f"{snapshot!r} is no {'name' if s3 else 'absolute path'} of a file"])
    servers = control_planes(cluster)
    target = next((server for server in servers if server.name == machine), None)
    problem = _problem_of(target)
    if target is None or problem:
        raise ChangeError(
            [
                f"Machine {machine} {problem}: no snapshot can be restored on it. End this restore "
                "with --finish --force if it has begun, then begin again with another --on"
            ]
        )

    others = [server for server in servers if server is not target]
    # Those that are being deleted run until then, and would be a quorum of the old cluster.
    result = [_stop(server, distribution, users) for server in (target, *others)]
    result.append(_restore(target, distribution, snapshot, users, s3=s3))
    result += [
        _join(server, distribution, address_of(target), users)
        for server in others
        if address_of(server) and not server.deleting
    ]
    return tuple(result)


def _problem_of(target: Machine | None) -> str:
    if target is None:
        return "does not exist"
    if target.deleting:
        return "is being deleted"
    return "" if address_of(target) else "has no address"


def _stop(server: Machine, distribution: Distribution, users: Mapping[str, str]) -> Step:
    if not address_of(server):
        return _step("Shut its VM down in Harvester, and leave it off", server, users)
    title = "Stop the server, which is being deleted" if server.deleting else "Stop the server"
    return _step(title, server, users, f"sudo systemctl stop {distribution.service}")


def _restore(
    target: Machine,
    distribution: Distribution,
    snapshot: str,
    users: Mapping[str, str],
    *,
    s3: bool,
) -> Step:
    program, config = distribution.program, distribution.config
    is_there = [] if s3 else [f"sudo test -s {shlex.quote(snapshot)}"]
    # A server with a store would look for a file there.
    source = "" if s3 else "--etcd-s3=false "
    source += f"--cluster-reset-restore-path={shlex.quote(snapshot)}"
    return _step(
        "Restore the snapshot, and start the server",
        target,
        users,
        f"sudo systemctl stop {distribution.service}",
        *is_there,
        _names_no_other_server(distribution),
        f"sudo sed -i 's/^server:/#server:/' {config}",
        f'sudo env "PATH={_PROGRAM_PATH}" {program} server --cluster-reset {source}',
        f"sudo systemctl start {distribution.service}",
    )


def _join(
    server: Machine, distribution: Distribution, address: str, users: Mapping[str, str]
) -> Step:
    database = _database(distribution)
    host = f"[{address}]" if isinstance(ip_address(address), IPv6Address) else address
    url = f"https://{host}:{distribution.join_port}"
    # The first server of a cluster joined none. Without its database it would begin a new cluster.
    names = f"sudo sed -i -e 's/^server:/#server:/' -e '$a\\server: {url}' {distribution.config}"
    return _step(
        "Set the old database aside, and join the restored server",
        server,
        users,
        f"sudo systemctl stop {distribution.service}",
        f"sudo test -d {database}/etcd",
        _names_no_other_server(distribution),
        f'sudo mv {database} {database}.before-restore-"$(date +%s)"',
        f"sudo test ! -e {database}",
        names,
        f"sudo systemctl start {distribution.service}",
    )


def _database(distribution: Distribution) -> str:
    return shlex.quote(f"{distribution.data}/server/db")


def _names_no_other_server(distribution: Distribution) -> str:
    """Return a command that fails if another file than the main one says which server to join."""
    return f"! sudo grep -rqs '^server:' {distribution.config}.d"


def _step(title: str, machine: Machine, users: Mapping[str, str], *commands: str) -> Step:
    user, address = users.get(machine.infrastructure or machine.name, ""), address_of(machine)
    if not _USER.fullmatch(user):
        user = ""
    login = "@".join(filter(None, (user, address))) if address else ""
    return Step(title, machine.name, login, _chain(commands))


def _chain(commands: Sequence[str]) -> tuple[str, ...]:
    return (*(f"{command} &&" for command in commands[:-1]), *commands[-1:])
