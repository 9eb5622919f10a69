"""Sends bytes to an HTTP server that no well-behaved client sends, from a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import ssl
from collections.abc import Iterator, Mapping

_PIECE = 64 * 1024
_SILENCE_SECONDS = 3.0
_SHOWN = 200
_LARGE = 1024 * 1024


async def send(port: int, payload: bytes, context: ssl.SSLContext | None = None) -> bytes:
    """Return the first bytes of the answer; empty when the server closes the connection."""
    return await asyncio.to_thread(lambda: asyncio.run(_send(port, payload, context)))


async def _send(port: int, payload: bytes, context: ssl.SSLContext | None) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    answer = bytearray()
    received = 0

    async def read() -> None:
        nonlocal received
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(_PIECE):
                received += len(piece)
                answer.extend(piece[: _SHOWN - len(answer)])

    reading = asyncio.create_task(read())
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        for start in range(0, len(payload), _PIECE):
            writer.write(payload[start : start + _PIECE])
            await writer.drain()

    # A server that is busy sends something now and then; one that waits for more does not.
    before = -1
    while not reading.done() and received > before:
        before = received
        await asyncio.wait([reading], timeout=_SILENCE_SECONDS)
    writer.close()
    reading.cancel()
    return bytes(answer)


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(b" " * 100 * 1024 * 1024, 1)


def post(path: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Return a request whose answer ends the connection."""
    fields = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


def attacks(path: str, headers: Mapping[str, str] | None = None, size: int = _LARGE) -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes of the worst requests of about `size` bytes for a path."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "localhost", **(headers or {})}.items())
    close = "Connection: close\r\n"
    head = f"POST {path} HTTP/1.1\r\n{lines}"
    get = f"GET {path} HTTP/1.1\r\n{lines}"

    yield (
        "a body of one byte a piece",
        f"{head}{close}Transfer-Encoding: chunked\r\n\r\n".encode() + (b"1\r\n \r\n" * (size // 6) + b"0\r\n\r\n"),
    )
    bomb = _bomb()
    packed = f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n"
    yield "a body that grows", f"{head}{close}{packed}\r\n".encode() + bomb
    yield "many requests at once", f"{get}\r\n".encode() * (size // 4 // (len(get) + 2)) + f"{get}{close}\r\n".encode()
    yield "many headers", f"{head}{close}".encode() + b"a: b\r\n" * (size // 6) + b"\r\n"
    yield "a long header", f"{head}{close}X-Long: ".encode() + b"a" * size + b"\r\n\r\n"
    yield "a long path", f"GET {path}{'%41' * (size // 3)} HTTP/1.1\r\n{lines}{close}\r\n".encode()
    yield "no HTTP", b"\0" * size
