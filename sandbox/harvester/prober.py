"""The health checks of load balancers, as load-balancer-harvester probes guests (`pkg/prober`).

A backend is unhealthy at first. Its first probe comes after one period, and each threshold counts
probes in a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from caphv.api.object import Key, Obj

# Harvester's defaults (`pkg/lb/servicelb/manager.go`).
_SUCCESSES = 1
_FAILURES = 3
_PERIOD_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The health check of a LoadBalancer."""

    port: int
    successes: int
    failures: int
    period: float

    @classmethod
    def of(cls, load_balancer: Obj) -> HealthCheck | None:
        """Return the health check of a LoadBalancer, None without one."""
        spec = load_balancer["spec"].get("healthCheck") or {}
        if not spec.get("port"):
            return None

        return cls(
            int(spec["port"]),
            int(spec.get("successThreshold") or _SUCCESSES),
            int(spec.get("failureThreshold") or _FAILURES),
            float(spec.get("periodSeconds") or _PERIOD_SECONDS),
        )


@dataclass(frozen=True, slots=True)
class _Worker:
    """The task that probes one backend with a check."""

    check: HealthCheck
    task: asyncio.Task[None]


class Prober:
    """Probes the backends of all load balancers.

    :param answers: returns whether a guest listens on an address and port
    :param on_change: is called when a backend becomes healthy or unhealthy
    :param scale: the duration of a simulated second in seconds
    """

    def __init__(
        self,
        answers: Callable[[str, int], bool],
        on_change: Callable[[Key], None],
        scale: float = 1.0,
    ) -> None:
        self._answers = answers
        self._on_change = on_change
        self._scale = scale
        self._workers: dict[tuple[Key, str], _Worker] = {}
        self._healthy: set[tuple[Key, str]] = set()

    def ensure(self, key: Key, check: HealthCheck | None, backends: Iterable[str]) -> list[str]:
        """Probe exactly these backends of a load balancer; return the healthy ones.

        Without a check, all backends are healthy.
        """
        addresses = list(backends)

        # Stop the workers of former backends, and the workers whose check has changed.
        checks = dict.fromkeys(addresses, check) if check else {}
        for backend in [backend for backend in self._workers if backend[0] == key]:
            _, address = backend
            if checks.get(address) != self._workers[backend].check:
                self._workers.pop(backend).task.cancel()
            if address not in addresses:
                self._healthy.discard(backend)
        if check is None:
            return addresses

        for address in addresses:
            if (key, address) not in self._workers:
                task = asyncio.create_task(self._probe(key, address, check))
                self._workers[key, address] = _Worker(check, task)
        return [address for address in addresses if (key, address) in self._healthy]

    def close(self) -> None:
        """Stop all probes."""
        for worker in self._workers.values():
            worker.task.cancel()
        self._workers.clear()

    async def _probe(self, key: Key, address: str, check: HealthCheck) -> None:
        backend = (key, address)
        successes = failures = 0
        while True:
            await asyncio.sleep(check.period * self._scale)

            if self._answers(address, check.port):
                successes += 1
                failures = 0
            else:
                failures += 1
                successes = 0

            if successes >= check.successes and backend not in self._healthy:
                self._healthy.add(backend)
                self._on_change(key)
            elif failures >= check.failures and backend in self._healthy:
                self._healthy.discard(backend)
                self._on_change(key)
