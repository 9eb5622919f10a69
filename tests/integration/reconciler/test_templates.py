"""Templates say what their machines offer, as the cluster autoscaler reads it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from caphv.api.object import NODES, Obj
from reconciler.machinetemplate.controller import ARCHITECTURE
from tests.support.reconciler.case import (
    AT_ONCE,
    CLUSTER_LABEL,
    CLUSTERS,
    HARVESTER_CLUSTERS,
    HARVESTER_MACHINE_TEMPLATES,
    Case,
)
from tests.support.reconciler.conditions import is_true
from tests.support.reconciler.machines import machine_spec

pytestmark = pytest.mark.integration

STORAGE = {"volumeType": "storageClass", "storageClass": "harvester-longhorn", "volumeSize": "10Gi"}
BOOT = {"volumeType": "image", "imageName": "default/sles-15", "volumeSize": "40Gi", "bootOrder": 1}
OFFER = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "40Gi"}


async def create(case: Case, name: str, *, owner: bool = False, label: bool = False) -> None:
    cluster = await case.get(CLUSTERS, case.name) if owner else None
    spec = {**machine_spec(), "cpu": 4, "memory": "8Gi", "volumes": [STORAGE, BOOT]}
    labels = {CLUSTER_LABEL: case.name} if label else {}
    await case.create(HARVESTER_MACHINE_TEMPLATES, name, {"template": {"spec": spec}}, owner=cluster, labels=labels)


def status_is(capacity: Obj, **node_info: str) -> Obj:
    return {"capacity": capacity, "nodeInfo": {"operatingSystem": "linux", **node_info}}


@contextlib.asynccontextmanager
async def another_architecture(case: Case) -> AsyncIterator[None]:
    """One host of Harvester is of another kind than the others."""
    host = (await case.harvester.list(NODES))["items"][0]["metadata"]["name"]

    async def label(value: str) -> None:
        await case.harvester.patch(NODES, host, "", {"metadata": {"labels": {ARCHITECTURE: value}}})

    await label("arm64")
    try:
        yield
    finally:
        await label("amd64")


async def test_template_tells_capacity_before_and_platform_when_its_harvester_is_known(case: Case) -> None:
    await case.create(HARVESTER_MACHINE_TEMPLATES, "empty", {})
    await case.until(HARVESTER_MACHINE_TEMPLATES, "empty", lambda obj: "nodeInfo" in (obj.get("status") or {}))
    await create(case, "free")
    await case.until(HARVESTER_MACHINE_TEMPLATES, "free", lambda obj: obj.get("status") == status_is(OFFER))
    await case.cluster()
    await create(case, "owned", owner=True)
    await create(case, "labelled", label=True)
    await case.ready()
    for name in ("owned", "labelled"):
        await case.until(
            HARVESTER_MACHINE_TEMPLATES,
            name,
            lambda obj: obj.get("status") == status_is(OFFER, architecture="amd64"),
            timeout=AT_ONCE,
        )


async def test_template_tells_no_architecture_while_hosts_differ(case: Case) -> None:
    await case.ready_cluster()
    await create(case, "machines", owner=True)
    known = status_is(OFFER, architecture="amd64")
    await case.until(HARVESTER_MACHINE_TEMPLATES, "machines", lambda obj: obj.get("status") == known)
    async with another_architecture(case):
        await case.until(
            HARVESTER_MACHINE_TEMPLATES, "machines", lambda obj: obj["status"] == status_is(OFFER), timeout=AT_ONCE
        )
    await case.until(HARVESTER_MACHINE_TEMPLATES, "machines", lambda obj: obj["status"] == known, timeout=AT_ONCE)


async def test_template_of_a_paused_cluster_waits(case: Case) -> None:
    await case.ready_cluster()
    await case.pause(True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
    await create(case, "machines", owner=True)
    await create(case, "later")
    # The second one is done when the first one would be, too.
    await case.until(HARVESTER_MACHINE_TEMPLATES, "later", lambda obj: obj.get("status"))
    assert "status" not in await case.get(HARVESTER_MACHINE_TEMPLATES, "machines")
    await case.pause(False)
    await case.until(HARVESTER_MACHINE_TEMPLATES, "machines", lambda obj: obj.get("status"), timeout=AT_ONCE)
