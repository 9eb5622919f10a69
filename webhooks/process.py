"""Run the webhook server in its own process, next to the provider."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import orjson

from caphv.runtime import eventloop, logs
from caphv.runtime.childprocess import ChildProcess, serve
from webhooks.server import WebhookServer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the server's process; `address` is `[host]:port`."""

    address: str
    folder: str
    log_level: str = "info"
    log_format: logs.Format = "auto"
    cross_namespace_refs: bool = True


def child_process(settings: ServerSettings) -> ChildProcess:
    """Return the server's process, which is not started yet."""
    return ChildProcess("webhook", "webhooks.process", dataclasses.asdict(settings))


async def _serve(settings: ServerSettings) -> None:
    """Serve until the parent process ends this one. Raises `OSError` if the server fails."""
    server = WebhookServer(
        settings.address, Path(settings.folder), cross_namespace=settings.cross_namespace_refs
    )

    async def work(stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises an error that stops the server before."""
        # The server does not return, so the first task ends by the signal or by a failure.
        tasks = [asyncio.create_task(server.run()), asyncio.create_task(stop.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    await serve(work, server.not_ready, server.metrics)


def main() -> None:
    """Serve with the settings in the first argument.

    Exit with 0 when a signal stops the server, with 1 when it cannot start or fails.
    """
    settings = ServerSettings(**orjson.loads(sys.argv[1]))  # noqa: TID251 - our own parent process
    logs.configure(settings.log_level, settings.log_format)
    try:
        eventloop.run(_serve(settings))
    except OSError as error:
        log.error("webhooks cannot be served: %s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
