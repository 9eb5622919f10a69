"""The server on a loopback port: certificates and their rotation, wrong requests, shutdown and logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import ssl
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from caphv.runtime import httpserver, tlsserver
from caphv.validation.finding import Fault, Finding
from sandbox.processes import children, pki
from tests.support.waiting import until
from webhooks import handler, metrics, server
from webhooks.admission import Verdict
from webhooks.server import MAX_BODY, WebhookServer

pytestmark = pytest.mark.unit

PATH = handler.path_of("validate", "v1beta1", "HarvesterMachine")
REVIEW: dict[str, Any] = {
    "apiVersion": handler.API_VERSION,
    "kind": "AdmissionReview",
    "request": {
        "uid": "0c4f1a52",
        "kind": {"group": "infrastructure.cluster.x-k8s.io", "version": "v1beta1", "kind": "HarvesterMachine"},
        "operation": "DELETE",
        "name": "one",
        "namespace": "default",
    },
}
FAILING = REVIEW | {"request": REVIEW["request"] | {"operation": "CREATE", "object": {"spec": {"x": "canary-3f0e"}}}}


def write(folder: Path, ca: pki.CA) -> None:
    """Put a certificate into the folder as a mounted Secret does: all files at one moment, by a link."""
    pair = ca.server(["127.0.0.1"])
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", ca.certificate)):
        (version / name).write_bytes(content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..new").symlink_to(version.name)
    os.replace(folder / "..new", folder / "..data")


class Running:
    """A server and clients for it."""

    def __init__(self, folder: Path, ca: pki.CA) -> None:
        (self.port,) = children.free_ports(1)
        self.folder, self.ca = folder, ca
        self.server = WebhookServer(f"127.0.0.1:{self.port}", folder)
        self.task = asyncio.create_task(self.server.run())

    @contextlib.asynccontextmanager
    async def client(self, ca: pki.CA | None = None) -> AsyncIterator[aiohttp.ClientSession]:
        context = ssl.create_default_context(cadata=(ca or self.ca).certificate.decode())
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(f"https://127.0.0.1:{self.port}", connector=connector) as session:
            yield session

    async def ready(self) -> None:
        await until(lambda: not self.server.not_ready())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    ca = pki.CA.create("webhooks")
    write(folder, ca)
    found = Running(folder, ca)
    try:
        await found.ready()
        yield found
    finally:
        await found.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tlsserver, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(WebhookServer, "drain_seconds", 0.01)
    monkeypatch.setattr(WebhookServer, "body_seconds", 0.3)


@pytest.mark.parametrize(
    ("method", "path", "content_type", "body", "code", "message"),
    [
        ("POST", "/", "application/json", b"{}", 404, "no webhook has this path"),
        ("POST", "/convert", "application/json", b"{}", 404, "no webhook has this path"),
        ("GET", PATH, "application/json", b"", 405, "POST"),
        ("PUT", PATH, "application/json", b"{}", 405, "POST"),
        ("POST", PATH, "application/yaml", b"{}", 415, "application/json"),
        ("POST", PATH, "", b"{}", 415, "application/json"),
        ("POST", PATH, "application/json", b"{", 400, "not valid JSON"),
        ("POST", PATH, "application/json", b"[]", 400, "not an AdmissionReview"),
        ("POST", PATH, "application/json", b" " * (MAX_BODY + 1), 413, "at most"),
    ],
)
async def test_wrong_requests_are_reported_why(
    method: str, path: str, content_type: str, body: bytes, code: int, message: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as it, it.client() as client:
        headers = {"Content-Type": content_type}
        async with client.request(method, path, data=body, headers=headers) as answer:
            assert answer.status == code
            status = await answer.json()
        assert (status["kind"], status["code"]) == ("Status", code)
        assert message in status["message"]


async def test_a_body_without_length_is_bounded_too(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * (MAX_BODY // 4)

    async with running(tmp_path) as it, it.client() as client:
        headers = {"Content-Type": "application/json"}
        async with client.post(PATH, data=chunks(), headers=headers) as answer:
            assert answer.status == 413


async def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)

    async with running(tmp_path) as it, it.client() as client:
        headers = {"Content-Type": "application/json"}
        async with client.post(PATH, data=never(), headers=headers) as answer:
            assert answer.status == 408


async def test_while_a_large_review_is_slow_small_ones_are_answered_and_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WebhookServer, "body_seconds", 60)
    async with running(tmp_path) as it, it.client() as client:
        context = ssl.create_default_context(cadata=it.ca.certificate.decode())
        _, slow = await asyncio.open_connection("127.0.0.1", it.port, ssl=context)
        head = f"POST {PATH} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {MAX_BODY}"
        slow.write("\r\n".join([*head, "", "{"]).encode())
        await until(lambda: it.server._large._free < MAX_BODY)
        # One without a length may become as large as any.
        headers = {"Content-Type": "application/json"}
        other = asyncio.create_task(client.post(PATH, data=chunks(json.dumps(REVIEW).encode()), headers=headers))
        await until(lambda: it.server._large._waiting)
        async with client.post(PATH, json=REVIEW) as answer:
            assert answer.status == 200
        assert not other.done()
        slow.close()
        async with await other as answer:
            assert answer.status == 200


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def test_a_large_review_that_waits_too_long_gets_429(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LARGE_BODIES", 0)
    async with running(tmp_path) as it, it.client() as client:
        headers = {"Content-Type": "application/json"}
        async with client.post(PATH, data=chunks(b"{}"), headers=headers) as answer:
            assert answer.status == 429
            assert "try again" in (await answer.json())["message"]


async def test_the_buffers_of_a_connection_end_with_a_large_review(tmp_path: Path) -> None:
    large = REVIEW | {"request": REVIEW["request"] | {"object": {"metadata": {"name": "x" * server._LARGE_BODY}}}}
    async with running(tmp_path) as it, it.client() as client:
        for body, connection in ((REVIEW, None), (large, "close")):
            async with client.post(PATH, json=body) as answer:
                assert answer.status == 200
                assert answer.headers.get("Connection") == connection


async def test_bytes_that_are_no_http_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        context = ssl.create_default_context(cadata=it.ca.certificate.decode())
        for garbage in (
            b"\0\1\2\3\r\n\r\n",
            b"POST  HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port, ssl=context)
            writer.write(garbage)
            assert b" 400 " in await reader.readline()
            writer.close()


async def test_a_compressed_body_is_refused_unread(tmp_path: Path) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with running(tmp_path) as it, it.client() as client:
        async with client.post(PATH, data=b"no gzip at all", headers=headers) as answer:
            assert answer.status == 415
            # The server cannot read on behind it, and says so: a client would lose its next request.
            assert answer.headers["Connection"] == "close"
        async with client.post(PATH, json=REVIEW) as answer:
            assert answer.status == 200


async def test_connections_with_slow_headers_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpserver, "HEADER_SECONDS", 0.5)
    async with running(tmp_path) as it, it.client() as client:
        async with client.post(PATH, json=REVIEW) as answer:
            assert answer.status == 200
        context = ssl.create_default_context(cadata=it.ca.certificate.decode())
        for beginning in (b"", b"POST / HTTP/1.1\r\nHost: x\r\nX-Slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port, ssl=context)
            writer.write(beginning)
            async with asyncio.timeout(20):
                assert await reader.read() == b""
            writer.close()
        # A connection between two requests is not slow.
        async with client.post(PATH, json=REVIEW) as answer:
            assert answer.status == 200


async def test_a_fault_of_the_rules_tells_where_and_nothing_of_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def validate(asked: handler.Review) -> None:
        raise ValueError(f"cannot take {asked.object}")

    monkeypatch.setattr(handler, "validate", validate)
    with caplog.at_level(logging.DEBUG):
        async with running(tmp_path) as it, it.client() as client:
            async with client.post(PATH, json=FAILING) as answer:
                assert answer.status == 500
                assert "canary" not in await answer.text()
            async with client.post(PATH, json=REVIEW) as answer:
                assert answer.status == 200
    assert "ValueError at " in caplog.text
    assert Path(__file__).name in caplog.text
    assert "canary" not in caplog.text


async def test_verdicts_are_counted_and_refusals_logged_by_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    labels = {"kind": "HarvesterMachine", "operation": "CREATE", "allowed": "false"}

    finding = Finding(("spec", "x"), Fault.INVALID, "canary-3f0e is no x", "the-rule", "canary-3f0e")
    monkeypatch.setattr(handler, "validate", lambda _: Verdict((finding,), ()))
    before = metrics.REGISTRY.get_sample_value("caphv_webhook_requests_total", labels) or 0
    with caplog.at_level(logging.INFO):
        async with running(tmp_path) as it, it.client() as client:
            async with client.post(PATH, json=FAILING) as answer:
                assert answer.status == 200
                assert (await answer.json())["response"]["allowed"] is False
            assert b"caphv_webhook_requests_total" in it.server.metrics()
    assert metrics.REGISTRY.get_sample_value("caphv_webhook_requests_total", labels) == before + 1
    assert "CREATE" in caplog.text
    assert "default/one" in caplog.text
    assert "the-rule" in caplog.text
    assert "canary" not in caplog.text


# Certificates


async def test_it_waits_for_the_certificate_and_says_so(tmp_path: Path) -> None:
    it = Running(tmp_path, pki.CA.create("webhooks"))
    try:
        await until(lambda: any("tls.crt is missing" in reason for reason in it.server.not_ready()))
        write(tmp_path, it.ca)
        await it.ready()
    finally:
        await it.stop()


async def test_a_new_certificate_is_taken_without_a_dropped_request(tmp_path: Path) -> None:
    async def ask(client: aiohttp.ClientSession) -> int:
        async with client.post(PATH, json=REVIEW) as answer:
            await answer.read()
            return answer.status

    async with running(tmp_path) as it, it.client() as before:
        codes: list[int] = []
        done = asyncio.Event()

        async def load() -> None:
            while not done.is_set():
                codes.append(await ask(before))

        async def accepts(ca: pki.CA) -> bool:
            async with it.client(ca) as client:
                try:
                    return await ask(client) == 200
                except aiohttp.ClientConnectorCertificateError:
                    return False

        # All connections are open before the first rotation: later ones need the CA of that time.
        assert await asyncio.gather(*(ask(before) for _ in range(4))) == [200] * 4
        loads = [asyncio.create_task(load()) for _ in range(4)]
        for _ in range(3):
            ca = pki.CA.create("rotated")
            write(tmp_path, ca)
            await until(lambda ca=ca: accepts(ca))  # type: ignore[misc]
            assert not await accepts(it.ca)
        done.set()
        await asyncio.gather(*loads)
        assert set(codes) == {200}
        assert len(codes) > 20


@pytest.mark.parametrize("broken", ["key", "certificate", "nothing", "encrypted"])
async def test_a_pair_that_does_not_fit_changes_nothing(broken: str, tmp_path: Path) -> None:
    contents = {
        "key": ("tls.key", pki.CA.create("x").server(["x"]).key),
        "certificate": ("tls.crt", b"half a certi"),
        "nothing": ("tls.key", b""),
        "encrypted": ("tls.key", b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMA==\n-----END ENCRYPTED PRIVATE KEY-----\n"),
    }

    async with running(tmp_path) as it:
        name, content = contents[broken]
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(content)
        await until(lambda: "tls.key" in it.server._certificates.problem)
        async with it.client() as client, client.post(PATH, json=REVIEW) as answer:
            assert answer.status == 200
        assert it.server.not_ready() == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_is_1_2_or_newer(version: ssl.TLSVersion, tmp_path: Path) -> None:
    with warnings.catch_warnings(action="ignore"):  # setting an old version is reported as discouraged
        async with running(tmp_path) as it:
            context = ssl.create_default_context(cadata=it.ca.certificate.decode())
            context.set_ciphers("DEFAULT@SECLEVEL=0")
            context.minimum_version = context.maximum_version = version
            connecting = asyncio.open_connection("127.0.0.1", it.port, ssl=context)
            if version < ssl.TLSVersion.TLSv1_2:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await connecting
            else:
                _, writer = await connecting
                writer.close()


# Its end


async def test_it_answers_until_clients_know_that_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebhookServer, "drain_seconds", 0.3)
    async with running(tmp_path) as it, it.client() as client:
        async with client.post(PATH, json=REVIEW) as answer:
            assert answer.headers.get("Connection") != "close"
        it.task.cancel()
        await asyncio.sleep(0.05)
        async with client.post(PATH, json=REVIEW) as answer:
            assert answer.status == 200
            assert answer.headers["Connection"] == "close"
        await asyncio.wait([it.task])
        with pytest.raises(aiohttp.ClientConnectorError):
            await client.post(PATH, json=REVIEW)


async def test_a_taken_port_is_an_error(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        with pytest.raises(OSError, match="in use"):
            await WebhookServer(f"127.0.0.1:{it.port}", tmp_path).run()
