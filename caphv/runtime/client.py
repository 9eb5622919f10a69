"""One API server: raw JSON requests, because a provider makes little else but requests.

Measured against a local kube-apiserver the typed layers of the `kubernetes` package cost two to four times the CPU of
a raw request, and 20 MiB of memory. That package reads kubeconfigs for people; see `caphv.runtime.kubeconfig`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson
from yarl import URL

from caphv.api.object import Obj, Resource
from caphv.runtime import metrics
from caphv.runtime.errors import Conflict, NotFound, Unreachable, error_from

log = logging.getLogger(__name__)

PatchType = Literal["merge", "json", "strategic"]
OnResponse = Callable[[int, float | None], None]
_PATCH_TYPES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}
# The API server closes a watch after this many seconds; spread, so that a restart does not make them all end at once.
_WATCH_SECONDS = (240, 360)
_WATCH_SILENCE = 150.0
# TCP keep-alive: after so many idle seconds, so many probes, so many seconds apart.
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
DEAD_CONNECTION_SECONDS = _KEEPALIVE["TCP_KEEPIDLE"] + _KEEPALIVE["TCP_KEEPINTVL"] * _KEEPALIVE["TCP_KEEPCNT"]
# Answers beyond are no lists and no objects: etcd takes 1.5 MiB an object, a page has 500.
_MAX_ANSWER = 256 * 1024 * 1024
_MAX_LINE = 16 * 1024 * 1024
_METADATA_ONLY = "application/json;as={0};g=meta.k8s.io;v=v1"


# Answers the value of the header `Authorization`, empty for none; it may read a file or run a program first.
Authorization = Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach one API server; `server` is its URL, `server_name` the name in its certificate if not that."""

    server: str
    tls: ssl.SSLContext = field(repr=False)
    authorization: Authorization = field(repr=False)
    proxy: str | None = field(repr=False)
    server_name: str | None


class ApiClient:
    """Requests to one API server with one identity.

    `name` stands for the server in metrics and errors (`management`, `harvester`, `workload`): it must not be a secret
    and its set of values must stay small. At most `max_in_flight` requests run at once; watches do not count.
    `on_response` hears of each answer: its HTTP code and how many seconds it took, None for those of watches, which may
    take their time. Code 0 means that none came, or not all of it.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        user_agent: str = "caphv",
        max_in_flight: int = 64,
        timeout: float = 15.0,
        on_response: OnResponse | None = None,
    ) -> None:
        self._session_options: dict[str, Any] = {
            # Looking for proxies and netrc in the environment on every request doubles the price of a request; the
            # proxy of a kubeconfig is passed explicitly.
            "trust_env": False,
            "headers": {"User-Agent": user_agent, "Accept": "application/json"},
        }
        self.name = name
        self._on_answer = on_response or _ignore
        self._connection = connection
        self._base = connection.server
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 10))
        self._in_flight = asyncio.Semaphore(max_in_flight)
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"ApiClient({self.name}, {self._base})"

    @property
    def server(self) -> str:
        """URL of the server."""
        return self._base

    async def close(self) -> None:
        """Close all connections for good; running and later requests raise `Unreachable`."""
        self._closed = True
        if self._session:
            await self._session.close()
            self._session = None

    # Objects

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        """Read one object from the server. Raises `NotFound`."""
        return await self.request("GET", _object_path(resource, namespace, name), resource=resource)

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        metadata_only: bool = False,
    ) -> Obj:
        """Read a collection: `{"metadata": {"resourceVersion", "continue"?}, "items": […]}`."""
        query = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "limit": str(limit) if limit else "",
            "continue": continue_token,
        }
        accept = _METADATA_ONLY.format("PartialObjectMetadataList") if metadata_only else None
        return await self.request(
            "GET", resource.path(namespace), resource=resource, verb="list", query=query, accept=accept
        )

    async def create(self, resource: Resource, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create an object in the namespace that its metadata names. Raises `AlreadyExists`."""
        path = resource.path(obj["metadata"].get("namespace", ""))
        return await self.request("POST", path, resource=resource, body=obj, query={"dryRun": "All" if dry_run else ""})

    async def replace(self, resource: Resource, obj: Obj, *, subresource: str = "") -> Obj:
        """Replace an object; with its resourceVersion in the metadata only that version (`Conflict` otherwise)."""
        metadata = obj["metadata"]
        path = _object_path(resource, metadata.get("namespace", ""), metadata["name"], subresource)
        return await self.request("PUT", path, resource=resource, body=obj)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        patch: Any,
        *,
        patch_type: PatchType = "merge",
        subresource: str = "",
    ) -> Obj:
        """Patch an object; `metadata.resourceVersion` inside a merge patch is a precondition (`Conflict`)."""
        return await self.request(
            "PATCH",
            _object_path(resource, namespace, name, subresource),
            resource=resource,
            body=patch,
            content_type=_PATCH_TYPES[patch_type],
        )

    async def apply(self, resource: Resource, obj: Obj, *, manager: str, force: bool = True) -> Obj:
        """Server side apply: create the object, or make the fields that it names ours."""
        metadata = obj["metadata"]
        return await self.request(
            "PATCH",
            _object_path(resource, metadata.get("namespace", ""), metadata["name"]),
            resource=resource,
            verb="apply",
            body=obj,
            content_type="application/apply-patch+yaml",
            query={"fieldManager": manager, "force": "true" if force else ""},
        )

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", propagation: str = "Background"
    ) -> Obj | None:
        """Ask for the deletion of an object, only the one with that uid when given.

        Raises `NotFound` when that is not there (though another of its name may be), `Conflict` when somebody else
        writes it at the same time. Answers the object while finalizers keep it (with its deletionTimestamp), None when
        it is gone.
        """
        body: Obj = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            answer = await self.request("DELETE", _object_path(resource, namespace, name), resource=resource, body=body)
        except Conflict:
            # The API server says 409 for both, and who took one for the other would leave the object behind.
            if uid and (await self.get(resource, name, namespace))["metadata"]["uid"] != uid:
                message = f"{resource} {name} of uid {uid} is gone, its name is used anew"
                raise NotFound(404, "NotFound", message) from None
            raise
        return answer if "deletionTimestamp" in (answer.get("metadata") or {}) else None

    async def request(
        self,
        method: str,
        path: str,
        *,
        resource: Resource | None = None,
        verb: str = "",
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        accept: str | None = None,
    ) -> Any:
        """Request a quoted path; answers the JSON object. Raises `ApiError` (refused), `Unreachable` (no answer)."""
        headers = await self._headers(accept)
        data = None
        if body is not None:
            data = orjson.dumps(body)
            headers["Content-Type"] = content_type
        verb = verb or method.lower()
        started = time.perf_counter()
        code = "none"
        try:
            async with (
                self._in_flight,
                self._http().request(
                    method,
                    self._url(path, query),
                    data=data,
                    headers=headers,
                    timeout=self._timeout,
                    proxy=self._connection.proxy,
                    server_hostname=self._connection.server_name,
                    allow_redirects=False,
                ) as response,
            ):
                code = str(response.status)
                raw = await _read(response)
                self._on_answer(response.status, time.perf_counter() - started)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: a host name or header that cannot be sent
            raise self._unreachable(error) from None
        finally:
            kind = str(resource) if resource else "other"
            metrics.API_REQUESTS.labels(self.name, verb, kind, code).inc()
            metrics.API_REQUEST_SECONDS.labels(self.name, verb).observe(time.perf_counter() - started)
        return _parse(response.status, raw, response.headers.get("Retry-After"))

    # Watches

    async def watch(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        on_open: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[str, Obj], None]:
        """Yield `(type, object)` from a resource version on, until the server ends the stream (it does, in minutes).

        `on_open` is called when the server has accepted the watch. Types are ADDED, MODIFIED, DELETED and BOOKMARK.
        Raises `Gone` when the version is too old, `ApiError` for a refusal, `Unreachable` when the connection cannot
        be made or breaks.
        """
        seconds = random.randint(*_WATCH_SECONDS)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(seconds),
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
        }
        accept = _METADATA_ONLY.format("PartialObjectMetadata") if metadata_only else None
        code = "none"
        try:
            async with self._http().get(
                self._url(resource.path(namespace), query),
                headers=await self._headers(accept),
                # A dead connection is found by TCP keep-alive; behind a proxy, that never sees it, by its silence:
                # bookmarks come every minute.
                timeout=aiohttp.ClientTimeout(total=seconds + 30, sock_connect=10, sock_read=_WATCH_SILENCE),
                proxy=self._connection.proxy,
                server_hostname=self._connection.server_name,
                allow_redirects=False,
            ) as response:
                code = str(response.status)
                self._on_answer(response.status, None)
                if response.status != 200:
                    _parse(response.status, await response.read(), response.headers.get("Retry-After"))
                if on_open:
                    on_open()
                async for line in _lines(response.content):
                    event = orjson.loads(line)
                    if event["type"] == "ERROR":
                        raise error_from(int(event["object"].get("code") or 500), event["object"])
                    yield event["type"], event["object"]
        except aiohttp.SocketTimeoutError as error:
            if code != "200":
                raise self._unreachable(error) from None
            # A server without bookmarks is silent, too: the caller resumes where the stream stood.
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreachable(error) from None
        finally:
            metrics.API_REQUESTS.labels(self.name, "watch", str(resource), code).inc()

    @contextlib.asynccontextmanager
    async def websocket(
        self, path: str, query: Sequence[tuple[str, str]], *, protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Lend a WebSocket on a quoted path. Raises `ApiError` (refused), `Unreachable` (no answer, or it breaks)."""
        code = "none"
        try:
            async with self._http().ws_connect(
                URL(self._base + path, encoded=True).with_query(query),
                protocols=(protocol,),
                headers=await self._headers(None),
                proxy=self._connection.proxy,
                server_hostname=self._connection.server_name,
            ) as socket:
                code = "101"
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            code = str(error.status)
            self._on_answer(error.status, None)
            raise error_from(error.status, {"message": f"HTTP {error.status}: {error.message}"}) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreachable(error) from None
        finally:
            metrics.API_REQUESTS.labels(self.name, "connect", "other", code).inc()

    # Inside

    def _http(self) -> aiohttp.ClientSession:
        if self._closed:
            # A session made now would never be closed.
            raise aiohttp.ClientConnectionError("the client has been closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, ssl=self._connection.tls, keepalive_timeout=60, socket_factory=_keepalive_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), **self._session_options
            )
        return self._session

    async def _headers(self, accept: str | None) -> dict[str, str]:
        headers = {"Accept": accept} if accept else {}
        try:
            authorization = await self._connection.authorization()
        except Exception as error:
            # It reads a file or runs the program that the process's own kubeconfig names.
            raise Unreachable(f"{self._base}: token cannot be refreshed: {type(error).__name__}") from None
        if authorization:
            headers["Authorization"] = authorization
        return headers

    def _url(self, path: str, query: Mapping[str, str] | None) -> URL:
        url = URL(self._base + path, encoded=True)
        pairs = {name: value for name, value in (query or {}).items() if value}
        return url.with_query(pairs) if pairs else url

    def _unreachable(self, error: BaseException) -> Unreachable:
        if not self._closed:
            self._on_answer(0, None)
        if isinstance(error, aiohttp.ClientResponseError):
            text = f"HTTP {error.status} {error.message}"  # its own text has the URL of the proxy, password included
        elif isinstance(error, aiohttp.ClientPayloadError):
            text = "the connection broke in the middle of an answer"
        else:
            text = "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return Unreachable(f"{self._base}: {text}")


def _ignore(_code: int, _seconds: float | None) -> None:
    """Nobody wants to hear of answers."""


def _object_path(resource: Resource, namespace: str, name: str, subresource: str = "") -> str:
    if not name:
        raise ValueError(f"{resource}: the name of an object is empty; its path would be that of all objects")
    return resource.path(namespace, name, subresource)


def _keepalive_socket(addr_info: Any) -> socket.socket:
    family, kind, proto = addr_info[:3]
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


def _parse(status: int, raw: bytes, retry_after: str | None) -> Any:
    try:
        body = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError:
        body = {"message": f"HTTP {status} with a body that is not JSON (a proxy in between?)"}
        if 200 <= status < 300:
            raise error_from(502, body) from None
    if 200 <= status < 300:
        if isinstance(body, dict):
            return body
        status, body = 502, {"message": "a body that is no JSON object (a proxy in between?)"}
    raise error_from(status, body, retry_after)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body; a server that sends without end must not fill the memory."""
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > _MAX_ANSWER:
            raise ValueError(f"an answer is larger than {_MAX_ANSWER} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def _lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split a chunked stream at new lines, however large a line is."""
    rest = b""
    async for chunk in stream.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_LINE:
            raise ValueError(f"a watch event is larger than {_MAX_LINE} bytes")
        for line in lines:
            if line:
                yield line
