"""The API servers of workload clusters: real ones, reachable for as long as a control plane guest of the cluster runs.

A cluster is known by its CA. Its first control plane guest starts a kube-apiserver with that CA; every control plane
guest answers for it on port 6443 of its own address, and on the port where nodes join. What the API server stores lies
in the sandbox's etcd and outlives guests that stop, as their disks would, until the last VM of the cluster's control
plane is deleted. There is no etcd quorum: one control plane guest of three is enough.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.guest.kubelet import Etcd, Kubelet
from sandbox.processes import pki
from sandbox.processes.apiserver import ADMIN, ApiServer, Token, private_file
from sandbox.processes.proxy import TcpProxy

log = logging.getLogger(__name__)

PORT = 6443
# Nobody would take away the taint that this plugin puts on new Nodes.
FLAGS = (
    "--disable-admission-plugins=TaintNodesByCondition",
    # Host names of guests are known to no name server.
    "--kubelet-preferred-address-types=InternalIP",
)


@dataclass(frozen=True, slots=True)
class Member:
    """A control plane guest: its address, the uid of its VM, its host name, the port where other nodes join."""

    address: str
    disk: str
    node: str
    port: int = PORT


@dataclass
class _Cluster:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    server: ApiServer | None = None
    sans: set[str] = field(default_factory=set)
    # uids of the VMs whose disks hold the cluster's data, and the listeners of the guests that run, by their address
    disks: set[str] = field(default_factory=set)
    listeners: dict[str, list[TcpProxy]] = field(default_factory=dict)
    etcd: Etcd = field(default_factory=Etcd)
    kubelets: dict[str, Kubelet] = field(default_factory=dict)


class Workloads:
    """All workload clusters with control plane guests; `on_change` is called when a guest begins or ends to answer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clusters: dict[str, _Cluster] = {}
        self.on_change: Callable[[], None] = lambda: None

    def answers(self, address: str, port: int) -> bool:
        """Whether a guest listens on that address and port."""
        return port == PORT and any(address in cluster.listeners for cluster in self._clusters.values())

    async def serve(self, member: Member, ca: pki.CA, token: str, sans: tuple[str, ...]) -> str:
        """Answer on a guest's address; answers the URL of the API server on the guest itself.

        Raises ProcessError when the API server does not start, OSError when the guest cannot listen on its address.
        """
        address, disk = member.address, member.disk
        cluster = self._clusters.setdefault(_fingerprint(ca.certificate), _Cluster())
        async with cluster.lock:
            if not cluster.disks and not cluster.listeners:
                # The disks with the data of an earlier cluster of this CA are gone.
                cluster.server, cluster.etcd = None, Etcd()
            cluster.disks.add(disk)
            if cluster.server is None:
                name = f"workload-{_fingerprint(ca.certificate)}-{disk[:8]}"
                admin = Token(token, ADMIN[0], ADMIN[1])
                cluster.server = ApiServer(self._folder, name, ca=ca, tokens=[admin], flags=FLAGS)
                cluster.sans = set()
            self._sign(cluster, {*sans, address})
            server = cluster.server
            if server.process is None or not server.process.alive:
                await server.start()
                log.info("workload API server %s started", server.name)
            proxies = cluster.listeners[address] = []
            for port in {PORT, member.port}:
                proxy = TcpProxy((address, port), [(server.address, server.port)])
                await proxy.start()
                proxies.append(proxy)
            cluster.etcd.join(disk, member.node)
            kubelet = cluster.kubelets[address] = Kubelet(address, cluster.etcd, ca)
            await kubelet.start()
        self.on_change()
        return server.url

    async def leave(self, address: str) -> None:
        """The guest of that address has ended; with the last one of a cluster its API server ends, too."""
        for cluster in self._clusters.values():
            if address not in cluster.listeners:
                continue
            for proxy in cluster.listeners.pop(address):
                await proxy.close()
            if address in cluster.kubelets:
                await cluster.kubelets.pop(address).close()
            self.on_change()
            async with cluster.lock:
                if not cluster.listeners and cluster.server:
                    await cluster.server.stop()

    def forget(self, disk: str) -> None:
        """A VM was deleted, and with it what its disks held."""
        for cluster in self._clusters.values():
            cluster.disks.discard(disk)

    async def close(self) -> None:
        """End all API servers."""
        for cluster in self._clusters.values():
            for address in list(cluster.listeners):
                await self.leave(address)

    def _sign(self, cluster: _Cluster, names: set[str]) -> None:
        """Renew the certificate when names are new; the API server reads it again when the file changes."""
        if names <= cluster.sans or cluster.server is None:
            return
        cluster.sans |= names
        own = [cluster.server.address, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        pair = cluster.server.ca.server([*own, *sorted(cluster.sans)])
        private_file(self._folder / cluster.server.name / "tls.crt", pair.certificate)
        private_file(self._folder / cluster.server.name / "tls.key", pair.key)


def _fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate.strip()).hexdigest()[:12]
