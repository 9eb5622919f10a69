"""A pretended collection on an API server, as far as `Informer` asks for it: pages, history, watches, failures."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, cast

from caphv.api.object import Key, Obj, Resource, key_of
from caphv.runtime.budget import MemoryBudget, TimeBudget
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Gone, SilentWatch, Unreachable
from tests.support.virtualtime import settle

THINGS = Resource("example.io", "v1", "things", "Thing")
Event = tuple[str, Obj]


class Collection:
    """Stands for the `ApiClient` of an informer. `failures` are raised by the next requests, one each.

    While `hangs` is set, a list waits so many seconds and then gets no answer. While `withheld` is set, watches do not
    hear what happens. A watch that hears nothing for `patience` seconds is given up.
    """

    name = "fake"
    budget: MemoryBudget | None = None
    time: TimeBudget | None = None

    def __init__(self) -> None:
        self.version = 10
        self.objects: dict[Key, Obj] = {}
        self.failures: deque[Exception] = deque()
        self.attempts: list[float] = []
        self.lists = 0
        self.watched_from: list[int] = []
        self.page = 2
        self.hangs = 0.0
        self.withheld = False
        self.patience: float | None = None
        self.between_pages: Callable[[], object] = lambda: None
        self.open_watches: dict[asyncio.Queue[Event | Exception | None], int] = {}
        self._history: list[tuple[int, Event]] = []
        self._forgotten = 0
        self._snapshots: dict[str, list[Obj]] = {}

    # What happens on the server

    def write(self, name: str, **labels: str) -> Obj:
        """Create or change an object; answers what the server would answer."""
        kind = "MODIFIED" if Key("ns", name) in self.objects else "ADDED"
        self.version += 1
        metadata: Obj = {"namespace": "ns", "name": name, "resourceVersion": str(self.version), "labels": labels}
        obj = {"metadata": metadata | {"managedFields": [{"manager": "kubectl"}]}}
        self.objects[key_of(obj)] = obj
        self._tell(kind, obj)
        return copy(obj)

    def delete(self, name: str) -> None:
        """Delete an object."""
        obj = copy(self.objects.pop(Key("ns", name)))
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", obj)

    def bookmark(self) -> None:
        """Something happened to other kinds of objects; watches hear how far they are."""
        self.version += 5
        self._tell("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def end_watches(self, error: Exception | None = None) -> None:
        """End all watches, in good order or with an error."""
        for queue in self.open_watches:
            queue.put_nowait(error)

    def compact(self) -> None:
        """Forget the history: older versions cannot be watched from any more."""
        self.version += 1
        self._forgotten = self.version

    def backup(self) -> tuple[int, dict[Key, Obj]]:
        """What `restore` brings back."""
        return self.version, dict(self.objects)

    def restore(self, backup: tuple[int, dict[Key, Obj]]) -> None:
        """Go back to a backup; what happened since never did."""
        self.version, self.objects = backup
        self._history = [entry for entry in self._history if entry[0] <= self.version]

    def versions(self) -> dict[Key, str]:
        """What an informer should have."""
        return {key: obj["metadata"]["resourceVersion"] for key, obj in self.objects.items()}

    def _tell(self, kind: str, obj: Obj) -> None:
        self._history.append((self.version, (kind, obj)))
        for queue, start in {} if self.withheld else self.open_watches.items():
            # A server sends nothing of versions that the watch claims to have seen, not even bookmarks.
            if self.version > start:
                queue.put_nowait((kind, copy(obj)))

    # What the informer asks for

    async def list(
        self,
        _resource: Resource,
        _namespace: str = "",
        *,
        limit: int = 0,
        continue_token: str = "",
        field_selector: str = "",
        **_: Any,
    ) -> Obj:
        self._attempt()
        if field_selector:
            named = [obj for key, obj in self.objects.items() if field_selector == f"metadata.name={key.name}"]
            return {"metadata": {"resourceVersion": str(self.version)}, "items": [copy(obj) for obj in named]}
        if self.hangs:
            await asyncio.sleep(self.hangs)
            raise Unreachable("timed out")
        if limit == 1:
            return {"metadata": {"resourceVersion": str(self.version)}, "items": []}
        if not continue_token:
            self.lists += 1
            continue_token = f"{self.version}/0"
            self._snapshots[str(self.version)] = [copy(obj) for _, obj in sorted(self.objects.items())]
        else:
            self.between_pages()
        await asyncio.sleep(0.01)
        version, _, start = continue_token.partition("/")
        end = int(start) + self.page
        snapshot = self._snapshots[version]
        metadata = {"resourceVersion": version}
        if end < len(snapshot):
            metadata["continue"] = f"{version}/{end}"
        return {"metadata": metadata, "items": snapshot[int(start) : end]}

    async def watch(
        self,
        _resource: Resource,
        _namespace: str = "",
        *,
        resource_version: str,
        on_open: Callable[[], None],
        **_: Any,
    ) -> AsyncGenerator[Event, None]:
        self._attempt()
        start = int(resource_version)
        self.watched_from.append(start)
        if start < self._forgotten:
            raise Gone(410, "Expired", "too old resource version")
        queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        for version, (kind, obj) in self._history:
            if version > start:
                queue.put_nowait((kind, copy(obj)))
        self.open_watches[queue] = start
        try:
            on_open()
            while True:
                item = await self._next_event(queue)
                if item is None:
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            del self.open_watches[queue]

    async def _next_event(self, queue: asyncio.Queue[Event | Exception | None]) -> Event | Exception | None:
        try:
            return await asyncio.wait_for(queue.get(), self.patience)
        except TimeoutError:
            return SilentWatch("no event")

    def _attempt(self) -> None:
        self.attempts.append(asyncio.get_running_loop().time())
        if self.failures:
            raise self.failures.popleft()


def copy(obj: Obj) -> Obj:
    """Objects from the wire are not shared with anyone."""
    return {**obj, "metadata": dict(obj["metadata"])}


class Watched:
    """An informer at work on a pretended collection, and what its handler heard: `+a`, `~a`, `-a`."""

    def __init__(self, server: Collection, **options: Any) -> None:
        self.server = server
        self.informer = Informer(cast(ApiClient, server), THINGS, **options)
        self.heard: list[str] = []
        self.replayed: dict[Key, str] = {}
        self.informer.add_handler(self._hear)

    def _hear(self, change: Change) -> None:
        sign = "+" if change.old is None else "-" if change.new is None else "~"
        self.heard.append(sign + change.key.name)
        assert (change.old is not None) == (change.key in self.replayed), "handlers hear a change that does not follow"
        if change.new is None:
            del self.replayed[change.key]
        else:
            self.replayed[change.key] = change.new["metadata"]["resourceVersion"]

    def versions(self) -> dict[Key, str]:
        return {key_of(obj): obj["metadata"]["resourceVersion"] for obj in self.informer.store}

    def hearing(self) -> list[str]:
        """What was heard since the last question."""
        heard, self.heard = self.heard, []
        return heard


@contextlib.asynccontextmanager
async def watched(server: Collection, **options: Any) -> AsyncIterator[Watched]:
    """An informer that has synced; ends it afterwards and checks that nothing stays open."""
    it = Watched(server, **options)
    task = it.informer.start()
    try:
        await it.informer.wait_synced()
        await settle()
        yield it
        assert not task.done(), "an informer must never end by itself"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not server.open_watches
