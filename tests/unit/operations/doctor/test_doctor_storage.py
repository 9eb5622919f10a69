"""The doctor's checks of the StorageClasses that clusters use."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from caphv.api.object import Key, Obj
from caphv.api.release import release_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from caphv.runtime.kubeconfig import Kubeconfig
from operations.doctor import harvester, storage
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.doctor.sharedreading import read_storage
from operations.doctor.storage import Storage
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result
from tests.support.clusters import NOW
from tests.support.doctor import found, host, one
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit


def storage_class(name: str = "fast", provisioner: str = "driver.longhorn.io", **parameters: str) -> Obj:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "parameters": parameters,
    }


def claim(name: str = "fast") -> Obj:
    return {"metadata": {"namespace": "vms", "name": "disk"}, "spec": {"storageClassName": name}}


def machine(name: str = "m", volume_class: str = "other", **guest: Any) -> Obj:
    spec = {"volumes": [{"storageClass": volume_class}, {"imageName": "default/sles"}], "guestConfig": guest}
    return {"metadata": {"namespace": "team", "name": name}, "spec": spec}


def longhorn_node(name: str, tags: list[str], *disks: list[str], schedules: bool = True) -> Obj:
    of_node = {f"disk-{number}": {"tags": each, "allowScheduling": schedules} for number, each in enumerate(disks)}
    return {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "Node",
        "metadata": {"namespace": "longhorn-system", "name": name},
        "spec": {"tags": tags, "disks": of_node},
    }


def job(name: str, retain: int = 5, task: str = "snapshot", *groups: str) -> Obj:
    spec = {"name": name, "task": task, "retain": retain, "groups": list(groups), "cron": "0 2 * * *"}
    return {
        "apiVersion": "longhorn.io/v1beta2",
        "kind": "RecurringJob",
        "metadata": {"namespace": "longhorn-system", "name": name},
        "spec": spec,
    }


def checked(*classes: Obj, machines: list[Obj] | None = None, image: str = "", **lists: list[Obj]) -> list[Check]:
    deployment = {"spec": {"template": {"spec": {"containers": [{"image": image}]}}}}
    objects = HarvesterObjects(claims=[claim()])
    return list(storage.checks(Storage(list(classes), **lists), objects, machines or [], deployment, "Harvester x"))


def test_a_class_of_harvester_is_no_finding() -> None:
    assert checked(storage_class(numberOfReplicas="3", migratable="true"), nodes=[], jobs=[]) == []


def test_only_classes_in_use_matter_and_only_those_of_longhorn() -> None:
    strict = {"dataLocality": "strict-local", "numberOfReplicas": "3"}
    assert checked(storage_class("unused", **strict)) == []
    assert checked(storage_class(provisioner="rbd.csi.ceph.com", **strict)) == []
    assert len(checked(storage_class("data", **strict), machines=[machine(volume_class="data")])) == 1


# Locality


@pytest.mark.parametrize(
    ("replicas", "result", "text"),
    [
        ("2", Result.ERROR, "2 replicas: Longhorn creates no volume"),
        ("1", Result.WARNING, "cannot be migrated"),
        ("", Result.WARNING, "cannot be migrated"),
    ],
)
def test_strict_local(replicas: str, result: Result, text: str) -> None:
    (only,) = checked(storage_class(dataLocality="strict-local", numberOfReplicas=replicas))
    assert (only.id, only.result, text in only.message) == ("storage-locality", result, True)
    assert "best-effort" in only.remedy
    assert checked(storage_class(dataLocality="best-effort", numberOfReplicas=replicas)) == []


# Tags


@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        (
            [longhorn_node("a", ["storage"], ["ssd", "fast"]), longhorn_node("b", ["storage", "x"], ["fast", "ssd"])],
            None,
        ),
        ([longhorn_node("a", ["storage"], ["ssd", "fast"])], None),
        ([longhorn_node("a", ["storage"], ["ssd", "fast"]), longhorn_node("b", [])], Result.WARNING),
        ([longhorn_node("a", ["storage"], ["ssd"], ["fast"]), longhorn_node("b", [], ["ssd", "fast"])], Result.ERROR),
        ([longhorn_node(name, ["storage"], ["ssd", "fast"], schedules=False) for name in "ab"], Result.WARNING),
        ([], None),
    ],
    ids=["enough", "fewer hosts", "one is missing", "tags of several disks do not add up", "no scheduling", "no node"],
)
def test_tags_that_replicas_need(nodes: list[Obj], result: Result | None) -> None:
    tagged = storage_class(numberOfReplicas="2", nodeSelector="storage", diskSelector="ssd, fast")
    checks = checked(tagged, nodes=nodes)
    assert [(check.id, check.result) for check in checks] == ([("storage-tags", result)] if result else [])
    for check in checks:
        assert "needs 2 hosts with tagged nodes storage and disks fast, ssd" in check.message


@pytest.mark.parametrize("of_node", [True, False])
def test_a_host_in_maintenance_keeps_its_tags(of_node: bool) -> None:
    nodes = [longhorn_node("a", [], ["ssd"]), longhorn_node("b", [], ["ssd"], schedules=of_node)]
    nodes[1]["spec"]["allowScheduling"] = not of_node
    (only,) = checked(storage_class(numberOfReplicas="2", diskSelector="ssd"), nodes=nodes)
    assert only.message.endswith("2 hosts have them; 1 of these takes new replicas")
    assert "maintenance" in only.remedy
    assert "Tag" not in only.remedy


def test_without_tags_or_without_the_right_to_see_them_nothing_is_found() -> None:
    assert checked(storage_class(numberOfReplicas="2", diskSelector=""), nodes=[]) == []
    assert checked(storage_class(numberOfReplicas="2", diskSelector="ssd")) == []


# Recurring jobs


def selector(*entries: tuple[str, bool]) -> str:
    return json.dumps([{"name": name, "isGroup": group} for name, group in entries])


def test_jobs_that_do_not_exist_are_named() -> None:
    jobs = [job("daily", 5, "snapshot", "data")]
    named = storage_class(
        recurringJobSelector=selector(("daily", False), ("hourly", False), ("data", True), ("vm", True))
    )
    (only,) = checked(named, jobs=jobs)
    assert (only.id, only.result) == ("recurring-snapshots", Result.WARNING)
    assert only.message.endswith("do not exist: group vm, hourly")


def test_more_snapshots_than_longhorn_allows() -> None:
    jobs = [job("a", 100), job("b", 149, "snapshot", "data"), job("c", 168, "backup-force-create", "data")]
    named = storage_class(recurringJobSelector=selector(("a", False), ("data", True)))
    (only,) = checked(named, jobs=jobs)
    assert "keep 251 snapshots of each volume of StorageClass fast, and Longhorn allows 250" in only.message
    assert "cleanup" not in only.remedy
    assert checked(storage_class(recurringJobSelector=selector(("a", False), ("b", False))), jobs=jobs) == []


def test_a_job_of_backups_keeps_two_snapshots() -> None:
    jobs = [job("hourly", 168, "backup", "default"), job("daily", 84, "snapshot", "default")]
    assert checked(storage_class(), jobs=jobs) == []


def test_what_a_job_by_age_keeps_is_not_known() -> None:
    by_age = job("a", 251, "snapshot", "default")
    by_age["spec"]["retentionPolicy"] = "age-based"
    assert checked(storage_class(), jobs=[by_age]) == []


def test_a_job_counts_once_and_a_cleanup_keeps_nothing() -> None:
    jobs = [job("a", 200, "snapshot", "data"), job("clean", 100, "snapshot-cleanup", "data")]
    named = storage_class(recurringJobSelector=selector(("a", False), ("data", True)))
    assert checked(named, jobs=jobs) == []


@pytest.mark.parametrize("absent", [{"retain": None}, {"retain": 0}, {"task": "snapshot-delete"}, {"task": None}])
@pytest.mark.parametrize(("retain", "wrong"), [(250, False), (251, True)])
def test_a_job_that_keeps_no_snapshots_adds_none(absent: dict[str, Any], retain: int, wrong: bool) -> None:
    other = job("other", 100, "snapshot", "default")
    other["spec"] |= absent
    assert bool(checked(storage_class(), jobs=[job("a", retain, "snapshot", "default"), other])) is wrong


@pytest.mark.parametrize(("retain", "wrong"), [(248, False), (249, True)])
def test_snapshots_of_backups_count_too(retain: int, wrong: bool) -> None:
    jobs = [job("hourly", 1, "backup", "default"), job("daily", retain, "snapshot", "default")]
    assert bool(checked(storage_class(), jobs=jobs)) is wrong


def test_volumes_without_a_job_run_the_default_group() -> None:
    assert len(checked(storage_class(), jobs=[job("a", 251, "snapshot", "default")])) == 1
    assert checked(storage_class(), jobs=[job("a", 251)]) == []


def test_volumes_that_select_only_jobs_that_do_not_exist_run_none() -> None:
    named = storage_class(recurringJobSelector=selector(("hourly", False)))
    (only,) = checked(named, jobs=[job("a", 251, "snapshot", "default")])
    assert only.message.endswith("do not exist: hourly")


@pytest.mark.parametrize("text", ["{", '"x"', "[1]", '[{"isGroup": true}]'])
def test_a_selector_that_cannot_be_parsed_selects_nothing(text: str) -> None:
    assert checked(storage_class(recurringJobSelector=text), jobs=[]) == []


# Trimming


@pytest.mark.parametrize("release", ["1.2.0", "1.2.1", "1.3.0"])
def test_guests_that_trim_are_named_where_it_fails(release: str) -> None:
    machines = [machine("a"), machine("b", disableFstrimTimer=True)]
    (only,) = checked(machines=machines, image=f"rancher/harvester:v{release}")
    assert (only.id, only.result) == ("fstrim", Result.WARNING)
    assert only.message.endswith("may run in team/a")
    assert "systemctl disable --now fstrim.timer" in only.remedy


@pytest.mark.parametrize(
    "image", ["rancher/harvester:v1.3.1", "rancher/harvester:v1.2.10", "rancher/harvester:head", ""]
)
def test_elsewhere_guests_may_trim(image: str) -> None:
    assert checked(machines=[machine()], image=image) == []
    quiet = [machine(disableFstrimTimer=True)]
    assert checked(machines=quiet, image="rancher/harvester:v1.3.0") == []


# What a server that is no Harvester may answer


@pytest.mark.parametrize("replicas", ["²", "9" * 5000, "-1", "x"])
def test_numbers_of_replicas_that_cannot_be_read(replicas: str) -> None:
    odd = storage_class(numberOfReplicas=replicas, dataLocality="strict-local", diskSelector="ssd")
    assert {check.id for check in checked(odd, nodes=[])} == {"storage-locality"}
    facts = HarvesterFacts(Key("team", "identity"), Kubeconfig("https://h"), objects=HarvesterObjects())
    facts.storage.classes = [odd]
    facts.objects = HarvesterObjects(hosts=[host("a")])
    assert found(harvester.checks(facts, NOW), "longhorn-replicas") == []
    assert found(harvester.checks(facts, NOW), "answers") == []


@pytest.mark.parametrize("value", [5, "x", ["a"], {"a": "b"}, [{}], [None], [[]], {"d": "x"}, {"d": {"tags": 5}}])
def test_values_of_other_types_end_nothing(value: Any) -> None:
    node, weird = longhorn_node("a", []), job("a", 5, "snapshot", "default")
    node["spec"] = {"tags": value, "disks": value}
    weird["spec"] = {"retain": value, "task": value, "groups": value, "retentionPolicy": value}
    deployment = {"spec": {"template": {"spec": {"containers": value}}}}
    storage_of = Storage([storage_class(diskSelector="ssd")], [node], [weird, job("b", value, "snapshot", "default")])
    objects = HarvesterObjects(claims=[claim()])
    checks = storage.checks(storage_of, objects, [{"metadata": {"name": "m"}}], deployment, "Harvester x")
    assert {check.id for check in checks} <= {"storage-tags"}
    assert release_of(deployment) is None


def test_answers_that_cannot_be_checked_are_one_finding() -> None:
    kubeconfig = Kubeconfig("https://h")
    objects = HarvesterObjects(hosts=[{"metadata": {"name": "a", "labels": 5}}])
    checks = harvester.checks(HarvesterFacts(Key("team", "identity"), kubeconfig, objects=objects), NOW)
    assert one(checks, "connection").result is Result.OK
    answers = one(checks, "answers")
    assert (answers.result, answers.subject) == (Result.ERROR, "Harvester https://h")


# Reading


def by_identities(*claims: Obj) -> list[HarvesterFacts]:
    """What identities of one Harvester see, each one claim."""
    return [HarvesterFacts(Key("team", "identity"), objects=HarvesterObjects(claims=[obj])) for obj in claims]


async def test_longhorn_is_asked_for_what_classes_in_use_need() -> None:
    server = MemoryServer(storage_class(diskSelector="ssd"), longhorn_node("a", []), job("daily"))
    stored, unread = await read_storage(cast("ApiClient", server), by_identities(claim("other"), claim()))
    assert (len(stored.classes), len(stored.nodes or ()), len(stored.jobs or ()), unread) == (1, 1, 1, [])

    unused, _ = await read_storage(cast("ApiClient", server), by_identities())
    assert (unused.nodes, unused.jobs) == (None, None)


async def test_lists_that_may_not_be_read_are_named() -> None:
    server = MemoryServer(storage_class(diskSelector="ssd"))
    server.errors["list Node"] = Forbidden(403, "Forbidden", "cannot list")
    stored, unread = await read_storage(cast("ApiClient", server), by_identities(claim()))
    assert (stored.nodes, unread) == (None, ["list nodes.longhorn.io"])

    server.errors["list StorageClass"] = Forbidden(403, "Forbidden", "cannot list")
    stored, unread = await read_storage(cast("ApiClient", server), by_identities(claim()))
    assert (stored.classes, unread) == ([], ["list storageclasses.storage.k8s.io"])


def test_what_was_not_read_is_one_check_that_was_not_made() -> None:
    kubeconfig, unread = Kubeconfig("https://h"), ["get settings http-proxy", "list storageclasses.storage.k8s.io"]
    facts = HarvesterFacts(Key("team", "identity"), kubeconfig, objects=HarvesterObjects(), unread=unread)
    only = one(harvester.checks(facts, NOW), "access")
    assert (only.result, only.message) == (
        Result.SKIPPED,
        "not checked, because the account may not get settings http-proxy; list storageclasses.storage.k8s.io",
    )
