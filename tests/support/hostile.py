"""A Harvester of an attacker, as a process of its own: `python -m tests.support.hostile PORT`.

It identifies itself as a Harvester does, so that it is read, and then answers each request with another attack.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import sys
from collections.abc import Awaitable, Callable, Iterator

import orjson
from aiohttp import web

Attack = Callable[[web.Request, web.StreamResponse], Awaitable[None]]
MIB = 1024 * 1024
_LAST_VERSION = 2**63 - 1


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
    await response.prepare(request)
    for start in itertools.islice(_NUMBERS, 1000):
        objects = (_object(start + one, 1000, str(start + one)) for one in range(100))
        await response.write(b"".join(orjson.dumps({"type": "ADDED", "object": one}) + b"\n" for one in objects))


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


def application() -> web.Application:
    """Answers each request with the next attack."""
    attacks: Iterator[Attack] = itertools.cycle(ATTACKS.values())

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/namespaces/kube-system"):
            return web.json_response({"metadata": {"name": "kube-system", "uid": "hostile"}})
        if request.method == "POST":
            return web.json_response({"status": {"allowed": True}}, status=201)
        response = web.StreamResponse()
        await next(attacks)(request, response)
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
