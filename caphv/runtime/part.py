"""Parts of a process that are no controllers.

Apart from the manager, so that a process that has only such a part needs no client of an API server: the libraries of
that take half of its memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Part(ABC):
    """What runs beside the controllers from the start to the very end, whoever holds the lease."""

    @abstractmethod
    async def run(self) -> None:
        """Run until cancelled; an error that leaves it ends the process."""

    def not_ready(self) -> list[str]:
        """Reasons not to count on this part yet."""
        return []

    def metrics(self) -> bytes:
        """Metrics that are not in the registry of this process, in the text format of Prometheus."""
        return b""


def listening_address(address: str) -> tuple[str, int] | None:
    """Split `[host]:port`; None for a port of 0 or none, which turns a server off. Raises `ValueError`."""
    host, separator, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if separator and int(port) else None
