"""How patches of a plan are written while others write the same objects."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict
from operations.change.changes import Change, Patch, patch_of
from operations.change.patchwriter import write_patches
from tests.support.memoryserver import MemoryServer, merged

pytestmark = pytest.mark.unit

CORE = "cluster.x-k8s.io/v1beta2"


class Written(MemoryServer):
    """An object of it is changed by others before each of the next patches."""

    def __init__(self, *objs: Obj) -> None:
        super().__init__(*objs)
        self.changes: list[Obj] = []

    async def patch(self, resource: Any, name: str, namespace: str, patch: Any, **more: Any) -> Obj:
        if self.changes:
            self.put(merged(self.find(resource.kind, name, namespace), self.changes.pop(0)))
        return await super().patch(resource, name, namespace, patch, **more)


def cluster(name: str = "shop") -> Obj:
    metadata = {"name": name, "namespace": "team", "annotations": {"keep": "1"}}
    return {"apiVersion": CORE, "kind": "Cluster", "metadata": metadata, "spec": {"paused": False}, "status": {}}


def pause(obj: Obj) -> Patch:
    body = {"metadata": {"annotations": {"ours": "x"}}, "spec": {"paused": True}}
    return patch_of(obj, body, [Change("Cluster", "spec.paused", "False", "True")])


async def write(server: MemoryServer, *patches: Patch) -> None:
    await write_patches(cast("ApiClient", server), patches)


def stored(server: MemoryServer, name: str = "shop") -> Obj:
    obj = server.find("Cluster", name, "team")
    assert obj is not None
    return obj


async def test_patches_are_written_in_order_and_change_nothing_else() -> None:
    server = Written(cluster("shop"), cluster("blog"))
    await write(server, pause(stored(server, "shop")), pause(stored(server, "blog")))
    assert server.requests == ["patch Cluster shop", "patch Cluster blog"]
    assert stored(server)["spec"] == {"paused": True}
    assert stored(server)["metadata"]["annotations"] == {"keep": "1", "ours": "x"}


@pytest.mark.parametrize("times", [1, 4])
async def test_a_change_of_other_fields_is_no_conflict(times: int) -> None:
    server = Written(cluster())
    patch = pause(stored(server))
    server.changes = [{"status": {"phase": f"{number}"}} for number in range(times)]
    await write(server, patch)
    assert (stored(server)["spec"]["paused"], stored(server)["status"]) == (True, {"phase": f"{times - 1}"})
    assert len(server.requests) == times + 1


async def test_an_object_that_others_write_all_the_time_is_given_up() -> None:
    server = Written(cluster())
    patch = pause(stored(server))
    server.changes = [{"status": {"phase": f"{number}"}} for number in range(9)]
    with pytest.raises(Conflict):
        await write(server, patch)
    assert len(server.requests) == 5
    assert stored(server)["spec"]["paused"] is False


async def test_a_field_that_another_has_changed_is_not_overwritten() -> None:
    server = Written(cluster("shop"), cluster("blog"))
    patches = [pause(stored(server, "shop")), pause(stored(server, "blog"))]
    server.changes = [{"metadata": {"annotations": {"ours": "another's"}}}]
    with pytest.raises(Conflict):
        await write(server, *patches)
    assert server.requests == ["patch Cluster shop"], "nor is what comes after it"
    assert stored(server)["metadata"]["annotations"]["ours"] == "another's"
