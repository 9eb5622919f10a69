"""The joining of guests to clusters: by a join file, programs of Rancher, kubeadm, or Talos."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from caphv.api.object import Obj
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.guest import kubelet, kubevip
from sandbox.guest.cloudinit import GuestError, UserData
from sandbox.guest.guest import Guest
from sandbox.guest.join import CONTROL_PLANE, Join, join_of
from sandbox.guest.kubeadm import CONTROL_PLANE_TAINT, Kubeadm, kubeadm_of
from sandbox.guest.kubeadmobjects import static_pods
from sandbox.guest.kubeadmrun import ClusterRecord, Runs
from sandbox.guest.machineapi import MachineApi
from sandbox.guest.noderegistrar import NodeRegistrar
from sandbox.guest.nodes import NodeInfo
from sandbox.guest.rancher import K3S, join_of_rancher
from sandbox.guest.talos import TalosMachine, parse_machine_config
from sandbox.guest.workload import Member, Workloads
from sandbox.harvester.addresses import Addresses


def join_method_of(user_data: UserData) -> Kubeadm | TalosMachine | Join | None:
    """Return how a guest joins a cluster; None if it joins none. Raises `GuestError`."""
    if user_data.machine_config:
        return parse_machine_config(user_data.machine_config)
    return kubeadm_of(user_data) or join_of(user_data) or join_of_rancher(user_data)


@dataclasses.dataclass(frozen=True, slots=True)
class VirtualAddress:
    """An address that kube-vip in the guest may hold.

    `report` tells the guest agent whether an interface has it.
    """

    settings: kubevip.KubeVip
    report: Callable[[bool], Awaitable[None]]


class Joiner:
    """Joins all guests on one Harvester to their clusters."""

    def __init__(
        self, workloads: Workloads, registrar: NodeRegistrar, addresses: Addresses
    ) -> None:
        self._workloads = workloads
        self._registrar = registrar
        self._addresses = addresses
        self._kubeadm = Runs(workloads)

    async def join(
        self,
        guest: Guest,
        method: Kubeadm | TalosMachine | Join,
        addresses: list[str],
        virtual: VirtualAddress | None = None,
    ) -> None:
        """Register the Node of a guest and keep it until cancelled.

        In this time, a control plane guest serves the workload API, at a `virtual` address as well
        while it holds that.

        Raises `GuestError`, `EtcdError`, `KubeconfigError`, `ProcessError` or `OSError` if it
        cannot join.
        """
        if isinstance(method, Kubeadm):
            await self._run_kubeadm(guest, method, addresses, virtual)
            return
        if isinstance(method, TalosMachine):
            await self._run_talos(guest, method, addresses)
            return

        if not method.ca:
            authorities = await self._workloads.authorities_of(guest.disk, method.token)
            method = dataclasses.replace(
                method,
                ca=authorities.server.certificate.decode(),
                authority=authorities.server,
                clients=authorities.clients,
                etcd=authorities.etcd,
            )
        if method.role == CONTROL_PLANE:
            await self._serve(guest, method, addresses, virtual)
        else:
            await self._keep_node(guest, method, method.server, addresses)

    async def _serve(
        self, guest: Guest, join: Join, addresses: list[str], virtual: VirtualAddress | None
    ) -> None:
        if join.authority is None:
            raise GuestError("a control plane guest must have a CA")

        address = _first_address(addresses)
        try:
            member = Member(
                address,
                guest.disk,
                guest.hostname,
                join.port,
                etcd=join.etcd if self._has_real_etcd(join) else None,
                serves=join.serves,
                stores=join.stores,
                program=join.program,
            )
            local_url = await self._workloads.serve(member, join)
            kubeconfig = Kubeconfig(server=local_url, ca=join.ca, token=join.token)
            async with self._holding(guest, address, virtual, kubeconfig):
                await self._keep_node(guest, join, local_url, addresses)
        finally:
            # Leave even after a failure, because some listeners may have been started.
            await self._workloads.leave(address)

    async def _keep_node(self, guest: Guest, join: Join, server: str, addresses: list[str]) -> None:
        node = NodeInfo(
            name=guest.hostname,
            addresses=tuple(filter(None, addresses)),
            version=join.version,
            system_uuid=guest.system_uuid,
            boot_id=guest.uid,
            ready=join.cni,
            labels=_role_labels(join),
            pods=self._etcd_pods(guest, join),
        )
        kubeconfig = Kubeconfig(server=server, ca=join.ca, token=join.token)
        await self._registrar.keep(kubeconfig, node)

    def _etcd_pods(self, guest: Guest, join: Join) -> tuple[Obj, ...]:
        """Return the Pods by which clients reach the etcd of a guest."""
        if join.role != CONTROL_PLANE or not join.stores:
            return ()
        # K3s runs etcd in its own process, so only its control plane provider adds a Pod.
        if join.program != K3S.name:
            return (kubelet.etcd_pod(guest.hostname),)
        return (kubelet.etcd_proxy_pod(guest.hostname),) if self._has_real_etcd(join) else ()

    def _has_real_etcd(self, join: Join) -> bool:
        return join.stores and self._workloads.has_real_etcd(join.program)

    @asynccontextmanager
    async def _holding(
        self,
        guest: Guest,
        address: str,
        virtual: VirtualAddress | None,
        kubeconfig: Kubeconfig,
    ) -> AsyncIterator[None]:
        """Run kube-vip, if the guest has it, for as long as the block lasts."""
        if virtual is None:
            yield
            return

        ports = self._workloads.ports(address)
        machine = kubevip.Machine(guest, address, ports, virtual.report)
        async with kubevip.running(machine, virtual.settings, kubeconfig, self._addresses):
            yield

    async def _run_kubeadm(
        self,
        guest: Guest,
        run: Kubeadm,
        addresses: list[str],
        virtual: VirtualAddress | None,
    ) -> None:
        """Act like kubeadm, once in the life of a disk, and then like a kubelet."""
        record = await self._kubeadm.find_cluster(guest.disk, run)
        node = _kubeadm_node(guest, run, record, addresses)
        if run.authority is None:
            kubeconfig = await self._kubeadm.worker_kubeconfig(run, record)
            await self._registrar.keep(kubeconfig, node)
            return

        address = _first_address(addresses)
        try:
            kubeconfig = await self._kubeadm.serve(guest.disk, guest.hostname, address, run)
            async with self._holding(guest, address, virtual, kubeconfig):
                await self._registrar.keep(kubeconfig, node)
        finally:
            await self._workloads.leave(address)

    async def _run_talos(self, guest: Guest, machine: TalosMachine, addresses: list[str]) -> None:
        """Act like Talos: a control plane serves after `Bootstrap`, on it or on another guest."""
        join = machine.join
        node = _talos_node(guest, machine, addresses)
        if machine.authority is None:
            kubeconfig = Kubeconfig(server=join.server, ca=join.ca, token=join.token)
            await self._registrar.keep(kubeconfig, node)
            return

        address = _first_address(addresses)
        api = MachineApi(address, guest.disk, node.name, machine.authority, self._workloads)
        async with api.serving():
            if not self._workloads.has_data(guest.disk):
                await _first_of(api.bootstrapped.wait(), self._workloads.admin_token(join.ca))
            try:
                member = Member(address, guest.disk, node.name, join.port)
                local_url = await self._workloads.serve(member, join)
                kubeconfig = Kubeconfig(server=local_url, ca=join.ca, token=join.token)
                await self._registrar.keep(kubeconfig, node)
            finally:
                await self._workloads.leave(address)


async def _first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until the first of these ends, and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first_address(addresses: list[str]) -> str:
    if not addresses or not addresses[0]:
        raise GuestError("a control plane guest must have an address on its first interface")
    return addresses[0]


def _role_labels(join: Join) -> dict[str, str]:
    """Return the labels that show the role of a Node; kubeadm has others."""
    if join.role != CONTROL_PLANE:
        return {}
    serves = ("control-plane", "master")
    stores = ("etcd",)
    roles = (*(serves if join.serves else ()), *(stores if join.stores else ()))
    if not join.program:
        roles = ("control-plane",)
    return {f"node-role.kubernetes.io/{role}": "true" for role in roles}


def _talos_node(guest: Guest, machine: TalosMachine, addresses: list[str]) -> NodeInfo:
    """Return the report of the kubelet of Talos, whose etcd has no Pod."""
    is_control_plane = machine.join.role == CONTROL_PLANE
    return NodeInfo(
        name=machine.hostname or guest.hostname,
        addresses=tuple(filter(None, addresses)),
        version=machine.join.version,
        system_uuid=guest.system_uuid,
        boot_id=guest.uid,
        ready=machine.join.cni,
        labels={"node-role.kubernetes.io/control-plane": ""} if is_control_plane else {},
        taints=(CONTROL_PLANE_TAINT,) if is_control_plane else (),
    )


def _kubeadm_node(
    guest: Guest, run: Kubeadm, record: ClusterRecord, addresses: list[str]
) -> NodeInfo:
    """Return the report of a kubelet on a node of kubeadm, as if a CNI were installed."""
    name = run.node.name or guest.hostname
    control_plane = run.authority is not None
    role_labels = {
        "node-role.kubernetes.io/control-plane": "",
        "node.kubernetes.io/exclude-from-external-load-balancers": "",
    }

    return NodeInfo(
        name=name,
        addresses=tuple(filter(None, addresses)),
        version=record.version,
        system_uuid=guest.system_uuid,
        boot_id=guest.uid,
        ready=True,
        labels={**run.node.labels, **(role_labels if control_plane else {})},
        taints=run.node.taints,
        pods=tuple(static_pods(name, record.version)) if control_plane else (),
    )
