"""The simulated guest operating systems, from boot to shutdown.

A guest boots when its instance runs, reads its cloud-init data, configures its interfaces, reports
them through the guest agent, and joins a cluster if its data describes one. A guest with invalid
data stays silent, like a real one. The instance's condition `AgentConnected` has the reason.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable
from typing import Any

from caphv.api.object import Obj, annotations_of, at, uid_of
from caphv.runtime.cache import Change
from caphv.runtime.kubeconfig import KubeconfigError
from sandbox.guest.agent import Agent, agent_answers
from sandbox.guest.cloudinit import GuestError, UserData
from sandbox.guest.datasource import read_data
from sandbox.guest.etcd import EtcdError
from sandbox.guest.guest import Guest, guest_of
from sandbox.guest.interfaces import Interfaces, interface_names
from sandbox.guest.joiner import Joiner, VirtualAddress, join_method_of
from sandbox.guest.kubevip import kube_vip_of
from sandbox.guest.noderegistrar import NodeRegistrar
from sandbox.guest.workload import Workloads
from sandbox.harvester import kinds
from sandbox.harvester.addresses import Addresses
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.processes.children import ProcessError

# Errors that end the boot of a guest. Its instance reports the message.
_FAILURES = (GuestError, EtcdError, LookupError, KubeconfigError, ProcessError, OSError)


class Guests:
    """All guests on one Harvester."""

    def __init__(
        self,
        informers: Informers,
        config: SimulatorConfig,
        addresses: Addresses,
        workloads: Workloads,
    ) -> None:
        self._informers = informers
        self._config = config
        self._workloads = workloads
        self._interfaces = Interfaces(informers, addresses)
        self._agent = Agent(informers)
        self._registrar = NodeRegistrar(config)
        self._joiner = Joiner(workloads, self._registrar, addresses)
        # The task of each guest, by the uid of its instance.
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._reports: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Boot and stop guests with their instances until cancelled.

        The informers must be synced.
        """
        self._informers.vmis.add_handler(self._follow_instance)
        self._informers.vms.add_handler(self._follow_vm)
        try:
            await asyncio.Event().wait()
        finally:
            self._informers.vmis.remove_handler(self._follow_instance)
            await _cancel(self._lives.values())
            await _cancel(self._reports)
            # Close the registrar last, because the end of each guest starts the marking of its
            # Node.
            await self._registrar.close()

    def _follow_vm(self, change: Change) -> None:
        if change.new is None:
            self._workloads.forget(uid_of(change.obj))

    def _follow_instance(self, change: Change) -> None:
        vmi = change.new if change.new is not None and _is_running(change.new) else None
        if change.old is not None and (vmi is None or uid_of(change.old) != uid_of(vmi)):
            life = self._lives.pop(uid_of(change.old), None)
            if life:
                life.cancel()
        if vmi is None:
            return

        guest = guest_of(vmi)
        life = self._lives.get(guest.uid)
        if life is None:
            self._start_life(guest, self._boot(guest))
        elif change.old is None:
            return
        elif _renewal(change.old) != _renewal(vmi):
            self._start_life(guest, self._renew_leases(guest, life))
        elif agent_answers(change.old) and not agent_answers(vmi):
            task = asyncio.create_task(self._answer_again(guest, change.old["status"]))
            self._reports.add(task)
            task.add_done_callback(self._reports.discard)

    def _start_life(self, guest: Guest, life: Coroutine[Any, Any, None]) -> None:
        self._lives[guest.uid] = asyncio.create_task(life, name=f"guest {guest.key}")

    async def _boot(self, guest: Guest) -> None:
        spread = self._config.boot_spread
        await asyncio.sleep(self._config.boot_seconds * random.uniform(1 - spread, 1 + spread))
        await self._live(guest)

    async def _renew_leases(self, guest: Guest, earlier_life: asyncio.Task[None]) -> None:
        """Restart the guest's network with new DHCP leases."""
        self._interfaces.expire_leases(guest)
        await _cancel([earlier_life])
        await self._live(guest)

    async def _answer_again(self, guest: Guest, status: Obj) -> None:
        """Report the interfaces again after a reboot or a live migration.

        The Node and the addresses stay.
        """
        await asyncio.sleep(self._config.agent_seconds)
        await self._agent.report_again(guest, status)

    async def _live(self, guest: Guest) -> None:
        try:
            user_data, nics = await read_data(self._informers.client, guest)
            method = join_method_of(user_data) if user_data else None
            addresses = self._interfaces.bring_up(guest, nics)

            if user_data is None or not user_data.has_agent:
                await self._agent.report_failure(
                    guest, "guest agent not installed: userdata has no package qemu-guest-agent"
                )
            else:
                await self._agent.report(guest, addresses)

            # A guest joins even without an agent.
            if method and user_data:
                # The first one is that of the first interface, empty if it has none.
                flat = [address for nic in addresses for address in nic or ("",)]
                virtual = self._virtual_address(guest, user_data, addresses)
                await self._joiner.join(guest, method, flat, virtual)
            await asyncio.Event().wait()
        except _FAILURES as error:
            await self._agent.report_failure(guest, str(error))
            # Like a real guest with a wrong configuration, it keeps its addresses until it stops.
            await asyncio.Event().wait()
        finally:
            self._interfaces.release(guest)

    def _virtual_address(
        self, guest: Guest, user_data: UserData, addresses: list[tuple[str, ...]]
    ) -> VirtualAddress | None:
        """Return the address that kube-vip in a guest may hold. Raises `GuestError`."""
        settings = kube_vip_of(user_data)
        if settings is None:
            return None

        # The first interface has the default route.
        names = interface_names(len(addresses))
        if (settings.interface or names[0]) not in names:
            raise GuestError(f"kube-vip: interface {settings.interface} does not exist")
        number = names.index(settings.interface or names[0])

        async def report(is_held: bool) -> None:
            if user_data.has_agent:
                current = list(addresses)
                if is_held:
                    current[number] += (settings.address,)
                await self._agent.report(guest, current)

        return VirtualAddress(settings, report)


def _is_running(vmi: Obj) -> bool:
    return at(vmi, "status", "phase") == "Running"


def _renewal(vmi: Obj) -> str:
    return annotations_of(vmi).get(kinds.RENEWAL, "")


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    # Copy the tasks, because they leave their set when they end.
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
