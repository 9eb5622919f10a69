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
from typing import Any

import orjson
import pytest
from aiohttp import web

from caphv.api import names
from caphv.api.object import NODES, Obj
from caphv.runtime.cache import Informer
from caphv.runtime.health import HealthServer
from caphv.runtime.runnable import Runnable
from overview.page.serving import Feed, PageServer
from packager.controller import receiver
from packager.controller.receiver import Receiver
from packager.definitions.source import Reader
from reconciler.harvester.harvester import collections_of
from reconciler.harvester.sharedcache import Collection
from reconciler.remote import workloadcluster
from sandbox.processes import pki
from sandbox.processes.children import free_ports
from tests.support import rawhttp
from tests.support.answering import serving
from tests.support.heartbeat import measure
from tests.support.reviews import OVERSIZED, request, review
from tests.support.waiting import until
from webhooks import crossobject, handler, server
from webhooks.server import WebhookServer

pytestmark = pytest.mark.unit

SECONDS, MEMORY = 0.05, 16 * 1024 * 1024
LARGEST_OBJECT = 1_500_000
SECRET = b"a secret of some length"
SIGNATURE = "X-Hub-Signature-256"
JSON = {"Content-Type": "application/json"}
Send = Callable[[bytes], Awaitable[object]]


async def fault(work: Callable[[], Awaitable[object]]) -> str:
    """Say if the work holds up the loop, or takes too much memory; empty if neither."""
    costs = [await measure(work)]
    while costs[-1].seconds > SECONDS and len(costs) < 4:
        # Again: another process may have had the processor's caches.
        costs.append(await measure(work))
    seconds, memory = min(cost.seconds for cost in costs), costs[0].memory
    slow = [f"{seconds:.3f} s"] if seconds > SECONDS else []
    large = [f"{memory / 1024 / 1024:.1f} MiB"] if memory > MEMORY else []
    return ", ".join(slow + large)


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


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True


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
EVENT = b" " * receiver._LARGEST
PROOFS = {"no signature": {}, "wrong signature": {SIGNATURE: f"sha256={'0' * 64}"}, "right signature": signature(EVENT)}


def reviews() -> Iterable[tuple[str, bytes]]:
    """Yield reviews of nearly the largest size, and texts of it that are none."""
    for name, make in OVERSIZED.items():
        counts = (handler.MAX_BODY // size for size in (5, 6, 8, 10, 14, 20, 30))
        bodies = (review(request(object={"metadata": {"name": "one"}, "spec": make(count)})) for count in counts)
        yield name, next(body for body in bodies if len(body) <= handler.MAX_BODY)
    for text in (b"[", b"[1,", b" ", b'"\\"', b'{"a":', b"9"):
        yield f"only {text!r}", text * (handler.MAX_BODY // len(text))


SERVERS = {"webhook": webhook, "receiver": push_receiver, "health": health, "page": live_page}
REQUESTS = [
    *(("webhook", name, rawhttp.post(PATH, body, JSON)) for name, body in reviews()),
    *(("webhook", name, payload) for name, payload in rawhttp.attacks(PATH, JSON)),
    *(("receiver", name, rawhttp.post(receiver.PATH, EVENT, proof)) for name, proof in PROOFS.items()),
    *(
        ("receiver", f"{name}, {of_proof}", payload)
        for of_proof, proof in PROOFS.items()
        for name, payload in rawhttp.attacks(receiver.PATH, proof)
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
    monkeypatch.setattr(server, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(server, "_DRAIN_SECONDS", 0.01)
    # pytest keeps each line in memory.
    caplog.set_level(logging.CRITICAL)
    async with SERVERS[entry](tmp_path) as send:
        faults = {name: await fault(partial(send, payload)) for of, name, payload in REQUESTS if of == entry}
    assert not {name: text for name, text in faults.items() if text}


def texts(size: int) -> Iterable[str]:
    """Yield texts of a size in JSON that are slow to read as an address, a name or a condition."""
    for pump in ("a", "1", ":", "1:", "10.0.0.1/", "a/", "\x1b[", "\x1b]0;", "é", "\n", " ", "a=b,"):
        yield pump * (size // len(orjson.dumps(pump)[1:-1]))


def worst_objects(size: int) -> Iterable[Obj]:
    """Yield objects whose fields that we read are as long, as many, or as deep as the API server takes."""
    for text in texts(size // 12):
        yield {
            "metadata": {
                "labels": {names.GUEST_CLUSTER_LABEL: text, names.MACHINE_TYPE_LABEL: text},
                "annotations": {"caphv.io/x": text},
            },
            "spec": {
                "providerID": text,
                "template": {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": text}}]}},
            },
            "status": {
                "address": text,
                "nodeInfo": {"systemUUID": text},
                "phase": text,
                "conditions": [{"type": "Ready", "status": "False", "reason": text, "message": text}],
                "interfaces": [{"name": "a", "ipAddress": text, "ipAddresses": [text]}],
            },
        }
    count = size // 40
    marks = {f"caphv.io/{number}": "a" for number in range(count)}
    yield {"metadata": {"labels": marks}}
    yield {"metadata": {"annotations": marks}}
    yield {"spec": {"taints": [{"key": "a", "effect": "b"}] * count}}
    yield {"status": {"interfaces": [{"ipAddress": "10.0.0.1", "name": "a"}] * count}}
    yield {"status": {"interfaces": [{"ipAddresses": [f"10.0.{n >> 8 & 255}.{n & 255}" for n in range(size // 16)]}]}}
    yield {"status": {"conditions": [{"type": "Ready", "status": "False"}] * count}}
    yield {"spec": {"template": {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "a"}}] * (size // 50)}}}}
    yield {"spec": {"anything": [[]] * (size // 3)}}
    yield {"spec": {"anything": [{}] * (size // 3)}}
    yield {"spec": {"anything": {f"{number}": 1 for number in range(size // 10)}}}


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


DEFINITION = "apiVersion: caphv.io/v1beta1\nkind: ClusterDefinition\nmetadata: {name: good, namespace: team-a}\nspec: "
_LARGEST_FILE = 2 * 1024 * 1024
DEFINITIONS = {
    "aliases": "a: &a [b]\nc: [" + "*a," * (_LARGEST_FILE // 3 - 10) + "]",
    "aliases of aliases": "a0: &a0 [b]\n"
    + "".join(f"a{number}: &a{number} [{f'*a{number - 1},' * 9}]\n" for number in range(1, 12)),
    "levels": DEFINITION + "[" * (_LARGEST_FILE - 300),
    "lines of 1 MB": DEFINITION + "{a: '" + "x" * 1_000_000 + "', b: '" + "y" * 1_000_000 + "'}",
}


@pytest.mark.parametrize("name", DEFINITIONS)
async def test_no_file_of_definitions_holds_up_the_packager(name: str) -> None:
    """The packager reads the files of a commit in a thread."""
    files = {"a.yaml": DEFINITIONS[name].encode()}
    assert not await fault(lambda: asyncio.to_thread(lambda: Reader(crossobject.check).read(files)))
