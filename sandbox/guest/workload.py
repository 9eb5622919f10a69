"""API servers of workload clusters: real ones, reachable while a control plane guest of the cluster runs.

A cluster is identified by its CA. Its first control plane guest starts a kube-apiserver with that CA; each control
plane guest forwards to it from port 6443 of its own address, and from the port where nodes join. Its data is in the
sandbox's etcd and, like the guests' disks, outlives stopped guests until the last control plane VM of the cluster is
deleted. There is no etcd quorum: one control plane guest of three is enough.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.guest.join import Join
from sandbox.guest.kubelet import Etcd, Kubelet
from sandbox.guest.members import Members
from sandbox.guest.rancher import PROGRAMS
from sandbox.processes import pki
from sandbox.processes.apiserver import ADMIN, ApiServer, Token, private_file
from sandbox.processes.proxy import TcpProxy

log = logging.getLogger(__name__)

PORT = 6443
# Between two looks for the first server of a cluster.
_AUTHORITY_SECONDS = 0.5
# Nothing here would remove the taint that this plugin adds to new Nodes.
FLAGS = (
    "--disable-admission-plugins=TaintNodesByCondition",
    # Host names of guests cannot be resolved.
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
    token: str = field(default="", repr=False)
    sans: set[str] = field(default_factory=set)
    # uids of the VMs whose disks hold the cluster's data, and the listeners of running guests by address
    disks: set[str] = field(default_factory=set)
    listeners: dict[str, list[TcpProxy]] = field(default_factory=dict)
    etcd: Etcd = field(default_factory=Etcd)
    kubelets: dict[str, Kubelet] = field(default_factory=dict)
    members: asyncio.Task[None] | None = None


class Workloads:
    """All workload clusters; `on_change` is called when a control plane guest starts or stops listening."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clusters: dict[str, _Cluster] = {}
        self.on_change: Callable[[], None] = lambda: None

    def answers(self, address: str, port: int) -> bool:
        """Whether a guest listens on that address and port."""
        return port == PORT and any(address in cluster.listeners for cluster in self._clusters.values())

    async def authority_of(self, token: str) -> pki.CA:
        """Return the CA of the cluster with a token, once its first server runs."""
        while True:
            for cluster in self._clusters.values():
                if cluster.server and cluster.token == token:
                    return cluster.server.ca
            await asyncio.sleep(_AUTHORITY_SECONDS)

    async def serve(self, member: Member, join: Join) -> str:
        """Listen on a guest's address; returns the URL of the API server behind it.

        Raises ProcessError if the API server does not start, OSError if the guest cannot listen on its address.
        """
        ca = join.authority
        assert ca is not None  # noqa: S101 - a control plane guest has one
        address, disk = member.address, member.disk
        cluster = self._clusters.setdefault(_fingerprint(ca.certificate), _Cluster())
        async with cluster.lock:
            if not cluster.disks and not cluster.listeners:
                # The disks with the data of an earlier cluster of this CA were deleted.
                cluster.server, cluster.etcd = None, Etcd()
            cluster.disks.add(disk)
            if cluster.server is None:
                name = f"workload-{_fingerprint(ca.certificate)}-{disk[:8]}"
                admin = Token(join.token, ADMIN[0], ADMIN[1])
                cluster.server = ApiServer(
                    self._folder, name, ca=ca, client_authority=join.clients, tokens=[admin], flags=FLAGS
                )
                cluster.token, cluster.sans = join.token, set()
            self._sign(cluster, {*join.sans, address})
            server = cluster.server
            if server.process is None or not server.process.alive:
                await server.start()
                log.info("workload API server %s started", server.name)
            proxies = cluster.listeners[address] = []
            for port in {PORT, member.port}:
                proxy = TcpProxy((address, port), [(server.address, server.port)])
                await proxy.start()
                proxies.append(proxy)
            program = next((program for program in PROGRAMS if program.name == join.program), None)
            if program and cluster.members is None:
                cluster.members = asyncio.create_task(Members(server, cluster.etcd, program).run())
            cluster.etcd.join(disk, member.node)
            kubelet = cluster.kubelets[address] = Kubelet(address, cluster.etcd, ca)
            await kubelet.start()
        self.on_change()
        return server.url

    async def leave(self, address: str) -> None:
        """Stop listening on a guest's address; the API server stops with the last guest of the cluster."""
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
                    if cluster.members:
                        cluster.members.cancel()
                        await asyncio.gather(cluster.members, return_exceptions=True)
                        cluster.members = None
                    await cluster.server.stop()

    def forget(self, disk: str) -> None:
        """Forget the disks of a deleted VM."""
        for cluster in self._clusters.values():
            cluster.disks.discard(disk)

    async def close(self) -> None:
        """Stop all API servers."""
        for cluster in self._clusters.values():
            for address in list(cluster.listeners):
                await self.leave(address)

    def _sign(self, cluster: _Cluster, names: set[str]) -> None:
        """Renew the certificate for new names; the API server reloads the changed file."""
        if names <= cluster.sans or cluster.server is None:
            return
        cluster.sans |= names
        own = [cluster.server.address, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        pair = cluster.server.ca.server([*own, *sorted(cluster.sans)])
        private_file(self._folder / cluster.server.name / "tls.crt", pair.certificate)
        private_file(self._folder / cluster.server.name / "tls.key", pair.key)


def _fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate.strip()).hexdigest()[:12]
