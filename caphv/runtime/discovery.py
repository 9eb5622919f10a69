"""Discover which versions of a group an API server serves, and the resource names of its kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound


async def served_version(client: ApiClient, group: str, versions: Sequence[str]) -> str:
    """Return the first of the versions that the server serves.

    Raises `NotFound` if the server does not serve the group (yet), and another `ApiError` if it
    serves none of these versions.
    """
    answer = await client.request("GET", f"/apis/{group}")
    served = {version["version"] for version in answer["versions"]}
    for version in versions:
        if version in served:
            return version
    raise ApiError(
        0,
        "Unsupported",
        f"{group} is served as {sorted(served)}; required is one of {', '.join(versions)}",
    )


async def served_version_of(
    client: ApiClient, group: str, kind: str, versions: Sequence[str]
) -> str:
    """Return the first of the versions in which the server has a kind of a shared group.

    Raises `NotFound` if it has the kind in none of these versions (yet), even if it has the group.
    """
    kinds = await kinds_of(client, await client.request("GET", f"/apis/{group}"))
    served = {resource.version for resource in kinds.get(kind, ())}
    for version in versions:
        if version in served:
            return version
    raise NotFound(404, "NotFound", f"{group} has no kind {kind} in {' or '.join(versions)}")


async def find_resource(client: ApiClient, group: str, kind: str) -> Resource:
    """Return a kind in the version that the server prefers among the versions with this kind.

    Raises `NotFound` if the server serves no such kind.
    """
    kinds = await kinds_of(client, await client.request("GET", f"/apis/{group}"))
    if kind not in kinds:
        raise NotFound(404, "NotFound", f"{group} has no kind {kind}")
    return kinds[kind][0]


async def kinds_of(
    client: ApiClient, group: Obj, verbs: Collection[str] = ()
) -> dict[str, list[Resource]]:
    """Return the resources of an APIGroup that have these verbs, by kind.

    The server's preferred version comes first. Because several providers share a group, that
    version may lack kinds of some of them.
    """
    preferred = f"{group['name']}/{group['preferredVersion']['version']}"
    versions = [f"{group['name']}/{entry['version']}" for entry in group["versions"]]
    versions.sort(key=lambda version: version != preferred)

    kinds: dict[str, list[Resource]] = {}
    requests = (client.request("GET", f"/apis/{version}") for version in versions)
    answers = await asyncio.gather(*requests)
    for version, answer in zip(versions, answers, strict=True):
        for resource in _resources(version, answer, verbs):
            kinds.setdefault(resource.kind, []).append(resource)
    return kinds


class Discovery:
    """Map kinds to resources, with one request for each group version."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._served: dict[str, dict[str, Resource]] = {}

    async def resource(self, obj: Obj) -> Resource:
        """Return the resource of an object. Raises `LookupError` if its kind is not served."""
        version = obj["apiVersion"]
        if version not in self._served:
            path = f"/apis/{version}" if "/" in version else f"/api/{version}"
            answer = await self._client.request("GET", path)
            self._served[version] = {item.kind: item for item in _resources(version, answer)}
        try:
            return self._served[version][obj["kind"]]
        except KeyError:
            raise LookupError(
                f"{self._client.server} does not serve {obj['kind']} in {version}"
            ) from None


def _resources(version: str, answer: Obj, verbs: Collection[str] = ()) -> Iterator[Resource]:
    group, _, name = version.rpartition("/")
    for item in answer["resources"]:
        if "/" not in item["name"] and set(verbs) <= set(item.get("verbs") or ()):
            yield Resource(group, name, item["name"], item["kind"], item["namespaced"])
