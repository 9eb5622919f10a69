"""The packager as a child process of the provider, to which it reports readiness and metrics."""

from __future__ import annotations

import asyncio

from prometheus_client import generate_latest

from caphv.runtime.childprocess import serve
from packager.controller import metrics
from packager.controller.main import PackagerOptions, Process, packager_process


async def serve_child(options: PackagerOptions) -> None:
    """Run the packager until the provider stops it or exits. Raises as `main.run` does."""
    # The process exists once the management cluster answers, and readiness is asked before.
    process: Process | None = None

    async def work(stop: asyncio.Event) -> None:
        nonlocal process
        async with packager_process(options) as process:
            await process.manager.run(stop)

    def not_ready() -> list[str]:
        reasons = process.manager.not_ready() if process else ["waiting for the management cluster"]
        return [f"packager: {reason}" for reason in reasons]

    await serve(work, not_ready, lambda: generate_latest(metrics.REGISTRY))
