"""A management cluster with the shipped CRDs, and a Harvester that is simulated, for commands of a person."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caphv import data
from caphv.api.object import Obj, Resource
from caphv.runtime.errors import AlreadyExists
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.authorization import until_allowed
from tests.support.e2e import crd
from tests.support.overview import _CONTROL_PLANE, _CORE, KINDS, Management


@pytest.fixture(scope="package")
def management(etcd_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Management]:
    """A management cluster without controllers."""
    server = ApiServer(etcd_folder, "overview", audit=True)
    asyncio.run(server.start())

    async def define() -> None:
        async with server.client() as client:
            ours = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
            others = [crd(kind.group, kind.version, kind.kind) for kind in KINDS.values() if kind.group in _THEIRS]
            await manifests.apply(client, [*ours, *others])

    asyncio.run(define())
    yield Management(server, tmp_path_factory.mktemp("kubeconfigs"))
    asyncio.run(server.stop())


_THEIRS = (_CORE, _CONTROL_PLANE)


@pytest.fixture
def grant(management: Management) -> Callable[[str, str, list[Obj]], None]:
    """Let a user do something in a namespace."""
    group = "rbac.authorization.k8s.io"
    roles = Resource(group, "v1", "roles", "Role")
    bindings = Resource(group, "v1", "rolebindings", "RoleBinding")

    def let(user: str, namespace: str, rules: list[Obj]) -> None:
        async def write() -> None:
            metadata = {"name": user, "namespace": namespace}
            role = {"apiGroup": group, "kind": "Role", "name": user}
            subject = {"apiGroup": group, "kind": "User", "name": user}
            async with management.server.client() as client:
                try:
                    await client.create(roles, {"metadata": metadata, "rules": rules})
                    await client.create(bindings, {"metadata": metadata, "roleRef": role, "subjects": [subject]})
                except AlreadyExists:
                    pass
                await until_allowed(client, user, rules[0], namespace)

        asyncio.run(write())

    return let
