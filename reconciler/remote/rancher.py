"""Watches of Rancher's kinds, on management clusters that have Rancher.

They start when the first Cluster asks to be imported. The watch of a kind starts when its CRD
exists, because Rancher may be installed later, or never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from caphv.api import names, resources
from caphv.api.object import (
    CUSTOM_RESOURCE_DEFINITIONS,
    Obj,
    Resource,
    annotations_of,
    at,
    labels_of,
    list_at,
)
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from reconciler.remote.firstcontact import FirstContact

_CACHED_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "ownerReferences",
)
_LABELS = (
    names.CAPI_OWNER_LABEL,
    names.CAPI_OWNER_NAMESPACE_LABEL,
    names.CLUSTER_NAME_LABEL,
    *names.FLEET_LABELS,
)
_BACKOFF_SECONDS = 5.0
_KINDS = {
    str(kind): kind
    for kind in (resources.RANCHER_CLUSTERS, resources.MANAGED_CLUSTERS, resources.FLEET_CLUSTERS)
}


class Rancher:
    """Caches of Rancher's kinds."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._changed: Callable[[], None] = lambda: None
        self._crds = Informer(
            client,
            CUSTOM_RESOURCE_DEFINITIONS,
            metadata_only=True,
            transform=_slim_crd,
            on_contact=FirstContact(self._report),
        )
        self._crds.add_handler(self._handle_crd)
        self._informers: dict[Resource, Informer] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def connect(self, changed: Callable[[], None]) -> None:
        """Call `changed` for each change from now on."""
        self._changed = changed

    def start(self) -> None:
        """Start the watches, unless they run already."""
        if not self._tasks:
            self._tasks.append(self._crds.start())

    async def close(self) -> None:
        """Stop all watches."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def is_installed(self) -> bool | None:
        """Whether Rancher with Fleet is installed; None while unknown."""
        if not self._crds.synced:
            return None
        needed = (resources.MANAGED_CLUSTERS, resources.FLEET_CLUSTERS)
        return all(self._crds.get("", str(kind)) is not None for kind in needed)

    @property
    def synced(self) -> bool:
        """Whether the caches of all kinds that exist have been filled."""
        return all(informer.synced for informer in self._informers.values())

    def informer(self, kind: Resource) -> Informer | None:
        """Return the cache of a kind, None while its CRD is missing."""
        return self._informers.get(kind) if self._crds.get("", str(kind)) else None

    def _handle_crd(self, change: Change) -> None:
        """Start the watch of a kind when its CRD appears."""
        kind = _KINDS[change.key.name]
        if change.new is not None and kind not in self._informers:
            informer = Informer(
                self._client,
                kind,
                transform=_slim,
                on_contact=FirstContact(self._report),
                max_backoff=_BACKOFF_SECONDS,
            )
            informer.add_handler(self._handle_object)
            self._informers[kind] = informer
            self._tasks.append(informer.start())

        if change.old is None or change.new is None:
            self._changed()

    def _handle_object(self, change: Change) -> None:
        """Report a change of the fields that matter."""
        if change.old is None or change.new is None or _fields(change.old) != _fields(change.new):
            self._changed()

    def _report(self) -> None:
        """Report a change to the callback of `connect`, which may be set later than this one."""
        self._changed()


def _slim_crd(crd: Obj) -> Obj | None:
    """Return the fields of a CRD to cache, None for other kinds than Rancher's."""
    metadata = crd["metadata"]
    if metadata["name"] not in _KINDS:
        return None
    return {"metadata": {name: metadata[name] for name in ("name", "uid", "resourceVersion")}}


def is_externally_managed(cluster: Obj) -> bool:
    """Return whether Rancher leaves a managed cluster to CAAPF, and creates no Fleet Cluster."""
    return annotations_of(cluster).get(names.EXTERNALLY_MANAGED_ANNOTATION) == "true"


def is_owned_by_cluster(obj: Obj, uid: str) -> bool:
    """Return whether a Cluster with this uid is one of the owners of an object."""
    return uid in _owner_clusters(obj)


def _owner_clusters(obj: Obj) -> list[str]:
    """Return the uids of the Clusters that own an object."""
    owners = list_at(obj, "metadata", "ownerReferences")
    return [owner["uid"] for owner in owners if owner["kind"] == "Cluster"]


def _slim(obj: Obj) -> Obj:
    """Return the fields of an object to cache."""
    metadata = {name: obj["metadata"][name] for name in _CACHED_METADATA if name in obj["metadata"]}
    mark = annotations_of(obj).get(names.EXTERNALLY_MANAGED_ANNOTATION)
    if mark is not None:
        metadata["annotations"] = {names.EXTERNALLY_MANAGED_ANNOTATION: mark}
    return {
        "metadata": metadata,
        "spec": {"fleetWorkspaceName": at(obj, "spec", "fleetWorkspaceName") or ""},
        "status": {"clusterName": at(obj, "status", "clusterName") or ""},
    }


def _fields(obj: Obj) -> list[object]:
    """Return the fields whose changes matter to a cluster that is imported."""
    return [
        obj["spec"],
        obj["status"],
        is_externally_managed(obj),
        _owner_clusters(obj),
        *(labels_of(obj).get(name) for name in _LABELS),
    ]
