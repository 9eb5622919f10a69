"""The provider inside the process of a test, which can stop it at a chosen write, as a crash would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import pytest

from caphv.runtime.addresses import AddressPolicy, networks
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.kubeconfig import parse_kubeconfig
from caphv.runtime.manager import BindAddresses, LeaseLost
from reconciler.manager import Provider, ProviderOptions
from sandbox.processes import pki
from tests.support.reconciler.case import Case
from tests.support.reconciler.environment import Environment

_hook: ContextVar[Hook | None] = ContextVar("hook", default=None)
Send = Callable[[], Awaitable[Any]]


class Hook:
    """Intercepts requests of one provider to its API servers; `stopped` is set when the provider is dead to them."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    async def request(self, method: str, path: str, options: Mapping[str, Any], send: Send) -> Any:
        """Answer a request of the provider. A dead process sends nothing and hears nothing."""
        if self.stopped.is_set():
            raise Unreachable("the provider has been stopped")
        answer = await self.asked(method, path, options, send)
        if self.stopped.is_set():
            raise Unreachable("the provider has been stopped")
        return answer

    async def asked(self, _method: str, _path: str, _options: Mapping[str, Any], send: Send) -> Any:
        """Answer a request of a running provider."""
        return await send()


class StopAtWrite(Hook):
    """Stops the provider after its write `number` (from 1): the server has done it, and the response is lost.

    A stop before a write is the same as one after the previous write: what the provider knows is lost either way.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.writes = 0
        self._number = number

    async def asked(self, method: str, path: str, options: Mapping[str, Any], send: Send) -> Any:
        if method == "GET" or path.endswith("/events"):
            return await send()
        self.writes += 1
        if self.writes != self._number:
            return await send()
        with contextlib.suppress(ApiError):
            await send()
        self.stopped.set()
        return None


class DiesAfterWrite(StopAtWrite):
    """A provider that dies after its first write; what says that it runs does not count."""

    def __init__(self) -> None:
        super().__init__(1)

    async def asked(self, method: str, path: str, options: Mapping[str, Any], send: Send) -> Any:
        if "/leases" in path:
            return await send()
        return await super().asked(method, path, options, send)


class Delay(Hook):
    """Keeps the first write to a path under way: `late` is that request, for a test to send too late."""

    def __init__(self, method: str, part: str) -> None:
        super().__init__()
        self.under_way = asyncio.Event()
        self.late: tuple[str, str, Mapping[str, Any]] = ("", "", {})
        self._method, self._part = method, part

    async def asked(self, method: str, path: str, options: Mapping[str, Any], send: Send) -> Any:
        if self.under_way.is_set() or method != self._method or self._part not in path:
            return await send()
        self.late = (method, path, options)
        self.under_way.set()
        await self.stopped.wait()
        return None


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hooks see the requests of providers that `run` starts, and no others."""
    original = ApiClient.request

    async def request(self: ApiClient, method: str, path: str, **options: Any) -> Any:
        hook = _hook.get()
        if hook is None:
            return await original(self, method, path, **options)
        return await hook.request(method, path, options, lambda: original(self, method, path, **options))

    monkeypatch.setattr(ApiClient, "request", request)


async def run(
    case: Case,
    hook: Hook | None,
    *,
    leader_elect: bool = False,
    allowed: tuple[str, ...] = ("127.0.0.0/8",),
    cross_namespace: bool = True,
) -> None:
    """Run the provider for one case, until its hook has stopped it, it lost its lease, or this is cancelled.

    Without `cross_namespace` it serves all cases, and uses no references between them.
    """
    _hook.set(hook)
    server = case.environment.management
    access = parse_kubeconfig(pki.to_yaml(server.kubeconfig("caphv", ["system:masters"])))
    client = access.client(name="management")
    stop = asyncio.Event()
    stopped = asyncio.create_task(hook.stopped.wait() if hook else stop.wait())
    try:
        options = ProviderOptions(
            namespace=case.name if cross_namespace else "",
            leader_elect=leader_elect,
            addresses=BindAddresses("", ""),
            address_policy=AddressPolicy(networks(allowed)),
            cross_namespace_refs=cross_namespace,
        )
        provider = await Provider.connect(client, options)
        work = asyncio.create_task(provider.manager.run(stop))
        try:
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.set()
            with contextlib.suppress(LeaseLost):
                await work
    finally:
        stopped.cancel()
        await client.close()


@contextlib.asynccontextmanager
async def running(case: Case, *hooks: Hook) -> AsyncIterator[None]:
    """Run the provider, and start it again when its hook has stopped it: with the next hook, at last without one."""

    async def go() -> None:
        for hook in (*hooks, None):
            await asyncio.create_task(run(case, hook))

    task = asyncio.create_task(go())
    try:
        yield
    finally:
        if task.done():
            task.result()
        await cancelled(task)


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """End tasks."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def opened(environment: Environment) -> AsyncIterator[Case]:
    """A further cluster of the test's own; the one who asks for it deletes it."""
    environment.cases += 1
    case = Case(environment, environment.cases)
    await case.open()
    try:
        yield case
    finally:
        await case.close()
