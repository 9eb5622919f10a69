"""Stand in for the API servers of more clusters than fit on a machine.

Run as `python -m tools.bench.standin`.

They hold objects in memory and answer creations, reads, patches, deletions, lists and watches as
kube-apiserver does, as far as the provider asks; without admission, schemas and authorization.
`/harvester/<n>` also boots VMs, whose Nodes register in `/workload/<n>` of the cluster that the
target namespace names. `/front/times` has the times of each machine's steps.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ipaddress
import itertools
import random
import re
import resource
import ssl
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import orjson
import uvloop
from aiohttp import web

from caphv.api.object import Obj, at, key_of
from caphv.runtime.collector import ShortPauses
from tools.bench.memoryapi import Refused, Server, Watch
from tools.bench.times import TAINT, Times

READY_FILE = "standin.ready"
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?$"
)
_BOOKMARK_SECONDS = 60.0
_BOOT_SECONDS = 2.0
_REGISTER_SECONDS = 1.0


class World:
    """All servers, and what happens on the Harvesters: VMs boot, and their Nodes register."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.times: dict[str, Times] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses = itertools.count(1)

    def server(self, name: str) -> Server:
        """Return the server of a name; the first request creates it."""
        if name not in self.servers:
            self.servers[name] = Server(name, self._on_change)
            namespace: Obj = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": "kube-system"},
            }
            self.servers[name].create("namespaces", "", namespace)
        return self.servers[name]

    def _on_change(self, server: Server, plural: str, kind: str, obj: Obj) -> None:
        """Record the time of a step, and simulate its consequences."""
        name = obj["metadata"]["name"]
        moment = time.monotonic()
        if plural == "harvestermachines":
            times = self.times.setdefault(name, Times())
            times.created = times.created or moment
            if at(obj, "status", "ready"):
                times.ready = times.ready or moment
        elif plural == "nodes" and server.name.startswith("workload") and kind == "MODIFIED":
            if not any(taint["key"] == TAINT for taint in obj["spec"].get("taints") or ()):
                self.times[name].initialized = self.times[name].initialized or moment
        elif plural == "virtualmachines" and kind == "ADDED":
            self.times.setdefault(name, Times()).vm = moment
            self._spawn(self._boot(server, obj))
        elif plural == "services" and kind == "ADDED":
            self._spawn(self._announce(server, obj))
        elif plural == "virtualmachineimages" and kind == "ADDED":
            self._spawn(self._import(server, obj))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        # The event loop alone does not keep a task alive.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _announce(self, server: Server, service: Obj) -> None:
        """Assign the address that the Service asks for, as kube-vip does."""
        await asyncio.sleep(0.1)
        ingress = [{"ip": service["spec"]["loadBalancerIP"]}]
        server.patch(
            "services", *key_of(service), {"status": {"loadBalancer": {"ingress": ingress}}}
        )

    async def _import(self, server: Server, image: Obj) -> None:
        """Report an image as imported, as Harvester's controller of images does."""
        status = {
            "storageClassName": f"longhorn-{image['metadata']['name']}",
            "progress": 100,
            "conditions": [{"type": "Imported", "status": "True"}],
        }
        server.patch("virtualmachineimages", *key_of(image), {"status": status})

    async def _boot(self, server: Server, vm: Obj) -> None:
        """Run a VM: its instance, its state, its address, and its Node."""
        namespace, name = key_of(vm)
        number = next(self._addresses)
        address = str(ipaddress.IPv4Address("10.0.0.0") + number)

        await asyncio.sleep(0.2)
        template = vm["spec"]["template"]
        instance = {
            "apiVersion": vm["apiVersion"],
            "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "labels": at(template, "metadata", "labels") or {}},
            "status": {"phase": "Scheduled", "nodeName": f"harvester-{number % 3 + 1}"},
            "spec": template["spec"],
        }
        server.create("virtualmachineinstances", namespace, instance)

        await asyncio.sleep(0.3)
        running = {"status": {"printableStatus": "Running", "ready": True}}
        server.patch("virtualmachineinstances", namespace, name, {"status": {"phase": "Running"}})
        server.patch("virtualmachines", namespace, name, running)

        # The guest agent reports the address.
        await asyncio.sleep(_BOOT_SECONDS * random.uniform(0.75, 1.25))
        interfaces = [
            {
                "name": "nic-0",
                "interfaceName": "eth0",
                "ipAddress": address,
                "ipAddresses": [address],
            }
        ]
        self.times[name].address = time.monotonic()
        status = {"status": {"interfaces": interfaces}}
        server.patch("virtualmachineinstances", namespace, name, status)

        await asyncio.sleep(_REGISTER_SECONDS)
        taint = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "spec": {"taints": [taint]},
        }
        self.times[name].node = time.monotonic()
        self.server(f"workload/{namespace.rpartition('-')[2]}").create("nodes", "", node)


class Front:
    """The HTTP server in front of all of them: the first part of a path names the server."""

    def __init__(self) -> None:
        self._world = World()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.path == "/front/times":
            return _json_response(self._world.times)

        name, _, path = request.path[1:].partition("/")
        if name != "management":
            number, _, path = path.partition("/")
            name = f"{name}/{number}"
        try:
            return await self._answer(request, self._world.server(name), f"/{path}")
        except Refused as refused:
            return _json_response(refused.body, refused.status)

    async def _answer(self, request: web.Request, server: Server, path: str) -> web.StreamResponse:
        match = _PATH.fullmatch(path)
        if match is None:
            # The provider reads nothing but the versions from discovery.
            return _json_response({"versions": [{"version": "v1beta2"}]})
        plural = match["plural"]
        name = match["name"] or ""
        namespace = match["namespace"] or ""
        if plural == "selfsubjectaccessreviews":
            return _json_response({"status": {"allowed": True}}, 201)

        body = await request.read()
        obj: Obj = orjson.loads(body) if body else {}
        if request.method == "POST":
            return _json_response(server.create(plural, namespace, obj), 201)
        if request.method == "DELETE":
            return _json_response(server.delete(plural, namespace, name))
        if request.method == "PATCH":
            return _json_response(
                server.patch(plural, namespace, name, obj, match["subresource"] or "")
            )
        if request.method == "PUT":
            # The version needs no check, because nearly all replaced objects are leases of the one
            # provider process.
            obj["metadata"].pop("resourceVersion", None)
            return _json_response(server.patch(plural, namespace, name, obj))
        if name:
            return _json_response(server.get(plural, namespace, name))

        selected = request.query.get("fieldSelector", "").partition("metadata.name=")[2]
        metadata_only = "as=PartialObjectMetadata" in request.headers.get("Accept", "")
        watch = Watch(namespace, selected, metadata_only)
        if request.query.get("watch"):
            return await self._watch(request, server, plural, watch)
        return _json_response(server.items(plural, watch))

    async def _watch(
        self, request: web.Request, server: Server, plural: str, watch: Watch
    ) -> web.StreamResponse:
        server.open(plural, watch, int(request.query["resourceVersion"]))
        deadline = time.monotonic() + float(request.query["timeoutSeconds"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})

        try:
            await response.prepare(request)
            while (remaining := deadline - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(remaining, _BOOKMARK_SECONDS)):
                        await watch.has_events.wait()

                # A bookmark must not overtake an event, because the next watch begins behind it.
                events = watch.take_events() or [server.bookmark()]
                await response.write(b"".join(events))
        finally:
            server.collection(plural).watches.discard(watch)
        return response


def _json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


async def _serve(folder: Path, port: int) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "standin.crt", folder / "standin.key")
    application = web.Application(client_max_size=1 << 24)
    application.router.add_route("*", "/{path:.*}", Front().handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    # A provider of 250 clusters connects to all servers at once.
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, backlog=2048).start()
    (folder / READY_FILE).touch()
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    # A full collection over the objects of 261 servers would stop all of them, and the clock, for a
    # second.
    ShortPauses().install()
    uvloop.run(_serve(arguments.dir, arguments.port))
