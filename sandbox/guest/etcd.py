"""Real etcd members on control plane guests, as kubeadm, RKE2 and K3s start them.

These members hold no Kubernetes objects, which are in the sandbox's etcd. A control plane provider
reads and changes their membership. A guest that joins adds a member. The member stays when its
guest is deleted, and counts for the quorum until it is removed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from caphv.api.object import Obj
from sandbox.processes import children, pki
from sandbox.processes.apiserver import private_file
from sandbox.processes.binaries import binary
from sandbox.processes.children import Process, ProcessError

log = logging.getLogger(__name__)

CLIENT_PORT = 2379
PEER_PORT = 2380
START_SECONDS = 60.0
START_ATTEMPTS = 3
RETRY_SECONDS = 0.5
JOIN_SECONDS = 120.0
_PKI = "/etc/kubernetes/pki/etcd"
KUBEADM_OPTIONS = {
    "--endpoints": "https://127.0.0.1:2379",
    "--cacert": f"{_PKI}/ca.crt",
    "--cert": f"{_PKI}/healthcheck-client.crt",
    "--key": f"{_PKI}/healthcheck-client.key",
}


class EtcdError(Exception):
    """The standard error of etcdctl when it exits with code 1."""


@dataclass(frozen=True)
class Member:
    """The etcd of one guest, with its data in a folder of the guest's disk.

    `name` is its name in etcd, which is or begins with that of the Node.
    """

    folder: Path
    name: str
    address: str
    authority: pki.CA = field(repr=False)

    @property
    def client_url(self) -> str:
        """Return the URL for clients."""
        return f"https://{self.address}:{CLIENT_PORT}"

    @property
    def peer_url(self) -> str:
        """Return the URL for other members."""
        return f"https://{self.address}:{PEER_PORT}"


class EtcdMembers:
    """The members of one workload cluster that run now, by the addresses of their guests.

    :param folder: the folder for logs of processes
    :param options: the options of `etcdctl` in the etcd Pods of the cluster
    """

    def __init__(self, folder: Path, options: Mapping[str, str] = KUBEADM_OPTIONS) -> None:
        self._folder = folder
        self._options = options
        self._running: dict[str, _Running] = {}
        self._returning: set[asyncio.Task[None]] = set()

    async def start(self, member: Member) -> RealEtcd:
        """Start a guest's member with the data on its disk, or as a new member of the cluster.

        Raises `ProcessError`, `EtcdError` if it cannot join.
        """
        was_member = (member.folder / "data" / "member").is_dir()
        others = [running.client for running in self._running.values()]

        for attempt in range(1, START_ATTEMPTS + 1):
            # The other members must know a new member before it starts.
            peers = f"{member.name}={member.peer_url}"
            if others and not was_member:
                failure = f"{member.name} cannot join etcd"
                peers = await _retry(lambda: _add_learner(others, member), failure)

            process = _start(self._folder, member, peers, existing=bool(others))
            try:
                await children.wait_ready(process, lambda: _listens(member), START_SECONDS)
                break
            except ProcessError as error:
                # Try again, as a kubelet starts the container again. The list of members may have
                # changed since it was read, or the port may have been in use for a moment.
                await children.end(process, grace=0.2)
                if attempt == START_ATTEMPTS:
                    raise
                log.warning("%s", error)

        client = EtcdClient(member)
        self._running[member.address] = _Running(process, client)

        if was_member:
            # Do not wait. Without a quorum this takes long, and other members start after this one.
            task = asyncio.create_task(_finish_return(client, others, member))
            self._returning.add(task)
            task.add_done_callback(self._returning.discard)
        elif others:
            await _retry(
                lambda: _promote(client, others, member),
                f"the member of {member.name} stays a learner",
            )
        return RealEtcd(client, self._options)

    async def remove_node(self, node: str) -> str:
        """Remove the member of a Node of RKE2 or K3s; return its name, empty if there is none.

        The last member stays.
        """
        clients = [running.client for running in self._running.values()]
        if not clients:
            return ""

        async def remove() -> str:
            client, members = await _list_members(clients)
            for entry in members:
                name = str(entry.get("name") or "")
                if name.rpartition("-")[0] == node and len(members) > 1:
                    await client.call("cluster/member/remove", {"ID": entry["ID"]})
                    return name
            return ""

        return await _retry(remove, f"the member of {node} cannot be removed")

    async def stop(self, address: str) -> None:
        """Stop a guest's member without notice to the others, as after a power failure."""
        running = self._running.pop(address, None)
        if running is not None:
            await children.end(running.process, grace=0.2)


@dataclass(frozen=True)
class _Running:
    process: Process
    client: EtcdClient


class EtcdClient:
    """Calls of one member, over its JSON gateway."""

    def __init__(self, member: Member) -> None:
        self._url = member.client_url
        self._context = pki.client_context(member.authority.certificate)
        self._context.load_cert_chain(member.folder / "tls.crt", member.folder / "tls.key")

    async def call(self, method: str, body: Obj | None = None) -> Obj:
        """Call a method such as `cluster/member/list`. Raises `EtcdError`."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=8)) as session,
                session.post(
                    f"{self._url}/v3/{method}", json=body or {}, ssl=self._context
                ) as answer,
            ):
                result: Obj = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EtcdError(f"Error: {self._url}: {type(error).__name__}") from None
        if answer.status != 200:
            raise EtcdError(f"Error: {result.get('message') or answer.status}")
        return result

    async def members(self) -> list[Obj]:
        """Return all members that a quorum knows. Their 64-bit numbers are strings.

        Raises `EtcdError`.
        """
        answer = await self.call("cluster/member/list", {"linearizable": True})
        members: list[Obj] = answer.get("members") or []
        return members


class RealEtcd:
    """`etcdctl` in the etcd Pod of a guest, which has the files that `options` name."""

    def __init__(self, client: EtcdClient, options: Mapping[str, str]) -> None:
        self._client = client
        self._options = options

    async def etcdctl(self, arguments: Sequence[str]) -> str:
        """Run `etcdctl <arguments>` and return its output. Raises `EtcdError`."""
        check_options(arguments, self._options)
        match [argument for argument in arguments if not argument.startswith("--")]:
            case ["member", "list", "-w", "json"]:
                members = [
                    {**member, "ID": int(member["ID"])} for member in await self._client.members()
                ]
                return json.dumps({"members": members})
            case ["endpoint", "status", "-w", "json"]:
                status = await self._client.call("maintenance/status")
                return json.dumps([{"Status": {"leader": int(status["leader"])}}])
            case ["member", "remove", member]:
                member_id = str(parse_member_id(member))
                await self._client.call("cluster/member/remove", {"ID": member_id})
                return f"Member {member} removed from cluster"
        raise EtcdError("Error: unknown command")


def check_options(arguments: Sequence[str], expected: Mapping[str, str]) -> None:
    """Raise EtcdError unless the options of `etcdctl` name the files that the Pod has."""
    options = dict(
        argument.split("=", 1)
        for argument in arguments
        if argument.startswith("--") and "=" in argument
    )
    for name, value in expected.items():
        if options.get(name) != value:
            raise EtcdError(f"Error: {name} must be {value}")


def parse_member_id(member: str) -> int:
    """Parse the id of a member in the form that `etcdctl` accepts. Raises `EtcdError`."""
    try:
        return int(member, 16)
    except ValueError:
        raise EtcdError(f"Error: bad member ID arg ({member}), expecting ID in Hex") from None


def _start(folder: Path, member: Member, peers: str, *, existing: bool) -> Process:
    member.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pair = member.authority.peer([member.address, "127.0.0.1", "localhost", member.name])
    contents = {
        "ca.crt": member.authority.certificate,
        "tls.crt": pair.certificate,
        "tls.key": pair.key,
    }
    for name, content in contents.items():
        private_file(member.folder / name, content)

    files = {"cert-file": "tls.crt", "key-file": "tls.key", "trusted-ca-file": "ca.crt"}
    command: list[str | Path] = [
        binary("etcd"),
        f"--name={member.name}",
        f"--data-dir={member.folder / 'data'}",
        # A sandbox may lose its data when the machine stops; fsync would slow down all tests.
        "--unsafe-no-fsync",
        "--log-level=warn",
        # Several members share few cores, so a member may be late without having stopped.
        "--heartbeat-interval=300",
        "--election-timeout=3000",
        f"--listen-client-urls={member.client_url}",
        f"--advertise-client-urls={member.client_url}",
        f"--listen-peer-urls={member.peer_url}",
        f"--initial-advertise-peer-urls={member.peer_url}",
        f"--initial-cluster={peers}",
        f"--initial-cluster-state={'existing' if existing else 'new'}",
        "--client-cert-auth",
        "--peer-client-cert-auth",
        *(
            f"--{prefix}{option}={member.folder / name}"
            for prefix in ("", "peer-")
            for option, name in files.items()
        ),
    ]

    name = f"etcd-{member.name}"
    return children.start(
        folder, name, command, env={"GOMAXPROCS": "1"}, timer_slack=children.TIMER_SLACK_SECONDS
    )


async def _listens(member: Member) -> bool:
    try:
        _, writer = await asyncio.open_connection(member.address, CLIENT_PORT)
    except OSError:
        return False
    writer.close()
    return True


async def _add_learner(others: Sequence[EtcdClient], member: Member) -> str:
    """Add a member as a learner; return all members in the form of the option for a new member.

    Raises `EtcdError`.
    """
    client, members = await _list_members(others)

    # An earlier attempt may have added the member.
    if not any(member.peer_url in entry["peerURLs"] for entry in members):
        answer = await client.call(
            "cluster/member/add", {"peerURLs": [member.peer_url], "isLearner": True}
        )
        members = answer["members"]

    # A member has no name in etcd until it starts.
    return ",".join(
        f"{entry.get('name') or member.name}={url}"
        for entry in members
        for url in entry["peerURLs"]
    )


async def _list_members(others: Sequence[EtcdClient]) -> tuple[EtcdClient, list[Obj]]:
    """Return the client of the first member that answers, and all members.

    A member that is just leaving does not answer. Raises `EtcdError` if no member answers.
    """
    failures = []
    for client in others:
        try:
            return client, await client.members()
        except EtcdError as error:
            failures.append(str(error))
    raise EtcdError("; ".join(failures))


async def _promote(client: EtcdClient, others: Sequence[EtcdClient], member: Member) -> str:
    """Promote a learner to a voting member, through another member.

    A learner answers no calls itself. Raises `EtcdError` until the member answers.
    """
    try:
        await client.members()
    except EtcdError as error:
        if "learner" in str(error):
            other, members = await _list_members(others)
            for entry in members:
                if member.peer_url in entry["peerURLs"] and entry.get("isLearner"):
                    await other.call("cluster/member/promote", {"ID": entry["ID"]})
        raise
    return member.name


async def _finish_return(client: EtcdClient, others: Sequence[EtcdClient], member: Member) -> None:
    """Finish the promotion of a member that starts again, and publish its address.

    Guests with DHCP may get another address.
    """
    try:
        if others:
            await _retry(
                lambda: _promote(client, others, member),
                f"the member of {member.name} has no quorum",
            )

        for entry in await client.members():
            if entry.get("name") == member.name and member.peer_url not in entry["peerURLs"]:
                await client.call(
                    "cluster/member/update", {"ID": entry["ID"], "peerURLs": [member.peer_url]}
                )
    except EtcdError as error:
        log.info("etcd of %s: %s", member.name, error)


async def _retry(call: Callable[[], Awaitable[str]], failure: str) -> str:
    """Repeat a call while etcd refuses it.

    etcd requires that its members are connected for some seconds. Raises `EtcdError`.
    """
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            while True:
                try:
                    return await call()
                except EtcdError as error:
                    log.info("%s: %s", failure, error)
                await asyncio.sleep(RETRY_SECONDS)
    except TimeoutError:
        raise EtcdError(f"{failure} after {JOIN_SECONDS:.0f} s") from None
