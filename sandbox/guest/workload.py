"""API servers of workload clusters: real ones, reachable while a control plane guest of the cluster runs.

A cluster is identified by its CA. Its first control plane guest starts a kube-apiserver with that CA; each control
plane guest forwards to it from port 6443 of its own address, and from the port where nodes join. Its data is in the
sandbox's etcd and, like the guests' disks, outlives stopped guests until the last control plane VM of the cluster is
deleted. There is no etcd quorum: one control plane guest of three is enough. Members of etcd on guests of kubeadm are
real, and hold nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.guest import etcd
from sandbox.guest.etcd import EtcdMembers
from sandbox.guest.join import Join
from sandbox.guest.kubelet import Etcd, Etcdctl, Kubelet
from sandbox.guest.members import Members
from sandbox.guest.rancher import PROGRAMS
from sandbox.processes import pki
from sandbox.processes.apiserver import ADMIN, ApiServer, Token, private_file
from sandbox.processes.proxy import TcpProxy

log = logging.getLogger(__name__)

PORT = 6443
# Between two looks for the first server of a cluster.
_AUTHORITY_SECONDS = 0.5
DISK = "disk-"
_NAME_FILE = "workload"
_AUTHORITY_FILES, _CLIENTS_FILE = ("server-ca.crt", "server-ca.key"), "client-ca.crt"
# Nothing here would remove the taint that this plugin adds to new Nodes.
FLAGS = (
    "--disable-admission-plugins=TaintNodesByCondition",
    # Host names of guests cannot be resolved.
    "--kubelet-preferred-address-types=InternalIP",
    # Nodes of kubeadm join with tokens that are Secrets.
    "--enable-bootstrap-token-auth",
)
# kubeadm's name for it, by which its control plane provider finds the certificate's expiry.
COMMON_NAME = "kube-apiserver"


@dataclass(frozen=True, slots=True)
class Member:
    """A control plane guest: its address, the uid of its VM, its host name, the port where other nodes join.

    `etcd` is the CA of a real etcd.
    """

    address: str
    disk: str
    node: str
    port: int = PORT
    etcd: pki.CA | None = None


@dataclass
class _Cluster:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    server: ApiServer | None = None
    token: str = field(default="", repr=False)
    clients: bytes = b""
    sans: set[str] = field(default_factory=set)
    # uids of the VMs whose disks hold the cluster's data, and the listeners of running guests by address
    disks: set[str] = field(default_factory=set)
    listeners: dict[str, list[TcpProxy]] = field(default_factory=dict)
    etcd: Etcd = field(default_factory=Etcd)
    real_etcd: EtcdMembers | None = None
    kubelets: dict[str, Kubelet] = field(default_factory=dict)
    members: asyncio.Task[None] | None = None


class Workloads:
    """All workload clusters."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clusters: dict[str, _Cluster] = {}
        self._started = asyncio.Condition()

    def answers(self, address: str, port: int) -> bool:
        """Whether a guest listens on that address and port."""
        return port == PORT and any(address in cluster.listeners for cluster in self._clusters.values())

    async def authority_of(self, disk: str, token: str) -> tuple[pki.CA, bytes]:
        """Return the CA of the cluster with a token, and that of its clients (PEM), once a server of it runs.

        A server has them on its disk after it has joined, so that it starts again without another one.
        """
        folder = self.disk(disk)
        while True:
            with contextlib.suppress(FileNotFoundError):
                names = (*_AUTHORITY_FILES, _CLIENTS_FILE)
                certificate, key, clients = ((folder / name).read_bytes() for name in names)
                return pki.CA(pki.KeyPair(certificate, key)), clients
            for cluster in self._clusters.values():
                if cluster.server and cluster.token == token:
                    return cluster.server.ca, cluster.clients
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
                name = self._name_on(disk) or f"workload-{_fingerprint(ca.certificate)}-{disk[:8]}"
                admin = Token(join.token, ADMIN[0], ADMIN[1])
                cluster.server = ApiServer(
                    self._folder, name, ca=ca, client_authority=join.clients, tokens=[admin], flags=FLAGS
                )
                cluster.token, cluster.clients, cluster.sans = join.token, join.clients, set()
            self._write_disk(disk, cluster.server.name, ca, cluster.clients)
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
            etcdctl = await self._etcd(cluster, member)
            kubelet = cluster.kubelets[address] = Kubelet(address, etcdctl, ca)
            await kubelet.start()
        async with self._started:
            self._started.notify_all()
        return server.url

    async def admin_token(self, ca: str) -> str:
        """Return the token of a cluster's administrator, once its API server has run; `ca` is PEM."""
        name = _fingerprint(ca.encode())
        async with self._started:
            await self._started.wait_for(lambda: name in self._clusters and bool(self._clusters[name].token))
        return self._clusters[name].token

    async def leave(self, address: str) -> None:
        """Stop listening on a guest's address; the API server stops with the last guest of the cluster."""
        for cluster in self._clusters.values():
            if address not in cluster.listeners:
                continue
            for proxy in cluster.listeners.pop(address):
                await proxy.close()
            if address in cluster.kubelets:
                await cluster.kubelets.pop(address).close()
            if cluster.real_etcd:
                await cluster.real_etcd.stop(address)
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
        shutil.rmtree(self.disk(disk), ignore_errors=True)

    def disk(self, uid: str) -> Path:
        """The folder for files on the disk of a VM, by the uid of the VM."""
        return self._folder / f"{DISK}{uid}"

    async def close(self) -> None:
        """Stop all API servers."""
        for cluster in self._clusters.values():
            for address in list(cluster.listeners):
                await self.leave(address)

    def _name_on(self, disk: str) -> str:
        """The name of the API server whose data a disk holds, also for the next simulator; empty for a new disk."""
        with contextlib.suppress(FileNotFoundError):
            return (self.disk(disk) / _NAME_FILE).read_text()
        return ""

    def _write_disk(self, disk: str, name: str, ca: pki.CA, clients: bytes) -> None:
        """Keep on a server's disk what it needs to start again."""
        folder = self.disk(disk)
        folder.mkdir(mode=0o700, exist_ok=True)
        contents = dict(zip(_AUTHORITY_FILES, (ca.certificate, ca.pair.key), strict=True))
        for file, content in {**contents, _CLIENTS_FILE: clients, _NAME_FILE: name.encode()}.items():
            private_file(folder / file, content)

    async def _etcd(self, cluster: _Cluster, member: Member) -> Etcdctl:
        """Start the etcd of a guest, or note it as a member where there is none."""
        if member.etcd is None:
            cluster.etcd.join(member.disk, member.node)
            return cluster.etcd
        cluster.real_etcd = cluster.real_etcd or EtcdMembers(self._folder)
        return await cluster.real_etcd.start(
            etcd.Member(self.disk(member.disk) / "etcd", member.node, member.address, member.etcd)
        )

    def _sign(self, cluster: _Cluster, names: set[str]) -> None:
        """Renew the certificate for new names; the API server reloads the changed file."""
        if names <= cluster.sans or cluster.server is None:
            return
        cluster.sans |= names
        own = [cluster.server.address, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        pair = cluster.server.ca.server([*own, *sorted(cluster.sans)], common_name=COMMON_NAME)
        private_file(self._folder / cluster.server.name / "tls.crt", pair.certificate)
        private_file(self._folder / cluster.server.name / "tls.key", pair.key)


def _fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate.strip()).hexdigest()[:12]
