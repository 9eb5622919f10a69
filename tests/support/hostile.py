"""A Harvester of an attacker, as a process of its own: `python -m tests.support.hostile PORT FOLDER [ATTACK]...`.

It identifies itself as a Harvester does, so that it is read, and then answers each request with another attack. It
serves HTTPS if its folder has a certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from pathlib import Path

import orjson
from aiohttp import web

from sandbox.processes import children, pki
from sandbox.processes.apiserver import private_file
from tests.support.paths import CHECKOUT
from tests.support.waiting import listens, until

Attack = Callable[[web.Request, web.StreamResponse], Awaitable[None]]
MIB = 1024 * 1024
_LAST_VERSION = 2**63 - 1
_CERTIFICATE = "hostile.pem"


def _page(*items: object, version: object = "10", token: str = "") -> bytes:
    return orjson.dumps({"metadata": {"resourceVersion": version, "continue": token}, "items": items})


def _object(number: int, size: int = 0, version: object = "10") -> dict[str, object]:
    metadata = {"name": f"object-{number}", "namespace": "vms", "uid": str(number), "resourceVersion": version}
    return {"metadata": metadata, "spec": {"text": "x" * size}}


def _fixed(body: bytes, status: int = 200, **headers: str) -> Attack:
    async def attack(request: web.Request, response: web.StreamResponse) -> None:
        response.set_status(status)
        response.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        await response.prepare(request)
        await response.write(body)

    return attack


def _repeated(part: bytes, pause: float = 0.0, times: int = 2000) -> Attack:
    async def attack(request: web.Request, response: web.StreamResponse) -> None:
        await response.prepare(request)
        for _ in range(times):
            await response.write(part)
            await asyncio.sleep(pause)

    return attack


async def _closed(request: web.Request, _response: web.StreamResponse) -> None:
    if request.transport:
        request.transport.abort()


async def _pages(request: web.Request, response: web.StreamResponse) -> None:
    """A list without an end, of other objects each time."""
    start = int(request.query.get("continue") or 0) % 10**9
    await _fixed(_page(*(_object(start + one, 1000) for one in range(500)), token=str(start + 500)))(request, response)


async def _full_page(request: web.Request, response: web.StreamResponse) -> None:
    """As many new objects as a page may have."""
    start = next(_NUMBERS)
    await _fixed(_page(*(_object(start + one, 30_000) for one in range(130))))(request, response)


async def _events(request: web.Request, response: web.StreamResponse) -> None:
    """New objects without an end, as fast as they are read."""
    if not request.query.get("watch"):
        await _fixed(_page(_object(1)))(request, response)
        return
    await response.prepare(request)
    for start in itertools.islice(_NUMBERS, 1000):
        objects = (_object(start + one, 1000, str(start + one)) for one in range(100))
        await response.write(b"".join(orjson.dumps({"type": "ADDED", "object": one}) + b"\n" for one in objects))


async def _available(request: web.Request, response: web.StreamResponse) -> None:
    """Say that Harvester works."""
    if request.query.get("watch"):
        await response.prepare(request)
        await asyncio.Event().wait()
    metadata = {"name": "harvester", "namespace": "harvester-system", "uid": "1", "resourceVersion": "10"}
    status = {"conditions": [{"type": "Available", "status": "True"}]}
    await _fixed(_page({"metadata": metadata, "status": status}))(request, response)


_NUMBERS = itertools.count(10**9, 1000)
_MESSAGE = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": "\x1b]0;x\x07" + "m" * 5 * MIB}
_GONE = orjson.dumps({"kind": "Status", "code": 410, "reason": "Gone", "message": "too old"})
_EVENT = orjson.dumps({"type": "ERROR", "object": {"code": 410, "reason": "Gone"}}) + b"\n"
ATTACKS: dict[str, Attack] = {
    "lies": _fixed(_page(1, "two", None, {"metadata": []}, {"metadata": {"name": 3}})),
    "garbage": _fixed(bytes(range(256)) * 4000),
    "nesting": _fixed(b'{"metadata":{"resourceVersion":"1"},"items":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}"),
    "tiny-lists": _fixed(b'{"metadata":{"resourceVersion":"1"},"items":[' + b"[]," * 3_000_000 + b"[]]}"),
    "endless": _repeated(b" " * MIB),
    "endless-line": _repeated(b'{"type":"ADDED","object":{"metadata":{' + b" " * MIB),
    "gzip": _fixed(gzip.compress(b" " * 100 * MIB), Content_Encoding="gzip"),
    "slow": _repeated(b" ", 0.5),
    "huge-message": _fixed(orjson.dumps(_MESSAGE), 403),
    "gone": _fixed(_GONE, 410),
    "gone-event": _fixed(_EVENT),
    "versions": _fixed(_page(_object(1, version=str(_LAST_VERSION)), version=str(_LAST_VERSION))),
    "no-versions": _fixed(_page(_object(1, version="x"), version=[])),
    "long-version": _fixed(_page(_object(1), version="9" * 100_000)),
    "same-page": _fixed(_page(_object(1), token="again")),
    "pages": _pages,
    "large-page": _fixed(_page(*(_object(one, 30_000) for one in range(500)))),
    "full-page": _full_page,
    "events": _events,
    "closed": _closed,
    "status-999": _fixed(b"{}", 999),
    "busy": _fixed(b"{}", 429, Retry_After="0"),
}


def application(names: Iterable[str]) -> web.Application:
    """Answers each request with the next of these attacks."""
    attacks: Iterator[Attack] = itertools.cycle([ATTACKS[name] for name in names])

    async def handle(request: web.Request) -> web.StreamResponse:
        *_, parent, name = request.path.split("/")
        if parent == "namespaces":
            return web.json_response({"metadata": {"name": name, "uid": "hostile", "resourceVersion": "10"}})
        if name == "selfsubjectaccessreviews":
            return web.json_response({"status": {"allowed": True}}, status=201)
        if request.method == "POST":
            created = await request.json()
            created["metadata"] |= {"uid": "hostile", "resourceVersion": "10"}
            return web.json_response(created, status=201)
        response = web.StreamResponse()
        if request.path.endswith("/namespaces/harvester-system/deployments"):
            await _available(request, response)
            return response
        await next(attacks)(request, response)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    return app


@contextlib.asynccontextmanager
async def hostile(folder: Path, *attacks: str, ca: pki.CA | None = None) -> AsyncIterator[tuple[str, int]]:
    """Run the attacker's Harvester with these attacks, or with all; its URL and process. It serves HTTPS with `ca`."""
    (port,) = children.free_ports(1)
    if ca:
        pair = ca.server(["127.0.0.1"])
        private_file(folder / _CERTIFICATE, pair.certificate + pair.key)
    command = [sys.executable, "-P", "-m", "tests.support.hostile", str(port), str(folder), *attacks]
    process = children.start(folder, "hostile", command, env={"PYTHONPATH": str(CHECKOUT)})

    try:
        await until(lambda: listens(port), "the attacker's Harvester listens")
        yield f"{'https' if ca else 'http'}://127.0.0.1:{port}", process.pid
    finally:
        # It would wait for answers that never end; SIGKILL ends it while it is stopped, too.
        await children.end(process, grace=0)


def main() -> None:
    """Serve until the process ends."""
    port, folder, *attacks = sys.argv[1:]
    context = None
    if (certificate := Path(folder, _CERTIFICATE)).exists():
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    app = application(attacks or ATTACKS)
    web.run_app(app, host="127.0.0.1", port=int(port), ssl_context=context, print=None, access_log=None)


if __name__ == "__main__":
    main()
