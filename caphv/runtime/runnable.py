"""What a manager runs in addition to controllers: servers, child processes and the like.

Not in the module of the manager, so that a process with nothing else needs no API client: its libraries would take
half of the memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

_LAST_PORT = 65535


class Runnable(ABC):
    """Runs from start to shutdown, with or without the lease."""

    @abstractmethod
    async def run(self) -> None:
        """Run until cancelled; an exception ends the process."""

    def stopping(self) -> None:
        """The process begins to stop; `run` is cancelled once all controllers have ended, which may take a while."""
        return

    def not_ready(self) -> list[str]:
        """Reasons why this runnable is not ready."""
        return []

    def metrics(self) -> bytes:
        """Metrics from outside the registry of this process, in Prometheus text format."""
        return b""


def listening_address(address: str) -> tuple[str, int] | None:
    """Split `[host]:port`; None if it is empty or has port 0, which disables a server.

    Raises `ValueError`: a malformed address must not disable a server silently.
    """
    host, separator, port = address.rpartition(":")
    if address in ("", "0"):
        return None
    if not separator or not (port.isascii() and port.isdecimal()) or int(port) > _LAST_PORT:
        raise ValueError(f"{address!r} is not of the form [host]:port, with a port up to {_LAST_PORT}")
    return (host.strip("[]"), int(port)) if int(port) else None
