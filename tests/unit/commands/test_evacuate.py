"""`caphv evacuate`: what it writes, what it refuses, and its exit status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from caphv.api.evacuation import describe_left
from caphv.api.names import CLUSTER_LABEL, EVACUATE_ANNOTATION
from caphv.api.object import Obj, Resource, annotations_of
from caphv.runtime.errors import Forbidden
from commands import evacuate as command
from operations.read.objects import Unseen
from tests.support.clusters import Builder, condition
from tests.support.commandservers import Servers

pytestmark = pytest.mark.unit

UID = "harvester-uid"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    put_cluster(found)
    found.harvester.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system", "uid": UID}})
    for name in ("h0", "h1"):
        put_host(found, name)
    devices = {"hostDevices": [{"deviceName": "gpu"}]}
    metadata = {"name": "worker-1", "namespace": "vms", "labels": {CLUSTER_LABEL: "team.shop"}}
    obj = {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": metadata}
    found.harvester.put({**obj, "spec": {"domain": {"devices": devices}}, "status": {"nodeName": "h0"}})
    return found


def put_cluster(servers: Servers, *conditions: Obj, paused: bool = False) -> None:
    builder = Builder()
    builder.cluster["spec"]["paused"] = paused
    builder.harvester_cluster["status"]["harvester"] = {"uid": UID}
    builder.harvester_cluster["status"]["conditions"].extend(conditions)
    servers.put(builder)


def put_host(servers: Servers, name: str, *, pins: bool = False, **annotations: str) -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"gpu": "1"}}
    metadata = {"name": name, "annotations": annotations, "labels": {"cpumanager": str(pins).lower()}}
    servers.harvester.put({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}, "status": status})


def value(servers: Servers, name: str = "h0") -> str | None:
    host = servers.harvester.find("Node", name)
    assert host is not None
    return annotations_of(host).get(EVACUATE_ANNOTATION)


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (("h0",), 2, "confirmation needs a terminal"),
        (("h9", "--yes"), 2, "no Harvester has a host h9; hosts: h0, h1"),
        (("h0", "--force", "--cancel"), 2, "are mutually exclusive"),
    ],
)
def test_what_cannot_be_meant_or_is_not_confirmed_changes_nothing(
    servers: Servers, words: tuple[str, ...], status: int, problem: str
) -> None:
    result = servers.caphv("evacuate", *words, "HARVESTER")
    assert (result.exit_code, problem in result.output) == (status, True), result.output
    assert value(servers) is None


@pytest.mark.parametrize(
    ("options", "written"), [(("--yes",), "true"), (("--yes", "--force"), "force"), (("--dry-run",), None)]
)
def test_a_host_gets_its_annotation(servers: Servers, options: tuple[str, ...], written: str | None) -> None:
    result = servers.caphv("evacuate", "h0", "HARVESTER", *options)
    assert result.exit_code == 0, result.output
    assert "team/shop: stopped and started elsewhere, one at a time: worker-1" in result.stdout
    assert value(servers) == written
    assert servers.management.requests == []


def test_it_is_ended(servers: Servers) -> None:
    put_host(servers, "h0", **{EVACUATE_ANNOTATION: "true"})
    assert servers.caphv("evacuate", "h0", "HARVESTER", "--cancel", "--yes").exit_code == 0
    assert value(servers) is None
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--cancel", "--yes")
    assert (result.exit_code, "Nothing to change: host h0 is up to date" in result.stdout) == (0, True), result.output


def test_a_check_that_failed_stops_it(servers: Servers) -> None:
    put_host(servers, "h1", **{EVACUATE_ANNOTATION: "true"})
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--yes")
    assert (result.exit_code, "no other host takes VMs" in result.output) == (1, True), result.output
    assert value(servers) is None
    content = servers.item("evacuate", "h0", "HARVESTER", "--yes")
    assert content["applied"] is False
    assert [check["message"] for check in content["checks"] if check["result"] == "error"] == [
        "no other host takes VMs"
    ]


def test_data_says_what_moves(servers: Servers) -> None:
    content = servers.item("evacuate", "h0", "HARVESTER", "--yes")
    assert (content["host"], content["applied"]) == ("h0", True)
    (group,) = content["machines"]
    assert (group["cluster"], group["moves"]) == (["team", "shop"], ["worker-1"])
    assert content["changes"][0]["after"] == "true"


def test_a_machine_with_pinned_cpus_needs_a_host_that_can_pin(servers: Servers) -> None:
    found = servers.harvester.find("VirtualMachineInstance", "worker-1", "vms")
    assert found is not None
    found["spec"]["domain"]["cpu"] = {"dedicatedCpuPlacement": True}
    servers.harvester.put(found)
    put_host(servers, "h0", pins=True)
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--dry-run")
    assert (result.exit_code, "stopped and started elsewhere" in result.output) == (0, False), result.output
    assert "(label cpumanager=true), so they stay: worker-1" in result.output
    assert servers.item("evacuate", "h0", "HARVESTER", "--dry-run")["machines"][0]["pinned"] == ["worker-1"]

    put_host(servers, "h1", pins=True)
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--dry-run")
    assert (result.exit_code, "CPU manager" in result.output) == (0, False), result.output
    assert "stopped and started elsewhere, one at a time: worker-1" in result.output


def test_a_missing_right_names_the_option(servers: Servers) -> None:
    servers.harvester.errors["patch Node"] = Forbidden(403, "Forbidden", "cannot patch nodes")
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--yes")
    assert (result.exit_code, "an administrator's kubeconfig" in result.output) == (2, True), result.output


def test_a_harvester_that_cannot_be_read_is_named(servers: Servers) -> None:
    servers.harvester.errors["list Node"] = Forbidden(403, "Forbidden", "cannot list nodes")
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--yes")
    assert (result.exit_code, "cannot list nodes" in result.output) == (2, True), result.output


@pytest.mark.parametrize(
    ("reported", "status", "text"),
    [
        (("True", "", describe_left(["h0"])), 0, "Host h0 is free of machines that the provider moves"),
        (("False", "EvacuationBlocked", "no device"), 1, "✗ team/shop: no device"),
    ],
)
def test_it_waits_for_all_clusters(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, reported: tuple[str, str, str], status: int, text: str
) -> None:
    monkeypatch.setattr("commands.output.clusterprogress._BLOCKED_SECONDS", 0.0)
    put_cluster(servers, condition("HostsEvacuated", *reported))
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--yes", "--wait", "--timeout", "30s")
    assert (result.exit_code, text in result.output) == (status, True), result.output


def test_what_is_not_done_in_time_continues(servers: Servers) -> None:
    put_cluster(servers, condition("HostsEvacuated", "False", "Evacuating", "worker-1 leaves h0"))
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--yes", "--wait", "--timeout", "1s")
    assert (result.exit_code, "Timed out" in result.output) == (1, True), result.output


def test_a_paused_cluster_is_not_waited_for(servers: Servers) -> None:
    put_cluster(servers, paused=True)
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--yes", "--wait", "--timeout", "30s")
    assert (result.exit_code, "team/shop is paused, so these stay: worker-1" in result.output) == (0, True), (
        result.output
    )


@pytest.mark.parametrize("option", ["--wait", "--dry-run"])
def test_a_host_is_not_called_free_while_the_clusters_are_not_known(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """A user may list HarvesterClusters of one namespace, and Clusters of all."""
    list_some = servers.management.list

    async def refuse_all(resource: Resource, namespace: str = "", **more: Any) -> Obj:
        if resource.kind == "HarvesterCluster" and not namespace:
            raise Forbidden(403, "Forbidden", "only in one namespace")
        return await list_some(resource, namespace, **more)

    monkeypatch.setattr(servers.management, "list", refuse_all)
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--yes", option)
    assert (result.exit_code, value(servers)) == (2, None), result.output
    assert "the clusters on this Harvester are not known" in result.stderr
    assert "only in one namespace" in result.stderr


def test_vms_that_are_not_seen_are_named(servers: Servers) -> None:
    servers.harvester.errors["list VirtualMachineInstance"] = Forbidden(403, "Forbidden", "no right to list them")
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "- access: " in result.stdout
    assert "no right to list them" in result.stdout


def test_a_namespace_limits_what_is_known_about_a_host(servers: Servers) -> None:
    put_cluster(servers, condition("HostsEvacuated", "True", "", describe_left(["h0"])))
    put_host(servers, "h0", **{EVACUATE_ANNOTATION: "true"})
    result = servers.caphv("evacuate", "h0", "HARVESTER", "--wait", "-n", "team")
    assert result.exit_code == 0, result.output
    assert "Host h0 is free of machines of namespace team that the provider moves" in result.stdout


def test_a_harvester_that_is_lost_after_the_question_is_named(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def none_left(*_: object) -> AsyncIterator[Any]:
        yield [], [Unseen("identity Secret team/identity", "no answer")]

    def confirm(*_: object) -> None:
        monkeypatch.setattr(command, "harvester_clients", none_left)

    monkeypatch.setattr(command, "confirm", confirm)
    result = servers.caphv("evacuate", "h0", "HARVESTER")
    assert (result.exit_code, value(servers)) == (2, None), result.output
    assert "no identity for https://harvester:6443 can be used any more, nothing was changed" in result.stderr
    assert "identity Secret team/identity: no answer" in result.stderr
