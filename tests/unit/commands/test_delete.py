"""`caphv delete`: its exit status and warnings, in which order it writes, and the list of what may remain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caphv.api import resources
from caphv.api.object import Resource
from caphv.runtime.errors import Forbidden
from commands.main import cli
from operations.read.harvester import Harvesters
from operations.read.objects import ManagementObjects
from operations.status.assembly import overview_of
from operations.status.query import Answer
from tests.support.clusters import Builder, ago, condition
from tests.support.commandservers import KINDS, Servers
from tests.support.deletionserver import Server

pytestmark = pytest.mark.unit


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    found = Server(Builder(workers=1))

    @asynccontextmanager
    async def client(_flags: dict[str, Any]) -> AsyncIterator[Server]:
        yield found

    def read(*_: object, **__: object) -> Answer:
        objects = found.builder.objects()
        return Answer(overview_of(objects, datetime.now(UTC)), objects, Harvesters())

    async def kinds(_client: object) -> dict[str, Resource]:
        return {"clusters": resources.clusters("v1beta1")}

    monkeypatch.setattr("commands.delete.management_client", client)
    monkeypatch.setattr("commands.delete.read_overview", read)
    monkeypatch.setattr("operations.read.management.kinds_of", kinds)
    monkeypatch.chdir(tmp_path)
    return found


def force(*more: str) -> Result:
    return CliRunner().invoke(cli, ["delete", "team/shop", "--force", "--yes", *more])


ANNOTATED = ["annotate HarvesterMachine cp-1", "annotate HarvesterMachine worker-1", "annotate HarvesterCluster shop-x"]


def test_the_cluster_is_deleted_before_anything_is_forced(server: Server) -> None:
    assert force().exit_code == 0
    assert server.writes == ["delete Cluster shop", *ANNOTATED]


def test_the_list_of_what_may_remain_goes_to_the_named_file(server: Server, tmp_path: Path) -> None:
    result = force("--save", str(tmp_path / "left.yaml"))
    assert (
        result.exit_code,
        f"saved a list of what may remain on Harvester to {tmp_path / 'left.yaml'}" in result.output,
    ) == (
        0,
        True,
    )
    assert "cluster: team/shop" in (tmp_path / "left.yaml").read_text()
    assert force().exit_code == 0
    assert (tmp_path / "team-shop-leftovers.yaml").exists()


def test_nothing_is_forced_in_a_cluster_that_may_not_be_deleted(server: Server) -> None:
    server.refuses = True
    result = force()
    assert (result.exit_code, "your account may not do that" in result.output) == (2, True)
    assert server.writes == []


def run(*more: str) -> Result:
    return CliRunner().invoke(cli, ["delete", "team/shop", *more])


@pytest.mark.parametrize("options", [["--yes"], ["--force", "--yes"], ["--dry-run"]], ids=" ".join)
def test_a_cluster_that_rancher_provisions_is_deleted_there(server: Server, tmp_path: Path, options: list[str]) -> None:
    reference = {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane"}
    server.builder.cluster["spec"]["controlPlaneRef"] |= reference
    result = run(*options)
    assert result.exit_code == 2
    assert "kubectl delete clusters.provisioning.cattle.io shop -n team" in result.output
    assert server.writes == []
    assert not list(tmp_path.iterdir())


@pytest.fixture
def remains(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    async def read(*_: object) -> ManagementObjects:
        return server.builder.objects()

    monkeypatch.setattr("operations.read.management.read_management", read)
    return server


def test_the_deletion_of_a_paused_cluster_is_explained(remains: Server) -> None:
    remains.builder.cluster["spec"]["paused"] = True
    remains.builder.cluster["metadata"]["deletionTimestamp"] = datetime.now(UTC).isoformat()
    result = run("--explain")
    assert result.exit_code == 1
    assert result.output.startswith("✗ Cluster/shop waits for: the end of its pause")
    assert "--force" not in result.output


@pytest.mark.parametrize("kind", ["Cluster", "HarvesterCluster", "HarvesterMachine"])
def test_force_is_not_named_where_a_pause_blocks(remains: Server, kind: str) -> None:
    own, infrastructure = remains.builder.harvester_machines["worker-1"], remains.builder.harvester_cluster
    chain = [own, infrastructure] if kind == "Cluster" else [{"HarvesterCluster": infrastructure}.get(kind, own)]
    for obj in (remains.builder.cluster, remains.builder.machines["worker-1"], *chain):
        obj["metadata"]["deletionTimestamp"] = ago(hours=1)
    if kind == "Cluster":
        remains.builder.cluster["spec"]["paused"] = True
    else:
        chain[0]["metadata"]["annotations"] = {"cluster.x-k8s.io/paused": ""}
    text = run("--explain").output
    assert "waits for: the end of its pause" in text
    assert "--force" not in text


def test_force_is_named_where_harvester_blocks(remains: Server) -> None:
    for obj in (
        remains.builder.cluster,
        remains.builder.machines["worker-1"],
        remains.builder.harvester_machines["worker-1"],
    ):
        obj["metadata"]["deletionTimestamp"] = ago(hours=1)
    result = run("--explain")
    assert result.exit_code == 1
    assert "If its Harvester does not come back: caphv delete team/shop --force" in result.output


def test_what_objects_say_stays_in_its_line(remains: Server) -> None:
    machine = remains.builder.machines["worker-1"]
    for obj in (remains.builder.cluster, machine):
        obj["metadata"]["deletionTimestamp"] = ago(hours=1)
    message = "Drain:\n* Pod a\x1b[1A\x1b[2K\x9b2K"
    machine["status"]["conditions"] = [condition("Deleting", "True", "DrainingNode", message)]
    assert "waits for: Drain: * Pod a\\u001b[1A\\u001b[2K\\u009b2K  (" in run("--explain").output


@pytest.mark.parametrize("paused", [True, False])
def test_a_warning_comes_before_the_deletion_of_a_paused_cluster(server: Server, paused: bool) -> None:
    server.builder.cluster["spec"]["paused"] = paused
    result = run("--dry-run")
    assert result.exit_code == 0
    assert ("is paused: no controller deletes anything until you resume it: kubectl patch" in result.output) is paused


def test_the_warning_says_that_vms_are_deleted_if_only_the_harvestercluster_is_paused(server: Server) -> None:
    server.builder.harvester_cluster["metadata"]["annotations"] = {"cluster.x-k8s.io/paused": ""}
    text = run("--dry-run").output
    assert "no controller deletes anything" not in text
    assert "its HarvesterCluster is paused: VMs are deleted; load balancer and HarvesterCluster stay until" in text
    assert "resume it: kubectl annotate harvestercluster shop-x -n team cluster.x-k8s.io/paused-" in text


def test_data_says_what_is_deleted_and_what_a_deletion_waits_for(remains: Server) -> None:
    (dry,) = json.loads(run("--dry-run", "-o", "json").stdout)["items"]
    assert (dry["cluster"], dry["applied"]) == ("team/shop", False)
    assert {item["kind"] for item in dry["harvester"]} >= {"VirtualMachine"}

    remains.builder.cluster["spec"]["paused"] = True
    remains.builder.cluster["metadata"]["deletionTimestamp"] = datetime.now(UTC).isoformat()
    result = run("--explain", "-o", "json")
    (first, *_) = json.loads(result.stdout)["items"]
    assert (result.exit_code, first["object"], first["wrong"]) == (1, "Cluster/shop", True)

    del remains.builder.cluster["spec"]["paused"]
    done = json.loads(force("-o", "json").stdout)
    assert done["items"][0]["applied"] is True


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    """A management cluster on which some kinds may not be listed."""
    servers = Servers(monkeypatch, tmp_path)
    servers.put(Builder(workers=1))
    return servers


def forbid(servers: Servers, kind: str) -> None:
    servers.management.errors[f"list {kind}"] = Forbidden(403, "Forbidden", f"no right to list {kind}")


@pytest.mark.parametrize("kind", ["HarvesterMachine", "HarvesterCluster"])
@pytest.mark.parametrize("option", ["--yes", "--dry-run"])
def test_nothing_is_forced_while_a_kind_cannot_be_read(
    limited: Servers, tmp_path: Path, kind: str, option: str
) -> None:
    forbid(limited, kind)
    result = limited.caphv("delete", "team/shop", "--force", option)
    assert (result.exit_code, limited.management.requests) == (2, [])
    assert f"no right to list {kind}" in result.stderr
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize("kind", ["Machine", "HarvesterMachine", "HarvesterCluster", "RKE2ControlPlane"])
@pytest.mark.parametrize("option", ["--yes", "--dry-run", "--explain"])
def test_kinds_that_cannot_be_read_are_named(limited: Servers, kind: str, option: str) -> None:
    forbid(limited, kind)
    result = limited.caphv("delete", "team/shop", option)
    assert result.exit_code == 0, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("not seen: ")]
    assert f"no right to list {kind}" in line


def test_what_remains_of_a_lost_cluster_is_unknown_while_a_kind_cannot_be_read(limited: Servers) -> None:
    limited.management.remove(KINDS["Cluster"], "shop", "team")
    forbid(limited, "HarvesterMachine")
    result = limited.caphv("delete", "team/shop", "--explain")
    assert result.exit_code == 1
    assert "✗ HarvesterCluster/shop-x waits for: a deletion" in result.stdout
    assert "not seen: harvestermachines" in result.stderr

    for kind in ("HarvesterCluster", "Machine"):
        forbid(limited, kind)
    result = limited.caphv("delete", "team/shop", "--explain")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Cluster team/shop does not exist, and whether objects of it remain is unknown" in result.stderr


def test_without_a_harvester_cluster_its_server_is_not_named(limited: Servers) -> None:
    forbid(limited, "HarvesterCluster")
    result = limited.caphv("delete", "team/shop", "--dry-run")
    assert "  deletes on Harvester: 2 VirtualMachines: cp-1, worker-1" in result.stdout.splitlines()
