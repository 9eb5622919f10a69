"""A command of caphv as a process, as tests of all parts start, ask and stop it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from sandbox.processes import children, pki
from sandbox.processes.apiserver import ApiServer, private_file
from sandbox.processes.children import Process
from tests.support.paths import CHECKOUT
from tests.support.waiting import until

START_SECONDS = 60.0
# Harvesters of tests are on this machine.
LOOPBACK = "--allow-harvester-cidr=127.0.0.0/8"

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Caphv:
    """One `caphv <command>` with metrics and probes at free ports; `options` come after those that are its own."""

    def __init__(self, folder: Path, name: str, *options: str, command: tuple[str, ...] = ("run",)) -> None:
        self.folder, self.name, self.command, self.options = folder, name, command, options
        self.metrics_port, self.health_port = children.free_ports(2)
        self.own: list[str] = []
        self.environment: dict[str, str] = {}
        self.module = "caphv"
        self.process: Process | None = None

    def run_as(self, server: ApiServer, user: str, *groups: str) -> None:
        """Give it an account on an API server."""
        kubeconfig = self.folder / f"{self.name}.kubeconfig"
        private_file(kubeconfig, pki.to_yaml(server.kubeconfig(user, groups)))
        self.own = [*(option for option in self.own if "--kubeconfig" not in option), f"--kubeconfig={kubeconfig}"]

    @property
    def log(self) -> str:
        """All it has logged, in all its starts."""
        return (self.folder / "logs" / f"{self.name}.log").read_text()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.alive

    def launch(self) -> Process:
        """Start it, without waiting for anything."""
        arguments = [
            f"--metrics-bind-address=127.0.0.1:{self.metrics_port}",
            f"--health-probe-bind-address=127.0.0.1:{self.health_port}",
            *self.own,
            *([LOOPBACK] if self.command == ("run",) else []),
            *self.options,
        ]
        command = [sys.executable, "-P", "-m", self.module, *self.command, *arguments]
        environment = {"PYTHONPATH": str(CHECKOUT), **self.environment}
        self.process = children.start(self.folder, self.name, command, env=environment)
        return self.process

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        await children.wait_ready(self.launch(), self.ready, START_SECONDS)

    async def stop(self) -> None:
        """Stop it as an update of its Deployment does."""
        if self.process:
            await children.end(self.process)

    async def kill(self) -> None:
        """End it at once, and whatever it has started with it."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            await children.end(self.process)

    async def ready(self) -> bool:
        """Whether its probe says so."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            return (await self.get(self.health_port, "readyz"))[0] == 200
        return False

    async def exposition(self) -> str:
        """Its metrics, as Prometheus reads them."""
        return (await self.get(self.metrics_port, "metrics"))[1]

    async def metrics(self) -> Values:
        """Values of its metrics by name and labels."""
        families = text_string_to_metric_families(await self.exposition())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    async def value(self, name: str, **labels: str) -> float | None:
        """Value of one series, None when there is none."""
        return (await self.metrics()).get((name, frozenset(labels.items())))

    async def until_value(self, wanted: float | Callable[[float], bool] | None, name: str, **labels: str) -> None:
        """Wait until a series has a value; a process counts a moment after others see what it did."""
        found: float | None = None

        async def reached() -> bool:
            nonlocal found
            found = await self.value(name, **labels)
            return found is not None and wanted(found) if callable(wanted) else found == wanted

        await until(reached, lambda: f"{name} {labels} is {found}")

    async def get(self, port: int, path: str) -> tuple[int, str]:
        """Status and body of what it answers."""
        timeout = aiohttp.ClientTimeout(total=30)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://127.0.0.1:{port}/{path}") as answer,
        ):
            return answer.status, await answer.text()
