"""Where a kubeconfig of a tenant may lead."""

import asyncio
import contextlib
import dataclasses
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import NAMESPACES
from caphv.runtime.addresses import AddressNotAllowed, AddressPolicy, networks
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AddressRefused, ApiError, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.processes import pki
from tests.support.webhooks import write_certificate

pytestmark = pytest.mark.unit

REFUSED = (
    "127.0.0.1",
    "127.255.0.1",
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "224.0.0.1",
    "255.255.255.255",
    "240.0.0.1",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "not an address",
)


@pytest.mark.parametrize("address", REFUSED)
def test_special_addresses_are_refused(address: str) -> None:
    policy = AddressPolicy()
    for check in (policy.check, policy.check_workload):
        with pytest.raises(AddressNotAllowed):
            check(address)


@pytest.mark.parametrize("address", ["10.1.2.3", "172.16.0.9", "192.168.0.10", "100.64.0.1", "8.8.8.8", "fd12::1"])
def test_addresses_of_data_centres_are_allowed(address: str) -> None:
    AddressPolicy().check(address)


@given(st.ip_addresses())
def test_an_allowed_network_allows_whatever_is_in_it(address: IPv4Address | IPv6Address) -> None:
    AddressPolicy(networks(["0.0.0.0/0", "::/0"])).check(str(address))


@given(st.ip_addresses(v=4))
def test_ipv4_in_ipv6_notation_is_the_same_address(address: IPv4Address) -> None:
    def allowed(text: str) -> bool:
        try:
            AddressPolicy().check(text)
        except AddressNotAllowed:
            return False
        return True

    assert allowed(f"::ffff:{address}") == allowed(str(address))


def test_own_api_server_is_refused_to_harvesters_only() -> None:
    policy = AddressPolicy()
    policy.record_own("10.43.0.1")
    with pytest.raises(AddressNotAllowed, match="management cluster"):
        policy.check("10.43.0.1")
    policy.check_workload("10.43.0.1")
    AddressPolicy(networks(["10.43.0.0/16"]), policy.own).check("10.43.0.1")


class Listener:
    """A TCP port that counts connections and answers each with a banner."""

    def __init__(self, banner: bytes = b"") -> None:
        self.connections = 0
        self.port = 0
        self._banner = banner

    async def _accept(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(self._banner)
        writer.close()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator["Listener"]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self


async def _error(access: Kubeconfig, policy: AddressPolicy | None = None) -> Exception:
    client = access.client(policy.check if policy else None, name="harvester", opaque=True, timeout=5)
    try:
        await client.get(NAMESPACES, "kube-system")
    except (Unreachable, ApiError) as error:
        return error
    finally:
        await client.close()
    raise AssertionError("the request succeeded")


async def test_refused_address_gets_no_connection() -> None:
    async with Listener().listening() as port:
        error = await _error(Kubeconfig(server=f"https://127.0.0.1:{port.port}", token="t"), AddressPolicy())
    assert isinstance(error, AddressRefused)
    assert port.connections == 0


async def test_name_is_checked_by_the_address_it_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it resolves to another address than before: the address of the socket counts."""

    def resolve(*_args: Any, **_options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port.port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    async with Listener().listening() as port:
        error = await _error(Kubeconfig(server=f"https://rebind.example:{port.port}", token="t"), AddressPolicy())
    assert isinstance(error, AddressRefused)
    assert "127.0.0.1" not in str(error)
    assert port.connections == 0


async def test_proxy_of_a_kubeconfig_meets_the_same_check() -> None:
    async with Listener().listening() as port:
        access = Kubeconfig(server="https://192.0.2.1:6443", token="t", proxy_url=f"http://127.0.0.1:{port.port}")
        assert isinstance(await _error(access, AddressPolicy()), AddressRefused)
        assert port.connections == 0
        # The environment's proxy is the operator's; what it shall reach is checked.
        trusted = dataclasses.replace(access, proxy_of_environment=True)
        assert not isinstance(await _error(trusted, AddressPolicy()), AddressRefused)
        reached = port.connections
        assert reached
        metadata = dataclasses.replace(trusted, server="https://169.254.169.254")
        assert isinstance(await _error(metadata, AddressPolicy()), AddressRefused)
        assert port.connections == reached


@contextlib.asynccontextmanager
async def web_server(answer: bytes = b"", folder: Path | None = None, status: int = 404) -> AsyncIterator[str]:
    """URL of a server that answers everything alike; with a folder over TLS, with a certificate of an unknown CA."""

    async def handle(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=answer, status=status)

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    tls = None
    if folder:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        write_certificate(folder, pki.CA.create("other"), "127.0.0.1")
        tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_errors_do_not_tell_what_answered_but_the_log_does(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A closed port, a banner, and a TLS server with another certificate."""
    caplog.set_level(logging.WARNING)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed_port = closed.getsockname()[1]
    texts = []
    async with Listener(b"SSH-2.0-OpenSSH_9.6\r\n").listening() as ssh, web_server(folder=tmp_path) as tls:
        for server in (f"https://127.0.0.1:{closed_port}", f"https://127.0.0.1:{ssh.port}", tls):
            texts.append(str(await _error(Kubeconfig(server=server, token="t"))).replace(server, "SERVER"))
    assert len(set(texts)) == 1, texts
    details = [record.getMessage() for record in caplog.records]
    assert len(details) == 3
    assert "the connection was refused" in details[0]
    assert "does not speak TLS" in details[1]
    assert "does not match certificate-authority-data" in details[2]


async def test_wrong_certificate_reaches_no_limit(tmp_path: Path) -> None:
    """It is a ValueError, too, as a compressed response is; conditions show limits."""
    async with web_server(folder=tmp_path) as server:
        client = Kubeconfig(server=server, token="t").client(name="harvester", opaque=True, timeout=5)
        with pytest.raises(Unreachable):
            await client.get(NAMESPACES, "kube-system")
        assert client.limits == []
        await client.close()


async def test_body_that_is_no_status_is_not_repeated() -> None:
    texts = set()
    for body in (b"intranet", b'{"message": "payroll of 2026"}', b"[]"):
        async with web_server(body) as server:
            texts.add(str(await _error(Kubeconfig(server=server, token="t"))))
    (text,) = texts
    assert "does not answer like a Kubernetes API server" in text


async def test_management_client_records_its_own_addresses() -> None:
    policy = AddressPolicy()
    async with Listener().listening() as port:
        access = Kubeconfig(server=f"https://127.0.0.1:{port.port}", token="t")
        connection = dataclasses.replace(access.connection(), check_address=policy.record_own)
        client = ApiClient(connection, name="management")
        with contextlib.suppress(Unreachable):
            await client.get(NAMESPACES, "kube-system")
        await client.close()
    assert policy.own == {IPv4Address("127.0.0.1")}


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["harvester.example"], "is for another host name"), (["127.0.0.1"], "")],
)
async def test_certificates_are_explained_in_words(tmp_path: Path, names: list[str], expected: str) -> None:
    ca = pki.CA.create("own")
    write_certificate(tmp_path, ca, *names)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")

    async def handle(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"name": "kube-system"}})

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    server = f"https://127.0.0.1:{runner.addresses[0][1]}"
    client = Kubeconfig(server=server, token="t", ca=ca.certificate.decode()).client(name="harvester")
    try:
        answered = await client.get(NAMESPACES, "kube-system")
        assert answered
        text = ""
    except Unreachable as error:
        text = str(error)
    finally:
        await client.close()
        await runner.cleanup()
    assert expected in text
    assert bool(expected) == bool(text)
    assert "_ssl.c" not in text
