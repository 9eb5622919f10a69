"""The simulated guest operating systems, from boot to shutdown.

A guest boots when its instance runs, reads its cloud-init data, configures its interfaces, reports them through the
guest agent, and joins a cluster if its data says how. A guest with invalid data stays silent, like a real one; the
instance's condition `AgentConnected` says why.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from caphv.api.object import SECRETS, Key, Obj, annotations_of, key_of, uid_of
from caphv.runtime.cache import Change
from caphv.runtime.errors import ApiError, NotFound, ServerFault, TooManyRequests, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError
from sandbox.guest import kubelet, nodes
from sandbox.guest.cloudinit import GuestError, Nic, UserData, parse_network_data, parse_user_data
from sandbox.guest.etcd import EtcdError
from sandbox.guest.join import CONTROL_PLANE, Join, check_nic, interface_names, join_of
from sandbox.guest.kubeadm import Kubeadm, kubeadm_of
from sandbox.guest.kubeadmobjects import static_pods
from sandbox.guest.kubeadmrun import Joined, Runs
from sandbox.guest.rancher import K3S, join_of_rancher
from sandbox.guest.workload import Member, Workloads
from sandbox.harvester import kinds
from sandbox.harvester.addresses import Addresses
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.processes.children import ProcessError

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Guest:
    """One run of a VM; a restart is a new guest with the same disk."""

    key: Key
    uid: str
    disk: str
    hostname: str
    spec: Obj

    @property
    def system_uuid(self) -> str:
        """UUID of the firmware, which the kubelet reports as that of the system."""
        return str(self.spec["domain"]["firmware"]["uuid"])

    @property
    def interfaces(self) -> list[Obj]:
        """Interfaces of the VM, in the order in which the guest sees them."""
        return (self.spec["domain"].get("devices") or {}).get("interfaces") or []

    def holder(self, interface: Obj) -> str:
        """Holder of an interface's address; unchanged by a restart."""
        return f"VM {self.key} {interface['name']}"


class Guests:
    """All guests on one Harvester."""

    def __init__(
        self, informers: Informers, config: SimulatorConfig, addresses: Addresses, workloads: Workloads
    ) -> None:
        self._informers = informers
        self._config = config
        self._addresses = addresses
        self._workloads = workloads
        self._kubeadm = Runs(workloads)
        self._clients = nodes.ClientPool()
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._marks: set[asyncio.Task[None]] = set()
        # What the last guest of a Node registers, so that the end of an earlier one does not mark it lost.
        self._registered: dict[tuple[str, str], nodes.NodeInfo] = {}

    async def run(self) -> None:
        """Boot and stop guests with their instances until cancelled; the informers must be synced."""
        self._informers.vmis.add_handler(self._instance_changed)
        self._informers.vms.add_handler(self._vm_changed)
        try:
            await asyncio.Event().wait()
        finally:
            self._informers.vmis.remove_handler(self._instance_changed)
            await _cancel(self._lives.values())
            await _cancel(self._marks)

    def _vm_changed(self, change: Change) -> None:
        if change.new is None:
            self._workloads.forget(uid_of(change.obj))

    def _instance_changed(self, change: Change) -> None:
        runs = change.new is not None and change.new.get("status", {}).get("phase") == "Running"
        now = uid_of(change.new) if change.new is not None and runs else ""
        if change.old is not None and uid_of(change.old) != now:
            life = self._lives.pop(uid_of(change.old), None)
            if life:
                life.cancel()
        if change.new is None or not runs:
            return
        guest = _guest(change.new)
        if now not in self._lives:
            self._lives[now] = asyncio.create_task(self._boot(guest), name=f"guest {guest.key}")
        elif change.old is not None and _renewal(change.old) != _renewal(change.new):
            self._lives[now] = asyncio.create_task(self._renew(guest, self._lives[now]), name=f"guest {guest.key}")
        elif change.old is not None and _agent_answers(change.old) and not _agent_answers(change.new):
            self._start_task(self._answer_again(guest, change.old["status"]))

    # Life of a guest

    async def _boot(self, guest: Guest) -> None:
        spread = self._config.boot_spread
        await asyncio.sleep(self._config.boot_seconds * random.uniform(1 - spread, 1 + spread))
        await self._life(guest)

    async def _renew(self, guest: Guest, before: asyncio.Task[None]) -> None:
        """Restart the guest's network with new DHCP leases."""
        for interface in guest.interfaces:
            self._addresses.expire(guest.holder(interface))
        await _cancel([before])
        await self._life(guest)

    async def _answer_again(self, guest: Guest, before: Obj) -> None:
        """Report the interfaces again after a reboot or live migration; the Node and the addresses stay."""
        await asyncio.sleep(self._config.agent_seconds)
        vmi = self._informers.vmis.get(*guest.key)
        if vmi is not None and not _agent_answers(vmi):
            await self._patch(guest, {"interfaces": before["interfaces"]}, kinds.condition("AgentConnected", True))

    async def _life(self, guest: Guest) -> None:
        try:
            user_data, network_data = await self._cloud_init(guest)
            join = (kubeadm_of(user_data) or join_of(user_data) or join_of_rancher(user_data)) if user_data else None
            addresses = self._bring_up(guest, network_data)
            if user_data is None or not user_data.has_agent:
                await self._report_failure(guest, "guest agent not installed: userdata has no package qemu-guest-agent")
            else:
                await self._report(guest, addresses)
            if isinstance(join, Kubeadm):
                await self._run_kubeadm(guest, join, addresses)
            elif join:
                await self._join(guest, join, addresses)
            await asyncio.Event().wait()
        except (GuestError, EtcdError, LookupError, KubeconfigError, ProcessError, OSError) as error:
            await self._report_failure(guest, str(error))
            await asyncio.Event().wait()
        finally:
            for interface in guest.interfaces:
                self._addresses.release(guest.holder(interface))

    async def _cloud_init(self, guest: Guest) -> tuple[UserData | None, list[Nic] | None]:
        volumes = guest.spec.get("volumes") or ()
        source: Obj = next((volume["cloudInitNoCloud"] for volume in volumes if "cloudInitNoCloud" in volume), {})
        references = {"userData": source.get("secretRef"), "networkData": source.get("networkDataSecretRef")}
        names = {reference["name"] for reference in references.values() if reference}
        secrets = {name: await self._secret(guest, name) for name in names}
        texts = {
            kind: source.get(kind) or (secrets[reference["name"]].get(kind.lower()) if reference else None)
            for kind, reference in references.items()
        }
        user, network = texts["userData"], texts["networkData"]
        user_data = parse_user_data(user, guest.hostname) if user else None
        return user_data, parse_network_data(network) if network else None

    async def _secret(self, guest: Guest, name: str) -> dict[str, str]:
        """Values of a Secret by lower-case key: KubeVirt accepts both `userdata` and `userData`."""
        try:
            secret = await _retry_until_available(
                lambda: self._informers.client.get(SECRETS, name, guest.key.namespace)
            )
            data = secret.get("data") or {}
            return {key.lower(): base64.b64decode(value).decode() for key, value in data.items()}
        except NotFound:
            raise GuestError(f"Secret {name} not found") from None
        except UnicodeDecodeError:
            raise GuestError(f"Secret {name}: must be text") from None

    def _bring_up(self, guest: Guest, nics: list[Nic] | None) -> list[str]:
        """Configure the interfaces; returns their addresses, empty where unset. Raises GuestError, LookupError."""
        names = interface_names(len(guest.interfaces))
        if nics is None:
            nics = [Nic(name) for name in names[:1]]  # without network data cloud-init tries DHCP on the first
        configured = {nic.name: nic for nic in nics}
        unknown = sorted(configured.keys() - set(names))
        if unknown:
            raise GuestError(
                f"networkdata: interface {unknown[0]} does not exist; existing: {', '.join(names) or 'none'}"
            )
        pairs = zip(names, guest.interfaces, strict=True)
        return [self._bring_up_one(guest, nic, configured[name]) if name in configured else "" for name, nic in pairs]

    def _bring_up_one(self, guest: Guest, interface: Obj, nic: Nic) -> str:
        holder, network = guest.holder(interface), self._network(guest, interface["name"])
        if not nic.address:
            dhcp = annotations_of(network).get(kinds.NETWORK_DHCP) if network else None
            if not dhcp:
                raise GuestError(f"{nic.name}: no DHCP server on the network")
            return self._addresses.lease(dhcp, holder)
        route = json.loads(annotations_of(network).get(kinds.NETWORK_ROUTE) or "{}") if network else {}
        if route.get("cidr"):
            check_nic(nic, route["cidr"], route.get("gateway", ""))
        other = self._addresses.claim(nic.address, holder)
        if other:
            raise GuestError(f"{nic.name}: address {nic.address} is used by {other}")
        return nic.address

    def _network(self, guest: Guest, name: str) -> Obj | None:
        named = {network["name"]: network.get("multus") or {} for network in guest.spec.get("networks") or ()}
        space, _, bare = str(named.get(name, {}).get("networkName", "")).rpartition("/")
        return self._informers.networks.get(space or guest.key.namespace, bare)

    # Status

    async def _report(self, guest: Guest, addresses: list[str]) -> None:
        interfaces = [
            _interface(interface, name, address)
            for interface, name, address in zip(
                guest.interfaces, interface_names(len(addresses)), addresses, strict=True
            )
        ]
        await self._patch(guest, {"interfaces": interfaces}, kinds.condition("AgentConnected", True))

    async def _report_failure(self, guest: Guest, message: str) -> None:
        log.warning("guest %s: %s", guest.key, message)
        await self._patch(guest, {}, kinds.condition("AgentConnected", False, "GuestNotReady", message))

    async def _patch(self, guest: Guest, status: Obj, condition: Obj) -> None:
        vmi = self._informers.vmis.get(*guest.key)
        if vmi is None or uid_of(vmi) != guest.uid:
            return
        patch = {"status": {**status, "conditions": kinds.with_condition(vmi, condition)}}
        with contextlib.suppress(NotFound):
            answer = await _retry_until_available(
                lambda: self._informers.client.patch(kinds.INSTANCES, guest.key.name, guest.key.namespace, patch)
            )
            self._informers.vmis.observe(answer)

    # Joining a cluster

    async def _join(self, guest: Guest, join: Join, addresses: list[str]) -> None:
        """Register the Node and keep it until the guest stops."""
        if not join.ca:
            authority, clients = await self._workloads.authority_of(guest.disk, join.token)
            join = dataclasses.replace(join, ca=authority.certificate.decode(), authority=authority, clients=clients)
        if join.role == CONTROL_PLANE:
            await self._serve(guest, join, addresses)
        else:
            await self._register(guest, join, join.server, addresses)

    async def _serve(self, guest: Guest, join: Join, addresses: list[str]) -> None:
        if join.authority is None:
            raise GuestError("a control plane guest must have a CA")
        address = _first(addresses)
        try:
            member = Member(address, guest.disk, guest.hostname, join.port)
            local = await self._workloads.serve(member, join)
            await self._register(guest, join, local, addresses)
        finally:
            await self._workloads.leave(address)

    async def _register(self, guest: Guest, join: Join, server: str, addresses: list[str]) -> None:
        access = Kubeconfig(server=server, ca=join.ca, token=join.token)
        control_plane = join.role == CONTROL_PLANE
        info = nodes.NodeInfo(
            name=guest.hostname,
            addresses=tuple(address for address in addresses if address),
            version=join.version,
            system_uuid=guest.system_uuid,
            ready=join.cni,
            labels=_labels(join),
            # K3s runs etcd in its own process.
            pods=(kubelet.etcd_pod(guest.hostname),) if control_plane and join.program != K3S.name else (),
        )
        await self._keep_node(access, info)

    async def _run_kubeadm(self, guest: Guest, run: Kubeadm, addresses: list[str]) -> None:
        """Do what kubeadm does, once in the life of a disk, and then what kubelet does."""
        joined = await self._kubeadm.joined(guest.disk, run)
        if run.authority is None:
            access = await self._kubeadm.access(run, joined)
            await self._keep_node(access, _node_info(guest, run, joined, addresses))
            return
        address = _first(addresses)
        try:
            access = await self._kubeadm.serve(guest.disk, guest.hostname, address, run)
            await self._keep_node(access, _node_info(guest, run, joined, addresses))
        finally:
            await self._workloads.leave(address)

    async def _keep_node(self, access: Kubeconfig, info: nodes.NodeInfo) -> None:
        """Register a Node, and mark it when the guest has stopped."""
        await asyncio.sleep(self._config.register_seconds)
        async with self._clients.client(access) as client:
            registered = self._registered[access.server, info.name] = dataclasses.replace(info)
            try:
                await nodes.register(client, registered)
                await asyncio.Event().wait()
            finally:
                self._start_task(self._lose_node(access, registered))

    async def _lose_node(self, access: Kubeconfig, registered: nodes.NodeInfo) -> None:
        """Mark the Node of a guest that has stopped, unless another guest of its name comes first."""
        await asyncio.sleep(self._config.node_lost_seconds)
        node = (access.server, registered.name)
        if self._registered.get(node) is not registered:
            return

        async with self._clients.client(access) as client:
            await nodes.mark_lost(client, registered.name)
            current = self._registered[node]
            if current is not registered:
                # It came while the Node was marked: a kubelet reports its conditions again and again.
                await nodes.register(client, current)
                return

            del self._registered[node]
            await nodes.delete_pods(client, registered.pods)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._marks.add(task)
        task.add_done_callback(self._marks.discard)


def _guest(vmi: Obj) -> Guest:
    owners = vmi["metadata"].get("ownerReferences") or [{"uid": uid_of(vmi)}]
    hostname = vmi["spec"].get("hostname") or vmi["metadata"]["name"]
    return Guest(key_of(vmi), uid_of(vmi), owners[0]["uid"], hostname, vmi["spec"])


def _first(addresses: list[str]) -> str:
    if not addresses or not addresses[0]:
        raise GuestError("a control plane guest must have an address on its first interface")
    return addresses[0]


def _labels(join: Join) -> dict[str, str]:
    """Labels of a Node that joins by other means than kubeadm."""
    if join.role != CONTROL_PLANE:
        return {}
    roles = ("control-plane", "etcd", "master") if join.program else ("control-plane",)
    return {f"node-role.kubernetes.io/{role}": "true" for role in roles}


def _node_info(guest: Guest, run: Kubeadm, joined: Joined, addresses: list[str]) -> nodes.NodeInfo:
    """What the kubelet of a node of kubeadm reports; as if a CNI were installed."""
    name = run.node.name or guest.hostname
    control_plane = run.authority is not None
    role = {"node-role.kubernetes.io/control-plane": "", "node.kubernetes.io/exclude-from-external-load-balancers": ""}
    return nodes.NodeInfo(
        name=name,
        addresses=tuple(address for address in addresses if address),
        version=joined.version,
        system_uuid=guest.system_uuid,
        ready=True,
        labels={**run.node.labels, **(role if control_plane else {})},
        taints=run.node.taints,
        pods=tuple(static_pods(name, joined.version)) if control_plane else (),
    )


def _renewal(vmi: Obj) -> str:
    return annotations_of(vmi).get(kinds.RENEWAL, "")


def _agent_answers(vmi: Obj) -> bool:
    conditions = vmi.get("status", {}).get("conditions") or ()
    return any((entry["type"], entry["status"]) == ("AgentConnected", "True") for entry in conditions)


def _interface(interface: Obj, name: str, address: str) -> Obj:
    entry = {"name": interface["name"], "interfaceName": name, "infoSource": "domain, guest-agent"}
    if interface.get("macAddress"):
        entry["mac"] = interface["macAddress"]
    return entry | ({"ipAddress": address, "ipAddresses": [address]} if address else {})


async def _retry_until_available(call: Callable[[], Awaitable[_T]]) -> _T:
    """Retry a request while the API server is unavailable."""
    while True:
        try:
            return await call()
        except (Unreachable, ServerFault, TooManyRequests) as error:
            log.info("retrying: %s", error)
        except ApiError:
            raise
        await asyncio.sleep(RETRY_SECONDS)


async def _cancel(tasks: Any) -> None:
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
