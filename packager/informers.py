"""Caches of kinds that may be missing: control planes and kinds of Fleet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, Obj, Resource
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from caphv.runtime.errors import Forbidden, NotFound, RequestError

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_SEARCHES = 30
_METADATA_FIELDS = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "labels",
    "annotations",
    "deletionTimestamp",
)
_Handler = Callable[[Change], None]


def strip_status(obj: Obj) -> Obj:
    """Return an object with only the metadata and the spec, which rendering needs."""
    metadata = obj["metadata"]
    return {
        "metadata": {name: metadata[name] for name in _METADATA_FIELDS if name in metadata},
        "spec": obj.get("spec") or {},
    }


class OptionalKinds:
    """Caches by group and kind. Each starts once it is wanted and its CRD exists.

    A Cluster refers to its control plane without a version, and Fleet may be installed later or
    never. `settled` is called when a kind was listed for the first time, or is known to be missing
    or forbidden. A temporary failure of the server proves neither.
    """

    def __init__(self, client: ApiClient, settled: Callable[[], None]) -> None:
        self._client = client
        self._on_settled = settled
        self._changed = asyncio.Event()
        self._wanted: dict[tuple[str, str], Callable[[Resource], Informer]] = {}
        self._informers: dict[tuple[str, str], Informer] = {}
        self._settled: set[tuple[str, str]] = set()
        self._contacted: set[tuple[str, str]] = set()
        self._errors: dict[tuple[str, str], Exception] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self.crds = Informer(
            client, CUSTOM_RESOURCE_DEFINITIONS, metadata_only=True, transform=_only_name
        )
        # A kind that was missing may exist once a CRD is new.
        self.crds.add_handler(self._on_crd_change)

    def want(
        self,
        group: str,
        kind: str,
        handler: _Handler,
        *,
        namespace: str = "",
        transform: Callable[[Obj], Obj | None] = strip_status,
    ) -> None:
        """Watch a kind as soon as it exists. Only the first call for a kind has an effect."""
        key = (group, kind)
        if key in self._wanted:
            return

        def make(resource: Resource) -> Informer:
            informer = Informer(
                self._client,
                resource,
                namespace=namespace if resource.namespaced else "",
                transform=transform,
                on_contact=lambda: self._note_contact(key),
                on_error=lambda error: self._note_error(key, informer, error),
            )
            informer.add_handler(handler)
            return informer

        self._wanted[key] = make
        self._search(key)

    def get(self, group: str, kind: str) -> Informer | None:
        """Return the cache of a kind, None while its CRD is missing."""
        return self._informers.get((group, kind))

    def is_settled(self, group: str, kind: str) -> bool:
        """Whether an object that is absent from the cache does not exist.

        That is, the kind was listed, cannot be listed, or does not exist.
        """
        return (group, kind) in self._settled

    def problem(self, group: str, kind: str) -> str:
        """Return why a kind cannot be read, empty when it is settled or was not read yet."""
        error = self._errors.get((group, kind))
        if error is None or self.is_settled(group, kind):
            return ""
        return f"{kind} of {group} cannot be read: {error}"

    async def wait_for_all(self) -> None:
        """Wait until all wanted kinds are settled."""
        while self._wanted.keys() - self._settled:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Stop all watches."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _search(self, key: tuple[str, str]) -> None:
        """Search the resource of a kind and watch it, unless that is under way."""
        if key not in self._tasks or self._tasks[key].done():
            self._tasks[key] = asyncio.create_task(self._watch(key))

    def _note_contact(self, key: tuple[str, str]) -> None:
        """Settle a kind whose watch was accepted, even if it was known to be missing before."""
        if key not in self._contacted:
            self._contacted.add(key)
            # Its objects are new to the listener, which is called only for a kind that settles.
            self._settled.discard(key)
            self._settle(key)

    def _note_error(self, key: tuple[str, str], informer: Informer, error: Exception) -> None:
        """Keep an error for messages, and settle a kind that may not be listed."""
        self._errors[key] = error
        if informer.synced or isinstance(error, Forbidden | NotFound):
            self._settle(key)

    def _settle(self, key: tuple[str, str]) -> None:
        if key not in self._settled:
            self._settled.add(key)
            self._changed.set()
            self._on_settled()

    async def _watch(self, key: tuple[str, str]) -> None:
        resource = await self._find_resource(key)
        if resource is not None:
            informer = self._informers[key] = self._wanted[key](resource)
            await informer.run()

    async def _find_resource(self, key: tuple[str, str]) -> Resource | None:
        """Return the resource of a kind, None if it does not exist.

        The search is repeated while the kind's CRD is new.
        """
        searches = 0
        while searches < _SEARCHES:
            try:
                return await find_resource(self._client, *key)
            except NotFound:
                searches += 1
                # A CRD exists before the server serves its kind.
                self._settle(key)
                if not any(_group(crd) == key[0] for crd in self.crds.store):
                    return None

            except RequestError as error:
                # Do not count this search, because a temporary failure of the server does not prove
                # that the kind is missing.
                self._errors[key] = error
                log.warning("cannot discover kind %s of %s, will retry: %s", key[1], key[0], error)
            await asyncio.sleep(_RETRY_SECONDS)
        return None

    def _on_crd_change(self, change: Change) -> None:
        if change.new is None:
            return
        group = _group(change.new)
        for key in self._wanted:
            if key[0] == group and key not in self._informers:
                self._search(key)


def _only_name(crd: Obj) -> Obj:
    metadata = crd["metadata"]
    return {"metadata": {name: metadata[name] for name in ("name", "uid", "resourceVersion")}}


def _group(crd: Obj) -> str:
    return str(crd["metadata"]["name"]).partition(".")[2]
