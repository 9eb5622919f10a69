"""A cluster is parked and resumed: the order, what is kept, and a provider that dies after each of its writes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from caphv.api import names, remedies
from caphv.api.object import (
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    VOLUME_ATTACHMENTS,
    Obj,
    annotations_of,
    uid_of,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError
from reconciler.cluster.parking import phase
from sandbox.harvester import kinds
from tests.support.printed import Person
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_ready, is_true
from tests.support.reconciler.environment import Environment
from tests.support.reconciler.servers import control_plane

pytestmark = pytest.mark.integration

PARKED = is_true("Parked")
PARK_SECONDS = 150.0


@pytest.fixture(autouse=True)
def short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """End pauses at once: no core here has to catch up. `tests/e2e/clusters/test_park.py` has one.

    The provider of the environment, which is a process of its own, waits as ever.
    """
    monkeypatch.setattr(phase, "_SETTLE_SECONDS", 1.0)


def condition(reason: str, part: str = "") -> Callable[[Obj], bool]:
    """A test for a HarvesterCluster that says why it is not parked."""

    def matches(obj: Obj) -> bool:
        found = condition_of(obj, "Parked")
        return found.get("reason") == reason and part in found.get("message", "")

    return matches


def is_resumed(obj: Obj) -> bool:
    return not condition_of(obj, "Parked") and condition_of(obj, "Paused").get("status") == "False" and is_ready(obj)


async def ask(case: Case, value: str | None) -> None:
    await case.patch(CLUSTERS, case.name, {"metadata": {"annotations": {names.PARK_ANNOTATION: value}}})


@contextlib.asynccontextmanager
async def cluster(case: Case, *servers: str, workers: tuple[str, ...] = ()) -> AsyncIterator[ApiClient]:
    """A cluster of guests; answers a client of its API."""
    client = await control_plane(case, *servers, workers=workers)
    for name in (*servers, *workers):
        await case.until(HARVESTER_MACHINES, name, is_ready)
    try:
        yield client
    finally:
        await client.close()


async def pod(client: ApiClient, name: str, node: str, **metadata: Any) -> None:
    with contextlib.suppress(ApiError):
        await client.create(NAMESPACES, {"metadata": {"name": "default"}})
    container = {"name": "main", "image": "none"}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    await client.create(PODS, {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec})


async def identities(case: Case) -> dict[str, tuple[str, str, Any, Any]]:
    """What a parked machine keeps: uids of VM and machine, its addresses, and the run strategy of its VM."""
    found = {}
    for name in await case.names(HARVESTER_MACHINES):
        vm, machine = await case.get(kinds.VIRTUAL_MACHINES, name), await case.get(HARVESTER_MACHINES, name)
        strategy = vm["spec"]["runStrategy"]
        found[name] = (uid_of(vm), uid_of(machine), machine["status"].get("addresses"), strategy)
    return found


async def test_workers_are_drained_and_the_leader_of_etcd_stops_last(case: Case) -> None:
    async with cluster(case, "a", "b", workers=("w",)) as client:
        before = await identities(case)
        for kind, name in (("ReplicaSet", "web"), ("DaemonSet", "agent")):
            owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "x", "controller": True}
            await pod(client, name, "w", ownerReferences=[owner])
        await pod(client, "lonely", "w")  # no controller would create it again
        await client.patch(NODES, "b", "", {"spec": {"unschedulable": True}})  # by a user

        since = case.environment.audit_position(case.environment.harvester)
        await ask(case, "true")
        parked = await case.until(HARVESTER_CLUSTERS, case.name, PARKED, timeout=PARK_SECONDS)
        assert "3 VMs stopped, their volumes are detached" in condition_of(parked, "Parked")["message"]
        assert await case.names(kinds.INSTANCES) == []
        owner = await case.get(CLUSTERS, case.name)
        last = annotations_of(owner)[names.STOPS_LAST_ANNOTATION]
        other = ({"a", "b"} - {last}).pop()
        stops = [write.rpartition("/")[2].partition("?")[0] for write in await case.writes(since) if "patch" in write]
        assert stops == ["w", other, last]
        assert owner["spec"]["paused"] is True

        # Nothing of it is a failure: machines report what they did before, and only that they are paused.
        for name in ("a", "b", "w"):
            machine = await case.until(HARVESTER_MACHINES, name, is_true("Paused"))
            assert machine["status"]["ready"] is True

        await ask(case, None)
        await case.until(HARVESTER_CLUSTERS, case.name, is_resumed, timeout=PARK_SECONDS)
        assert await identities(case) == before
        nodes = {node["metadata"]["name"]: node for node in (await client.list(NODES))["items"]}
        assert {name for name, node in nodes.items() if node["spec"].get("unschedulable")} == {"b"}
        assert not [name for node in nodes.values() for name in annotations_of(node) if "caphv.io" in name]
        assert not [name for name in annotations_of(await case.get(CLUSTERS, case.name)) if "caphv.io/park" in name]
        pods = {item["metadata"]["name"] for item in (await client.list(PODS, "default"))["items"]}
        assert pods == {"agent", "lonely"}
        await client.patch(NODES, "b", "", {"spec": {"unschedulable": None}})


async def test_a_volume_that_stays_attached_is_named(case: Case) -> None:
    async with cluster(case, "a"):
        vm = await case.vm("a")
        claim = vm["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
        volume = (await case.get(PERSISTENT_VOLUME_CLAIMS, claim))["spec"].get("volumeName")
        if not volume:
            volume = f"pv-{claim}"
            await case.patch(PERSISTENT_VOLUME_CLAIMS, claim, {"spec": {"volumeName": volume}})
        spec = {"attacher": "driver.longhorn.io", "nodeName": "x", "source": {"persistentVolumeName": volume}}
        attachment = {"metadata": {"name": case.name}, "spec": spec}
        await case.harvester.create(VOLUME_ATTACHMENTS, attachment)
        status = {"status": {"attached": True}}
        await case.harvester.patch(VOLUME_ATTACHMENTS, case.name, "", status, subresource="status")
        try:
            await ask(case, "true")
            waiting = condition("Parking", f"volumes to be detached: {claim}")
            await case.until(HARVESTER_CLUSTERS, case.name, waiting, timeout=PARK_SECONDS)
        finally:
            await case.harvester.delete(VOLUME_ATTACHMENTS, case.name)
        await case.until(HARVESTER_CLUSTERS, case.name, PARKED)

        # The user has paused it meanwhile: the pause is that of parking, which ends with it.
        await ask(case, "false")
        await case.until(HARVESTER_CLUSTERS, case.name, is_resumed, timeout=PARK_SECONDS)


async def test_a_pause_from_before_stays_and_a_value_without_a_meaning_is_reported(case: Case) -> None:
    await case.ready_cluster()
    await ask(case, "yes")
    await case.until(HARVESTER_CLUSTERS, case.name, condition("ParkBlocked", "write true"))
    await case.until_event(case.name, "Warning", "ParkBlocked")
    await case.pause(True)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Paused"))
    await ask(case, "true")
    await case.until(HARVESTER_CLUSTERS, case.name, PARKED)
    await ask(case, None)
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: not condition_of(obj, "Parked"))
    owner = await case.get(CLUSTERS, case.name)
    assert (owner["spec"]["paused"], names.PARKED_SINCE_ANNOTATION in annotations_of(owner)) == (True, False)
    await case.pause(False)
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_all_clusters_of_a_harvester_are_parked_and_resumed_by_command(
    case: Case, other: Case, tmp_path: Path
) -> None:
    """There are clusters of other tests on this Harvester, so the command is limited to a namespace."""
    person = Person(tmp_path, case.environment.management, case.environment.harvester)
    for each in (case, other):
        await each.ready_cluster()
        await each.ready_machine("one", control_plane=True)
    url = case.environment.harvester.url
    target = f"--all-on {url} -n {case.name} --wait --timeout 60s"

    assert "no cluster has an identity for Harvester" in await person.sees(
        "caphv park --all-on elsewhere --dry-run", status=2
    )
    assert "name clusters" in await person.sees("caphv park", status=2)
    checklist = await person.sees(f"caphv park {target}", status=0)
    for expected in ("1 machine will be stopped", "1 VM stopped", "support bundle", f"caphv resume --all-on {url}"):
        assert expected in checklist
    assert (await case.names(kinds.INSTANCES), await other.names(kinds.INSTANCES)) == ([], ["one"])
    output = await person.sees(f"caphv status {case.name}/{case.name}", status=0)
    assert "Parked" in output

    # A host that is not back: its VMs would start elsewhere, or not at all.
    host = (await case.harvester.list(NODES))["items"][0]["metadata"]["name"]
    await case.harvester.patch(NODES, host, "", {"spec": {"unschedulable": True}})
    try:
        refused = await person.sees(f"caphv resume {target}", status=1)
        assert f"{host} (cordoned)" in refused
        assert await case.names(kinds.INSTANCES) == []
    finally:
        await case.harvester.patch(NODES, host, "", {"spec": {"unschedulable": None}})
    await person.follows(remedies.RESUME_PARKED, output, options="--wait --timeout 60s")
    await case.until(HARVESTER_CLUSTERS, case.name, is_resumed)
    assert await case.names(kinds.INSTANCES) == ["one"]
    assert "Nothing to change" in await person.follows(remedies.RESUME_ALL, checklist)


async def follow(case: Case, first: int, last: int) -> None:
    """Give the Cluster a schedule with a window that begins and ends in so many minutes."""
    now = datetime.now(UTC)
    times = "-".join(f"{now + timedelta(minutes=minutes):%H:%M}" for minutes in (first, last))
    await case.patch(CLUSTERS, case.name, {"metadata": {"annotations": {names.PARK_SCHEDULE_ANNOTATION: times}}})


async def test_a_schedule_parks_and_resumes_and_what_is_set_by_hand_wins(case: Case, tmp_path: Path) -> None:
    person = Person(tmp_path, case.environment.management, case.environment.harvester)
    await case.ready_cluster()
    await case.ready_machine("one", control_plane=True)
    await follow(case, -60, 60)
    await case.until(HARVESTER_CLUSTERS, case.name, PARKED, timeout=PARK_SECONDS)
    status = f"caphv status {case.name}/{case.name}"
    output = await person.sees(status, status=0)
    assert "has it resumed at" in output

    # The schedule still has it parked, so the command sets the annotation.
    await person.follows(remedies.RESUME_PARKED, output, options="--wait --timeout 60s")
    await case.until(HARVESTER_CLUSTERS, case.name, is_resumed, timeout=PARK_SECONDS)
    output = await person.sees(status, status=0)
    assert "annotation caphv.io/park: false overrides schedule" in output
    await person.follows(remedies.REMOVE_ANNOTATION, output)
    await case.until(HARVESTER_CLUSTERS, case.name, PARKED, timeout=PARK_SECONDS)

    await follow(case, 120, 180)
    await case.until(HARVESTER_CLUSTERS, case.name, is_resumed, timeout=PARK_SECONDS)
    output = await person.sees(status, status=0)
    assert "has it parked at" in output
    await person.follows(remedies.SET_ANNOTATION, output)
    await follow(case, -60, 60)
    recorded = lambda obj: names.PARKED_BY_SCHEDULE_ANNOTATION in annotations_of(obj)  # noqa: E731
    await case.until(CLUSTERS, case.name, recorded)
    await case.patch(CLUSTERS, case.name, {"metadata": {"annotations": {names.PARK_SCHEDULE_ANNOTATION: "weekends"}}})
    await case.until(HARVESTER_CLUSTERS, case.name, condition("ParkBlocked", "is weekends: it has window weekends"))
    assert await case.names(kinds.INSTANCES) == ["one"]


async def test_a_parked_cluster_can_be_deleted(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one")
    await ask(case, "true")
    await case.until(HARVESTER_CLUSTERS, case.name, PARKED, timeout=PARK_SECONDS)
    await case.ask_deletion(CLUSTERS, case.name)
    await case.until(CLUSTERS, case.name, lambda obj: not obj["spec"].get("paused"))
    await case.delete_machine("one")
    assert await case.names(kinds.VIRTUAL_MACHINES) == []


@pytest.mark.usefixtures("runner", "alone")
async def test_a_provider_that_dies_after_each_write_continues(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    inprocess.install(monkeypatch)
    async with inprocess.opened(environment) as case:
        servers = (f"{case.name}-a", f"{case.name}-b")
        async with contextlib.AsyncExitStack() as stack:
            async with inprocess.running(case):
                client = await stack.enter_async_context(cluster(case, *servers, workers=(f"{case.name}-w",)))
                before = await identities(case)

            hooks = [inprocess.DiesAfterWrite() for _ in range(60)]
            await ask(case, "true")
            async with inprocess.running(case, *hooks):
                await case.until(HARVESTER_CLUSTERS, case.name, PARKED, timeout=2 * PARK_SECONDS)
                assert await case.names(kinds.INSTANCES) == []
                parked = sum(hook.stopped.is_set() for hook in hooks)
                # The record, three Nodes, which stops last, three VMs, and the conditions in between.
                assert parked >= 8
                await ask(case, None)
                await case.until(HARVESTER_CLUSTERS, case.name, is_resumed, timeout=2 * PARK_SECONDS)
                assert sum(hook.stopped.is_set() for hook in hooks) >= parked + 7
            assert await identities(case) == before
            assert not [node for node in (await client.list(NODES))["items"] if node["spec"].get("unschedulable")]
        async with inprocess.running(case):
            assert await case.remove() == []
