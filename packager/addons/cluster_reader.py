"""Reads clusters from a management cluster once, for commands, which keep no caches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from caphv.api import names
from caphv.api.object import Obj, Resource, at, text_at
from caphv.api.resources import CLUSTER_API_GROUP, FLEET_GROUP
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import find_resource
from caphv.runtime.errors import Forbidden, NotFound
from packager.addons.facts import RANCHER_WORKSPACE

log = logging.getLogger(__name__)

_PAGE = 500
_Kind = tuple[str, str]


async def objects(client: ApiClient, namespace: str = "") -> list[Obj]:
    """Return Clusters of one namespace or all, with objects that `facts_of` needs.

    Fleet Clusters are left out if Fleet is not installed or they may not be read. Raises `ApiError`
    and `Unreachable`; `NotFound` means that Cluster API is not installed.
    """
    kinds = _Kinds(client)
    clusters = await kinds.list((CLUSTER_API_GROUP, "Cluster"), namespace)
    classes = await kinds.list((CLUSTER_API_GROUP, "ClusterClass"), "")
    referenced = {_kind(ref) for ref in _references(clusters, classes) if ref}
    objs = [*clusters, *classes]
    for kind in sorted(referenced | {(names.GROUP, "HarvesterCluster")}):
        # The classes of clusters may be in another namespace.
        try:
            objs += await kinds.list(kind, "" if kind[1].endswith("Template") else namespace)
        except NotFound:
            log.warning(
                "there is no kind %s in group %s, which a cluster refers to", kind[1], kind[0]
            )
    return objs + await _fleet_clusters(kinds, namespace)


class _Kinds:
    """Lists kinds, and asks the API server for their versions and plurals."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._resources: dict[_Kind, Resource] = {}

    async def list(self, kind: _Kind, namespace: str) -> list[Obj]:
        resource = await self._resource(kind)
        # The API server leaves out both fields in items of a list.
        head = {"apiVersion": resource.api_version, "kind": resource.kind}

        objs: list[Obj] = []
        token = ""
        while True:
            answer = await self._client.list(resource, namespace, limit=_PAGE, continue_token=token)
            objs += ({**head, **item} for item in answer["items"])
            token = answer["metadata"].get("continue", "")
            if not token:
                return objs

    async def _resource(self, kind: _Kind) -> Resource:
        if kind not in self._resources:
            self._resources[kind] = await find_resource(self._client, *kind)
        return self._resources[kind]


async def _fleet_clusters(kinds: _Kinds, namespace: str) -> list[Obj]:
    """Return the Fleet Clusters that may import clusters of a namespace, or of all if it is empty.

    Returns none if Fleet is not installed or they may not be read.
    """
    objs = []
    # Fleet Clusters of Rancher are in its own namespace.
    namespaces = {namespace, RANCHER_WORKSPACE} if namespace else {""}
    for fleet_namespace in namespaces:
        try:
            objs += await kinds.list((FLEET_GROUP, "Cluster"), fleet_namespace)
        except NotFound:
            continue
        except Forbidden as error:
            log.warning("skipped duplicate-Fleet check: %s", error)
    return objs


def _references(clusters: Iterable[Obj], classes: Iterable[Obj]) -> Iterator[Any]:
    for cluster in clusters:
        yield from (
            at(cluster, "spec", field) for field in ("controlPlaneRef", "infrastructureRef")
        )
    for cluster_class in classes:
        for part in ("controlPlane", "infrastructure"):
            part_spec = at(cluster_class, "spec", part)
            yield at(part_spec, "templateRef") or at(part_spec, "ref")


def _kind(ref: Any) -> _Kind:
    # `v1beta2` names the group, `v1beta1` the version.
    group = at(ref, "apiGroup") or text_at(ref, "apiVersion").rpartition("/")[0]
    return str(group), str(at(ref, "kind"))
