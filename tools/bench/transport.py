"""Compare ways to send a request: `python -m tools.bench.transport`.

The same raw requests through a session of our own; through `caphv.runtime.client.ApiClient`, whose
session is created by `RESTClientObject` of the `kubernetes` package; and through the `request` of
that class. The server is a process of its own, so that only the client is measured. Figures are
medians of five rounds, taken in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop
from aiohttp import web

from caphv.api.object import Resource
from caphv.runtime.certwatcher import server_context
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.processes import pki

THINGS = Resource("example.io", "v1", "things", "Thing")
_REQUESTS = 2000
_ROUNDS = 5
_AT_ONCE = 16
_OBJECT = {
    "metadata": {"name": "a", "namespace": "ns", "labels": {str(n): "x" * 40 for n in range(40)}}
}
_PATCH = {"metadata": {"labels": {str(n): "x" * 40 for n in range(10)}}}
_BASE = "import reconciler.manager"
# Replaces the modules of the package by empty ones.
_STUB = """
import sys, types
for name in ("kubernetes", "kubernetes.aio", "kubernetes.aio.client"):
    sys.modules[name] = types.ModuleType(name)
for name, member in (("configuration", "Configuration"), ("rest", "RESTClientObject")):
    module = sys.modules["kubernetes.aio.client." + name] = types.ModuleType(name)
    setattr(module, member, type(member, (), {}))
"""

Once = Callable[[], Awaitable[None]]


def main() -> None:
    """Measure, and print a table."""
    pipe, other = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_serve, args=(other,), daemon=True)
    server.start()
    port, ca = pipe.recv()
    try:
        uvloop.run(_measure(f"https://127.0.0.1:{port}", ca))
    finally:
        server.terminate()
    without = _measure_memory(_STUB + _BASE)
    package = _measure_memory(_BASE)
    print(
        f"memory of the provider's imports: {without:.1f} MiB, with the package {package:.1f} MiB"
    )


async def _measure(url: str, ca: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        ways = {
            "session of our own": await _own_session(stack, url, ca),
            "ApiClient": await _api_client(stack, url, ca),
            "RESTClientObject.request": await _rest_request(stack, url, ca),
        }

        # The ways take turns, so that a passing load of the machine affects all of them alike.
        results: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(_ROUNDS):
            for name, once in ways.items():
                results[name].append(await _measure_round(once))

    for name, values in results.items():
        print(
            f"{name:<30} {statistics.median(values):.3f} ms CPU a request ({min(values):.3f} to "
            f"{max(values):.3f})"
        )


async def _measure_round(once: Once) -> float:
    """Send all requests of a round; return the CPU milliseconds of one request."""

    async def worker() -> None:
        for _ in range(_REQUESTS // _AT_ONCE):
            await once()

    started = time.process_time()
    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    return (time.process_time() - started) * 1000 / _REQUESTS


async def _api_client(stack: contextlib.AsyncExitStack, url: str, ca: str) -> Once:
    client = Kubeconfig(server=url, ca=ca, token="t").client(name="bench", untrusted=False)
    stack.push_async_callback(client.close)

    async def once() -> None:
        await client.patch(THINGS, "a", "ns", _PATCH)

    return once


def _rest_client(url: str, ca: str) -> Any:
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.client.rest import RESTClientObject

    configuration = Configuration(host=url, ca_cert_data=ca)
    configuration.client_session_kwargs = {"trust_env": False}
    return RESTClientObject(configuration)


async def _own_session(stack: contextlib.AsyncExitStack, url: str, ca: str) -> Once:
    tls = ssl.create_default_context(cadata=ca)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=tls), trust_env=False
    )
    stack.push_async_callback(session.close)
    headers = {"Authorization": "Bearer t", "Content-Type": "application/merge-patch+json"}
    path = url + THINGS.path("ns", "a")

    async def once() -> None:
        body = orjson.dumps(_PATCH)
        async with session.request(
            "PATCH", path, data=body, headers=headers, allow_redirects=False
        ) as response:
            orjson.loads(await response.read())

    return once


async def _rest_request(stack: contextlib.AsyncExitStack, url: str, ca: str) -> Once:
    client = _rest_client(url, ca)
    stack.push_async_callback(client.close)

    async def once() -> None:
        headers = {"Authorization": "Bearer t", "Content-Type": "application/merge-patch+json"}
        response = await client.request(
            "PATCH", url + THINGS.path("ns", "a"), headers=headers, body=_PATCH
        )
        orjson.loads(await response.read())

    return once


def _measure_memory(imports: str) -> float:
    """Return the resident memory in MiB of a new process with these imports."""
    code = (
        f"{imports}\nprint(next(l.split()[1] for l in open('/proc/self/status') if "
        "l.startswith('VmRSS')))"
    )
    values = [
        int(subprocess.check_output([sys.executable, "-c", code])) / 1024 for _ in range(_ROUNDS)
    ]
    return statistics.median(values)


def _serve(pipe: Pipe) -> None:
    asyncio.run(_serve_forever(pipe))


async def _serve_forever(pipe: Pipe) -> None:
    """Answer every request with the same object; send port and CA through the pipe."""
    ca = pki.CA.create("bench")
    pair = ca.server(["127.0.0.1"])
    with tempfile.TemporaryDirectory(prefix="caphv-") as folder:
        files = Path(folder, "tls.crt"), Path(folder, "tls.key")
        files[0].write_bytes(pair.certificate)
        files[1].write_bytes(pair.key)
        context = server_context(files)

    # The body is serialised only once, because the benchmark measures the client alone.
    body = orjson.dumps(_OBJECT)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        return web.Response(body=body, content_type="application/json")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()

    pipe.send((port, ca.certificate.decode()))
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
