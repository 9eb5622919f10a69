"""Lend clients of servers that may be slow or unreachable.

Each server has its own deadline, so that a server that does not answer does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import Kubeconfig

# Requests to a server that does not answer for so long are given up.
HARVESTER_SECONDS = 15.0
WORKLOAD_SECONDS = 6.0
# A server with thousands of objects needs several pages, each within the time above. It gets at
# most this many times as long in all.
_MAX_DELAY_FACTOR = 20
SERVERS_AT_ONCE = 16


class Server(NamedTuple):
    """A server: with another CA, another server may answer at the same address."""

    url: str
    ca: str


def server_of(kubeconfig: Kubeconfig) -> Server:
    """Return the server of a kubeconfig."""
    return Server(kubeconfig.server, kubeconfig.ca)


@asynccontextmanager
async def answering_client(
    kubeconfig: Kubeconfig, name: str, seconds: float, **options: Any
) -> AsyncIterator[ApiClient]:
    """Lend a client as long as its server answers: each answer grants `seconds` more.

    Raises `KubeconfigError`, and `TimeoutError` in the block.

    :param kubeconfig: address and credentials
    :param name: the name of the client, in logs and metrics
    :param seconds: the longest time without an answer
    :param options: further options of `ApiClient`
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _MAX_DELAY_FACTOR * seconds

    def extend(status: int, _duration: float | None) -> None:
        # An answer may come after the end of the block.
        with suppress(RuntimeError):
            if status:
                deadline.reschedule(min(end, loop.time() + seconds))

    client = kubeconfig.client(
        name=name, user_agent="caphv-cli", timeout=seconds, on_response=extend, **options
    )
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield client
    finally:
        await client.close()
