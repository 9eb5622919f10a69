"""Deleting objects: only the answer that one does not exist counts as that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from caphv.api.object import Obj
from caphv.runtime.errors import ApiError, Forbidden, NotFound
from packager.definitions.apply import Applier

pytestmark = pytest.mark.unit
GROUP = "/apis/cluster.x-k8s.io"


class Server:
    """Serves Clusters and MachineDeployments in some versions."""

    server = "https://management.example.com"

    def __init__(self, *versions: str, error: ApiError | None = None, replicas: int = 0, is_ours: bool = True) -> None:
        self.versions, self.error, self.replicas, self.is_ours = versions, error, replicas, is_ours
        self.deleted: list[str] = []

    async def request(self, _method: str, path: str) -> Obj:
        if not self.versions:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        if path == GROUP:
            rows = [{"version": version} for version in self.versions]
            return {"name": "cluster.x-k8s.io", "versions": rows, "preferredVersion": rows[0]}
        kinds = {"clusters": "Cluster", "machinedeployments": "MachineDeployment"}
        return {"resources": [{"name": name, "kind": kind, "namespaced": True} for name, kind in kinds.items()]}

    async def get(self, _resource: Any, name: str, _namespace: str) -> Obj:
        if self.error:
            raise self.error
        rows = [{"manager": "caphv-generate" if self.is_ours else "kubectl", "operation": "Apply"}]
        metadata = {"name": name, "uid": "1", "managedFields": rows}
        return {"kind": "MachineDeployment", "metadata": metadata, "spec": {"replicas": self.replicas}}

    async def delete(self, resource: Any, name: str, namespace: str, *, dry_run: bool = False, uid: str = "") -> None:
        if self.error:
            raise self.error
        assert uid == "1"
        if not dry_run:
            self.deleted.append(f"{resource.version} {namespace}/{name}")


@pytest.mark.parametrize(
    ("server", "why", "deleted"),
    [
        (Server("v1beta1"), "", ["v1beta1 team-a/old"]),
        (Server("v1beta2", "v1beta1"), "", ["v1beta2 team-a/old"]),
        (
            Server("v1beta2", is_ours=False),
            "Cluster team-a/old: it is no longer defined, but another client made it",
            [],
        ),
        (Server("v1beta2", error=NotFound(404, "NotFound", "no such Cluster")), "", []),
        (Server("v1beta2", error=Forbidden(403, "Forbidden", "not yours")), "Cluster team-a/old: ", []),
        (Server(), "check --kubeconfig and --context", []),
    ],
)
def test_only_a_cluster_that_was_applied_is_deleted_in_the_version_that_is_served(
    server: Any, why: str, deleted: list[str]
) -> None:
    asked = asyncio.run(Applier(server).delete_cluster("team-a/old", dry_run=True))
    assert server.deleted == []
    failures = asyncio.run(Applier(server).delete_cluster("team-a/old"))
    assert failures == asked
    assert (bool(failures), server.deleted) == (bool(why), deleted)
    assert all(why in str(failure) for failure in failures)


@pytest.mark.parametrize(
    ("server", "why", "deleted"),
    [
        (Server("v1beta2"), "", ["v1beta2 team-a/a-gpu"]),
        # The manifest names another version.
        (Server("v1beta1"), "", ["v1beta1 team-a/a-gpu"]),
        (Server("v1beta2", replicas=3), "was scaled up and has machines", []),
        (Server("v1beta2", is_ours=False), "another client made it", []),
        (Server("v1beta2", error=NotFound(404, "NotFound", "no such object")), "", []),
        (Server("v1beta2", error=Forbidden(403, "Forbidden", "not yours")), "not yours", []),
        (Server(), "check --kubeconfig and --context", []),
    ],
)
def test_what_is_no_longer_defined_is_deleted_unless_it_has_machines(server: Any, why: str, deleted: list[str]) -> None:
    pool = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment", "metadata": {"name": "a-gpu"}}
    failures = asyncio.run(Applier(server).delete([pool], "team-a"))
    assert (bool(failures), server.deleted) == (bool(why), deleted)
    assert all(why in str(failure) for failure in failures)
