"""Discovery: versions that an API server serves of a group, and the resource names of its kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound


async def served_version(client: ApiClient, group: str, known: Sequence[str]) -> str:
    """Return the first of the `known` versions that the server serves.

    Raises:
        NotFound: the server does not serve the group (yet).
        ApiError: it serves none of these versions.
    """
    answer = await client.request("GET", f"/apis/{group}")
    served = {version["version"] for version in answer["versions"]}
    for version in known:
        if version in served:
            return version
    raise ApiError(0, "Unsupported", f"{group} is served as {sorted(served)}; required is one of {', '.join(known)}")


async def find_resource(client: ApiClient, group: str, kind: str) -> Resource:
    """Return a kind in the version that the server prefers and has it in. Raises NotFound if it serves no such kind."""
    found = await kinds_of(client, await client.request("GET", f"/apis/{group}"))
    if kind not in found:
        raise NotFound(404, "NotFound", f"{group} has no kind {kind}")
    return found[kind][0]


async def kinds_of(client: ApiClient, group: Obj, verbs: Collection[str] = ()) -> dict[str, list[Resource]]:
    """Return the resources of an APIGroup that have these verbs by kind, in the order in which the server prefers them.

    Several providers share a group: the version that the server prefers may lack kinds of others.
    """
    preferred = f"{group['name']}/{group['preferredVersion']['version']}"
    versions = [f"{group['name']}/{each['version']}" for each in group["versions"]]
    versions.sort(key=lambda version: version != preferred)
    found: dict[str, list[Resource]] = {}
    lists = await asyncio.gather(*(client.request("GET", f"/apis/{version}") for version in versions))
    for version, listed in zip(versions, lists, strict=True):
        for resource in _resources(version, listed, verbs):
            found.setdefault(resource.kind, []).append(resource)
    return found


class Discovery:
    """Maps kinds to resources, with one request for each group version."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._served: dict[str, dict[str, Resource]] = {}

    async def resource(self, obj: Obj) -> Resource:
        """Return the resource of an object. Raises LookupError if its kind is not served."""
        version = obj["apiVersion"]
        if version not in self._served:
            path = f"/apis/{version}" if "/" in version else f"/api/{version}"
            answer = await self._client.request("GET", path)
            self._served[version] = {item.kind: item for item in _resources(version, answer)}
        try:
            return self._served[version][obj["kind"]]
        except KeyError:
            raise LookupError(f"{self._client.server} does not serve {obj['kind']} in {version}") from None


def _resources(version: str, answer: Obj, verbs: Collection[str] = ()) -> Iterator[Resource]:
    group, _, name = version.rpartition("/")
    for item in answer["resources"]:
        if "/" not in item["name"] and set(verbs) <= set(item.get("verbs") or ()):
            yield Resource(group, name, item["name"], item["kind"], item["namespaced"])
