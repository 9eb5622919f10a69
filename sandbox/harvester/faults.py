"""Faults on request: what can go wrong on a sandbox's Harvester, caused and cleared by command and from tests.

Faults that last are recorded in a ConfigMap on the Harvester API server, with what their end needs. So a later command
can clear them, and the fault proxy learns of its part by a watch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import fault_actions, kinds
from sandbox.harvester.fault_actions import FaultError

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACE, NAME, FIELD = "harvester-system", "caphv-sandbox-faults", "faults"

VM = "NAMESPACE/VM"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault; `target` says what it needs, empty for nothing. `lasting` ones go on until they are cleared.

    Those `in_transport` meet only clients of the fault proxy.
    """

    name: str
    summary: str
    target: str = ""
    lasting: bool = True
    in_transport: bool = False


def _transport(name: str, summary: str) -> Kind:
    return Kind(name, summary, in_transport=True)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("unschedulable", "All hosts are closed: a VM that starts finds none."),
        Kind("image-missing", "A VM image is deleted.", "NAMESPACE/IMAGE"),
        Kind("key-pair-missing", "An SSH key pair is deleted.", "NAMESPACE/KEYPAIR"),
        Kind("network-missing", "A VM network is deleted.", "NAMESPACE/NETWORK"),
        Kind("host-failure", "A host loses power: its VMs fail and start elsewhere.", "HOST"),
        Kind("vm-vanishes", "A VM is deleted behind the provider's back, its disks stay.", VM, lasting=False),
        Kind("migration", "A VM moves to another host without a restart.", VM, lasting=False),
        Kind("address-change", "The DHCP server gives a VM another address.", VM, lasting=False),
        _transport("slow", "Each answer of the API takes --delay seconds longer."),
        _transport("away", "The API cuts all connections."),
        _transport("unauthorized", "Requests are refused with 401, and watches end."),
        _transport("forbidden", "Requests are refused with 403."),
        _transport("conflict", "Writes are refused with 409."),
        _transport("too-many-requests", "Requests are refused with 429, to come back in a second."),
        _transport("watches-gone", "Watches end with 410: their version is too old."),
    )
}
_RESOURCES = {"image-missing": kinds.IMAGES, "key-pair-missing": kinds.KEY_PAIRS, "network-missing": kinds.NETWORKS}
_AT_ONCE: dict[str, Callable[[ApiClient, str], Any]] = {
    "vm-vanishes": fault_actions.vanish,
    "migration": fault_actions.migrate,
    "address-change": fault_actions.change_address,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that lasts. In transport, `share` of the requests meet it (0 to 1); `delay` is that of `slow`, seconds.

    `saved` is what its end needs.
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
    """The faults of one Harvester; `client` is its administrator's, and not through the fault proxy."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def cause(self, fault: Fault) -> str:
        """Let something go wrong; answers what has happened. Raises FaultError when it cannot."""
        kind = KINDS[fault.name]
        if bool(kind.target) != bool(fault.target):
            raise FaultError(f"{kind.name} needs {kind.target or 'no target'}")
        if not kind.lasting:
            return str(await _AT_ONCE[kind.name](self._client, fault.target))
        active = await self.active()
        if any((other.name, other.target) == (fault.name, fault.target) for other in active):
            if not kind.in_transport:
                raise FaultError(f"{fault} is caused already: clear it first")
            active = [other for other in active if other.name != fault.name]
        caused = dataclasses.replace(fault, saved=await self._begin(fault))
        await self._write([*active, caused])
        return str(caused)

    async def active(self) -> list[Fault]:
        """Faults that last and are not cleared, the oldest first."""
        try:
            return recorded(await self._client.get(CONFIG_MAPS, NAME, NAMESPACE))
        except NotFound:
            return []

    async def clear(self, name: str = "", target: str = "") -> list[Fault]:
        """End all faults, or those of a name, or of a name and target; answers those that ended."""
        active = await self.active()
        ending = [fault for fault in active if name in ("", fault.name) and target in ("", fault.target)]
        for fault in ending:
            await self._end(fault)
            active.remove(fault)
            await self._write(active)
        return ending

    async def _begin(self, fault: Fault) -> list[Obj]:
        if fault.name == "unschedulable":
            return await fault_actions.close_hosts(self._client)
        if fault.name == "host-failure":
            return await fault_actions.fail_host(self._client, fault.target)
        if fault.name in _RESOURCES:
            return await fault_actions.take_away(self._client, _RESOURCES[fault.name], fault.target)
        return []

    async def _end(self, fault: Fault) -> None:
        if fault.name == "unschedulable":
            await fault_actions.open_hosts(self._client, fault.saved)
        elif fault.name == "host-failure":
            await fault_actions.recover_hosts(self._client, fault.saved)
        elif fault.name in _RESOURCES:
            await fault_actions.bring_back(self._client, _RESOURCES[fault.name], fault.saved)

    async def _write(self, faults: Iterable[Fault]) -> None:
        data = {FIELD: json.dumps([dataclasses.asdict(fault) for fault in faults])}
        with contextlib.suppress(AlreadyExists):
            obj = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
            await self._client.create(CONFIG_MAPS, kinds.typed(CONFIG_MAPS, obj))
            return
        await self._client.patch(CONFIG_MAPS, NAME, NAMESPACE, {"data": data})


def recorded(config_map: Obj) -> list[Fault]:
    """The faults in the record."""
    return [Fault(**entry) for entry in json.loads((config_map.get("data") or {}).get(FIELD, "[]"))]
