"""Watches of IPAddressClaims and IPAddresses, on management clusters that have machines with them.

They start with the first such machine, once the CRDs exist: the core may be too old for them, or
be upgraded later.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable

from caphv.api import resources
from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, Key, Obj, Resource, at, dict_at
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import served_version_of
from caphv.runtime.errors import NotFound, RequestError, without_trace

log = logging.getLogger(__name__)

_CRDS = frozenset(
    str(resource(resources.IPAM_VERSIONS[0]))
    for resource in (resources.ip_address_claims, resources.ip_addresses)
)
_CACHED_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "deletionTimestamp",
    "ownerReferences",
)
_BACKOFF_SECONDS = 5.0
# A core that is too old for the claims stays so until it is upgraded.
_MAX_BACKOFF_SECONDS = 60.0


async def claims_version(client: ApiClient) -> str:
    """Return the version of IPAddressClaims to use. Raises `NotFound` if none is served.

    IPAM providers have their pools in the same group, with versions of their own.
    """
    kind = resources.ip_address_claims(resources.IPAM_VERSIONS[0]).kind
    return await served_version_of(client, resources.IPAM_GROUP, kind, resources.IPAM_VERSIONS)


class Ipam:
    """Caches of the kinds of Cluster API's contract for IPAM providers.

    :param namespace: the only namespace to read, empty for all
    """

    def __init__(self, client: ApiClient, namespace: str = "") -> None:
        self._client = client
        self._namespace = namespace
        self._on_state: Callable[[], None] = lambda: None
        self._on_claim: Callable[[Key], None] = lambda _: None
        self._crds = Informer(
            client,
            CUSTOM_RESOURCE_DEFINITIONS,
            metadata_only=True,
            transform=_slim_crd,
            on_contact=self._follow_crds,
            on_error=lambda _: self._on_state(),
        )
        self._crds.add_handler(lambda _: self._follow_crds())
        self._claims: Informer | None = None
        self._addresses: Informer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._watches: list[asyncio.Task[None]] = []
        self._opening: asyncio.Task[None] | None = None
        self._version_error: Exception | None = None
        self._crds_changed = asyncio.Event()

    def connect(self, on_state: Callable[[], None], on_claim: Callable[[Key], None]) -> None:
        """Call the handlers from now on.

        :param on_state: called when the API appears or disappears, or when reading it begins or
            ceases to succeed
        :param on_claim: called with the key of a claim that changed, or whose address did
        """
        self._on_state = on_state
        self._on_claim = on_claim

    def start(self) -> None:
        """Start the watches, unless they run already."""
        if not self._tasks:
            self._tasks.append(self._crds.start())

    async def close(self) -> None:
        """Stop all watches."""
        tasks = [*self._tasks, *self._watches, *filter(None, [self._opening])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_served(self) -> bool | None:
        """Whether the management cluster has the API; None while unknown."""
        if not self._crds.synced:
            return None
        return all(self._crds.get("", name) is not None for name in _CRDS)

    @property
    def claims(self) -> Informer | None:
        """The cache of claims, None until both caches have been filled."""
        return self._claims if self._is_filled() else None

    @property
    def addresses(self) -> Informer | None:
        """The cache of addresses, None until both caches have been filled."""
        return self._addresses if self._is_filled() else None

    @property
    def error(self) -> Exception | None:
        """Why a watch fails, or does not begin, at present.

        `NotFound` means that the API server has the kinds in none of our versions.
        """
        if self._version_error is not None:
            return self._version_error
        watches = (self._crds, self._claims, self._addresses)
        return next((watch.last_error for watch in watches if watch and watch.last_error), None)

    def _is_filled(self) -> bool:
        """Whether the API exists, and both caches have been filled."""
        watches = (self._claims, self._addresses)
        return bool(self.is_served) and all(watch and watch.synced for watch in watches)

    def _follow_crds(self) -> None:
        """Open the caches once both CRDs exist."""
        self._crds_changed.set()
        if self.is_served and self._opening is None:
            self._start_opening()
        self._on_state()

    def _start_opening(self, delay: float = 0.0) -> None:
        # The task logs nothing about the machine that was the first.
        self._opening = contextvars.Context().run(asyncio.create_task, self._open(delay))

    def _handle_error(self, error: Exception) -> None:
        """Open the caches again if the API server no longer has their version.

        A core that is upgraded may drop it. If the CRDs are recreated, no cached object exists.
        """
        is_open = self._opening is not None and self._opening.done()
        if is_open and isinstance(error, NotFound):
            for task in self._watches:
                task.cancel()
            self._claims = self._addresses = None
            self._crds_changed.clear()
            self._start_opening(_BACKOFF_SECONDS)
        self._on_state()

    async def _open(self, delay: float) -> None:
        """Start the watches of both kinds, in the newest version that is served and known.

        :param delay: seconds to wait before, unless a CRD changes
        """
        await self._wait_for_crds(delay)
        version = await self._wait_for_version()
        self._claims = self._informer(resources.ip_address_claims(version), _slim_claim)
        self._claims.add_handler(lambda change: self._on_claim(change.key))
        self._addresses = self._informer(resources.ip_addresses(version), _slim_address)
        self._addresses.add_handler(self._handle_address)
        self._watches = [self._claims.start(), self._addresses.start()]

    async def _wait_for_version(self) -> str:
        """Return the version of claims, once the API server has one that we know."""
        delay = _BACKOFF_SECONDS
        while True:
            self._crds_changed.clear()
            try:
                version = await claims_version(self._client)
            except RequestError as error:
                # A new CRD is not served at once.
                log.info("cannot find the version of IPAddressClaims: %s", error)
                self._version_error = without_trace(error)
                self._on_state()
                await self._wait_for_crds(delay)
                delay = min(2 * delay, _MAX_BACKOFF_SECONDS)
            else:
                self._version_error = None
                return version

    async def _wait_for_crds(self, seconds: float) -> None:
        """Wait for a change of a CRD, but not longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._crds_changed.wait()

    def _informer(self, resource: Resource, transform: Callable[[Obj], Obj]) -> Informer:
        """Return a cache that reports its state, and whose errors may open both caches again."""
        return Informer(
            self._client,
            resource,
            namespace=self._namespace,
            transform=transform,
            on_contact=self._on_state,
            on_error=self._handle_error,
            max_backoff=_BACKOFF_SECONDS,
        )

    def _handle_address(self, change: Change) -> None:
        """Report the claim of an address that has changed."""
        claim = at(change.obj, "spec", "claimRef", "name")
        self._on_claim(Key(change.key.namespace, str(claim or change.key.name)))


def _slim_crd(crd: Obj) -> Obj | None:
    """Return the fields of a CRD to cache, None for other kinds."""
    metadata = crd["metadata"]
    if metadata["name"] not in _CRDS:
        return None
    return {"metadata": {name: metadata[name] for name in ("name", "uid", "resourceVersion")}}


def _slim_claim(claim: Obj) -> Obj:
    """Return the fields of a claim to cache."""
    status = claim.get("status") or {}
    return {
        "metadata": _slim_metadata(claim),
        "spec": {"poolRef": dict_at(claim, "spec", "poolRef")},
        "status": {name: status[name] for name in ("addressRef", "conditions") if name in status},
    }


def _slim_address(address: Obj) -> Obj:
    """Return the fields of an address to cache."""
    spec = address.get("spec") or {}
    names = ("claimRef", "address", "prefix", "gateway")
    return {
        "metadata": _slim_metadata(address),
        "spec": {name: spec[name] for name in names if name in spec},
    }


def _slim_metadata(obj: Obj) -> Obj:
    """Return the metadata of an object to cache."""
    return {name: obj["metadata"][name] for name in _CACHED_METADATA if name in obj["metadata"]}
