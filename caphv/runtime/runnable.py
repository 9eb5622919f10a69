"""Parts of a process that are no controllers.

Apart from the manager, so that a process that has only such a part needs no client of an API server: the libraries of
that take half of its memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

_LAST_PORT = 65535


class Runnable(ABC):
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
    """Split `[host]:port`; None for an address that is empty or has port 0, which turns a server off.

    Raises `ValueError`: what is no address must not turn a server off in silence.
    """
    host, separator, port = address.rpartition(":")
    if address in ("", "0"):
        return None
    if not separator or not (port.isascii() and port.isdecimal()) or int(port) > _LAST_PORT:
        raise ValueError(f"{address!r} is not of the form [host]:port, with a port up to {_LAST_PORT}")
    return (host.strip("[]"), int(port)) if int(port) else None
