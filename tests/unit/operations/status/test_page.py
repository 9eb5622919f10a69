"""The live page is never stuck unnoticed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from caphv.api.object import Key, Obj, key_of
from operations.read.harvester import Harvesters
from operations.read.objects import ManagementObjects
from operations.status.model import Provider
from operations.status.page import livepage
from operations.status.page.livepage import LivePage
from tests.support.clusters import Builder, condition
from tests.support.heartbeat import SECONDS, measure
from tests.support.waiting import ended


class Management:
    """The client of a page that is handed its objects."""

    server = "https://management"


class Follower:
    """Yields the same objects now and then; the management cluster is unreachable for a time."""

    def __init__(self, objects: ManagementObjects, *, away: bool = False) -> None:
        self._objects = objects
        self.away = away

    async def changes(self) -> Any:
        while True:
            yield self._objects
            await asyncio.sleep(0.005)
            self.away = False


def states(page: LivePage, works: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """The first states that a page shows while it does some work."""

    async def read() -> list[dict[str, Any]]:
        tasks = [asyncio.create_task(page._repeat(*each)) for each in works.items()]
        found = [""]
        async with asyncio.timeout(10):
            while len(found) <= number:
                found.append(await page._feed.newer(found[-1]))
        for task in tasks:
            task.cancel()
        return [json.loads(each) for each in found[1:]]

    return asyncio.run(read())


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> LivePage:
    monkeypatch.setattr(livepage, "_DEEP_SECONDS", 0.02)
    return page_of()


def page_of(*keys: Key) -> LivePage:
    client: Any = Management()
    return LivePage(client, "", frozenset(keys), deep=True)


def test_a_look_that_fails_is_shown_and_tried_again(page: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [ValueError("odd object")]

    async def harvesters(*_: object) -> Harvesters:
        if failures:
            raise failures.pop()
        return Harvesters()

    async def nodes(*_: object) -> dict[str, object]:
        return {}

    monkeypatch.setattr(livepage, "read_harvesters", harvesters)
    monkeypatch.setattr(livepage, "read_nodes", nodes)
    follower: Any = Follower(Builder("shop").objects())
    works = {"clusters": lambda: page._follow(follower), "Harvesters and workload clusters": page._read_deep}
    first, failed, healed = states(page, works, number=3)
    assert (first["fault"], first["unseen"]) == ("", [])
    assert [cluster["name"] for cluster in failed["clusters"]] == ["shop"]
    assert (failed["fault"], failed["unseen"]) == (
        "not up to date",
        ["Harvesters and workload clusters: ValueError: odd object"],
    )
    assert (healed["fault"], healed["unseen"]) == ("", [])


def test_a_management_cluster_that_is_unreachable_is_named(page: LivePage) -> None:
    follower: Any = Follower(Builder("shop").objects(), away=True)
    found = states(page, {"clusters": lambda: page._follow(follower)}, number=2)
    assert [each["fault"] for each in found] == ["management cluster not readable", ""]


def test_a_provider_that_is_silent_is_shown_instead_of_live(page: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Provider("a/b"), Provider("a/b", silent=True, cause="silent: Lease a/b is not renewed")]

    async def read_provider(*_: object) -> Provider:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(livepage, "read_provider", read_provider)
    alive, silent = states(page, {"the provider": page._read_provider}, number=2)
    assert (alive["fault"], alive["provider"]["silent"]) == ("", False)
    assert (silent["fault"], silent["provider"]["cause"]) == (
        "provider is silent",
        "silent: Lease a/b is not renewed",
    )


def test_a_parked_cluster_has_no_api_server_to_ask(page: LivePage, monkeypatch: pytest.MonkeyPatch) -> None:
    parked, running = Builder("shop"), Builder("pay", prefix="pay-")
    parked.cluster["spec"]["paused"] = True
    parked.cluster["metadata"]["annotations"] = {"caphv.io/park": "true", "caphv.io/parked-since": "x"}
    parked.harvester_cluster["status"]["conditions"].append(condition("Parked", "True", message="VMs stopped"))
    asked: list[Key] = []

    async def harvesters(*_: object) -> Harvesters:
        return Harvesters()

    async def nodes(_client: object, clusters: list[Key]) -> dict[str, object]:
        asked.extend(clusters)
        return {}

    monkeypatch.setattr(livepage, "read_harvesters", harvesters)
    monkeypatch.setattr(livepage, "read_nodes", nodes)
    whole = parked.objects()
    for kind in ("clusters", "machines", "harvester_clusters", "harvester_machines"):
        getattr(whole, kind).extend(getattr(running.objects(), kind))

    async def read() -> None:
        page._objects = whole
        page._feed.publish("{}")
        await page._read_deep()

    asyncio.run(read())
    assert asked == [Key("team", "pay")]


def event(obj: Obj, kind: str, second: int) -> Obj:
    about = {"kind": kind, "namespace": key_of(obj).namespace, "name": key_of(obj).name}
    return {"metadata": {}, "involvedObject": about, "lastTimestamp": f"2026-11-22T12:00:{second:02}Z"}


def test_events_of_other_clusters_take_no_place_of_those_that_are_shown() -> None:
    one, other = Builder("shop").objects(), Builder("noise", prefix="n-").objects()
    machine, owner = one.harvester_machines[0], one.clusters[0]
    events = [event(machine, "HarvesterMachine", 1), event(owner, "Cluster", 2)]
    events += [event(other.harvester_machines[0], "HarvesterMachine", second) for second in range(10, 50)]
    found = ManagementObjects(
        clusters=one.clusters + other.clusters,
        machines=one.machines + other.machines,
        machine_deployments=one.machine_deployments + other.machine_deployments,
        control_planes=one.control_planes + other.control_planes,
        harvester_clusters=one.harvester_clusters + other.harvester_clusters,
        harvester_machines=one.harvester_machines + other.harvester_machines,
        events=events,
    )
    follower: Any = Follower(found)
    shown = {}
    for page in (page_of(key_of(owner)), page_of()):
        (state,) = states(page, {"clusters": lambda page=page: page._follow(follower)}, number=1)
        shown[len(state["clusters"])] = [each["object"] for each in state["events"]]
    assert shown[1] == [f"Cluster/{key_of(owner).name}", f"HarvesterMachine/{key_of(machine).name}"]
    assert set(shown[2]) == {f"HarvesterMachine/{key_of(other.harvester_machines[0]).name}"}


def fleet(clusters: int, message: str) -> ManagementObjects:
    """Return clusters that are not available, and why."""
    whole = ManagementObjects()
    for number in range(clusters):
        builder = Builder(f"shop-{number}", prefix=f"shop-{number}-")
        builder.cluster["status"]["conditions"] = [condition("Available", "False", "Broken", message)]
        objects = builder.objects()
        for kind in ("clusters", "machines", "harvester_clusters", "harvester_machines"):
            getattr(whole, kind).extend(getattr(objects, kind))
    return whole


@pytest.mark.parametrize(("clusters", "message"), [(500, "broken"), (10, "x" * 1_000_000)], ids=["many", "long"])
async def test_no_state_of_the_clusters_holds_up_the_tabs(clusters: int, message: str) -> None:
    page = page_of()
    follower: Any = Follower(fleet(clusters, message))

    states = []

    async def show() -> None:
        task = asyncio.create_task(page._follow(follower))
        states.append(await page._feed.newer(""))
        await ended(task)

    cost = await measure(show)
    assert len(json.loads(states[0])["clusters"]) == clusters
    assert cost.seconds < SECONDS
