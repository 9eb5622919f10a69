"""The QEMU guest agent, which reports the state of a guest in the status of its instance."""

from __future__ import annotations

import contextlib
import logging

from caphv.api.object import Obj, list_at, uid_of
from caphv.runtime.errors import NotFound
from sandbox.guest.guest import Guest
from sandbox.guest.interfaces import interface_names
from sandbox.guest.retry import retry_until_available
from sandbox.harvester import kinds
from sandbox.harvester.informers import Informers

log = logging.getLogger(__name__)


class Agent:
    """The agents of all guests on one Harvester."""

    def __init__(self, informers: Informers) -> None:
        self._informers = informers

    async def report(self, guest: Guest, addresses: list[tuple[str, ...]]) -> None:
        """Report the interfaces of a guest with the addresses of each."""
        names = interface_names(len(addresses))
        interfaces = [
            _interface(interface, name, configured)
            for interface, name, configured in zip(guest.interfaces, names, addresses, strict=True)
        ]
        await self._patch(
            guest, {"interfaces": interfaces}, kinds.condition("AgentConnected", True)
        )

    async def report_again(self, guest: Guest, earlier_status: Obj) -> None:
        """Report the interfaces of an earlier status, unless the guest has reported meanwhile."""
        vmi = self._informers.vmis.get(*guest.key)
        if vmi is not None and not agent_answers(vmi):
            status = {"interfaces": earlier_status["interfaces"]}
            await self._patch(guest, status, kinds.condition("AgentConnected", True))

    async def report_failure(self, guest: Guest, message: str) -> None:
        """Report why the agent of a guest does not answer.

        A real guest stays silent, but users of a sandbox need the reason.
        """
        log.warning("guest %s: %s", guest.key, message)
        await self._patch(
            guest, {}, kinds.condition("AgentConnected", False, "GuestNotReady", message)
        )

    async def _patch(self, guest: Guest, status: Obj, condition: Obj) -> None:
        # After a restart, another guest has the instance of that name.
        vmi = self._informers.vmis.get(*guest.key)
        if vmi is None or uid_of(vmi) != guest.uid:
            return

        patch = {"status": {**status, "conditions": kinds.with_condition(vmi, condition)}}
        with contextlib.suppress(NotFound):
            answer = await retry_until_available(
                lambda: self._informers.client.patch(
                    kinds.INSTANCES, guest.key.name, guest.key.namespace, patch
                )
            )
            self._informers.vmis.observe(answer)


def agent_answers(vmi: Obj) -> bool:
    """Return whether the guest agent of an instance is connected."""
    conditions = list_at(vmi, "status", "conditions")
    return any(
        (entry["type"], entry["status"]) == ("AgentConnected", "True") for entry in conditions
    )


def _interface(interface: Obj, name: str, addresses: tuple[str, ...]) -> Obj:
    entry: Obj = {
        "name": interface["name"],
        "interfaceName": name,
        "infoSource": "domain, guest-agent",
    }
    if interface.get("macAddress"):
        entry["mac"] = interface["macAddress"]
    if addresses:
        entry["ipAddress"] = addresses[0]
        entry["ipAddresses"] = list(addresses)
    return entry
