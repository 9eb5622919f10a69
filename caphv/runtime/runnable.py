"""Runnables are servers, child processes and the like that a manager runs besides controllers.

The class is not in the module of the manager, because a process that runs nothing else needs no API
client, whose libraries would take half of its memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

_LAST_PORT = 65535


class Runnable(ABC):
    """Something that runs from start to shutdown, with or without the lease."""

    @abstractmethod
    async def run(self) -> None:
        """Run until cancelled. An exception ends the process."""

    def stopping(self) -> None:
        """Prepare for the end of the process, called when the process begins to stop.

        `run` is cancelled once all controllers have ended, which may take a while.
        """
        return

    def not_ready(self) -> list[str]:
        """Return the reasons why this runnable is not ready."""
        return []

    def metrics(self) -> bytes:
        """Return metrics from outside the registry of this process, in Prometheus text format."""
        return b""


class Address(NamedTuple):
    """A host, empty for all addresses of this machine, and a port."""

    host: str
    port: int


def listening_address(address: str) -> Address | None:
    """Split `[host]:port`. Return None if it is empty or has port 0, which disables a server.

    Raises `ValueError`, because a malformed address must not disable a server silently.
    """
    host, separator, port = address.rpartition(":")
    if address in ("", "0"):
        return None
    if not separator or not (port.isascii() and port.isdecimal()) or int(port) > _LAST_PORT:
        raise ValueError(
            f"{address!r} is not of the form [host]:port, with a port up to {_LAST_PORT}"
        )
    return Address(host.strip("[]"), int(port)) if int(port) else None
