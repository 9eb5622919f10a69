"""Send requests to one API server, with metrics, time-outs and bounds for each."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import orjson

from caphv.api.object import Resource
from caphv.runtime import logs, metrics
from caphv.runtime.answers import Answers
from caphv.runtime.budget import OWN_CACHE_BYTES, MemoryBudget, TimeBudget
from caphv.runtime.connection import Connection
from caphv.runtime.errors import Invalid, Unreachable
from caphv.runtime.slots import RequestSlots
from caphv.runtime.transport import Transport, list_timeout, read_timeout, write_timeout

OnResponse = Callable[[int, float | None], None]
# `limits` reports a limit for this many seconds after the server reached it.
_REPORTED_SECONDS = 600.0


class Requester:
    """Send requests to one API server with one identity.

    The function `on_limit` is called when the server reaches a limit, see `limits`.

    :param name: name of the server in metrics and errors (`management`, `harvester`, `workload`);
        it must not be a secret, and the set of names must stay small
    :param max_in_flight: how many requests may run at once; watches do not count
    :param on_response: called with the HTTP code of each response and its duration in seconds (None
        for watches); code 0 means that no complete response came, and `Invalid` always has code 422
    :param untrusted: bound the responses of the server, see `Transport`
    :param opaque: keep responses out of errors, so that tenants cannot scan a network with
        kubeconfigs; the log has them
    :param fence: called right before each write; raises if this process must no longer write
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
        self.budget = MemoryBudget(OWN_CACHE_BYTES, connection.server) if untrusted else None
        self.fence = fence or _do_nothing
        self.on_limit: Callable[[], None] = _do_nothing
        self._on_response = on_response or _ignore

        self._connection = connection
        self._transport = Transport(connection, user_agent=user_agent, untrusted=untrusted)
        self._answers = Answers(name, connection.server, self.time, opaque=opaque)
        self._timeouts = {"list": list_timeout(timeout), "get": read_timeout(timeout)}
        self._write_timeout = write_timeout(timeout)

        self._reached: dict[str, float] = {}
        self._slots = RequestSlots(max_in_flight, on_limit=self._report_limit)
        if self.time:
            self.time.on_limit = self._report_limit

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.server})"

    @property
    def server(self) -> str:
        """The URL of the server."""
        return self._connection.server

    @property
    def time(self) -> TimeBudget | None:
        """The server's share of the event loop; None for no limit."""
        return self._transport.time

    @property
    def limits(self) -> list[str]:
        """Descriptions of the limits that the server has reached in the last minutes."""
        reports = []
        if self.time and (limited := self.time.limited.removeprefix(f"{self.server}: ")):
            reports.append(f"it is read slowly: {limited}")
        if exhaustion := self._slots.exhaustion:
            reports.append(exhaustion)
        if logs.is_limited(self.server):
            reports.append("its failures are too many for the log, which leaves some out")

        earliest = time.monotonic() - _REPORTED_SECONDS
        reports += [limit for limit, reached in self._reached.items() if reached > earliest]
        return reports

    def record_limit(self, limit: str) -> None:
        """Record that the server has reached a limit that another object enforces.

        Use only a few different texts, because each is remembered.
        """
        moment = time.monotonic()
        is_reported = moment - self._reached.get(limit, -math.inf) < _REPORTED_SECONDS
        self._reached[limit] = moment
        if not is_reported:
            self._report_limit()

    def _report_limit(self) -> None:
        # `on_limit` is set after the slots and the time budget got their callbacks.
        self.on_limit()

    async def close(self) -> None:
        """Close all connections permanently; running and later requests raise `Unreachable`."""
        await self._transport.close()

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
        """Send a request and return the JSON object of the response.

        Raises `ApiError` if the server refuses the request, and `Unreachable` if no response comes.

        :param path: quoted path below the URL of the server
        :param resource: kind for the metrics; None for `other`
        :param verb: verb for the metrics and the time-out; the method by default
        :param body: object to send as JSON; None for no body
        """
        headers = await self._headers(accept)
        data = None
        if body is not None:
            data = orjson.dumps(body)
            headers["Content-Type"] = content_type

        action = verb or method.lower()
        timeout = self._timeouts.get(action, self._write_timeout)
        code = "none"
        started = time.perf_counter()
        try:
            async with self._slots:
                if method != "GET":
                    self.fence()
                async with await self._transport.send(
                    method, path, query=query, headers=headers, data=data, timeout=timeout
                ) as response:
                    code = str(response.status)
                    raw = await self._transport.read(response)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # A ValueError means a host name or header that cannot be sent.
            raise self._unreachable(error) from None
        finally:
            kind = str(resource) if resource else "other"
            metrics.api_requests(self.name, action, kind, code).inc()
            metrics.api_request_seconds(self.name, action).observe(time.perf_counter() - started)

        # Parsing blocks the event loop, so its time counts against the budget of the server.
        status = response.status
        seconds = time.perf_counter() - started
        parsing_since = time.thread_time()
        try:
            return self._answers.parse(status, raw, response.headers.get("Retry-After"), path)
        except Invalid:
            status = 422
            raise
        finally:
            if self.time:
                self.time.spend(time.thread_time() - parsing_since)
            self._on_response(status, seconds)

    @contextlib.asynccontextmanager
    async def websocket(
        self, path: str, query: Sequence[tuple[str, str]], *, protocol: str
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket on a quoted path for the time of a `with` block.

        Raises `ApiError` if the server refuses it, and `Unreachable` if no response comes or the
        connection breaks.
        """
        self.fence()  # because a command that runs through the WebSocket may write

        code = "none"
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
            # This reads a file or runs a credential plugin of this process's own kubeconfig.
            raise Unreachable(
                f"{self.server}: token cannot be refreshed: {type(error).__name__}"
            ) from None
        if authorization:
            headers["Authorization"] = authorization
        return headers

    def _unreachable(self, error: BaseException) -> Unreachable:
        if not self._transport.closed:
            self._on_response(0, None)
        return self._answers.unreachable(error)


def _ignore(*_observed: object) -> None:
    """Observe no response."""


def _do_nothing() -> None:
    """Stand for a fence that forbids no write, and for a callback that reports no limit."""
