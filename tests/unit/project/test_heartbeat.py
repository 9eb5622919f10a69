"""Nothing that others send holds up an event loop for 50 ms or takes 16 MiB, at any place where they send it.

Each entry point is the real one: servers on loopback and a client in another thread, or a server that sends the objects
and the provider's own caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import itertools
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from aiohttp import web

from caphv.api import names
from caphv.api.object import NODES, Obj
from caphv.runtime import tlsserver
from caphv.runtime.cache import Informer
from caphv.runtime.health import HealthServer
from caphv.runtime.runnable import Runnable
from caphv.runtime.transport import MAX_RESPONSE
from operations.status.page.server import Feed, PageServer
from packager.controller import pushevents
from packager.controller.pushevents import Receiver
from packager.definitions.source import Reader
from reconciler.extension import server as extensionserver
from reconciler.extension.hooks import paths
from reconciler.extension.server import ExtensionServer
from reconciler.harvester.sharedcache import Collection
from reconciler.harvester.watchedcollections import collections_of
from reconciler.remote import workloadcluster
from sandbox.processes import pki
from sandbox.processes.children import free_ports
from tests.support import rawhttp
from tests.support.answering import serving
from tests.support.heartbeat import fault
from tests.support.reviews import OVERSIZED, request, review
from tests.support.waiting import listens, until
from tests.support.worstobjects import worst_objects
from webhooks import crossobject, handler
from webhooks.server import WebhookServer

pytestmark = pytest.mark.unit

LARGEST_OBJECT = 1_500_000
LARGEST_PAGE = MAX_RESPONSE
SECRET = b"a secret of some length"
SIGNATURE = "X-Hub-Signature-256"
JSON = {"Content-Type": "application/json"}
Send = Callable[[bytes], Awaitable[object]]


@contextlib.asynccontextmanager
async def running(runnable: Runnable) -> AsyncIterator[None]:
    task = asyncio.create_task(runnable.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def webhook(folder: Path) -> AsyncIterator[Send]:
    ca = pki.CA.create("webhooks")
    pair = ca.server(["127.0.0.1"])
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", ca.certificate)):
        (folder / name).write_bytes(content)
    (port,) = free_ports(1)
    webhooks = WebhookServer(f"127.0.0.1:{port}", folder)
    async with running(webhooks):
        await until(lambda: not webhooks.not_ready())
        yield partial(rawhttp.send, port, context=ssl.create_default_context(cadata=ca.certificate.decode()))


@contextlib.asynccontextmanager
async def extension(folder: Path) -> AsyncIterator[Send]:
    ca = pki.CA.create("extension")
    pair = ca.server(["127.0.0.1"])
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (folder / name).write_bytes(content)
    (port,) = free_ports(1)
    cache = SimpleNamespace(synced=True, store=[], get=lambda *_: None)
    caches: Any = SimpleNamespace(machines=cache, harvester_machines=cache)
    hooks = ExtensionServer(f"127.0.0.1:{port}", folder, caches)
    async with running(hooks):
        await until(lambda: not hooks.not_ready())
        yield partial(rawhttp.send, port, context=ssl.create_default_context(cadata=ca.certificate.decode()))


@contextlib.asynccontextmanager
async def push_receiver(folder: Path) -> AsyncIterator[Send]:
    (folder / "secret").write_bytes(SECRET)
    (port,) = free_ports(1)
    async with running(Receiver(f"127.0.0.1:{port}", folder / "secret", lambda: None)):
        await until(partial(listens, port))
        yield partial(rawhttp.send, port)


@contextlib.asynccontextmanager
async def health(_folder: Path) -> AsyncIterator[Send]:
    (port,) = free_ports(1)
    async with HealthServer(f"127.0.0.1:{port}"):
        yield partial(rawhttp.send, port)


@contextlib.asynccontextmanager
async def live_page(_folder: Path) -> AsyncIterator[Send]:
    (port,) = free_ports(1)
    async with PageServer(Feed("{}"), "token").serving("127.0.0.1", port):
        yield partial(rawhttp.send, port)


def signature(body: bytes) -> dict[str, str]:
    return {SIGNATURE: f"sha256={hmac.new(SECRET, body, hashlib.sha256).hexdigest()}"}


PATH = handler.path_of("validate", "v1beta1", "HarvesterMachine")
EVENT = b" " * pushevents._MAX_BODY_BYTES
PROOFS = {"no signature": {}, "wrong signature": {SIGNATURE: f"sha256={'0' * 64}"}, "right signature": signature(EVENT)}


def reviews() -> Iterable[tuple[str, bytes]]:
    """Yield reviews of nearly the largest size, and texts of it that are none."""
    for name, make in OVERSIZED.items():
        counts = (handler.MAX_BODY // size for size in (5, 6, 8, 10, 14, 20, 30))
        bodies = (review(request(object={"metadata": {"name": "one"}, "spec": make(count)})) for count in counts)
        yield name, next(body for body in bodies if len(body) <= handler.MAX_BODY)
    for text in (b"[", b"[1,", b" ", b'"\\"', b'{"a":', b"9"):
        yield f"only {text!r}", text * (handler.MAX_BODY // len(text))


HOOKS = {hook: path for path, hook in paths().items()}
HOOK = HOOKS["CanUpdateMachineSet"]


def set_request(part: Any) -> Obj:
    template = {"kind": "HarvesterMachineTemplate", "spec": {"template": {"spec": part}}}
    return {"current": {"infrastructureMachineTemplate": template}, "desired": {}}


def machine_request(part: Any) -> Obj:
    machine = {"kind": "HarvesterMachine", "metadata": {"namespace": "team", "name": "one"}}
    desired = {"infrastructureMachine": {**machine, "spec": {"nodeAffinity": part}}}
    return {"current": {"infrastructureMachine": {**machine, "spec": {}}}, "desired": desired}


def hook_requests(request_of: Callable[[Any], Obj]) -> Iterable[tuple[str, bytes]]:
    """Yield requests of nearly the largest size, and texts of it that are none."""
    for name, make in OVERSIZED.items():
        for count in (extensionserver._MAX_BODY // size for size in (12, 20, 30, 60)):
            body = orjson.dumps(request_of(make(count)))
            if len(body) <= extensionserver._MAX_BODY:
                yield name, body
                break
    for text in (b"[", b"[1,", b" ", b'"\\"', b'{"a":', b"9"):
        yield f"only {text!r}", text * (extensionserver._MAX_BODY // len(text))


REQUEST_OF = {
    "CanUpdateMachineSet": set_request,
    "CanUpdateMachine": machine_request,
    "UpdateMachine": machine_request,
}
SERVERS = {"webhook": webhook, "extension": extension, "receiver": push_receiver, "health": health, "page": live_page}
REQUESTS = [
    *(("webhook", name, rawhttp.post(PATH, body, JSON)) for name, body in reviews()),
    *(("webhook", name, payload) for name, payload in rawhttp.attacks(PATH, JSON)),
    *(
        ("extension", f"{hook}, {name}", rawhttp.post(HOOKS[hook], body, JSON))
        for hook, request_of in REQUEST_OF.items()
        for name, body in hook_requests(request_of)
    ),
    *(("extension", name, payload) for name, payload in rawhttp.attacks(HOOK, JSON)),
    *(("receiver", name, rawhttp.post(pushevents.PATH, EVENT, proof)) for name, proof in PROOFS.items()),
    *(
        ("receiver", f"{name}, {of_proof}", payload)
        for of_proof, proof in PROOFS.items()
        for name, payload in rawhttp.attacks(pushevents.PATH, proof)
    ),
    *(("health", name, payload) for name, payload in rawhttp.attacks("/healthz")),
    *(
        ("page", f"{name} {path}", payload)
        for path in ("/token/", "/wrong/")
        for name, payload in rawhttp.attacks(path)
    ),
]


@pytest.mark.parametrize("entry", SERVERS)
async def test_no_request_holds_up_a_server(
    entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tlsserver, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(WebhookServer, "drain_seconds", 0.01)
    # pytest keeps each line in memory.
    caplog.set_level(logging.CRITICAL)
    async with SERVERS[entry](tmp_path) as send:
        faults = {name: await fault(partial(send, payload)) for of, name, payload in REQUESTS if of == entry}
    assert not {name: text for name, text in faults.items() if text}


def event(obj: Obj, owner: str) -> bytes:
    """Return the line of a watch that says that the object was added, with a record of its owner."""
    metadata = obj.get("metadata", {})
    annotations = {**metadata.get("annotations", {}), names.OWNER_CLUSTER_ANNOTATION: owner}
    identity = {"name": "one", "namespace": "vms", "uid": "1", "resourceVersion": "11"}
    return (
        orjson.dumps(
            {"type": "ADDED", "object": {**obj, "metadata": {**metadata, **identity, "annotations": annotations}}}
        )
        + b"\n"
    )


INFORMERS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{str(each.resource): (each.resource, each.options) for each in collections_of("vms", "uid")},
    "nodes": (NODES, {"transform": workloadcluster._slim}),
}


@pytest.mark.parametrize("entry", INFORMERS)
async def test_no_object_holds_up_the_provider(entry: str, caplog: pytest.LogCaptureFixture) -> None:
    """A Harvester or workload cluster sends each object as an event of a watch."""
    caplog.set_level(logging.CRITICAL)
    resource, options = INFORMERS[entry]
    faults = {}
    for obj, owner in itertools.product(worst_objects(LARGEST_OBJECT), ("uid", "another")):
        line = event(obj, owner)
        assert len(line) < 1.1 * LARGEST_OBJECT
        work = partial(receive, Collection(resource, "vms", options), line)
        faults[f"{str(obj)[:150]} of {owner}"] = await fault(work)
    assert not {obj: text for obj, text in faults.items() if text}


@pytest.mark.parametrize("entry", INFORMERS)
async def test_no_page_of_a_list_holds_up_the_provider(entry: str, caplog: pytest.LogCaptureFixture) -> None:
    """A Harvester or workload cluster sends 500 objects at once, as large as a page may be."""
    caplog.set_level(logging.CRITICAL)
    resource, options = INFORMERS[entry]
    faults = {}
    for obj, owner in itertools.product(worst_objects(LARGEST_PAGE // 500 - 1500), ("uid", "another")):
        page = page_of(obj, owner)
        assert len(page) <= LARGEST_PAGE
        faults[f"{str(obj)[:150]} of {owner}"] = await fault(
            partial(list_page, Collection(resource, "vms", options), page)
        )
    assert not {obj: text for obj, text in faults.items() if text}


def page_of(obj: Obj, owner: str) -> bytes:
    """Return the page of a list with 500 such objects."""
    items = []
    for number in range(500):
        item = orjson.loads(event(obj, owner))["object"]
        item["metadata"] |= {"name": f"one-{number}", "uid": str(number)}
        items.append(item)
    return orjson.dumps({"metadata": {"resourceVersion": "10"}, "items": items})


async def list_page(collection: Collection, page: bytes) -> None:
    """Let a cache of this collection read the page of a list."""
    done = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if request.query.get("watch"):
            await response.prepare(request)
            await done.wait()
            return response
        # In pieces: what this server itself would buffer is not the provider's.
        response.content_type = "application/json"
        await response.prepare(request)
        for start in range(0, len(page), 65536):
            await response.write(page[start : start + 65536])
        return response

    async with serving(answer, untrusted=True) as client:
        informer = Informer(client, collection.resource, **collection.options)
        task = informer.start()
        await until(lambda: informer.store.get("vms", "one-0") or informer.last_error)
        done.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def receive(collection: Collection, line: bytes) -> None:
    """Let a cache of this collection receive the line of a watch."""
    done = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if not request.query.get("watch"):
            return web.json_response({"metadata": {"resourceVersion": "10"}, "items": []})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line)
        await done.wait()
        return response

    async with serving(answer, untrusted=True) as client:
        informer = Informer(client, collection.resource, **collection.options)
        task = informer.start()
        await until(lambda: informer.store.get("vms", "one") or informer.last_error)
        done.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


_LARGEST_FILE = 2 * 1024 * 1024


def filled(begin: str, repeated: str, end: str = "") -> str:
    """Return a text of nearly the largest size of a file."""
    return begin + repeated * ((_LARGEST_FILE - 300) // len(repeated)) + end


DEFINITION = "apiVersion: caphv.io/v1beta1\nkind: ClusterDefinition\nmetadata: {name: good, namespace: team-a}\nspec: "
MACHINES = (
    "apiVersion: infrastructure.cluster.x-k8s.io/v1beta1\nkind: HarvesterMachineTemplate\n"
    "metadata: {name: good, namespace: team-a}\nspec: "
)
DEFINITIONS = {
    "aliases": "a: &a [b]\nc: [" + "*a," * (_LARGEST_FILE // 3 - 10) + "]",
    "aliases of aliases": "a0: &a0 [b]\n"
    + "".join(f"a{number}: &a{number} [{f'*a{number - 1},' * 9}]\n" for number in range(1, 12)),
    "levels": DEFINITION + "[" * (_LARGEST_FILE - 300),
    "lines of 1 MB": DEFINITION + "{a: '" + "x" * 1_000_000 + "', b: '" + "y" * 1_000_000 + "'}",
    "values": filled(DEFINITION + "[", "a,", "]"),
    "lists": filled(DEFINITION + "[", "[],", "]"),
    "mappings": filled(DEFINITION + "[", "{},", "]"),
    "numbers to complain of": filled(DEFINITION + "[", "010,", "]"),
    "one key again and again": filled(DEFINITION + "{", "a: 1,", "}"),
    "unknown fields": DEFINITION + "{" + "".join(f"k{n}: 1," for n in range(180_000)) + "}",
    "unknown fields of machines": MACHINES + "{" + "".join(f"k{n}: 1," for n in range(180_000)) + "}",
    "volumes": filled(MACHINES + "{template: {spec: {volumes: [", "{},", "]}}}"),
    "empty documents": filled(DEFINITION + "{}\n", "---\n"),
    "documents of text": filled(DEFINITION + "{}\n", "--- a\n"),
    "documents of objects": filled(DEFINITION + "{}\n", "--- {kind: a}\n"),
    "broken documents": filled(DEFINITION + "{}\n", "--- {\n"),
    "items of a list": filled("kind: List\nitems: [", "{kind: a},", "]"),
    "lines": filled(DEFINITION + "{}", "\n"),
    "lines of comments": filled(DEFINITION + "{}\n", "# \n"),
    "lines of a text": filled(DEFINITION + "\n  a: |\n", "    x\n"),
    "wide characters": filled(DEFINITION + "{a: '\U0001f600", "x", "'}"),
    "JSON": filled('{"kind": "ClusterDefinition", "spec": [', '{"a":1},', "0]}"),
}


@pytest.mark.parametrize("name", DEFINITIONS)
async def test_no_file_of_definitions_holds_up_the_packager(name: str) -> None:
    """The packager reads the files of a commit in a thread."""
    files = {"a.yaml": DEFINITIONS[name].encode()}
    assert len(files["a.yaml"]) <= _LARGEST_FILE, "a larger file is refused unread"
    assert not await fault(lambda: asyncio.to_thread(lambda: Reader(crossobject.check).read(files)))
