"""API servers with the kinds of a whole cluster, without controllers: what backups are read from and restored to."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from caphv.api.object import NAMESPACES, SECRETS, Obj, Resource, key_of, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import AlreadyExists, Unreachable
from sandbox.processes.apiserver import ApiServer
from tests.support.e2e import crd

KINDS = [
    ("cluster.x-k8s.io", "v1beta2", "Cluster"),
    ("cluster.x-k8s.io", "v1beta2", "ClusterClass"),
    ("cluster.x-k8s.io", "v1beta2", "Machine"),
    ("cluster.x-k8s.io", "v1beta2", "MachineHealthCheck"),
    ("addons.cluster.x-k8s.io", "v1beta2", "ClusterResourceSet"),
    ("bootstrap.cluster.x-k8s.io", "v1beta1", "RKE2Config"),
    ("controlplane.cluster.x-k8s.io", "v1beta1", "RKE2ControlPlane"),
    ("infrastructure.cluster.x-k8s.io", "v1beta1", "HarvesterCluster"),
    ("infrastructure.cluster.x-k8s.io", "v1beta1", "HarvesterMachine"),
    ("infrastructure.cluster.x-k8s.io", "v1beta1", "HarvesterMachineTemplate"),
]


def definitions(without: str = "") -> list[Obj]:
    """CRDs of all kinds, except one."""
    return [_definition(*kind) for kind in KINDS if kind[2] != without]


def _definition(group: str, version: str, kind: str) -> Obj:
    definition = crd(group, version, kind)
    plural = "clusterclasses" if kind == "ClusterClass" else f"{kind.lower()}s"
    definition["metadata"]["name"] = f"{plural}.{group}"
    definition["spec"]["names"]["plural"] = plural
    return definition


async def load(client: ApiClient, objs: list[Obj]) -> None:
    """Create objects with the owners that they name, which come before them."""
    discovery, uids = Discovery(client), {}
    for namespace in sorted({key_of(obj).namespace for obj in objs}):
        with contextlib.suppress(AlreadyExists):
            await client.create(NAMESPACES, {"metadata": {"name": namespace, "labels": {"team": "a"}}})
    for obj in copy.deepcopy(objs):
        old = obj["metadata"].pop("uid")
        for name in ("resourceVersion", "creationTimestamp", "generation"):
            obj["metadata"].pop(name)
        for owner in obj["metadata"].get("ownerReferences") or ():
            owner["uid"] = uids[owner["uid"]]
        resource = await discovery.resource(obj)
        uids[old] = uid_of(await client.apply(resource, obj, manager="capi-topology"))


async def everything(server: ApiServer) -> dict[str, Obj]:
    """All objects of a server that a backup may hold, by kind and key."""
    found = {}
    async with server.client() as client:
        for group, version, kind in KINDS:
            plural = _definition(group, version, kind)["spec"]["names"]["plural"]
            listed = await client.list(Resource(group, version, plural, kind))
            found |= {f"{kind} {key_of(obj)}": obj for obj in listed["items"]}
        listed = await client.list(SECRETS, "team")
        found |= {f"Secret {key_of(obj)}": obj for obj in listed["items"]}
    return found


@contextlib.contextmanager
def interrupted_while_the_pause_ends() -> Iterator[None]:
    """No server answers the patch that ends the pause of a Cluster."""
    patch = ApiClient.patch

    async def interrupted(client: ApiClient, resource: Resource, *what: Any, **options: Any) -> Obj:
        if what[-1] == {"spec": {"paused": None}}:
            raise Unreachable("interrupted")
        return await patch(client, resource, *what, **options)

    with pytest.MonkeyPatch.context() as scope:
        scope.setattr(ApiClient, "patch", interrupted)
        yield
