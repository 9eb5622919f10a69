"""Who may connect to a server that asks clients for certificates."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from caphv.runtime.certwatcher import CertWatcher
from sandbox.processes import pki

pytestmark = pytest.mark.unit


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"hello")
    await writer.drain()
    writer.close()


def ask(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None]:
    with (
        socket.create_connection(("127.0.0.1", port), 5) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1", session=session) as connection,
    ):
        connection.sendall(b"hi\n")
        return connection.recv(5), connection.session


async def is_served(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> bool:
    try:
        text, _ = await asyncio.to_thread(ask, port, context, session)
    except OSError:
        return False
    return text == b"hello"


@pytest.mark.parametrize(
    ("lifetime", "warning"),
    [
        (timedelta(days=30), ""),
        (timedelta(minutes=5), "tls.crt expires "),
        (timedelta(seconds=-1), "tls.crt has expired, and clients refuse it: since "),
    ],
)
def test_certificate_that_ends_is_reported_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lifetime: timedelta,
    warning: str,
) -> None:
    authority = pki.CA.create("servers")
    monkeypatch.setattr(pki, "LIFETIME", lifetime)
    pair = authority.server(["127.0.0.1"])
    for name, content in {"tls.crt": pair.certificate, "tls.key": pair.key}.items():
        (tmp_path / name).write_bytes(content)
    watcher = CertWatcher(tmp_path)
    with caplog.at_level("WARNING", "caphv.runtime.certwatcher"):
        assert watcher.refresh(), "it is still better than none"
        assert watcher.refresh()
    assert len(caplog.messages) == bool(warning)
    assert all(warning in message and message.endswith("renew it") for message in caplog.messages)

    # The next one is served without a restart.
    monkeypatch.undo()
    caplog.clear()
    renewed = authority.server(["127.0.0.1"])
    for name, content in {"tls.crt": renewed.certificate, "tls.key": renewed.key}.items():
        (tmp_path / name).write_bytes(content)
    with caplog.at_level("WARNING", "caphv.runtime.certwatcher"):
        assert watcher.refresh()
    assert caplog.messages == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_client_of_a_former_authority_cannot_resume_its_session(tmp_path: Path, version: ssl.TLSVersion) -> None:
    servers, old, new = (pki.CA.create(name) for name in ("servers", "old", "new"))
    pair, client = servers.server(["127.0.0.1"]), old.client("core", [])
    files = {"tls.crt": pair.certificate, "tls.key": pair.key, "clients.crt": old.certificate}
    files |= {"client.crt": client.certificate, "client.key": client.key}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)

    watcher = CertWatcher(tmp_path, tmp_path / "clients.crt")
    assert watcher.refresh(), watcher.problem
    context = ssl.create_default_context(cadata=servers.certificate.decode())
    context.maximum_version = version
    context.load_cert_chain(tmp_path / "client.crt", tmp_path / "client.key")
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=watcher.listener()) as server:
        port = server.sockets[0].getsockname()[1]
        session = None
        assert await is_served(port, context, None) is (version == ssl.TLSVersion.TLSv1_3)
        with contextlib.suppress(OSError):
            _, session = await asyncio.to_thread(ask, port, context, None)

        (tmp_path / "clients.crt").write_bytes(new.certificate + b"\n")
        assert watcher.refresh(), watcher.problem
        for former in (session, None):
            assert not await is_served(port, context, former)
