"""Paused objects, and those that another client manages: nothing is written for them on Harvester."""

from __future__ import annotations

import pytest

from caphv.api.names import MANAGED_BY_ANNOTATION
from caphv.api.object import Obj
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_ready, is_true

pytestmark = pytest.mark.integration


def not_paused(obj: Obj) -> bool:
    condition = condition_of(obj, "Paused")
    return (condition.get("status"), condition.get("reason")) == ("False", "NotPaused")


async def test_paused_cluster_is_not_touched_and_continues_afterwards(case: Case) -> None:
    harvester = case.environment.harvester
    await case.ready_cluster()
    since = case.environment.audit_position(harvester)
    await case.pause(True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"), timeout=AT_ONCE)
    await case.create_machine("one", control_plane=True)
    await case.until(HARVESTER_MACHINES, "one", is_true("Paused"), timeout=AT_ONCE)
    # Nothing to raise an alert about: neither is observed.
    cluster = f"{case.name}/{case.name}"
    machine = {"cluster": cluster, "machine": f"{case.name}/one"}
    provider = case.environment.provider
    await provider.until_value(None, "caphv_cluster_ready", cluster=cluster)
    await provider.until_value(None, "caphv_machine_status", **machine)
    assert await case.names(kinds.VIRTUAL_MACHINES) == []
    assert await case.writes(since) == []
    await case.pause(False)
    await case.until(HARVESTER_CLUSTERS, case.name, not_paused, timeout=AT_ONCE)
    await case.until(HARVESTER_MACHINES, "one", lambda obj: not_paused(obj) and is_ready(obj))
    await provider.until_value(1, "caphv_cluster_ready", cluster=cluster)
    await provider.until_value(1, "caphv_machine_status", **machine)


async def test_paused_from_the_beginning(case: Case) -> None:
    await case.identity()
    await case.create_cluster(paused=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
    found = await case.get(HARVESTER_CLUSTERS, case.name)
    assert "finalizers" not in found["metadata"]
    assert "controlPlaneEndpoint" not in found["spec"]
    await case.pause(False)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_annotation_pauses_one_object(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    await case.pause_object(HARVESTER_MACHINES, "one", paused=True)
    await case.until(HARVESTER_MACHINES, "one", is_true("Paused"), timeout=AT_ONCE)
    since = case.environment.audit_position(case.environment.harvester)
    await case.ask_deletion(HARVESTER_MACHINES, "one")
    await case.ready_machine("two")
    assert not [write for write in await case.writes(since) if "/one" in write]
    assert sorted(await case.names(kinds.VIRTUAL_MACHINES)) == ["one", "two"]
    await case.pause_object(HARVESTER_MACHINES, "one", paused=False)
    await case.until_gone(HARVESTER_MACHINES, "one")
    assert await case.names(kinds.VIRTUAL_MACHINES) == ["two"]


async def test_annotation_pauses_the_infrastructure(case: Case) -> None:
    await case.ready_cluster()
    await case.pause_object(HARVESTER_CLUSTERS, case.name, paused=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"), timeout=AT_ONCE)
    await case.pause_object(HARVESTER_CLUSTERS, case.name, paused=False)
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: not_paused(obj) and is_ready(obj), timeout=AT_ONCE)


async def test_externally_managed_infrastructure_is_left_alone(case: Case, other: Case) -> None:
    await case.identity()
    await case.create_cluster(annotations={MANAGED_BY_ANNOTATION: "another-tool"})
    await other.ready_cluster()  # comes later and is done, so the first would be, too
    found = await case.get(HARVESTER_CLUSTERS, case.name)
    assert "status" not in found
    assert "finalizers" not in found["metadata"]
    assert CLUSTERS.kind in str(found["metadata"]["ownerReferences"])
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {MANAGED_BY_ANNOTATION: None}}})
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_after_a_restart_machines_of_a_paused_harvestercluster_can_be_deleted(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    await case.pause_object(HARVESTER_CLUSTERS, case.name, paused=True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"), timeout=AT_ONCE)
    await case.environment.provider.stop()
    await case.environment.provider.start()
    await case.ask_deletion(HARVESTER_MACHINES, "one")
    await case.until_gone(HARVESTER_MACHINES, "one")
    assert await case.names(kinds.VIRTUAL_MACHINES) == []
    await case.pause_object(HARVESTER_CLUSTERS, case.name, paused=False)
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: not_paused(obj) and is_ready(obj))


async def test_externally_managed_infrastructure_gets_its_machines(case: Case) -> None:
    await case.ready_cluster()  # creates the target namespace, as the external manager would
    patch = {"metadata": {"annotations": {MANAGED_BY_ANNOTATION: "another-tool"}}}
    await case.patch(HARVESTER_CLUSTERS, case.name, patch)
    await case.environment.provider.stop()
    await case.environment.provider.start()
    await case.ready_machine("one")
    await case.ask_deletion(HARVESTER_MACHINES, "one")
    await case.until_gone(HARVESTER_MACHINES, "one")
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {MANAGED_BY_ANNOTATION: None}}})
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
