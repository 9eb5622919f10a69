"""Apply manifests, like `kubectl apply`, for the CRDs and objects that a sandbox starts with."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import AlreadyExists

MANAGER = "caphv-sandbox"
MOVE_LABEL = "clusterctl.cluster.x-k8s.io"
ESTABLISHED_SECONDS = 30.0
# As safe as SafeLoader, and ten times as fast with libyaml.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(files: Iterable[Path]) -> list[Obj]:
    """Read all objects of YAML files, in the order of the files."""
    return [obj for file in files for obj in parse(file.read_text())]


def parse(text: str | bytes) -> list[Obj]:
    """Parse all objects of a YAML text."""
    return [obj for obj in yaml.load_all(text, _Loader) if obj]


def movable(crds: Iterable[Obj]) -> list[Obj]:
    """CRDs with the label by which `clusterctl move` finds the kinds to move, as `clusterctl init` sets it."""
    return [
        {**crd, "metadata": {**crd["metadata"], "labels": {**crd["metadata"].get("labels", {}), MOVE_LABEL: ""}}}
        for crd in crds
    ]


async def apply(client: ApiClient, objects: Sequence[Obj]) -> None:
    """Create or update objects: CRDs first; the rest once the CRDs are served.

    Raises ApiError, and TimeoutError for a CRD that is not established.
    """
    crds = [obj for obj in objects if obj["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind]
    rest = [obj for obj in objects if obj["kind"] != CUSTOM_RESOURCE_DEFINITIONS.kind]
    await asyncio.gather(*(_apply(client, CUSTOM_RESOURCE_DEFINITIONS, crd) for crd in crds))
    await _wait_established(client, [crd["metadata"]["name"] for crd in crds])
    discovery = Discovery(client)
    namespaces = [obj for obj in rest if obj["kind"] == "Namespace"]
    for batch in (namespaces, [obj for obj in rest if obj not in namespaces]):
        resources = [await discovery.resource(obj) for obj in batch]
        await asyncio.gather(*(_apply(client, *pair) for pair in zip(resources, batch, strict=True)))


async def _apply(client: ApiClient, resource: Resource, obj: Obj) -> None:
    # On a new API server all objects are new, and creating is far cheaper than server-side apply.
    try:
        await client.create(resource, obj)
    except AlreadyExists:
        await client.apply(resource, obj, manager=MANAGER)


async def _wait_established(client: ApiClient, names: Sequence[str]) -> None:
    # One by one: a list has all schemas, which are megabytes, and most CRDs are established by the time they are read.
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    for name in names:
        while not _established(await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{client.server} has not established {name}")
            await asyncio.sleep(0.1)


def _established(crd: Obj) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)
