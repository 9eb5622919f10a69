"""Fault injection on a sandbox's Harvester, from the command line and from tests.

A ConfigMap on the Harvester API server records persistent faults, with the objects that are needed
to clear them. A later command can clear them, and the fault proxy watches the record.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from caphv.api.object import CONFIG_MAPS, Obj, at
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import fault_actions, kinds
from sandbox.harvester.fault_actions import FaultError

NAMESPACE = "harvester-system"
NAME = "caphv-sandbox-faults"
FIELD = "faults"

VM = "NAMESPACE/VM"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    :param target: the metavar of the argument, empty for none
    :param lasting: whether the fault stays until it is cleared
    :param in_transport: whether the fault affects only clients of the fault proxy
    """

    name: str
    summary: str
    target: str = ""
    lasting: bool = True
    in_transport: bool = False


def _transport_kind(name: str, summary: str) -> Kind:
    return Kind(name, summary, in_transport=True)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("unschedulable", "Cordon all hosts, so that VMs cannot start."),
        Kind("image-missing", "Delete a VM image.", "NAMESPACE/IMAGE"),
        Kind("key-pair-missing", "Delete an SSH key pair.", "NAMESPACE/KEYPAIR"),
        Kind("network-missing", "Delete a VM network.", "NAMESPACE/NETWORK"),
        Kind(
            "host-maintenance",
            "Put a host into maintenance mode: its VMs migrate, or restart elsewhere.",
            "HOST",
        ),
        Kind(
            "host-failure", "Cut the power of a host: its VMs fail and restart elsewhere.", "HOST"
        ),
        Kind(
            "balancers-stopped",
            "Stop the load balancer controller; since 1.8, no VM can be deleted without it.",
        ),
        Kind(
            "vm-vanishes", "Delete a VM directly on Harvester; its disks stay.", VM, lasting=False
        ),
        Kind("migration", "Migrate a VM to another host without a restart.", VM, lasting=False),
        Kind("restart", "Restart a VM, as Harvester's UI does.", VM, lasting=False),
        Kind("reboot", "Reboot a guest from inside: its instance stays.", VM, lasting=False),
        Kind("address-change", "Give a VM another DHCP address.", VM, lasting=False),
        _transport_kind("slow", "Delay each API response by --delay seconds."),
        _transport_kind("away", "Drop all connections to the API."),
        _transport_kind("unauthorized", "Reject requests with 401 and end watches."),
        _transport_kind("forbidden", "Reject requests with 403."),
        _transport_kind("conflict", "Reject writes with 409."),
        _transport_kind("too-many-requests", "Reject requests with 429 and Retry-After: 1."),
        _transport_kind("server-error", "Reject requests with 500."),
        _transport_kind("unavailable", "Reject requests with 503."),
        _transport_kind("cut-before", "Drop the connections of writes before they take effect."),
        _transport_kind("cut-after", "Drop the connections of writes after they took effect."),
        _transport_kind("create-once", "Reject the first creation of each object with 403."),
        _transport_kind("watches-cut", "Drop the connections of watches."),
        _transport_kind(
            "watches-gone", "End watches with 410, as if their resourceVersion were too old."
        ),
    )
}

# The kind of the object that each fault `…-missing` deletes.
_RESOURCES = {
    "image-missing": kinds.IMAGES,
    "key-pair-missing": kinds.KEY_PAIRS,
    "network-missing": kinds.NETWORKS,
}

_ONE_TIME: dict[str, Callable[[ApiClient, str], Awaitable[str]]] = {
    "vm-vanishes": fault_actions.delete_vm,
    "migration": fault_actions.migrate,
    "restart": fault_actions.restart,
    "reboot": fault_actions.reboot,
    "address-change": fault_actions.change_address,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A persistent fault.

    :param share: the part of the requests that a fault in transport affects, 0 to 1
    :param delay: the delay of a request in seconds, for `slow`
    :param saved: the objects that are needed to clear the fault
    """

    name: str
    target: str = ""
    share: float = 1.0
    delay: float = 2.0
    saved: list[Obj] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        parts = [self.name, self.target]
        if KINDS[self.name].in_transport:
            parts += [f"({self.share:.0%} of requests)" if self.share < 1 else ""]
            parts += [f"({self.delay:g} s)" if self.name == "slow" else ""]
        return " ".join(filter(None, parts))


class Faults:
    """The faults of one Harvester. `client` is an administrator and bypasses the fault proxy."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def inject(self, fault: Fault) -> str:
        """Inject a fault; return what happened. Raise FaultError."""
        kind = KINDS[fault.name]
        if bool(kind.target) != bool(fault.target):
            raise FaultError(f"{kind.name} takes {kind.target or 'no target'}")
        if not kind.lasting:
            return await _ONE_TIME[kind.name](self._client, fault.target)

        # A fault in transport may be injected again with another share or delay. An object fault
        # may not, because its saved objects must not be overwritten.
        active = await self.active()
        if any((other.name, other.target) == (fault.name, fault.target) for other in active):
            if not kind.in_transport:
                raise FaultError(f"{fault} is already active: clear it first")
            active = [other for other in active if other.name != fault.name]

        injected = dataclasses.replace(fault, saved=await self._begin(fault))
        await self._write([*active, injected])
        return str(injected)

    async def active(self) -> list[Fault]:
        """Return the active persistent faults, oldest first."""
        try:
            return faults_of(await self._client.get(CONFIG_MAPS, NAME, NAMESPACE))
        except NotFound:
            return []

    async def clear(self, name: str = "", target: str = "") -> list[Fault]:
        """Clear all faults, or only faults with this name and target; return the cleared faults."""
        active = await self.active()
        selected = [
            fault for fault in active if name in ("", fault.name) and target in ("", fault.target)
        ]
        # Write after each fault, so that a failure leaves no cleared fault in the record.
        for fault in selected:
            await self._end(fault)
            active.remove(fault)
            await self._write(active)
        return selected

    async def _begin(self, fault: Fault) -> list[Obj]:
        """Change the objects of a fault; return the objects that are needed to clear it."""
        if fault.name == "unschedulable":
            return await fault_actions.cordon_hosts(self._client)
        if fault.name == "balancers-stopped":
            return await fault_actions.scale_balancers(self._client, 0)
        if fault.name == "host-maintenance":
            return await fault_actions.begin_maintenance(self._client, fault.target)
        if fault.name == "host-failure":
            return await fault_actions.fail_host(self._client, fault.target)
        if fault.name in _RESOURCES:
            return await fault_actions.delete_object(
                self._client, _RESOURCES[fault.name], fault.target
            )
        # Faults in transport change no objects, because the fault proxy reads the record.
        return []

    async def _end(self, fault: Fault) -> None:
        if fault.name == "unschedulable":
            await fault_actions.uncordon_hosts(self._client, fault.saved)
        elif fault.name == "balancers-stopped":
            await fault_actions.scale_balancers(self._client, 1)
        elif fault.name == "host-maintenance":
            await fault_actions.end_maintenance(self._client, fault.saved)
        elif fault.name == "host-failure":
            await fault_actions.recover_hosts(self._client, fault.saved)
        elif fault.name in _RESOURCES:
            await fault_actions.restore_objects(self._client, _RESOURCES[fault.name], fault.saved)

    async def _write(self, faults: Iterable[Fault]) -> None:
        data = {FIELD: json.dumps([dataclasses.asdict(fault) for fault in faults])}
        obj = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
        try:
            await self._client.create(CONFIG_MAPS, kinds.typed(CONFIG_MAPS, obj))
        except AlreadyExists:
            await self._client.patch(CONFIG_MAPS, NAME, NAMESPACE, {"data": data})


def faults_of(config_map: Obj) -> list[Fault]:
    """Return the faults that a ConfigMap records."""
    return [Fault(**entry) for entry in json.loads(at(config_map, "data", FIELD) or "[]")]
