"""Read what the Nodes of a workload cluster say of its etcd: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from caphv.api.object import Obj, annotations_of, at
from operations.read.etcdsnapshots import is_name
from operations.read.objects import condition_of
from operations.status.model import Machine

# A kubelet renews its Lease every ten seconds.
_FRESH = timedelta(minutes=1)
_CLOCK_SKEW = timedelta(minutes=5)
_MEMBER_ANNOTATIONS = ("etcd.rke2.cattle.io/node-name", "etcd.k3s.cattle.io/node-name")


@dataclass(frozen=True, slots=True)
class EtcdNodes:
    """What the Nodes of a workload cluster say, by their names.

    `ready` says whether a Node is ready, as `ready_nodes` returns it. `members` has the name of
    etcd of a server, as `member_names` returns it.
    """

    ready: Mapping[str, bool] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)


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
