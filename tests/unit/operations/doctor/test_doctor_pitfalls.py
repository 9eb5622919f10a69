"""The doctor's checks for known pitfalls of Harvester: what each finds, and what it says to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caphv.api import names
from caphv.api.object import Obj
from operations.doctor import annotations, pitfalls
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result
from tests.support.clusters import NOW, Builder, ago, condition

pytestmark = pytest.mark.unit


def host(name: str, memory: str = "32Gi", **ready: Any) -> Obj:
    status = {"allocatable": {"cpu": "16", "memory": memory}, "conditions": [{**condition("Ready", "True"), **ready}]}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def instance(name: str, where: str = "a", memory: str = "8Gi", cpu: str = "1", **paused: str) -> Obj:
    conditions = [{"type": "Paused", "status": "True", **paused}] if paused else []
    return {
        "metadata": {"namespace": "vms", "name": name},
        "spec": {"domain": {"resources": {"requests": {"cpu": cpu, "memory": memory}}}},
        "status": {"nodeName": where, "conditions": conditions},
    }


def claim(name: str, *modes: str) -> Obj:
    return {"metadata": {"namespace": "vms", "name": name}, "spec": {"accessModes": list(modes)}}


def image(name: str, display: str, message: str = "") -> Obj:
    conditions = [condition("Imported", "False", message=message)] if message else []
    metadata = {"namespace": "default", "name": name}
    return {"metadata": metadata, "spec": {"displayName": display}, "status": {"conditions": conditions}}


def setting(name: str, value: Any) -> Obj:
    return {"metadata": {"name": name}, "value": json.dumps(value)}


def shared_class(name: str = "rwx") -> Obj:
    return {"metadata": {"name": name}, "parameters": {"nfsOptions": "vers=4.2", "migratable": "false"}}


def test_volumes_that_guests_share_need_a_network() -> None:
    off, on = setting("storage-network", None), setting("rwx-network", {"vlan": 5})

    def messages(settings: list[Obj], *networks: str) -> list[str]:
        vm = machine()
        vm["spec"]["networks"] = list(networks)
        checks = pitfalls.checks(HarvesterObjects(settings=settings), [shared_class()], [vm], "Harvester x", NOW)
        return [check.message for check in checks if check.id == "rwx-network"]

    assert messages([off], "a", "b") == [
        "volumes of StorageClass rwx cannot be mounted: no network is set for shared volumes"
    ]
    assert messages([off, on], "a") == ["machines have one VM network, and may not reach shared volumes: team/m"]
    assert messages([off, on], "a", "b") == []
    assert messages([], "a") == []
    # Neither an empty object nor a text is a network.
    for value in ({}, "x"):
        assert len(messages([setting("rwx-network", value)], "a", "b")) == 1
    assert messages([on]) == []


def machine(image_name: str = "default/sles", storage_class: str = "fast", name: str = "m") -> Obj:
    volumes = [{"imageName": image_name}, {"storageClass": storage_class}]
    return {"metadata": {"namespace": "team", "name": name}, "spec": {"volumes": volumes}}


def classes(**provisioners: str) -> list[Obj]:
    return [{"metadata": {"name": name}, "provisioner": each} for name, each in provisioners.items()]


LONGHORN = classes(fast="driver.longhorn.io")
FINE: dict[str, Any] = {
    "hosts": [host("a"), host("b")],
    "instances": [instance("x"), instance("y", "b")],
    "claims": [claim("disk", "ReadWriteMany")],
    "images": [image("sles", "SLES 15 SP7 Cloud")],
    "settings": [
        setting("csi-driver-config", {"driver.longhorn.io": {}}),
    ],
}


def checked(machines: list[Obj] | None = None, storage: list[Obj] | None = None, **fields: Any) -> list[Check]:
    objects = HarvesterObjects(**{**FINE, **fields})
    # Instances x and y are of machines, all others of other people.
    machines = machines or [machine(), machine(name="x"), machine(name="y")]
    return list(pitfalls.checks(objects, storage or LONGHORN, machines, "Harvester x", NOW))


def test_a_harvester_without_pitfalls_has_no_finding() -> None:
    assert [check for check in checked() if check.result is not Result.OK] == []
    assert {check.id for check in checked()} == {"host-capacity"}


def test_nothing_is_found_where_nothing_may_be_read() -> None:
    assert list(pitfalls.checks(HarvesterObjects(), [], [], "Harvester x", NOW)) == []


AHEAD = ago(seconds=-300)


@pytest.mark.parametrize(
    ("fields", "check", "result", "text"),
    [
        ({"hosts": [host("a", "9Gi")]}, "host-capacity", Result.ERROR, "no host has room for one more VM of 1 CPU"),
        (
            {"hosts": [host("a", "64Gi"), host("b", "9Gi")], "instances": [instance("x"), instance("y")]},
            "host-capacity",
            Result.WARNING,
            "without host a, 1 of its VMs",
        ),
        ({"hosts": [host("a", lastHeartbeatTime=AHEAD), host("b")]}, "clock", Result.WARNING, "a by 300 s"),
        (
            {"instances": [instance("x", reason="PausedIOError")]},
            "fstrim",
            Result.ERROR,
            "paused after an I/O error of their disk: vms/x",
        ),
        ({"claims": [claim("disk", "ReadWriteOnce")]}, "rwx", Result.WARNING, "vms/disk"),
        (
            {"images": [image("sles", "SLES15-SP6-Minimal-VM.x86_64-Cloud")]},
            "macvlan",
            Result.WARNING,
            "default/sles has no kernel module macvlan",
        ),
        (
            {"images": [image("sles", "x", "x509: certificate signed by unknown authority")]},
            "host-ca",
            Result.ERROR,
            "default/sles cannot be downloaded",
        ),
        ({"images": [image("sles", "x", "dial tcp: i/o timeout")]}, "proxy", Result.ERROR, "i/o timeout"),
    ],
)
def test_a_pitfall_is_found(fields: Any, check: str, result: Result, text: str) -> None:
    (only,) = [each for each in checked(**fields) if each.id == check]
    assert (only.result, text in only.message) == (result, True), only.message
    assert only.remedy


def results(check: str, **fields: Any) -> list[Result]:
    return [found.result for found in checked(**fields) if found.id == check]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"hosts": []}, []),
        ({"instances": []}, []),
        ({"hosts": [host("a")], "instances": [instance("x")]}, [Result.OK]),
        # One host takes the VMs of the other, or does not.
        ({"hosts": [host("a", "17Gi"), host("b", "26Gi")]}, [Result.OK]),
        ({"hosts": [host("a", "9Gi"), host("b", "17Gi")]}, [Result.WARNING]),
        # One that has ended uses nothing of its host.
        (
            {
                "hosts": [host("a", "9Gi"), host("b", "17Gi")],
                "instances": [{**instance("x"), "status": {"nodeName": "b", "phase": "Failed"}}, instance("y")],
            },
            [Result.OK],
        ),
        # Neither the size nor the existence of VMs of others stops a rollout.
        ({"instances": [instance("x"), instance("other", "c", memory="64Gi")]}, [Result.OK]),
        ({"instances": [instance("other")]}, []),
        # The VM with more CPUs has room, and the one with more memory has none.
        (
            {
                "hosts": [host("a", "41Gi"), host("b", "9Gi")],
                "instances": [instance("x", cpu="4"), instance("y", memory="30Gi")],
            },
            [Result.ERROR],
        ),
        # An instance that has no host yet counts for the size of VMs only.
        ({"instances": [{"metadata": {"namespace": "vms", "name": "x"}}, instance("y")]}, [Result.OK]),
    ],
)
def test_hosts_need_room_for_a_rollout_and_for_a_lost_host(fields: Any, expected: list[Result]) -> None:
    assert results("host-capacity", **fields) == expected


@pytest.mark.parametrize(("ahead", "expected"), [(61, [Result.WARNING]), (60, []), (-600, [])])
def test_a_clock_may_be_a_minute_ahead(ahead: int, expected: list[Result]) -> None:
    hosts = [host("a", lastHeartbeatTime=ago(seconds=-ahead)), host("b")]
    assert results("clock", hosts=hosts) == expected


@pytest.mark.parametrize("paused", [{"status": "False"}, {"reason": "PausedByUser"}, {"type": "Ready"}])
def test_only_a_pause_for_an_error_of_a_disk_is_one(paused: dict[str, str]) -> None:
    error = instance("x", **{"reason": "PausedIOError", **paused})
    assert results("fstrim", instances=[error]) == []


def test_a_disk_without_modes_is_not_known_to_be_of_one_host() -> None:
    assert results("rwx", claims=[claim("disk")]) == []


def test_an_image_may_be_named_without_its_namespace() -> None:
    images = [image("image-x7", "SLES15-SP6-Minimal-VM.x86_64-Cloud")]
    for name in ("image-x7", "default/image-x7"):
        assert results("macvlan", images=images, machines=[machine(name)]) == [Result.WARNING]
    assert results("macvlan", images=images, machines=[machine("default/other")]) == []


def test_a_machine_without_volumes_and_a_class_without_a_driver_are_no_pitfalls() -> None:
    empty = {"metadata": {"namespace": "team", "name": "m"}, "spec": {}}
    assert checked(machines=[empty]) == []
    assert results("external-csi", storage=[{"metadata": {"name": "fast"}}]) == []


def test_a_driver_that_cannot_be_backed_up_is_found() -> None:
    (only,) = [
        each for each in checked(storage=classes(fast="rook-ceph.rbd.csi.ceph.com")) if each.id == "external-csi"
    ]
    assert only.result is Result.WARNING
    assert "csi-driver-config" in only.remedy


def test_a_setting_that_cannot_be_parsed_is_skipped() -> None:
    broken = {"metadata": {"name": "csi-driver-config"}, "value": "{"}
    assert [each for each in checked(settings=[broken]) if each.wrong] == []


# Annotations


def test_annotations_that_mean_something_are_no_finding() -> None:
    builder = Builder()
    every = {f"{name}": "x" for name in annotations.KNOWN if "adopt" not in name and "force" not in name}
    builder.cluster["metadata"]["annotations"] = {**every, "example.com/other": "x"}
    assert list(annotations.checks([builder.cluster])) == []
    assert names.ADDON_VALUES_ANNOTATION in annotations.KNOWN


def test_one_without_effect_names_the_one_that_was_meant() -> None:
    (only,) = annotations.checks([_with(Builder().harvester_cluster, "caphv.io/adoptt")])
    assert only.message == "annotation caphv.io/adoptt has no effect"
    assert "Did you mean caphv.io/adopt?" in only.remedy
    assert only.remedy.endswith("kubectl annotate harvestercluster shop-x -n team caphv.io/adoptt-")


def test_force_delete_before_a_deletion_is_a_warning() -> None:
    obj = _with(Builder().harvester_machines["cp-1"], names.FORCE_DELETE_ANNOTATION)
    assert [check.result for check in annotations.checks([obj])] == [Result.WARNING]
    obj["metadata"]["deletionTimestamp"] = ago(minutes=1)
    assert list(annotations.checks([obj])) == []


def test_adopt_on_what_has_been_adopted_is_a_warning() -> None:
    obj = _with(Builder().harvester_cluster, names.ADOPT_ANNOTATION)
    assert ["adopt is still set" in check.message for check in annotations.checks([obj])] == [True]
    obj["status"]["conditions"] = [condition("Ready", "False")]
    assert list(annotations.checks([obj])) == []


def _with(obj: Obj, name: str) -> Obj:
    obj["metadata"]["annotations"] = {name: "true"}
    return obj
