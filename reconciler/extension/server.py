"""Serve Cluster API's runtime extension for updates in place over HTTPS.

It runs in the process of the provider, unlike the webhooks, because its answers come from the
caches of the management cluster. A standby has these caches, too, so each replica answers. Unless
clients need a certificate, anyone in the cluster may ask: no answer changes anything, and messages
of conditions are only in answers to requests with the providerID of the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import Key, Obj, owner_reference
from caphv.api.resources import CLUSTER_API_GROUP, HARVESTER_MACHINES
from caphv.runtime.httpserver import is_compressed, too_large
from caphv.runtime.largebodies import LargeBodies
from caphv.runtime.text import Limits, TextError, load_json
from caphv.runtime.tlsserver import TLSServer
from reconciler.caches import Caches
from reconciler.extension.hooks import DISCOVERY, Facts, answer, paths

log = logging.getLogger(__name__)

# A request has two objects with two templates each.
_MAX_BODY = 3 * 1024 * 1024
_LIMITS = Limits(size=_MAX_BODY, depth=128, nodes=50_000)
# Nearly all requests are smaller and never wait, so that clients which are slow to send one do not
# delay Cluster API. Larger requests share memory for four of the largest size.
_LARGE_BODY = 128 * 1024
_LARGE_BODIES = 4 * _MAX_BODY


class ExtensionServer(TLSServer):
    """Serve the runtime extension with what these caches hold.

    With a file of authorities, only clients with a certificate of one of them are served.
    """

    name = "runtime extension"
    max_body = _MAX_BODY

    def __init__(
        self, address: str, folder: Path, caches: Caches, client_authority: Path | None = None
    ) -> None:
        super().__init__(address, folder, client_authority)
        self._caches = caches
        self._facts = Facts(
            machine=lambda key: caches.harvester_machines.get(*key),
            machines_of_set=self._machines_of_set,
        )
        self._paths = paths()
        self._large = LargeBodies(_LARGE_BODIES)

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the answer to a hook, or an error as text."""
        try:
            return await self._respond(request)
        except web.HTTPException as error:
            response = web.Response(status=error.status, text=error.text)
            # The body may not have been read to its end, so no other request can follow.
            response.force_close()
            return response

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

        content = await self._content(request)
        if not isinstance(content, dict):
            raise web.HTTPBadRequest(text="the body is not an object")
        return self._answer(hook, content)

    async def _content(self, request: web.BaseRequest) -> Any:
        """Read and parse a body. A large one has to wait until there is memory for it."""
        size = _MAX_BODY if request.content_length is None else request.content_length
        if size > _MAX_BODY:
            raise too_large(_MAX_BODY)
        if size <= _LARGE_BODY:
            return _parsed(await self.read_body(request))

        try:
            async with self._large.room(size, self.body_seconds):
                return _parsed(await self.read_body(request))
        except TimeoutError:
            message = "too many large requests at a time: try again"
            raise web.HTTPTooManyRequests(text=message) from None

    def _answer(self, hook: str, request: Obj) -> web.Response:
        """Return the answer to a request of a hook, and log its message."""
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

        A HarvesterMachine that is not in the cache yet has no status.
        """
        machines = []
        for machine in self._caches.machines.store:
            owner = owner_reference(machine, "MachineSet", CLUSTER_API_GROUP)
            if machine["metadata"]["namespace"] != key.namespace or not owner:
                continue
            kind, name = infrastructure_ref(machine)
            if owner["name"] == key.name and kind == HARVESTER_MACHINES.kind:
                cached = self._caches.harvester_machines.get(key.namespace, name)
                machines.append(cached or {"metadata": {"name": name}})
        return machines


def _parsed(body: bytearray) -> Any:
    """Return the content of a body. Raises `web.HTTPBadRequest`."""
    try:
        return load_json(body, _LIMITS)
    except TextError as error:
        raise web.HTTPBadRequest(text=f"the body {error}") from None
