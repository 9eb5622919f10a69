"""Real API servers of workload clusters, reachable while a control plane guest of them runs.

A cluster is identified by its CA. Its first control plane guest starts a kube-apiserver with that
CA; each control plane guest forwards to it from port 6443 of its own address, and from the port
where nodes join. Its data is in the sandbox's etcd and, like the guests' disks, outlives stopped
guests until the last control plane VM of the cluster is deleted. There is no etcd quorum: one
control plane guest of three is enough. Members of etcd on guests of kubeadm are real, and hold
nothing; so are those of RKE2 and K3s if their providers are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import shutil
from collections.abc import Collection, Set
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.guest import etcd
from sandbox.guest.etcd import EtcdMembers
from sandbox.guest.join import Join
from sandbox.guest.kubelet import RKE2_OPTIONS, Etcd, Etcdctl, Kubelet
from sandbox.guest.rancher import PROGRAMS
from sandbox.guest.supervisor import Supervisor
from sandbox.processes import pki
from sandbox.processes.apiserver import ADMIN, ApiServer, Token, private_file
from sandbox.processes.proxy import TcpProxy

log = logging.getLogger(__name__)

PORT = 6443
# A guest checks at this interval whether the first server of its cluster runs.
_AUTHORITY_SECONDS = 0.5
DISK = "disk-"
_NAME_FILE = "workload"
_AUTHORITY_FILES = ("server-ca.crt", "server-ca.key")
_ETCD_FILES = ("etcd-ca.crt", "etcd-ca.key")
_CLIENTS_FILE = "client-ca.crt"
FLAGS = (
    # Nothing here would remove the taint that this plugin adds to new Nodes.
    "--disable-admission-plugins=TaintNodesByCondition",
    # Host names of guests cannot be resolved.
    "--kubelet-preferred-address-types=InternalIP",
    # Nodes of kubeadm join with tokens that are Secrets.
    "--enable-bootstrap-token-auth",
)
# The name that kubeadm gives an API server's certificate. Its control plane provider looks for it
# to report when the certificate expires.
COMMON_NAME = "kube-apiserver"


@dataclass(frozen=True, slots=True)
class Member:
    """A control plane guest.

    `disk` is the uid of the VM, `node` the host name, `port` the port where other nodes join, and
    `etcd` the CA of a real etcd. It serves the API and stores etcd's data, or does one of them.
    `program` is `rke2` or `k3s` if the guest runs one of them.
    """

    address: str
    disk: str
    node: str
    port: int = PORT
    etcd: pki.CA | None = None
    serves: bool = True
    stores: bool = True
    program: str = ""

    @property
    def etcd_name(self) -> str:
        """Return the name of its real member of etcd. RKE2 and K3s add a random suffix."""
        return f"{self.node}-{self.disk[:8]}" if self.program else self.node


@dataclass(frozen=True, slots=True)
class Authorities:
    """The CAs of a cluster that its first server has, and gives to the others.

    `clients` (PEM) verifies client certificates, and `etcd` is None for a simulated etcd.
    """

    server: pki.CA
    clients: bytes
    etcd: pki.CA | None


@dataclass
class _Cluster:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    server: ApiServer | None = None
    token: str = field(default="", repr=False)
    clients: bytes = b""
    sans: set[str] = field(default_factory=set)
    # The uids of VMs whose disks hold the cluster's data, and the listeners of running guests by
    # address.
    disks: set[str] = field(default_factory=set)
    listeners: dict[str, list[TcpProxy]] = field(default_factory=dict)
    etcd: Etcd = field(default_factory=Etcd)
    etcd_authority: pki.CA | None = field(default=None, repr=False)
    real_etcd: EtcdMembers | None = None
    kubelets: dict[str, Kubelet] = field(default_factory=dict)
    supervisor: asyncio.Task[None] | None = None


class Workloads:
    """All workload clusters.

    :param folder: the folder of the sandbox
    :param real_etcd: the programs (`rke2`, `k3s`) whose servers have a real etcd
    """

    def __init__(self, folder: Path, real_etcd: Collection[str] = ()) -> None:
        self._folder = folder
        self._real_etcd = real_etcd
        self._clusters: dict[str, _Cluster] = {}
        # Notified when an API server has started.
        self._starts = asyncio.Condition()

    def answers(self, address: str, port: int) -> bool:
        """Return whether a guest listens on that address and port."""
        return port == PORT and any(
            proxy.listen == (address, port)
            for cluster in self._clusters.values()
            for proxy in cluster.listeners.get(address, ())
        )

    def ports(self, address: str) -> tuple[int, ...]:
        """Return the ports on which a guest listens at its address."""
        return tuple(
            proxy.listen[1]
            for cluster in self._clusters.values()
            for proxy in cluster.listeners.get(address, ())
        )

    def etcd_of(self, address: str) -> Etcd | None:
        """Return the simulated members of the cluster that a guest serves, None if none."""
        clusters = self._clusters.values()
        return next((cluster.etcd for cluster in clusters if address in cluster.listeners), None)

    def has_data(self, disk: str) -> bool:
        """Return whether a disk has the data of a control plane, by the uid of the VM."""
        return bool(self._name_on(disk))

    def has_real_etcd(self, program: str) -> bool:
        """Return whether servers of a program have a real etcd."""
        return program in self._real_etcd

    async def authorities_of(self, disk: str, token: str) -> Authorities:
        """Return the CAs of the cluster with a token.

        Waits until a server of the cluster runs. After a server has joined, its disk has the CAs,
        so that it can start again without another server.
        """
        folder = self.disk(disk)
        while True:
            with contextlib.suppress(FileNotFoundError):
                clients = (folder / _CLIENTS_FILE).read_bytes()
                server = _read_authority(folder, _AUTHORITY_FILES)
                has_etcd = (folder / _ETCD_FILES[1]).exists()
                etcd_authority = _read_authority(folder, _ETCD_FILES) if has_etcd else None
                return Authorities(server, clients, etcd_authority)

            for cluster in self._clusters.values():
                if cluster.server and cluster.token == token:
                    return Authorities(cluster.server.ca, cluster.clients, cluster.etcd_authority)
            await asyncio.sleep(_AUTHORITY_SECONDS)

    async def serve(self, member: Member, join: Join) -> str:
        """Listen on a guest's address and return the URL of the API server behind it.

        Raises `ProcessError` if the API server does not start, `OSError` if the guest cannot listen
        on its address.
        """
        ca = join.authority
        assert ca is not None  # noqa: S101 - a control plane guest has one
        cluster = self._clusters.setdefault(_fingerprint(ca.certificate), _Cluster())

        # Only one guest at a time starts, because the first one creates the objects that all share.
        async with cluster.lock:
            server = self._ensure_server(cluster, member, join, ca)
            cluster.etcd_authority = cluster.etcd_authority or member.etcd
            self._write_disk(member.disk, server.name, ca, cluster)
            self._sign(cluster, server, {*join.sans, member.address})
            if server.process is None or not server.process.alive:
                await server.start()
                log.info("workload API server %s started", server.name)
            await self._listen(cluster, member, server)

            program = next((program for program in PROGRAMS if program.name == join.program), None)
            if program and (cluster.supervisor is None or cluster.supervisor.done()):
                supervisor = Supervisor(server, program, functools.partial(_remove_node, cluster))
                cluster.supervisor = asyncio.create_task(supervisor.run())

            etcdctl = await self._start_etcd(cluster, member)
            kubelet = cluster.kubelets[member.address] = Kubelet(member.address, etcdctl, ca)
            await kubelet.start()

        async with self._starts:
            self._starts.notify_all()
        return server.url

    async def admin_token(self, ca: str) -> str:
        """Return the token of the administrator of the cluster with this CA (PEM).

        Waits until its API server has run.
        """
        name = _fingerprint(ca.encode())
        async with self._starts:
            await self._starts.wait_for(
                lambda: name in self._clusters and bool(self._clusters[name].token)
            )
        return self._clusters[name].token

    async def leave(self, address: str) -> None:
        """Stop listening on a guest's address.

        The API server stops with the last guest of the cluster.
        """
        # A copy, because guests of other clusters may start meanwhile.
        for cluster in list(self._clusters.values()):
            if address not in cluster.listeners:
                continue

            for proxy in cluster.listeners.pop(address):
                await proxy.close()
            if address in cluster.kubelets:
                await cluster.kubelets.pop(address).close()
            if cluster.real_etcd:
                await cluster.real_etcd.stop(address)

            # Check again under the lock, because another guest may be starting.
            async with cluster.lock:
                if not cluster.listeners and cluster.server:
                    if cluster.supervisor:
                        cluster.supervisor.cancel()
                        await asyncio.gather(cluster.supervisor, return_exceptions=True)
                        cluster.supervisor = None
                    await cluster.server.stop()

    def forget(self, disk: str) -> None:
        """Forget the disks of a deleted VM."""
        for cluster in self._clusters.values():
            cluster.disks.discard(disk)
        shutil.rmtree(self.disk(disk), ignore_errors=True)

    def disk(self, uid: str) -> Path:
        """Return the folder for files on the disk of a VM, by the uid of the VM."""
        return self._folder / f"{DISK}{uid}"

    async def close(self) -> None:
        """Stop all API servers."""
        for cluster in list(self._clusters.values()):
            for address in list(cluster.listeners):
                await self.leave(address)

    def _ensure_server(
        self, cluster: _Cluster, member: Member, join: Join, ca: pki.CA
    ) -> ApiServer:
        """Return the API server of a cluster. The first guest gets a new one."""
        if not cluster.disks and not cluster.listeners:
            # An earlier cluster with this CA existed, and the disks with its data were deleted.
            cluster.server = None
            cluster.etcd = Etcd()
            cluster.etcd_authority = None
            cluster.real_etcd = None
        cluster.disks.add(member.disk)

        if cluster.server is None:
            fingerprint = _fingerprint(ca.certificate)
            cluster.server = ApiServer(
                self._folder,
                self._name_on(member.disk) or f"workload-{fingerprint}-{member.disk[:8]}",
                ca=ca,
                client_authority=join.clients,
                tokens=[Token(join.token, ADMIN[0], ADMIN[1])],
                flags=FLAGS,
            )
            cluster.token = join.token
            cluster.clients = join.clients
            cluster.sans = set()
        return cluster.server

    async def _listen(self, cluster: _Cluster, member: Member, server: ApiServer) -> None:
        # Register each proxy at once, because after a failure `leave` closes the started proxies.
        proxies = cluster.listeners[member.address] = []
        ports = {PORT, member.port} if member.serves else {member.port} - {PORT}
        for port in ports:
            proxy = TcpProxy((member.address, port), [(server.address, server.port)])
            await proxy.start()
            proxies.append(proxy)

    def _name_on(self, disk: str) -> str:
        """Return the name of the API server with data on a disk, empty for a new disk.

        The name survives a restart of the simulator.
        """
        with contextlib.suppress(FileNotFoundError):
            return (self.disk(disk) / _NAME_FILE).read_text()
        return ""

    def _write_disk(self, disk: str, name: str, ca: pki.CA, cluster: _Cluster) -> None:
        """Write the files with which a server starts again to its disk."""
        folder = self.disk(disk)
        folder.mkdir(mode=0o700, exist_ok=True)
        contents = {_CLIENTS_FILE: cluster.clients, _NAME_FILE: name.encode()}
        authorities = [(_AUTHORITY_FILES, ca)]
        if cluster.etcd_authority:
            authorities.append((_ETCD_FILES, cluster.etcd_authority))
        for (certificate_file, key_file), authority in authorities:
            contents |= {certificate_file: authority.certificate, key_file: authority.pair.key}
        for file, content in contents.items():
            private_file(folder / file, content)

    async def _start_etcd(self, cluster: _Cluster, member: Member) -> Etcdctl:
        """Start the etcd of a guest, or add a simulated member for a guest without etcd."""
        if member.etcd is None:
            if member.stores:
                cluster.etcd.join(member.disk, member.node)
            return cluster.etcd

        if cluster.real_etcd is None:
            options = RKE2_OPTIONS if member.program else etcd.KUBEADM_OPTIONS
            cluster.real_etcd = EtcdMembers(self._folder, options)
        folder = self.disk(member.disk) / "etcd"
        return await cluster.real_etcd.start(
            etcd.Member(folder, member.etcd_name, member.address, member.etcd)
        )

    def _sign(self, cluster: _Cluster, server: ApiServer, names: Set[str]) -> None:
        """Renew the certificate if there are new names. The API server reloads the changed file."""
        if names <= cluster.sans:
            return

        cluster.sans |= names
        fixed_names = [
            server.address,
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ]
        pair = server.ca.server([*fixed_names, *sorted(cluster.sans)], common_name=COMMON_NAME)
        private_file(self._folder / server.name / "tls.crt", pair.certificate)
        private_file(self._folder / server.name / "tls.key", pair.key)


async def _remove_node(cluster: _Cluster, node: str) -> str:
    """Remove the member of a Node from etcd; return its name, empty if there is none."""
    if cluster.real_etcd:
        return await cluster.real_etcd.remove_node(node)
    return cluster.etcd.remove_node(node)


def _read_authority(folder: Path, files: tuple[str, str]) -> pki.CA:
    certificate, key = ((folder / file).read_bytes() for file in files)
    return pki.CA(pki.KeyPair(certificate, key))


def _fingerprint(certificate: bytes) -> str:
    # PEM files differ in blank lines at their end.
    return hashlib.sha256(certificate.strip()).hexdigest()[:12]
