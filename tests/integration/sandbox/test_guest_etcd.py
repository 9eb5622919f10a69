"""Real etcd members of guests: they join, are removed by `etcdctl`, lose their quorum, and are reached by a kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.guest.etcd import CLIENT_PORT, EtcdError, EtcdMembers, Member, RealEtcd
from sandbox.guest.kubelet import PORT, Etcd, Kubelet
from sandbox.guest.spdy import Data, Decoder, Encoder, Opened
from sandbox.processes import children, network
from sandbox.processes.pki import CA
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PKI = "/etc/kubernetes/pki/etcd"
OPTIONS = (
    "--endpoints=https://127.0.0.1:2379",
    f"--cacert={PKI}/ca.crt",
    f"--cert={PKI}/healthcheck-client.crt",
    f"--key={PKI}/healthcheck-client.key",
)
LIST = (*OPTIONS, "member", "list", "-w", "json")
NODES = ("one", "two")


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    """Two guests that run members of one etcd."""
    authority = CA.create("etcd")
    with network.claim() as (claimed, _):
        found = [Member(tmp_path / f"disk-{name}" / "etcd", name, str(claimed[n + 10]), authority)
                 for n, name in enumerate(NODES)]  # fmt: skip
        yield found
        asyncio.run(children.stop_all(tmp_path))


async def ids(etcd: RealEtcd) -> dict[str, int]:
    """Ids of the members by their names; empty while they have no leader."""
    try:
        return {member["name"]: member["ID"] for member in json.loads(await etcd.etcdctl(LIST))["members"]}
    except EtcdError:
        return {}


async def test_members_join_restart_and_are_removed(members: list[Member], tmp_path: Path) -> None:
    running = EtcdMembers(tmp_path)
    first = await running.start(members[0])
    assert (await until(lambda: ids(first))).keys() == {"one"}

    second = await running.start(members[1])
    assert (await until(lambda: ids(second))).keys() == {"one", "two"}

    # One of two members is no quorum: nothing can be read or changed.
    await running.stop(members[1].address)
    with pytest.raises(EtcdError):
        await first.etcdctl(LIST)

    second = await running.start(members[1])
    gone = (await until(lambda: ids(second)))["one"]

    async def is_alone() -> bool:
        # The leader wants the others connected for some seconds before it removes one.
        with contextlib.suppress(EtcdError):
            await second.etcdctl((*OPTIONS, "member", "remove", f"{gone:x}"))
        return (await ids(second)).keys() == {"two"}

    await until(is_alone)


async def test_other_certificates_and_commands_are_refused(members: list[Member], tmp_path: Path) -> None:
    etcd = await EtcdMembers(tmp_path).start(members[0])
    for arguments in (LIST[1:], OPTIONS, (*OPTIONS, "member", "remove", "no number")):
        with pytest.raises(EtcdError):
            await etcd.etcdctl(arguments)


async def test_a_kubelet_forwards_ports_of_its_guest(members: list[Member]) -> None:
    address = members[0].address

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(100)).upper())
        writer.close()

    server = await asyncio.start_server(answer, address, CLIENT_PORT)
    kubelet = Kubelet(address, Etcd(), CA.create("kubelet"))
    await kubelet.start()
    try:
        assert await forwarded(address, CLIENT_PORT, b"hello") == {"error": b"", "data": b"HELLO"}
        assert b"cannot connect" in (await forwarded(address, CLIENT_PORT + 1, b""))["error"]
    finally:
        await kubelet.close()
        server.close()


async def forwarded(address: str, port: int, sent: bytes) -> dict[str, bytes]:
    """What comes back on both streams of a forwarded port."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(address, PORT, ssl=context)
    writer.write(
        b"POST /portForward/kube-system/etcd-one HTTP/1.1\r\nHost: kubelet\r\nConnection: Upgrade\r\n"
        b"Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n"
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 101 " in head
    assert b"SPDY/3.1" in head

    encoder, decoder = Encoder(), Decoder()
    for stream, kind in ((1, "error"), (3, "data")):
        writer.write(encoder.open(stream, {"streamType": kind, "port": str(port), "requestID": "0"}))
    writer.write(encoder.data(1, fin=True) + encoder.data(3, sent))

    received = {1: b"", 3: b""}
    while True:
        for frame in decoder.feed(await reader.read(4096)):
            assert not isinstance(frame, Opened)
            if isinstance(frame, Data):
                received[frame.stream] += frame.content
                if frame.stream == 3 and frame.fin:
                    writer.write(encoder.go_away())
                    writer.close()
                    return {"error": received[1], "data": received[3]}
