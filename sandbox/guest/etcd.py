"""Real etcd members on control plane guests, as kubeadm starts them in static Pods.

These members hold no Kubernetes objects, which are in the sandbox's etcd. Their membership is what a control plane
provider reads and changes: a member is added by a guest that joins, stays when its guest is deleted, and counts for
the quorum until it is removed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from caphv.api.object import Obj
from sandbox.processes import children, pki
from sandbox.processes.apiserver import private_file
from sandbox.processes.binaries import binary
from sandbox.processes.children import Process

log = logging.getLogger(__name__)

CLIENT_PORT, PEER_PORT = 2379, 2380
START_SECONDS = 60.0
RETRY_SECONDS = 0.5
JOIN_SECONDS = 120.0
_PKI = "/etc/kubernetes/pki/etcd"
_OPTIONS = {
    "--endpoints": "https://127.0.0.1:2379",
    "--cacert": f"{_PKI}/ca.crt",
    "--cert": f"{_PKI}/healthcheck-client.crt",
    "--key": f"{_PKI}/healthcheck-client.key",
}


class EtcdError(Exception):
    """The standard error of etcdctl when it exits with code 1."""


@dataclass(frozen=True)
class Member:
    """The etcd of one guest; its data is in a folder of the guest's disk."""

    folder: Path
    node: str
    address: str
    authority: pki.CA = field(repr=False)

    @property
    def client_url(self) -> str:
        """Where clients reach it."""
        return f"https://{self.address}:{CLIENT_PORT}"

    @property
    def peer_url(self) -> str:
        """Where other members reach it."""
        return f"https://{self.address}:{PEER_PORT}"


class EtcdMembers:
    """The members of one workload cluster that run now, by the addresses of their guests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, _Running] = {}
        self._returning: set[asyncio.Task[None]] = set()

    async def start(self, member: Member) -> RealEtcd:
        """Start a guest's member: with the data on its disk, or as a new one that joins the others.

        Raises ProcessError, EtcdError if it cannot join.
        """
        was_member = (member.folder / "data" / "member").is_dir()
        others = [running.client for running in self._running.values()]
        peers = f"{member.node}={member.peer_url}"
        if others and not was_member:
            peers = await _retried(lambda: _added(others, member), f"{member.node} cannot join etcd")
        process = _start(self._folder, member, peers, existing=bool(others))
        await children.wait_ready(process, lambda: _listens(member), START_SECONDS)
        client = EtcdClient(member)
        self._running[member.address] = _Running(process, client)
        if was_member:
            # Without a quorum it takes long, and the others start after this one.
            self._returning.add(task := asyncio.create_task(_return(client, others, member)))
            task.add_done_callback(self._returning.discard)
        elif others:
            await _retried(lambda: _promoted(client, others, member), f"the member of {member.node} stays a learner")
        return RealEtcd(client)

    async def stop(self, address: str) -> None:
        """Stop a guest's member without a word to the others, as when power fails."""
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
        self._context = pki.trusting(member.authority.certificate)
        self._context.load_cert_chain(member.folder / "tls.crt", member.folder / "tls.key")

    async def call(self, method: str, body: Obj | None = None) -> Obj:
        """Call a method such as `cluster/member/list`. Raises EtcdError."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=8)) as session,
                session.post(f"{self._url}/v3/{method}", json=body or {}, ssl=self._context) as answer,
            ):
                found: Obj = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EtcdError(f"Error: {self._url}: {type(error).__name__}") from None
        if answer.status != 200:
            raise EtcdError(f"Error: {found.get('message') or answer.status}")
        return found

    async def members(self) -> list[Obj]:
        """All members, as a quorum knows them; numbers of 64 bits are strings. Raises EtcdError."""
        found: list[Obj] = (await self.call("cluster/member/list", {"linearizable": True})).get("members") or []
        return found


class RealEtcd:
    """`etcdctl` in the etcd Pod of kubeadm."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client

    async def etcdctl(self, arguments: Sequence[str]) -> str:
        """Run `etcdctl <arguments>`; returns its output. Raises EtcdError."""
        check_options(arguments, _OPTIONS)
        match [argument for argument in arguments if not argument.startswith("--")]:
            case ["member", "list", "-w", "json"]:
                members = [{**member, "ID": int(member["ID"])} for member in await self._client.members()]
                return json.dumps({"members": members})
            case ["member", "remove", member]:
                await self._client.call("cluster/member/remove", {"ID": str(number(member))})
                return f"Member {member} removed from cluster"
        raise EtcdError("Error: unknown command")


def check_options(arguments: Sequence[str], wanted: dict[str, str]) -> None:
    """Raise EtcdError unless the options of `etcdctl` name the files that the Pod has."""
    options = dict(argument.split("=", 1) for argument in arguments if argument.startswith("--") and "=" in argument)
    wrong = [name for name, value in wanted.items() if options.get(name) != value]
    if wrong:
        raise EtcdError(f"Error: {wrong[0]} must be {wanted[wrong[0]]}")


def number(member: str) -> int:
    """The id of a member as `etcdctl` takes it. Raises EtcdError."""
    try:
        return int(member, 16)
    except ValueError:
        raise EtcdError(f"Error: bad member ID arg ({member}), expecting ID in Hex") from None


def _start(folder: Path, member: Member, peers: str, *, existing: bool) -> Process:
    own = member.folder
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    pair = member.authority.peer([member.address, "127.0.0.1", "localhost", member.node])
    contents = {"ca.crt": member.authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
    for name, content in contents.items():
        private_file(own / name, content)
    files = {"cert-file": "tls.crt", "key-file": "tls.key", "trusted-ca-file": "ca.crt"}
    command: list[str | Path] = [
        binary("etcd"),
        f"--name={member.node}",
        f"--data-dir={own / 'data'}",
        "--unsafe-no-fsync",
        "--log-level=warn",
        # Several members share few cores: one that is late is not gone.
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
        *(f"--{prefix}{option}={own / name}" for prefix in ("", "peer-") for option, name in files.items()),
    ]
    name = f"etcd-{member.node}"
    return children.start(folder, name, command, env={"GOMAXPROCS": "1"}, timer_slack=children.TIMER_SLACK)


async def _listens(member: Member) -> bool:
    try:
        _, writer = await asyncio.open_connection(member.address, CLIENT_PORT)
    except OSError:
        return False
    writer.close()
    return True


async def _added(others: Sequence[EtcdClient], member: Member) -> str:
    """Add a member as a learner; returns all members as a new one needs them. Raises EtcdError."""
    client = others[0]
    known = await client.members()
    mine = [entry for entry in known if member.peer_url in entry["peerURLs"]]
    if not mine:
        answer = await client.call("cluster/member/add", {"peerURLs": [member.peer_url], "isLearner": True})
        known, mine = answer["members"], [answer["member"]]
    names = {entry["ID"]: entry.get("name") or member.node for entry in (*known, *mine)}
    return ",".join(f"{names[entry['ID']]}={url}" for entry in known for url in entry["peerURLs"])


async def _promoted(client: EtcdClient, others: Sequence[EtcdClient], member: Member) -> str:
    """Have a learner vote, by another member: it answers no calls itself. Raises EtcdError."""
    try:
        await client.members()
    except EtcdError as error:
        if "learner" in str(error):
            for entry in await others[0].members():
                if member.peer_url in entry["peerURLs"] and entry.get("isLearner"):
                    await others[0].call("cluster/member/promote", {"ID": entry["ID"]})
        raise
    return member.node


async def _return(client: EtcdClient, others: Sequence[EtcdClient], member: Member) -> None:
    """Tell the others of another address, which guests with DHCP may get, and finish what was begun before."""
    try:
        if others:
            await _retried(lambda: _promoted(client, others, member), f"the member of {member.node} has no quorum")
        for entry in await client.members():
            if entry.get("name") == member.node and member.peer_url not in entry["peerURLs"]:
                await client.call("cluster/member/update", {"ID": entry["ID"], "peerURLs": [member.peer_url]})
    except EtcdError as error:
        log.info("etcd of %s: %s", member.node, error)


async def _retried(call: Callable[[], Awaitable[str]], failure: str) -> str:
    """Repeat a call while etcd refuses it: it wants its members connected for some seconds. Raises EtcdError."""
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
