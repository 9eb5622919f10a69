"""Serve Cluster API's runtime extension for updates in place over HTTPS.

It runs in the process of the provider, unlike the webhooks, because its answers come from the
caches of the management cluster. A standby has these caches, too, so each replica answers. Anyone
in the cluster may ask: no answer changes anything, and messages of conditions are only in answers
to requests with the providerID of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import orjson
from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import Key, Obj, owner_reference
from caphv.api.resources import CLUSTER_API_GROUP, HARVESTER_MACHINES
from caphv.runtime.certwatcher import CertWatcher
from caphv.runtime.httpserver import Connection, has_answered, is_compressed, request_factory
from caphv.runtime.runnable import Runnable, listening_address
from caphv.runtime.text import Limits, TextError, load_json
from reconciler.caches import Caches
from reconciler.extension.hooks import DISCOVERY, Facts, answer, paths

log = logging.getLogger(__name__)

# A request has two objects with two templates each, which are rarely larger than 100 KiB.
_MAX_BODY = 3 * 1024 * 1024
_LIMITS = Limits(size=_MAX_BODY, depth=128, nodes=50_000)
# Requests of at most this number are read at a time, so that they cannot exhaust the memory.
_CONCURRENT = 4
_BODY_SECONDS = 5.0
# A connection buffers so many bytes of a body before it is read.
_READ_AHEAD = 32 * 1024
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 5.0
_HANDSHAKE_SECONDS = 10.0


class ExtensionServer(Runnable):
    """Serve on `address` (`[host]:port`) with the certificate of a folder, once it exists."""

    def __init__(self, address: str, folder: Path, caches: Caches) -> None:
        self._address = listening_address(address)
        if self._address is None:
            raise ValueError(f"{address!r} is no [host]:port to listen on")
        self._certificates = CertWatcher(folder)
        self._caches = caches
        self._facts = Facts(
            machine=lambda key: caches.harvester_machines.get(*key),
            machines_of_set=self._machines_of_set,
        )
        self._paths = paths()
        self._room = asyncio.Semaphore(_CONCURRENT)
        self._serving = False

    def not_ready(self) -> list[str]:
        """Return the reason why no hook is answered yet."""
        if self._serving:
            return []
        return [f"runtime extension: {self._certificates.problem or 'starting'}"]

    async def run(self) -> None:
        """Serve until cancelled. Raises `OSError` when it cannot listen on the address."""
        async with contextlib.AsyncExitStack() as stack:
            while True:
                if self._certificates.refresh() and not self._serving:
                    await stack.enter_async_context(self._listen())
                await asyncio.sleep(_LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def _listen(self) -> AsyncIterator[None]:
        server = web.Server(self._handle, request_factory=request_factory(_MAX_BODY))
        host, port = self._address or ("", 0)
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(
            lambda: Connection(server, loop=loop, access_log=None, read_bufsize=_READ_AHEAD),
            host or None,
            port,
            ssl=self._certificates.listener(),
            ssl_handshake_timeout=_HANDSHAKE_SECONDS,
        )
        self._serving = True
        log.info("the runtime extension is served on %s:%d", host or "*", port)
        try:
            yield
        finally:
            self._serving = False
            listener.close()
            await server.shutdown(_GRACE_SECONDS)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._respond(request)
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=error.text)
            # The body may not have been read to its end, so no other request can follow.
            response.force_close()
            return response
        finally:
            has_answered(request)

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the answer to a hook. Raises `web.HTTPException`."""
        hook = self._paths.get(request.path)
        if hook is None:
            raise web.HTTPNotFound(text="no hook has this path")
        if request.method != "POST":
            raise web.HTTPMethodNotAllowed(request.method, ["POST"], text="hooks take POST")
        if is_compressed(request):
            raise web.HTTPUnsupportedMediaType(text="requests are sent without compression")
        # Without caches, machines would look as if they did not exist. Discovery needs none, and
        # Cluster API stops when it cannot discover an extension for a minute.
        is_filled = self._caches.machines.synced and self._caches.harvester_machines.synced
        if hook != DISCOVERY and not is_filled:
            raise web.HTTPServiceUnavailable(text="the caches are being filled: try again")

        async with self._room:
            body = await _read_body(request)
            try:
                content = load_json(body, _LIMITS)
            except TextError as error:
                raise web.HTTPBadRequest(text=f"the body {error}") from None
        if not isinstance(content, dict):
            raise web.HTTPBadRequest(text="the body is not an object")
        return self._answer(hook, content)

    def _answer(self, hook: str, request: Obj) -> web.Response:
        try:
            response = answer(hook, request, self._facts)
        except (AttributeError, KeyError, TypeError, ValueError):
            # Only Cluster API knows the form of requests. Anything else is a mistake of a client.
            raise web.HTTPBadRequest(text=f"the body is no request of hook {hook}") from None

        if message := response.get("message"):
            log.info("%s: %s: %s", hook, response["status"], message)
        return web.Response(body=orjson.dumps(response), content_type="application/json")

    def _machines_of_set(self, key: Key) -> Collection[Obj]:
        """Return the HarvesterMachines of a MachineSet.

        The status of one that is not known yet is empty.
        """
        machines = []
        for machine in self._caches.machines.store:
            owner = owner_reference(machine, "MachineSet", CLUSTER_API_GROUP)
            if machine["metadata"]["namespace"] != key.namespace or not owner:
                continue
            kind, name = infrastructure_ref(machine)
            if owner["name"] == key.name and kind == HARVESTER_MACHINES.kind:
                known = self._caches.harvester_machines.get(key.namespace, name)
                machines.append(known or {"metadata": {"name": name}})
        return machines


async def _read_body(request: web.BaseRequest) -> bytearray:
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > _MAX_BODY:
                    raise web.HTTPRequestEntityTooLarge(
                        _MAX_BODY, len(body), text=f"a request has at most {_MAX_BODY} bytes"
                    )
            return body
    except (web.RequestPayloadError, ClientPayloadError, HttpProcessingError):
        raise web.HTTPBadRequest(
            text="the body has another encoding than its headers say"
        ) from None
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            text=f"the body did not arrive within {_BODY_SECONDS:.0f} s"
        ) from None
