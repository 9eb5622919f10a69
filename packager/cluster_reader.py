"""Clusters as a management cluster has them, read once: for the command line, which keeps no caches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from caphv.api import names
from caphv.api.object import Obj, Resource
from caphv.api.resources import CLUSTER_API_GROUP, FLEET_GROUP
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from caphv.runtime.errors import Forbidden, NotFound
from packager.addons.merge import at
from packager.rendering.bundles import RANCHER_WORKSPACE

log = logging.getLogger(__name__)

_PAGE = 500
_Kind = tuple[str, str]


async def objects(client: ApiClient, namespace: str = "") -> list[Obj]:
    """Return Clusters, of one namespace or of all, and what their bundles depend on, for `facts_of`.

    Fleet's Clusters are left out where there are none, or where they may not be read. Raises ApiError and Unreachable;
    NotFound means that Cluster API is not installed.
    """
    kinds = _Kinds(client)
    clusters = await kinds.list((CLUSTER_API_GROUP, "Cluster"), namespace)
    classes = await kinds.list((CLUSTER_API_GROUP, "ClusterClass"), "")
    referenced = {_kind(ref) for ref in _references(clusters, classes) if ref}
    found = [*clusters, *classes]
    for kind in sorted(referenced | {(names.GROUP, "HarvesterCluster")}):
        # The classes of clusters may stand in another namespace.
        try:
            found += await kinds.list(kind, "" if kind[1].endswith("Template") else namespace)
        except NotFound:
            log.warning("there is no kind %s in group %s, which a cluster refers to", kind[1], kind[0])
    return found + await _fleet_clusters(kinds, namespace)


class _Kinds:
    """Lists kinds whose version and plural it asks the API server for."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._known: dict[_Kind, Resource] = {}

    async def list(self, kind: _Kind, namespace: str) -> list[Obj]:
        resource = await self._resource(kind)
        found: list[Obj] = []
        token = ""
        while True:
            answer = await self._client.list(resource, namespace, limit=_PAGE, continue_token=token)
            # Items of a list have neither of the two.
            head = {"apiVersion": resource.api_version, "kind": resource.kind}
            found += ({**head, **item} for item in answer["items"])
            token = answer["metadata"].get("continue", "")
            if not token:
                return found

    async def _resource(self, kind: _Kind) -> Resource:
        if kind not in self._known:
            self._known[kind] = await find_resource(self._client, *kind)
        return self._known[kind]


async def _fleet_clusters(kinds: _Kinds, namespace: str) -> list[Obj]:
    found = []
    # Rancher's are in their own namespace.
    for place in {namespace, RANCHER_WORKSPACE} if namespace else {""}:
        try:
            found += await kinds.list((FLEET_GROUP, "Cluster"), place)
        except NotFound:
            continue
        except Forbidden as error:
            log.warning("skipped duplicate-Fleet check: %s", error)
    return found


def _references(clusters: Iterable[Obj], classes: Iterable[Obj]) -> Iterator[Any]:
    for cluster in clusters:
        yield from (at(cluster, "spec", field) for field in ("controlPlaneRef", "infrastructureRef"))
    for found in classes:
        for part in ("controlPlane", "infrastructure"):
            part_spec = at(found, "spec", part)
            yield at(part_spec, "templateRef") or at(part_spec, "ref")


def _kind(ref: Any) -> _Kind:
    return str(at(ref, "apiGroup") or str(at(ref, "apiVersion") or "").rpartition("/")[0]), str(at(ref, "kind"))
