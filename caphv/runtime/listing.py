"""Read collections page by page, from anything that lists them.

The pages of an untrusted server are bounded, so they may have to be smaller.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Protocol

from caphv.api.object import Obj, Resource
from caphv.runtime.budget import MemoryBudget, TimeBudget
from caphv.runtime.errors import TooLarge

# A list of an untrusted server may have at most this many objects.
MAX_OBJECTS = 100_000
_PAGE = 500
_UNTRUSTED_PAGE = 125
_MIN_PAGE = 1


class ListSource(Protocol):
    """A source of lists: an `ApiClient`, or an object that chooses one for each request."""

    @property
    def budget(self) -> MemoryBudget | None:
        """The budget of an untrusted server, whose responses are bounded; None for others."""

    @property
    def list(self) -> Callable[..., Awaitable[Obj]]:
        """Return a function like `ApiClient.list`."""


class Source(ListSource, Protocol):
    """A source of an informer. Its `budget` limits the memory of the cache; None for no limit."""

    @property
    def name(self) -> str:
        """Return the name of the server in metrics and logs."""

    @property
    def time(self) -> TimeBudget | None:
        """Return the server's share of the event loop; None for no limit."""

    @property
    def watch(self) -> Callable[..., AsyncGenerator[tuple[str, Obj], None]]:
        """Return a function like `ApiClient.watch`."""


class PageSize:
    """Number of objects that one reader requests at once.

    A page that was too large makes all later pages smaller.
    """

    def __init__(self, source: ListSource) -> None:
        self.limit = _UNTRUSTED_PAGE if source.budget else _PAGE

    def shrink(self) -> bool:
        """Request fewer objects from now on. Return False if the number is one already."""
        if self.limit <= _MIN_PAGE:
            return False
        self.limit = max(_MIN_PAGE, self.limit // 4)
        return True


async def list_pages(
    source: ListSource,
    resource: Resource,
    namespace: str = "",
    *,
    label_selector: str = "",
    field_selector: str = "",
    metadata_only: bool = False,
    exactly: str = "",
) -> AsyncIterator[list[Obj]]:
    """Yield the objects of each page of a collection.

    Raises `ApiError`, `Unreachable`; `TooLarge` if a single object is too large, or an untrusted
    list does not end.

    :param metadata_only: read objects that have nothing but their metadata
    :param exactly: read the collection as of this resource version; by default the newest
    """
    size = PageSize(source)
    count = 0
    token = ""
    while True:
        # The token of a further page includes the version of the first page.
        version = "" if token else exactly
        try:
            page = await source.list(
                resource,
                namespace,
                limit=size.limit,
                continue_token=token,
                label_selector=label_selector,
                field_selector=field_selector,
                metadata_only=metadata_only,
                resource_version=version,
                exact=bool(version),
            )
        except TooLarge:
            if not size.shrink():
                raise
            continue

        items = page.get("items") or []
        count += len(items)
        yield items
        token = page["metadata"].get("continue", "")
        if not token:
            return
        if source.budget and (not items or count > MAX_OBJECTS):
            raise TooLarge(f"the list of {resource} does not end: {count} objects")
