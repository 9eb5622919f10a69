"""How much memory the caches of one connection may take, so that a hostile server cannot exhaust the process."""

from __future__ import annotations

from caphv.runtime.errors import TooLarge


class MemoryBudget:
    """Bytes of JSON that all caches of one connection hold together."""

    def __init__(self, limit: int, server: str) -> None:
        self.used = 0
        self._limit = limit
        self._server = server

    def charge(self, size: int) -> None:
        """Account for `size` more bytes. Raises `TooLarge` and accounts for nothing if they exceed the limit."""
        if size > 0 and self.used + size > self._limit:
            raise TooLarge(f"{self._server}: its objects take more than the {self._limit} bytes a connection may use")
        self.used += size

    def release(self, size: int) -> None:
        """Account for `size` bytes less."""
        self.used -= size
