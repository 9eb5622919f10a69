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
# This loader is as safe as SafeLoader, and ten times as fast with libyaml.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(files: Iterable[Path]) -> list[Obj]:
    """Read all objects of YAML files, in the order of the files."""
    return [obj for file in files for obj in parse(file.read_text())]


def parse(text: str | bytes) -> list[Obj]:
    """Parse all objects of a YAML text."""
    return [obj for obj in yaml.load_all(text, _Loader) if obj]


def with_move_label(crds: Iterable[Obj]) -> list[Obj]:
    """Label CRDs like `clusterctl init`, so that `clusterctl move` moves objects of their kinds."""
    return [
        {
            **crd,
            "metadata": {
                **crd["metadata"],
                "labels": {**crd["metadata"].get("labels", {}), MOVE_LABEL: ""},
            },
        }
        for crd in crds
    ]


async def apply(client: ApiClient, objects: Sequence[Obj]) -> None:
    """Create or update CRDs, and other objects when the CRDs are served.

    Raises `ApiError`, and `TimeoutError` for a CRD that is not established.
    """
    crds = [obj for obj in objects if obj["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind]
    await asyncio.gather(*(_apply(client, CUSTOM_RESOURCE_DEFINITIONS, crd) for crd in crds))
    await _wait_for_crds(client, [crd["metadata"]["name"] for crd in crds])

    # The server refuses objects whose namespace does not exist.
    instances = [obj for obj in objects if obj["kind"] != CUSTOM_RESOURCE_DEFINITIONS.kind]
    namespaces = [obj for obj in instances if obj["kind"] == "Namespace"]
    discovery = Discovery(client)
    for batch in (namespaces, [obj for obj in instances if obj not in namespaces]):
        resources = [await discovery.resource(obj) for obj in batch]
        await asyncio.gather(
            *(_apply(client, *pair) for pair in zip(resources, batch, strict=True))
        )


async def _apply(client: ApiClient, resource: Resource, obj: Obj) -> None:
    # On a new API server, all objects are new, and a creation is far cheaper than a server-side
    # apply.
    try:
        await client.create(resource, obj)
    except AlreadyExists:
        await client.apply(resource, obj, manager=MANAGER)


async def _wait_for_crds(client: ApiClient, names: Sequence[str]) -> None:
    # Read single CRDs, because a list would transfer megabytes of schemas. Most CRDs are
    # established when they are read.
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    for name in names:
        while not _is_established(await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{client.server} has not established {name}")
            await asyncio.sleep(0.1)


def _is_established(crd: Obj) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)
