"""The packager in a process of its own, beside the provider: what it tells the provider of itself."""

from __future__ import annotations

import asyncio

from prometheus_client import generate_latest

from caphv.runtime.childprocess import serve
from packager.controller import metrics
from packager.controller.main import Options, Process, connected


async def serve_beside(options: Options) -> None:
    """Run until the provider ends it, or is gone. Raises as `process.run` does."""
    process: Process | None = None

    async def work(stop: asyncio.Event) -> None:
        nonlocal process
        async with connected(options) as process:
            await process.manager.run(stop)

    def not_ready() -> list[str]:
        reasons = process.manager.not_ready() if process else ["waiting for the management cluster"]
        return [f"packager: {reason}" for reason in reasons]

    await serve(work, not_ready, lambda: generate_latest(metrics.REGISTRY))
