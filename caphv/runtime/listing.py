"""What collections are read from, and lists of whole ones, page by page.

The pages of an untrusted server are bounded, so they may have to be smaller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Protocol

from caphv.api.object import Obj, Resource
from caphv.runtime.budget import MemoryBudget, TimeBudget
from caphv.runtime.errors import TooLarge

# In a list of an untrusted server.
MAX_OBJECTS = 100_000
_PAGE, _UNTRUSTED_PAGE, _SMALLEST_PAGE = 500, 125, 1


class ListSource(Protocol):
    """What lists are read from: an `ApiClient`, or something that chooses one for each request."""

    @property
    def budget(self) -> MemoryBudget | None:
        """Set for an untrusted server, whose responses are bounded."""

    @property
    def list(self) -> Callable[..., Awaitable[Obj]]:
        """As `ApiClient.list`."""


class Source(ListSource, Protocol):
    """What an informer reads from. Its `budget` is what the cache may take; None for no limit."""

    @property
    def name(self) -> str:
        """Name of the server in metrics and logs."""

    @property
    def time(self) -> TimeBudget | None:
        """Share of the event loop that the server may use; None for no limit."""

    @property
    def watch(self) -> Callable[..., AsyncGenerator[tuple[str, Obj], None]]:
        """As `ApiClient.watch`."""


class PageSize:
    """How many objects one reader asks a server for at once. A page that was too large makes all later ones smaller."""

    def __init__(self, source: ListSource) -> None:
        self.limit = _UNTRUSTED_PAGE if source.budget else _PAGE

    def shrink(self) -> bool:
        """Ask for fewer objects from now on; return False if it is one already."""
        if self.limit <= _SMALLEST_PAGE:
            return False
        self.limit = max(_SMALLEST_PAGE, self.limit // 4)
        return True


async def latest_version(source: ListSource, resource: Resource, namespace: str, selectors: Mapping[str, str]) -> int:
    """Ask a server for its newest version, with the least of a list. Raises `ApiError`, `Unreachable`."""
    page = await source.list(resource, namespace, limit=1, **selectors)
    return int(page["metadata"]["resourceVersion"])


async def list_pages(
    source: ListSource, resource: Resource, namespace: str = "", *, label_selector: str = "", exactly: str = ""
) -> AsyncIterator[list[Obj]]:
    """Yield the objects of each page of a collection; `exactly` as of a resource version.

    Raises `ApiError`, `Unreachable`; `TooLarge` if a single object is too large, or an untrusted list does not end.
    """
    size, seen, token = PageSize(source), 0, ""
    while True:
        # The token of a further page stands for the version of the first.
        version = "" if token else exactly
        try:
            page = await source.list(
                resource,
                namespace,
                limit=size.limit,
                continue_token=token,
                label_selector=label_selector,
                resource_version=version,
                exact=bool(version),
            )
        except TooLarge:
            if not size.shrink():
                raise
            continue
        items = page.get("items") or []
        seen += len(items)
        yield items
        token = page["metadata"].get("continue", "")
        if not token:
            return
        if source.budget and (not items or seen > MAX_OBJECTS):
            raise TooLarge(f"the list of {resource} does not end: {seen} objects")
