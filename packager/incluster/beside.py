"""The packager in a process of its own, beside the provider."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys

import orjson
from prometheus_client import generate_latest

from caphv.runtime import eventloop, logs
from caphv.runtime.access import KubeconfigError
from caphv.runtime.beside import Beside, serve
from caphv.runtime.errors import ApiError
from caphv.runtime.manager import LeaseLost
from packager.incluster import metrics
from packager.incluster.process import Options, Process, connected
from packager.incluster.settings import Settings

log = logging.getLogger(__name__)


def beside(settings: Settings) -> Beside:
    """Return what runs the packager's process."""
    return Beside("packager", "packager.incluster.beside", dataclasses.asdict(settings.beside()))


async def _serve(options: Options) -> None:
    process: Process | None = None

    async def work(stop: asyncio.Event) -> None:
        nonlocal process
        async with connected(options) as process:
            await process.manager.run(stop)

    def not_ready() -> list[str]:
        reasons = process.manager.not_ready() if process else ["waiting for the management cluster"]
        return [f"packager: {reason}" for reason in reasons]

    await serve(work, not_ready, lambda: generate_latest(metrics.REGISTRY))


def main() -> None:
    """Run as the settings in the first argument say. Exit status: 0 stopped as asked, 1 could not start or go on."""
    settings = Settings(**orjson.loads(sys.argv[1]))
    logs.configure(settings.log_level, settings.log_format)
    try:
        with settings.opened() as options:
            eventloop.run(_serve(options))
    except (LeaseLost, KubeconfigError, ApiError, ValueError, OSError) as error:
        log.error("%s", error)
        sys.exit(1)


if __name__ == "__main__":
    main()
