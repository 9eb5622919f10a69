"""Which push events are accepted."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import hashlib
import hmac
import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from caphv.runtime import httpserver
from packager.controller import pushevents
from packager.controller.pushevents import Proof, Receiver, Refused, read_secret
from sandbox.processes import children

pytestmark = pytest.mark.unit

SECRET, BODY = b"a secret of some length", b'{"ref": "refs/heads/main"}'
SIGNATURE = hmac.new(SECRET, BODY, hashlib.sha256).hexdigest()


def authentic(headers: dict[str, str], body: bytes, secret: bytes) -> bool:
    try:
        proof = Proof(headers, secret)
        for start in range(0, len(body), 7):
            proof.update(body[start : start + 7])
        proof.verify()
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("X-Hub-Signature-256", f"sha256={SIGNATURE}"),
        ("X-Hub-Signature", f"sha256={SIGNATURE}"),
        ("X-Gitea-Signature", SIGNATURE),
        ("X-Forgejo-Signature", SIGNATURE),
        ("X-Gogs-Signature", SIGNATURE),
        ("X-Gitlab-Token", SECRET.decode()),
    ],
)
def test_usual_git_hosts_are_known(header: str, value: str) -> None:
    assert authentic({header: value}, BODY, SECRET)
    assert not authentic({header: value}, BODY + b" ", SECRET) or header == "X-Gitlab-Token"
    assert not authentic({header: value}, BODY, SECRET + b"x")
    assert not authentic({header: value[:-1]}, BODY, SECRET)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Hub-Signature-256": ""},
        {"X-Hub-Signature-256": "sha256="},
        {"X-Hub-Signature": "sha1=" + hmac.new(SECRET, BODY, hashlib.sha1).hexdigest()},
        {"X-Gitea-Signature": "ä" * 64},
        {"X-Gitlab-Token": ""},
        {"X-Gitlab-Token": "ä"},
        {"X-Gitlab-Token": "\udce4\udcff"},
    ],
)
def test_others_are_not(headers: dict[str, str]) -> None:
    assert not authentic(headers, BODY, SECRET)


def test_a_secret_is_read_without_its_line_end_and_never_reported(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    assert read_secret(file) == SECRET
    file.write_bytes(b"canary")
    with pytest.raises(ValueError, match="create a longer one") as error:
        Receiver(":8443", file, lambda: None)
    assert "canary" not in str(error.value)
    with pytest.raises(ValueError, match="cannot read the secret"):
        read_secret(tmp_path / "missing")


class Served:
    """A receiver on a loopback port; `pushes` counts the syncs that it requested."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = children.free_ports(1)
        self.pushes = 0
        (folder / "secret").write_bytes(SECRET)
        self._receiver = Receiver(f"127.0.0.1:{self.port}", folder / "secret", self._pushed)

    def _pushed(self) -> None:
        self.pushes += 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[aiohttp.ClientSession]:
        task = asyncio.create_task(self._receiver.run())
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{self.port}") as session:
                await asyncio.sleep(0.1)
                yield session
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def signed(body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature-256": f"sha256={hmac.new(SECRET, body, hashlib.sha256).hexdigest()}"}


async def test_repeated_event_requests_no_second_sync(tmp_path: Path) -> None:
    it = Served(tmp_path)
    async with it.running() as session:
        for _ in range(5):
            async with session.post("/push", data=BODY, headers=signed(BODY)) as answer:
                assert answer.status == 202
        assert it.pushes == 1
        async with session.post("/push", data=BODY + b" ", headers=signed(BODY + b" ")) as answer:
            assert answer.status == 202
    assert it.pushes == 2


async def test_wrong_requests_get_an_answer(tmp_path: Path) -> None:
    it = Served(tmp_path)
    async with it.running() as session:
        for method, path, headers, body, status in (
            ("GET", "/push", {}, b"", 404),
            ("POST", "/", {}, b"", 404),
            ("POST", "/push", {"Content-Encoding": "gzip", **signed(BODY)}, b"no gzip at all", 415),
            (
                "POST",
                "/push",
                {"Content-Encoding": "gzip", **signed(BODY)},
                gzip.compress(b"\0" * 20 * 1024 * 1024),
                415,
            ),
            ("POST", "/push", signed(BODY), b"\0" * (2 * 1024 * 1024), 413),
            ("POST", "/push", {}, BODY, 401),
            ("POST", "/push", signed(BODY + b" "), BODY, 401),
        ):
            async with session.request(method, path, data=body, headers=headers) as answer:
                assert answer.status == status, (method, path)
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        writer.write(b"POST /push HTTP/1.1\r\nHost: x\r\nX-Gitlab-Token: \xe4\xff\r\nContent-Length: 0\r\n\r\n")
        assert b" 401 " in await reader.readline()
        writer.close()
    assert it.pushes == 0


SLOW = b"POST /push HTTP/1.1\r\nHost: x\r\nX-Hub-Signature-256: sha256=" + b"0" * 64


async def test_bodies_that_never_end_take_little_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    it = Served(tmp_path)
    size = 900 * 1024
    async with it.running():
        before = resident_bytes()
        writers = []

        for _ in range(60):
            _, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(SLOW + b"\r\nContent-Length: %d\r\n\r\n" % size + b"x" * (size - 1))
            await writer.drain()
            writers.append(writer)

        await asyncio.sleep(0.2)
        assert resident_bytes() - before < 16 * 1024 * 1024

        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.2)

    assert "Traceback" not in caplog.text
    assert it.pushes == 0


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_slow_headers_and_bodies_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpserver, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(pushevents, "_BODY_SECONDS", 0.3)
    monkeypatch.setattr(pushevents, "_GRACE_SECONDS", 0.3)
    it = Served(tmp_path)
    async with it.running():
        for beginning, answer in (
            (b"", b""),
            (b"POST /push HTTP/1.1\r\nX-Slow: ", b""),
            (b"POST /push HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 401"),
            (SLOW + b"\r\nContent-Length: 9\r\n\r\n{", b"HTTP/1.1 408"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(beginning)
            async with asyncio.timeout(10):
                assert (await reader.read(12)) == answer
            writer.close()
