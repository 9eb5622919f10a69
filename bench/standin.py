"""API servers that one process pretends to be, for more clusters than fit on a machine: `python -m bench.standin`.

They hold objects in memory and answer creations, reads, patches, deletions, lists and watches as kube-apiserver does,
as far as the provider asks; without admission, schemas and authorization. `/harvester/<n>` also boots VMs, whose Nodes
register in `/workload/<n>` of the cluster that the target namespace names. `/front/times` tells when what happened.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import itertools
import random
import re
import resource
import ssl
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop
from aiohttp import web

from bench.times import TAINT, Times
from caphv.api.conditions import rfc3339
from caphv.api.object import Obj
from caphv.runtime.collector import ShortPauses

READY_FILE = "standin.ready"
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?$"
)
_HISTORY = 5000
_BOOKMARKS = 60.0
_BOOT_SECONDS, _REGISTER_SECONDS = 2.0, 1.0
_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "annotations", "ownerReferences")


class Refused(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = {"kind": "Status", "code": status, "reason": reason, "message": message or reason}


@dataclass(eq=False)
class Watch:
    """A watch that is open."""

    namespace: str
    name: str
    metadata_only: bool
    events: list[bytes] = field(default_factory=list)
    wakes: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, kind: str, obj: Obj) -> None:
        """Queue an event if the watch wants the object."""
        metadata = obj["metadata"]
        if self.namespace in ("", metadata.get("namespace")) and self.name in ("", metadata["name"]):
            shown = {"metadata": _slim(metadata)} if self.metadata_only else obj
            self.events.append(orjson.dumps({"type": kind, "object": shown}) + b"\n")
            self.wakes.set()


@dataclass
class Collection:
    """All objects of one resource; `history` has the last changes."""

    objects: dict[tuple[str, str], Obj] = field(default_factory=dict)
    watches: set[Watch] = field(default_factory=set)
    history: deque[tuple[int, str, Obj]] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    oldest: int = 0


class Server:
    """One API server; `on_change` hears of each change, before watches do."""

    def __init__(self, name: str, on_change: Callable[[Server, str, str, Obj], None]) -> None:
        self.name = name
        self._on_change = on_change
        self._version = 1
        self._collections: dict[str, Collection] = {}

    def collection(self, plural: str) -> Collection:
        """The objects of a resource."""
        return self._collections.setdefault(plural, Collection())

    def create(self, plural: str, namespace: str, obj: Obj) -> Obj:
        """Create an object. Raises `Refused`."""
        metadata = dict(obj["metadata"])
        if namespace:
            metadata["namespace"] = namespace
        key = namespace, metadata["name"]
        if key in self.collection(plural).objects:
            raise Refused(409, "AlreadyExists")
        metadata |= {"uid": str(uuid.uuid4()), "generation": 1, "creationTimestamp": _now()}
        return self._put(plural, "ADDED", {**obj, "metadata": metadata})

    def get(self, plural: str, namespace: str, name: str) -> Obj:
        """One object. Raises `Refused`."""
        found = self.collection(plural).objects.get((namespace, name))
        if found is None:
            raise Refused(404, "NotFound", f"{plural} {namespace}/{name}")
        return found

    def patch(self, plural: str, namespace: str, name: str, patch: Any, subresource: str = "") -> Obj:
        """Apply a merge patch, or a JSON patch if it is a list. Raises `Refused`."""
        before = self.get(plural, namespace, name)
        if isinstance(patch, list):
            after = orjson.loads(orjson.dumps(before))
            for step in patch:
                _json_patch(after, step)
        else:
            wanted = (patch.get("metadata") or {}).get("resourceVersion")
            if wanted and wanted != before["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict")
            after = {**before, "status": _merged(before.get("status"), patch.get("status"))}
            if subresource != "status":
                after = _merged(before, patch)
        metadata = {**after["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}
        if after.get("spec") != before.get("spec"):
            metadata["generation"] = before["metadata"]["generation"] + 1
        after = {**after, "metadata": metadata}
        if after == before:
            return before
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return self._remove(plural, after)
        return self._put(plural, "MODIFIED", after)

    def delete(self, plural: str, namespace: str, name: str) -> Obj:
        """Delete an object, or mark it while it has finalizers. Raises `Refused`."""
        found = self.get(plural, namespace, name)
        if not found["metadata"].get("finalizers"):
            self._remove(plural, found)
            return {"kind": "Status", "status": "Success"}
        metadata = {**found["metadata"], "deletionTimestamp": _now()}
        return self._put(plural, "MODIFIED", {**found, "metadata": metadata})

    def items(self, plural: str, watch: Watch) -> Obj:
        """A list of what a watch would report."""
        found = [
            {"metadata": _slim(obj["metadata"])} if watch.metadata_only else obj
            for (namespace, name), obj in self.collection(plural).objects.items()
            if watch.namespace in ("", namespace) and watch.name in ("", name)
        ]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": found}

    def open(self, plural: str, watch: Watch, since: int) -> None:
        """Begin a watch after a version. Raises `Refused` if the history begins later."""
        collection = self.collection(plural)
        if since < collection.oldest:
            raise Refused(410, "Expired")
        for version, kind, obj in collection.history:
            if version > since:
                watch.offer(kind, obj)
        collection.watches.add(watch)

    def bookmark(self) -> bytes:
        """An event that says how far a watch is."""
        metadata = {"resourceVersion": str(self._version)}
        return orjson.dumps({"type": "BOOKMARK", "object": {"metadata": metadata}}) + b"\n"

    def _put(self, plural: str, kind: str, obj: Obj) -> Obj:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self.collection(plural).objects[_key(obj)] = obj
        return self._record(plural, kind, obj)

    def _remove(self, plural: str, obj: Obj) -> Obj:
        self._version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        del self.collection(plural).objects[_key(obj)]
        return self._record(plural, "DELETED", obj)

    def _record(self, plural: str, kind: str, obj: Obj) -> Obj:
        collection = self.collection(plural)
        if len(collection.history) == _HISTORY:
            collection.oldest = collection.history[0][0]
        collection.history.append((self._version, kind, obj))
        self._on_change(self, plural, kind, obj)
        for watch in collection.watches:
            watch.offer(kind, obj)
        return obj


class World:
    """All servers, and what happens on the Harvesters: VMs boot, and their Nodes register."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.times: dict[str, Times] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._addresses = itertools.count(1)

    def server(self, name: str) -> Server:
        """The server of a name, made by the first request."""
        if name not in self.servers:
            self.servers[name] = Server(name, self._changed)
            namespace: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}
            self.servers[name].create("namespaces", "", namespace)
        return self.servers[name]

    def _changed(self, server: Server, plural: str, kind: str, obj: Obj) -> None:
        name, now = obj["metadata"]["name"], time.monotonic()
        if plural == "harvestermachines":
            times = self.times.setdefault(name, Times())
            times.created = times.created or now
            if (obj.get("status") or {}).get("ready"):
                times.ready = times.ready or now
        elif plural == "nodes" and server.name.startswith("workload") and kind == "MODIFIED":
            if not any(taint["key"] == TAINT for taint in obj["spec"].get("taints") or ()):
                self.times[name].initialized = self.times[name].initialized or now
        elif plural == "virtualmachines" and kind == "ADDED":
            self.times.setdefault(name, Times()).vm = now
            self._spawn(self._boot(server, obj))
        elif plural == "services" and kind == "ADDED":
            self._spawn(self._announce(server, obj))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _announce(self, server: Server, service: Obj) -> None:
        """Assign the wanted address, as kube-vip does."""
        await asyncio.sleep(0.1)
        ingress = [{"ip": service["spec"]["loadBalancerIP"]}]
        server.patch("services", *_key(service), {"status": {"loadBalancer": {"ingress": ingress}}})

    async def _boot(self, server: Server, vm: Obj) -> None:
        namespace, name = _key(vm)
        template = vm["spec"]["template"]
        address = f"10.{(number := next(self._addresses)) >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        metadata = {"name": name, "labels": (template.get("metadata") or {}).get("labels") or {}}
        await asyncio.sleep(0.2)
        status = {"phase": "Scheduled", "nodeName": f"harvester-{number % 3 + 1}"}
        vmi = {"apiVersion": vm["apiVersion"], "kind": "VirtualMachineInstance", "metadata": metadata, "status": status}
        server.create("virtualmachineinstances", namespace, {**vmi, "spec": template["spec"]})
        await asyncio.sleep(0.3)
        running = {"status": {"printableStatus": "Running", "ready": True}}
        server.patch("virtualmachineinstances", namespace, name, {"status": {"phase": "Running"}})
        server.patch("virtualmachines", namespace, name, running)
        await asyncio.sleep(_BOOT_SECONDS * random.uniform(0.75, 1.25))
        interfaces = [{"name": "nic-0", "interfaceName": "eth0", "ipAddress": address, "ipAddresses": [address]}]
        self.times[name].address = time.monotonic()
        server.patch("virtualmachineinstances", namespace, name, {"status": {"interfaces": interfaces}})
        await asyncio.sleep(_REGISTER_SECONDS)
        taint = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"taints": [taint]}}
        self.times[name].node = time.monotonic()
        self.server(f"workload/{namespace.rpartition('-')[2]}").create("nodes", "", node)


class Front:
    """The HTTP server before all of them."""

    def __init__(self) -> None:
        self._world = World()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        if request.path == "/front/times":
            return _json(self._world.times)
        kind, _, rest = request.path[1:].partition("/")
        name = kind
        if kind != "management":
            number, _, rest = rest.partition("/")
            name = f"{kind}/{number}"
        try:
            return await self._answer(request, self._world.server(name), f"/{rest}")
        except Refused as refused:
            return _json(refused.body, refused.status)

    async def _answer(self, request: web.Request, server: Server, path: str) -> web.StreamResponse:
        found = _PATH.fullmatch(path)
        if found is None:
            return _json({"versions": [{"version": "v1beta2"}]})  # all that is asked of discovery
        plural, name, namespace = found["plural"], found["name"] or "", found["namespace"] or ""
        if plural == "selfsubjectaccessreviews":
            return _json({"status": {"allowed": True}}, 201)
        body = await request.read()
        obj: Obj = orjson.loads(body) if body else {}
        if request.method == "POST":
            return _json(server.create(plural, namespace, obj), 201)
        if request.method == "DELETE":
            return _json(server.delete(plural, namespace, name))
        if request.method == "PATCH":
            return _json(server.patch(plural, namespace, name, obj, found["subresource"] or ""))
        if request.method == "PUT":
            obj["metadata"].pop("resourceVersion", None)
            return _json(server.patch(plural, namespace, name, obj))
        if name:
            return _json(server.get(plural, namespace, name))
        chosen = request.query.get("fieldSelector", "").partition("metadata.name=")[2]
        watch = Watch(namespace, chosen, "as=PartialObjectMetadata" in request.headers.get("Accept", ""))
        if request.query.get("watch"):
            return await self._watch(request, server, plural, watch)
        return _json(server.items(plural, watch))

    async def _watch(self, request: web.Request, server: Server, plural: str, watch: Watch) -> web.StreamResponse:
        server.open(plural, watch, int(request.query["resourceVersion"]))
        ends = time.monotonic() + float(request.query["timeoutSeconds"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await response.prepare(request)
            while (left := ends - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _BOOKMARKS)):
                        await watch.wakes.wait()
                # A bookmark must not overtake an event: the next watch begins behind it.
                waiting, watch.events = watch.events or [server.bookmark()], []
                watch.wakes.clear()
                await response.write(b"".join(waiting))
        finally:
            server.collection(plural).watches.discard(watch)
        return response


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _key(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _slim(metadata: Obj) -> Obj:
    return {name: metadata[name] for name in _METADATA if name in metadata}


def _merged(before: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return before if patch is None else patch
    merged = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name), value)
    return merged


def _json_patch(obj: Any, step: Obj) -> None:
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:])
    for part in parents:
        obj = obj[int(part)] if isinstance(obj, list) else obj.setdefault(part, {})
    place: Any = int(last) if isinstance(obj, list) else last
    if step["op"] == "remove":
        del obj[place]
    elif step["op"] == "add":
        obj[place] = step["value"]
    elif obj[place] != step["value"]:
        raise Refused(422, "Invalid")


def _now() -> str:
    return rfc3339(datetime.datetime.now(datetime.UTC))


async def _serve(folder: Path, port: int) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "standin.crt", folder / "standin.key")
    application = web.Application(client_max_size=1 << 24)
    application.router.add_route("*", "/{path:.*}", Front().handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
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
    # With all objects of 261 servers, a full collection would stop all of them for a second, and the clock, too.
    ShortPauses().install()
    uvloop.run(_serve(arguments.dir, arguments.port))
