"""What a server may do to a client: be slow, but neither silent nor without bound."""

import asyncio
import contextlib
import gzip
import ssl

import orjson
import pytest
from aiohttp import web

from caphv.api.object import Obj, Resource
from caphv.runtime import client as runtime_client
from caphv.runtime import transport
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.connection import Connection
from caphv.runtime.errors import ApiError, Fenced, SilentWatch, TooLarge, Unreachable
from caphv.runtime.networkerrors import describe
from tests.support.answering import NO_TLS, serving

pytestmark = pytest.mark.unit

THINGS = Resource("example.io", "v1", "things", "Thing")
MIB = 1024 * 1024


def collection(*items: Obj, **metadata: str) -> bytes:
    return orjson.dumps({"metadata": {"resourceVersion": "10", **metadata}, "items": items})


def thing(number: int, size: int = 0) -> Obj:
    metadata = {"namespace": "ns", "name": f"thing-{number}", "resourceVersion": str(number + 1)}
    return {"metadata": metadata, "spec": {"text": "x" * size}}


async def test_list_over_a_slow_link_may_take_longer_than_the_time_out() -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        body = collection(thing(1, 2000))
        for start in range(0, len(body), 200):
            await response.write(body[start : start + 200])
            await asyncio.sleep(0.1)
        return response

    async with serving(slow, timeout=0.4) as client:
        assert len((await client.list(THINGS))["items"]) == 1


async def test_list_that_makes_no_progress_times_out() -> None:
    async def stalled(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"metadata"')
        await asyncio.sleep(30)
        return response

    async with serving(stalled, timeout=0.2) as client:
        with pytest.raises(Unreachable, match=r"timed out|Timeout"):
            await asyncio.wait_for(client.list(THINGS), 5)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (62, "is for another host name"),
        (10, "has expired"),
        (20, "does not match certificate-authority-data"),
        (85, "is not accepted: Missing Authority Key Identifier"),
    ],
)
def test_a_certificate_that_is_refused_says_why(code: int, text: str) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "Missing Authority Key Identifier"
    assert text in describe(error)


async def trickle(request: web.BaseRequest) -> web.StreamResponse:
    """Answer with a byte every 50 ms for five seconds."""
    response = web.StreamResponse()
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            await response.write(b" ")
            await asyncio.sleep(0.05)
    return response


async def test_read_of_one_object_has_twice_its_time_out_in_total() -> None:
    async with serving(trickle, timeout=0.3) as client:
        with pytest.raises(Unreachable, match="timed out"):
            await asyncio.wait_for(client.get(THINGS, "one", "ns"), 2)


async def test_write_has_its_time_out_in_total() -> None:
    async with serving(trickle, timeout=0.3) as client:
        with pytest.raises(Unreachable):
            await asyncio.wait_for(client.create(THINGS, thing(1)), 2)


async def test_compressed_response_of_an_untrusted_server_is_refused_unread() -> None:
    asked: list[str] = []

    async def bomb(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Accept-Encoding"])
        return web.Response(body=gzip.compress(b" " * 20 * MIB), headers={"Content-Encoding": "gzip"})

    async with serving(bomb, untrusted=True) as client:
        with pytest.raises(Unreachable, match="compressed"):
            await client.list(THINGS)
        assert "compressed" in client.limits[0]
    assert asked == ["identity"]


async def test_response_that_is_too_large_is_not_read_to_its_end() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b" " * MIB)
        return response

    async with serving(endless, untrusted=True) as client:
        with pytest.raises(TooLarge):
            await client.list(THINGS)


async def test_response_of_countless_tiny_lists_is_refused_before_it_is_parsed() -> None:
    async def bomb(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"items":[' + b"[]," * 100_000 + b"[]]}")

    async with serving(bomb, untrusted=True) as client:
        with pytest.raises(TooLarge, match="lists and objects"):
            await client.list(THINGS)


@pytest.mark.parametrize(
    "part",
    [b'{"type":"ADDED","object":{"text":"' + b" " * 5 * MIB, b'{"type":"ADDED","object":' + b"[]," * 300_000 + b"\n"],
    ids=["endless", "countless-lists"],
)
async def test_watch_event_beyond_the_bounds_is_refused(part: bytes) -> None:
    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            await response.write(part)
            await asyncio.sleep(30)
        return response

    async with serving(events, untrusted=True) as client:
        with pytest.raises(TooLarge):
            await asyncio.wait_for(anext(client.watch(THINGS, resource_version="1")), 10)


async def silent(request: web.Request) -> web.StreamResponse:
    """Open a watch, and send nothing."""
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(30)
    return response


async def test_watch_that_brings_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_client, "_WATCH_SILENCE_SECONDS", 0.2)

    async with serving(silent) as client:
        with pytest.raises(SilentWatch):
            await asyncio.wait_for(anext(client.watch(THINGS, resource_version="1")), 10)


async def test_watch_ends_when_its_client_is_closed() -> None:
    opened = asyncio.Event()

    async with serving(silent) as client:
        events = client.watch(THINGS, resource_version="1", on_open=opened.set)
        watching = asyncio.ensure_future(anext(events))
        await opened.wait()
        await client.close()
        with pytest.raises(Unreachable, match="closed"):
            await asyncio.wait_for(watching, 10)


async def test_list_ends_when_its_client_is_closed() -> None:
    begun = asyncio.Event()

    async def stalling(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"items": [')
        begun.set()
        await asyncio.sleep(30)
        return response

    async with serving(stalling) as client:
        listing = asyncio.ensure_future(client.list(THINGS))
        await begun.wait()
        await asyncio.sleep(0.1)  # until the client reads the body
        await client.close()
        with pytest.raises(Unreachable, match="closed"):
            async with asyncio.timeout(10):
                await listing


@pytest.mark.parametrize("items", [[], [thing(1)]], ids=["empty-pages", "the-same-page"])
async def test_list_that_does_not_end_is_given_up(items: list[Obj]) -> None:
    pages = 0

    async def again(_request: web.Request) -> web.StreamResponse:
        nonlocal pages
        pages += 1
        return web.Response(body=collection(*items, **{"continue": "again"}))

    async with serving(again, untrusted=True) as client:
        informer = Informer(client, THINGS)
        task = informer.start()
        async with asyncio.timeout(10):
            while not isinstance(informer.last_error, TooLarge):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (limit,) = client.limits
    assert pages < 20
    assert "does not end" in str(informer.last_error)
    assert "does not end" in limit


async def test_collection_of_large_objects_is_read_in_smaller_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_RESPONSE", MIB)
    things = [thing(number, 50_000) for number in range(100)]
    limits: list[int] = []

    async def pages(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            await asyncio.sleep(30)
            return web.Response()
        start, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
        limits.append(limit)
        rest = {"continue": str(start + limit)} if start + limit < len(things) else {}
        return web.Response(body=collection(*things[start : start + limit], **rest))

    async with serving(pages, untrusted=True) as client:
        informer = Informer(client, THINGS)
        task = informer.start()
        async with asyncio.timeout(10):
            await informer.wait_synced()
        assert len(informer.store) == 100
        task.cancel()
    assert limits[0] == 125
    assert set(limits[3:]) == {limits[-1]}, "the size that fits is kept"


async def test_first_list_that_may_come_from_a_cache_falls_back_when_it_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "MAX_RESPONSE", MIB)
    things = [thing(number, 50_000) for number in range(100)]
    versions: list[str] = []

    async def pages(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            await asyncio.sleep(30)
            return web.Response()
        versions.append(request.query.get("resourceVersion", ""))
        start, limit = int(request.query.get("continue") or 0), int(request.query["limit"])
        if versions[-1] == "0":
            limit = len(things)  # as older servers do
        rest = {"continue": str(start + limit)} if start + limit < len(things) else {}
        return web.Response(body=collection(*things[start : start + limit], **rest))

    async with serving(pages, untrusted=True) as client:
        informer = Informer(client, THINGS, first_from_cache=True)
        task = informer.start()
        async with asyncio.timeout(10):
            await informer.wait_synced()
        assert len(informer.store) == 100
        task.cancel()
    assert versions[0] == "0"
    assert set(versions[1:]) == {""}


async def test_caches_of_one_connection_stop_at_their_budget() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        start = int(request.query.get("continue") or 0)
        page = [thing(number, 100_000) for number in range(start, start + 100)]
        return web.Response(body=collection(*page, **{"continue": str(start + 100)}))

    async with serving(endless, untrusted=True) as client:
        informers = [Informer(client, THINGS) for _ in range(2)]
        tasks = [informer.start() for informer in informers]
        async with asyncio.timeout(20):
            while not all(isinstance(informer.last_error, TooLarge) for informer in informers):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert client.budget is not None
        assert client.budget.used <= 64 * MIB
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert client.budget.used == 0


async def test_a_fence_stops_writes_and_no_reads() -> None:
    methods: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        methods.append(request.method)
        return web.Response(body=collection())

    def fence() -> None:
        raise Fenced("the lease may have expired")

    async with serving(answer, fence=fence) as client:
        await client.list(THINGS)
        for write in (client.create(THINGS, thing(1)), client.delete(THINGS, "a", "ns")):
            with pytest.raises(Fenced):
                await write
    assert methods == ["GET"]


async def test_redirect_is_not_followed_with_credentials() -> None:
    paths: list[str] = []

    async def redirect(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        raise web.HTTPTemporaryRedirect("/elsewhere")

    async with serving(redirect) as client:
        with pytest.raises(ApiError):
            await client.list(THINGS)
    assert paths == [THINGS.path()]


@pytest.mark.parametrize("opaque", [False, True])
async def test_redirect_of_a_websocket_is_not_followed(opaque: bool, caplog: pytest.LogCaptureFixture) -> None:
    visits: list[str] = []

    async def internal(request: web.Request) -> web.StreamResponse:
        visits.append(request.path)
        return web.Response()

    async with serving(internal) as service:

        async def redirect(_request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(f"{service.server}/internal")

        async with serving(redirect, opaque=opaque) as client:
            with pytest.raises(ApiError) as refused:
                async with client.websocket("/exec", (), protocol="v4.channel.k8s.io"):
                    pass
    assert visits == []
    assert refused.value.status == 302
    assert ("HTTP 302" in str(refused.value)) is not opaque
    assert ("HTTP 302: redirects are not followed" in caplog.text) is opaque


@pytest.mark.parametrize("status", [200, 404, 500])
async def test_refused_websocket_does_not_tell_what_answered(status: int) -> None:
    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, reason="nginx")

    async with serving(answer, opaque=True) as client:
        with pytest.raises(ApiError) as refused:
            async with client.websocket("/exec", (), protocol="v4.channel.k8s.io"):
                pass
    assert str(refused.value) == "this server refuses the connection to a container"


async def test_token_that_cannot_be_refreshed_is_a_failed_request() -> None:
    """A credential plugin of the kubeconfig may fail in any way; its output is not reported."""
    requests: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.append(request.path)
        return web.json_response({})

    async def fail() -> str:
        raise ValueError("canary")

    async with serving(answer) as reachable:
        client = ApiClient(Connection(reachable.server, NO_TLS, fail, None, None), name="test")
        try:
            with pytest.raises(Unreachable) as listed:
                await client.list(THINGS)
            with pytest.raises(Unreachable) as connected:
                async with client.websocket("/exec", (), protocol="v4.channel.k8s.io"):
                    pass
        finally:
            await client.close()
    assert requests == []
    assert "canary" not in f"{listed.value} {connected.value}"
