"""List the steps that restore etcd of a cluster from a snapshot, machine by machine: pure.

`operations.change.etcdscripts` has the scripts of the steps, and says why they are in this order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api import interfaceaddresses
from operations.change.changes import ChangeError
from operations.change.etcddistribution import Distribution
from operations.change.etcdscripts import Scripts
from operations.read.etcdsnapshots import is_name, is_path
from operations.status.model import Cluster, Machine

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_SIGNATURE = re.compile(r"[A-Za-z0-9+/]{32,64}={0,2}")


@dataclass(frozen=True, slots=True)
class Step:
    """A script for root's shell on one machine, empty for one that cannot be reached.

    `user` is empty if it is unknown. `is_check` says that the script changes nothing.
    """

    title: str
    machine: str
    user: str
    address: str
    script: str
    is_check: bool = False

    @property
    def login(self) -> str:
        """`user@address`, or the address alone; empty without one."""
        return "@".join(filter(None, (self.user, self.address))) if self.address else ""


def address_of(machine: Machine) -> str:
    """Return the first IP address at which a machine can be reached; empty if it has none.

    The machine itself reports its addresses. They become part of commands for other machines.
    """
    for text in machine.addresses:
        address = interfaceaddresses.address_of(text)
        if address is None or address.is_link_local or address.is_loopback:
            continue
        if interfaceaddresses.is_host(address):
            return str(address)
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
    identity: str,
    s3: bool,
    authority: str,
) -> tuple[Step, ...]:
    """Return the scripts in order, for each server. The first ones only read.

    Raises `ChangeError` unless the machine exists, stays, and has an address: without a restored
    server, the others would only lose their databases.

    :param cluster: the cluster
    :param distribution: RKE2 or K3s
    :param snapshot: the name in the S3 store, or a path on the machine
    :param machine: the Machine to restore on
    :param users: the user for SSH by name of the HarvesterMachine
    :param identity: the id of this restore, hexadecimal
    :param s3: whether the snapshot is in the store
    :param authority: the certificates of the cluster's CA, PEM
    """
    _require_file(snapshot, s3=s3)
    servers = control_planes(cluster)
    target = _target_of(servers, machine)
    if problems := list(_shared_addresses(servers)):
        raise ChangeError(problems)

    scripts = Scripts(distribution, identity, snapshot, s3, _signature(authority))
    others = [server for server in servers if server is not target]
    checks = []
    for server in (target, *others):
        if address_of(server):
            script = scripts.check(server, is_target=server is target)
            checks.append(_step("Check the machine", server, users, script, is_check=True))

    # Those that are being deleted run until then, and would be a quorum of the old cluster.
    stops = [
        _step(_stop_title(server), server, users, scripts.stop(server, is_target=server is target))
        for server in (target, *others)
    ]
    title = "Restore the snapshot, and start the server"
    restore = _step(title, target, users, scripts.restore(target))

    title = "Set the old database aside, and join the restored server"
    address = address_of(target)
    joins = [
        _step(title, server, users, scripts.join(server, address))
        for server in others
        if address_of(server) and not server.deleting
    ]
    return (*checks, *stops, restore, *joins)


def _require_file(snapshot: str, *, s3: bool) -> None:
    """Raise `ChangeError` for a snapshot that is no file, or that systemd would change."""
    if not (is_name(snapshot) if s3 else is_path(snapshot)):
        raise ChangeError(
            [f"{snapshot!r} is not {'the name' if s3 else 'an absolute path'} of a file"]
        )
    # systemd expands variables in arguments, and a reset without a file keeps the old database.
    if "$" in snapshot:
        raise ChangeError(
            [f"{snapshot!r} contains $: copy the snapshot to a file without it, and give its path"]
        )


def _target_of(servers: Sequence[Machine], name: str) -> Machine:
    """Return the machine to restore on. Raises `ChangeError` if nothing can be restored there."""
    target = next((server for server in servers if server.name == name), None)
    if target is None:
        problem = "does not exist"
    elif target.deleting:
        problem = "is being deleted"
    elif not address_of(target):
        problem = "has no address"
    else:
        return target
    raise ChangeError(
        [
            f"Machine {name} {problem}: no snapshot can be restored on it. End this restore "
            "with --finish --force if it has begun, then begin again with another --on"
        ]
    )


def _signature(authority: str) -> str:
    """Return the end of the first certificate, base64. Raises `ChangeError` for none."""
    certificate, end, _ = authority.partition("-----END CERTIFICATE-----")
    text = "".join(certificate.rpartition("-----")[2].split())
    if not (end and _SIGNATURE.fullmatch(text[-64:])):
        raise ChangeError(
            [
                "the kubeconfig of the cluster has no CA, which proves that a machine belongs to "
                "it: ask for the right to get its Secret, or restore by hand"
            ]
        )
    return text[-64:]


def _shared_addresses(servers: Sequence[Machine]) -> Iterator[str]:
    """Yield the addresses of several machines, of which one would be taken for the other."""
    machines: dict[str, list[str]] = {}
    for server in servers:
        machines.setdefault(address_of(server), []).append(server.name)
    for address, names in machines.items():
        if address and len(names) > 1:
            yield (
                f"Machines {' and '.join(names)} report address {address}: correct it in the guest "
                "that must not have it, or delete that Machine"
            )


def _stop_title(server: Machine) -> str:
    if not address_of(server):
        return "Shut its VM down in Harvester, and leave it off"
    return "Stop the server, which is being deleted" if server.deleting else "Stop the server"


def _step(
    title: str,
    machine: Machine,
    users: Mapping[str, str],
    script: str,
    *,
    is_check: bool = False,
) -> Step:
    """Return a step with its script, empty for a machine without an address."""
    user = users.get(machine.infrastructure or machine.name, "")
    address = address_of(machine)
    if not _USER.fullmatch(user):
        user = ""
    return Step(title, machine.name, user, address, script if address else "", is_check)
