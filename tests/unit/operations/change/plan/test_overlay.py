"""What a plan takes for the result where the API server cannot say it: the live object with the manifest's fields."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Invalid
from operations.capacity.machinechanges import Action
from operations.change.plan.reading import read_preview
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit

CORE = "cluster.x-k8s.io/v1beta2"


def cluster(name: str, class_name: str, **topology: Any) -> Obj:
    spec = {"topology": {"classRef": {"name": class_name}, **topology}}
    return {"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": name, "namespace": "team"}, "spec": spec}


def new_class() -> Obj:
    return {"apiVersion": CORE, "kind": "ClusterClass", "metadata": {"name": "new", "namespace": "team"}, "spec": {}}


async def test_a_cluster_that_changes_to_a_class_of_the_same_manifests_keeps_its_other_fields() -> None:
    live = cluster("shop", "old", version="v1.36.2", workers={"machineDeployments": [{"name": "a"}, {"name": "b"}]})
    live["spec"]["paused"] = False
    live["status"] = {"phase": "Provisioned"}
    server = MemoryServer(live, served=[(CORE, "ClusterClass"), (CORE, "Machine")])
    server.errors["dry-run apply Cluster"] = Invalid(422, "Invalid", "no such ClusterClass")
    wanted = cluster("shop", "new", workers={"machineDeployments": [{"name": "a"}]})
    found = await read_preview(cast("ApiClient", server), [wanted, new_class()], "team")
    after = next(obj for identity, obj in found.after.items() if identity.kind == "Cluster")
    assert after["spec"] == {
        "topology": {
            "classRef": {"name": "new"},
            "version": "v1.36.2",
            "workers": {"machineDeployments": [{"name": "a"}]},
        },
        "paused": False,
    }
    assert after["status"] == {"phase": "Provisioned"}
    actions = {change.identity.kind: change.action for change in found.changes}
    assert actions == {"ClusterClass": Action.CREATE, "Cluster": Action.CHANGE}


async def test_a_class_that_the_manifests_do_not_create_is_missing() -> None:
    server = MemoryServer(cluster("shop", "old"), served=[(CORE, "ClusterClass"), (CORE, "Machine")])
    server.errors["dry-run apply Cluster"] = Invalid(422, "Invalid", "no such ClusterClass")
    found = await read_preview(cast("ApiClient", server), [cluster("shop", "new")], "team")
    (change,) = found.changes
    assert (change.action, change.error) == (Action.REFUSED, "no such ClusterClass")
