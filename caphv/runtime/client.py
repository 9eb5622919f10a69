"""One API server: raw JSON requests, because a provider makes little else but requests.

The generated models and the dynamic client of the `kubernetes` package cost two to four times the CPU of a raw request;
see docs/adr/0002-kubernetes-client.md.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Literal

import aiohttp
import orjson

from caphv.api.object import Obj, Resource, being_deleted, well_formed
from caphv.runtime import logs, metrics
from caphv.runtime.answers import Answers
from caphv.runtime.budget import OWN_CACHE_BYTES, MemoryBudget, TimeBudget
from caphv.runtime.errors import Conflict, Forbidden, Invalid, NotFound, Unreachable
from caphv.runtime.slots import RequestSlots
from caphv.runtime.transport import (
    Connection,
    Transport,
    idle_seconds,
    list_timeout,
    read_timeout,
    write_timeout,
)

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
_METADATA_ONLY = "application/json;as={0};g=meta.k8s.io;v=v1"
# Limits that were reached are reported for this long.
_REPORTED_SECONDS = 600.0


class ApiClient:
    """Requests to one API server with one identity.

    `name` stands for the server in metrics and errors (`management`, `harvester`, `workload`): it must not be a secret
    and its set of values must stay small. At most `max_in_flight` requests run at once; watches do not count.
    `on_response` hears of each response: its HTTP code and its duration in seconds, None for watches. Code 0 means that
    none came, or only a part; each `Invalid` has code 422. `untrusted` bounds what the server may send, see
    `Transport`. `fence` is called right before each write and raises if this process must no longer write. `opaque`:
    errors do not contain what answered, so that no one can scan a network with kubeconfigs; the log does.

    `on_limit` is called when the server reaches a limit, see `limits`.
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
        untrusted: bool = False,
        opaque: bool = False,
        fence: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._reached: dict[str, float] = {}
        self.budget = MemoryBudget(OWN_CACHE_BYTES, connection.server) if untrusted else None
        self.fence = fence or _never
        self.on_limit: Callable[[], None] = _never
        self._on_response = on_response or _ignore
        self._connection = connection
        self._transport = Transport(connection, user_agent=user_agent, untrusted=untrusted)
        self._answers = Answers(name, connection.server, self.time, opaque=opaque)
        self._timeouts = {"list": list_timeout(timeout), "get": read_timeout(timeout)}
        self._write_timeout = write_timeout(timeout)
        self._slots = RequestSlots(max_in_flight, idle_seconds=idle_seconds(untrusted), on_limit=self._limit_reached)
        if self.time:
            self.time.on_limit = self._limit_reached

    def __repr__(self) -> str:
        return f"ApiClient({self.name}, {self.server})"

    @property
    def server(self) -> str:
        """URL of the server."""
        return self._connection.server

    @property
    def time(self) -> TimeBudget | None:
        """Share of the event loop that the server may use; None for no limit."""
        return self._transport.time

    @property
    def limits(self) -> list[str]:
        """Limits that the server has reached in the last minutes, in words."""
        now = time.monotonic()
        noted = [text for text, at in self._reached.items() if now - at < _REPORTED_SECONDS]
        limited = self.time.limited.removeprefix(f"{self.server}: ") if self.time else ""
        slow = f"it is read slowly: {limited}" if limited else ""
        left_out = "its failures are too many for the log, which leaves some out" if logs.limited(self.server) else ""
        return [one for one in (slow, self._slots.exhausted, left_out, *noted) if one]

    def reached(self, limit: str) -> None:
        """Record that a limit was reached that others keep; the text is one of a few."""
        now = time.monotonic()
        known = now - self._reached.get(limit, -math.inf) < _REPORTED_SECONDS
        self._reached[limit] = now
        if not known:
            self._limit_reached()

    def _limit_reached(self) -> None:
        self.on_limit()

    def dedicated(self, *, timeout: float, max_in_flight: int = 2) -> ApiClient:
        """Return a client to the same server whose connections and slots no other work can occupy."""
        return ApiClient(self._connection, name=self.name, timeout=timeout, max_in_flight=max_in_flight)

    async def close(self) -> None:
        """Close all connections permanently; running and later requests raise `Unreachable`."""
        await self._transport.close()

    # Objects

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        """Read one object from the server. Raises `NotFound`."""
        return self._answers.one(
            name, await self.request("GET", _object_path(resource, namespace, name), resource=resource)
        )

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
        resource_version: str = "",
        exact: bool = False,
    ) -> Obj:
        """Read a collection: `{"metadata": {"resourceVersion", "continue"?}, "items": […]}`.

        With resource version `0` the server may answer from its cache, which can be a little old. With `exact` the
        answer is as of that version; raises `Gone` if the server no longer has it.
        """
        query = {
            "labelSelector": label_selector,
            "fieldSelector": field_selector,
            "limit": str(limit) if limit else "",
            "continue": continue_token,
            "resourceVersion": resource_version,
            "resourceVersionMatch": "Exact" if exact else "",
        }
        accept = _METADATA_ONLY.format("PartialObjectMetadataList") if metadata_only else None
        page = await self.request(
            "GET", resource.path(namespace), resource=resource, verb="list", query=query, accept=accept
        )
        return self._answers.page(page)

    async def create(self, resource: Resource, obj: Obj, *, dry_run: bool = False) -> Obj:
        """Create an object in the namespace that its metadata names. Raises `AlreadyExists`."""
        path = resource.path(obj["metadata"].get("namespace", ""))
        query = {"dryRun": "All" if dry_run else ""}
        answer = await self.request("POST", path, resource=resource, body=obj, query=query)
        return self._answers.one(obj["metadata"].get("name", ""), answer)

    async def replace(self, resource: Resource, obj: Obj, *, subresource: str = "") -> Obj:
        """Replace an object; with its resourceVersion in the metadata only that version (`Conflict` otherwise)."""
        metadata = obj["metadata"]
        path = _object_path(resource, metadata.get("namespace", ""), metadata["name"], subresource)
        return self._answers.one(metadata["name"], await self.request("PUT", path, resource=resource, body=obj))

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        patch: Any,
        *,
        patch_type: PatchType = "merge",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Obj:
        """Patch an object; `metadata.resourceVersion` inside a merge patch is a precondition (`Conflict`)."""
        answer = await self.request(
            "PATCH",
            _object_path(resource, namespace, name, subresource),
            resource=resource,
            body=patch,
            content_type=_PATCH_TYPES[patch_type],
            query={"dryRun": "All" if dry_run else ""},
        )
        return self._answers.one(name, answer)

    async def apply(
        self, resource: Resource, obj: Obj, *, manager: str, force: bool = True, dry_run: bool = False
    ) -> Obj:
        """Server side apply: create the object, or make the fields that it names ours."""
        metadata = obj["metadata"]
        answer = await self.request(
            "PATCH",
            _object_path(resource, metadata.get("namespace", ""), metadata["name"]),
            resource=resource,
            verb="apply",
            body=obj,
            content_type="application/apply-patch+yaml",
            query={
                "fieldManager": manager,
                "force": "true" if force else "",
                "dryRun": "All" if dry_run else "",
            },
        )
        return self._answers.one(metadata["name"], answer)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        propagation: str = "Background",
        dry_run: bool = False,
    ) -> Obj | None:
        """Ask for the deletion of an object, only the one with that uid when given; with `dry_run` nothing is deleted.

        Raises `NotFound` if it does not exist (another of its name may), `Conflict` if it is modified concurrently.
        Returns the object while finalizers keep it (with its deletionTimestamp), None once it is deleted.
        """
        body: Obj = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        if dry_run:
            body["dryRun"] = ["All"]
        try:
            answer = await self.request("DELETE", _object_path(resource, namespace, name), resource=resource, body=body)
        except Conflict:
            # 409 means either another uid or a concurrent write; only the first means that the object is deleted.
            if uid and await self._has_other_uid(resource, name, namespace, uid):
                message = f"{resource} {name} of uid {uid} no longer exists; its name is used by another object"
                raise NotFound(404, "NotFound", message) from None
            raise
        return answer if well_formed(answer) and being_deleted(answer) else None

    async def _has_other_uid(self, resource: Resource, name: str, namespace: str, uid: str) -> bool:
        try:
            return bool((await self.get(resource, name, namespace))["metadata"]["uid"] != uid)
        except Forbidden:
            return False  # the roles of 0.11 do not grant `get` on claims: the caller retries, and its watch decides

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
        """Request a quoted path; return the JSON object. Raises `ApiError` (refused), `Unreachable` (no response)."""
        headers = await self._headers(accept)
        data = None
        if body is not None:
            data = orjson.dumps(body)
            headers["Content-Type"] = content_type
        verb = verb or method.lower()
        started = time.perf_counter()
        code = "none"
        timeout = self._timeouts.get(verb, self._write_timeout)
        try:
            async with self._slots:
                sent = time.perf_counter()
                if method != "GET":
                    self.fence()
                async with await self._transport.send(
                    method, path, query=query, headers=headers, data=data, timeout=timeout
                ) as response:
                    code = str(response.status)
                    raw = await self._transport.read(response)
                    self._slots.answered(time.perf_counter() - sent)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # ValueError: a host name or header that cannot be sent
            raise self._unreachable(error) from None
        finally:
            kind = str(resource) if resource else "other"
            metrics.api_requests(self.name, verb, kind, code).inc()
            metrics.api_request_seconds(self.name, verb).observe(time.perf_counter() - started)
        status, seconds, began = response.status, time.perf_counter() - started, time.thread_time()
        try:
            return self._answers.parse(status, raw, response.headers.get("Retry-After"))
        except Invalid:
            status = 422
            raise
        finally:
            if self.time:
                self.time.spend(time.thread_time() - began)
            self._on_response(status, seconds)

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
        on_wait: Callable[[bool], None] | None = None,
    ) -> AsyncGenerator[tuple[str, Obj], None]:
        """Yield `(type, object)` from a resource version on, until the server ends the stream after some minutes.

        `on_open` is called when the server has accepted the watch, `on_wait` with True and False when a wait for the
        server begins and ends: in between two of them, events may have arrived that are not read yet. Types are ADDED,
        MODIFIED, DELETED and BOOKMARK.
        Raises `Gone` if the version is too old, `ApiError` for a refusal, `Unreachable` if the connection cannot be
        made or breaks.
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
            async with await self._transport.send(
                "GET",
                resource.path(namespace),
                query=query,
                headers=await self._headers(accept),
                # TCP keep-alive finds a dead connection, unless a proxy answers it; then its silence does: bookmarks
                # come every minute.
                timeout=aiohttp.ClientTimeout(total=seconds + 30, sock_connect=10, sock_read=_WATCH_SILENCE),
            ) as response:
                code = str(response.status)
                self._on_response(response.status, None)
                if response.status != 200:
                    raw = await self._transport.read(response)
                    self._answers.parse(response.status, raw, response.headers.get("Retry-After"))
                if on_open:
                    on_open()
                async for line in self._transport.lines(response, on_wait or _ignore):
                    began = time.thread_time() if self.time else 0.0
                    event = orjson.loads(line)  # noqa: TID251 - bounded by the size of an answer
                    if event["type"] == "ERROR":
                        raise self._answers.error(int(event["object"].get("code") or 500), event["object"])
                    yield event["type"], self._answers.changed(event["type"], event["object"])
                    if self.time:
                        # With what the caller did with it, who waits for nothing but the next event.
                        self.time.spend(time.thread_time() - began)
                        await self.time.rest()
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
        """Lend a WebSocket on a quoted path. Raises `ApiError` (refused), `Unreachable` (no response, or it breaks)."""
        code = "none"
        self.fence()  # what runs through it may write
        try:
            async with self._transport.websocket(
                path, query, protocol=protocol, headers=await self._headers(None)
            ) as socket:
                code = "101"
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            code = str(error.status)
            self._on_response(error.status, None)
            raise self._answers.refused_upgrade(error.status, error.message) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._unreachable(error) from None
        finally:
            metrics.API_REQUESTS.labels(self.name, "connect", "other", code).inc()

    # Inside

    async def _headers(self, accept: str | None) -> dict[str, str]:
        headers = {"Accept": accept} if accept else {}
        try:
            authorization = await self._connection.authorization()
        except Exception as error:
            # It reads a file or runs a credential plugin of this process's own kubeconfig.
            raise Unreachable(f"{self.server}: token cannot be refreshed: {type(error).__name__}") from None
        if authorization:
            headers["Authorization"] = authorization
        return headers

    def _unreachable(self, error: BaseException) -> Unreachable:
        if not self._transport.closed:
            self._on_response(0, None)
        return self._answers.unreachable(error)


def _ignore(*_observed: object) -> None:
    """Nothing observes responses, or waits."""


def _never() -> None:
    """Nothing forbids writes."""


def _object_path(resource: Resource, namespace: str, name: str, subresource: str = "") -> str:
    if not name:
        raise ValueError(f"{resource}: the name is empty; the path would be that of the whole collection")
    return resource.path(namespace, name, subresource)
