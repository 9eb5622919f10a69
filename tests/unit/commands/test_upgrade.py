"""`caphv upgrade`: what it writes and when, and what its exit status says."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import Key, Obj
from caphv.runtime.errors import Conflict, Forbidden
from operations.change.upgrade import observe_rollout
from operations.read.objects import Unseen
from tests.support.clusters import VERSION, Builder
from tests.support.commandservers import Servers

pytestmark = pytest.mark.unit

NEXT = "v1.36.3+rke2r1"


def cluster(*, topology: bool = False, control_plane: str = VERSION, workers: str = VERSION) -> Builder:
    """A cluster whose machines have the versions of their objects."""
    builder = Builder(workers=1)
    if not topology:
        del builder.cluster["spec"]["topology"]
    builder.control_plane["spec"]["version"] = control_plane
    builder.deployment["spec"]["template"]["spec"]["version"] = workers
    builder.deployment["status"] |= {"replicas": 1, "readyReplicas": 1}
    for name, machine in builder.machines.items():
        version = control_plane if name == "cp-1" else workers
        machine["spec"]["version"] = machine["status"]["nodeInfo"]["kubeletVersion"] = version
    return builder


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    found.put(cluster())
    return found


def upgrade(servers: Servers, *options: str, version: str = NEXT) -> Any:
    return servers.caphv("upgrade", "team/shop", "--version", version, *options)


@pytest.mark.parametrize(
    ("version", "problem"),
    [("1.36.3", "not a version of Kubernetes"), ("v1.36.3+k3s1", "runs RKE2"), ("v1.36.3", "runs RKE2")],
)
def test_a_version_of_another_distribution_is_refused(servers: Servers, version: str, problem: str) -> None:
    result = upgrade(servers, "--yes", version=version)
    assert (result.exit_code, problem in result.output) == (2, True), result.output
    assert servers.management.requests == []


def test_a_cluster_that_does_not_exist_is_named(servers: Servers) -> None:
    result = servers.caphv("upgrade", "team/gone", "--version", NEXT, "--yes")
    assert (result.exit_code, "team/gone" in result.output) == (2, True)


def test_with_a_topology_only_the_cluster_is_patched(servers: Servers) -> None:
    servers.put(cluster(topology=True))
    result = upgrade(servers, "--yes")
    assert result.exit_code == 0, result.output
    assert servers.management.requests == ["patch Cluster shop"]
    assert "to follow it, run this command again with --wait" in result.stdout
    obj = servers.management.find("Cluster", "shop", "team")
    assert obj is not None
    assert obj["spec"]["topology"]["version"] == NEXT


def test_without_a_topology_the_workers_follow_later(servers: Servers) -> None:
    result = upgrade(servers, "--yes")
    assert (result.exit_code, "1 MachineDeployment is upgraded" in result.stderr) == (3, True)
    assert "Upgrading" not in result.output
    assert servers.management.requests == ["patch RKE2ControlPlane shop"]


def test_pools_of_workers_that_follow_are_counted(servers: Servers) -> None:
    deployment = copy.deepcopy(cluster().deployment)
    deployment["metadata"] |= {"name": "shop-md-1", "uid": "uid-shop-md-1"}
    servers.management.put({"apiVersion": "cluster.x-k8s.io/v1beta2", **deployment})
    result = upgrade(servers, "--yes")
    assert (result.exit_code, "2 MachineDeployments are upgraded after" in result.stderr) == (3, True), result.output


def test_data_comes_without_the_hint_for_people(servers: Servers) -> None:
    servers.put(cluster(topology=True))
    result = upgrade(servers, "--yes", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["items"][0]["applied"]) == (0, True)
    assert "run this again" not in result.output


def test_workers_are_upgraded_by_a_second_run_once_the_control_plane_is(servers: Servers) -> None:
    servers.put(cluster(control_plane=NEXT))
    (data,) = json.loads(upgrade(servers, "--yes", "-o", "json").stdout)["items"]
    assert (data["applied"], data["pending"]) == (True, [])
    assert servers.management.requests == ["patch MachineDeployment shop-md-0"]


def test_while_the_control_plane_is_not_done_nothing_can_be_changed(servers: Servers) -> None:
    builder = cluster()
    builder.control_plane["spec"]["version"] = NEXT
    servers.put(builder)
    result = upgrade(servers)
    assert result.exit_code == 3, result.output
    assert "Nothing to change now" in result.stdout
    assert servers.management.requests == []


def test_an_upgraded_cluster_is_nothing_to_do(servers: Servers) -> None:
    servers.put(cluster(control_plane=NEXT, workers=NEXT))
    result = upgrade(servers)
    assert (result.exit_code, "Upgrading" in result.output) == (0, False)
    assert upgrade(servers, "--wait", "--timeout", "30s").exit_code == 0
    assert servers.management.requests == []
    (data,) = json.loads(upgrade(servers, "-o", "json").stdout)["items"]
    assert data["changes"] == []
    assert "disruptions" not in {check["id"] for check in data["checks"]}, "nothing is drained"


def test_a_dry_run_only_shows_checks_and_changes(servers: Servers) -> None:
    (data,) = json.loads(upgrade(servers, "--dry-run", "--wait", "-o", "json").stdout)["items"]
    assert data["applied"] is False
    assert [change["after"] for change in (*data["changes"], *data["pending"])] == [NEXT, NEXT]
    assert {"version", "health", "disruptions"} <= {check["id"] for check in data["checks"]}
    assert upgrade(servers, "--dry-run").exit_code == 0
    assert servers.management.requests == []


def test_a_failed_check_forbids_the_upgrade_unless_it_is_forced(servers: Servers) -> None:
    result = upgrade(servers, "--yes", version="v1.35.9+rke2r1")
    assert (result.exit_code, servers.management.requests) == (1, [])
    assert "is older than v1.36.2+rke2r1" in result.output
    assert upgrade(servers, "--yes", "--force", version="v1.35.9+rke2r1").exit_code == 3
    assert servers.management.requests == ["patch RKE2ControlPlane shop"]


# With --wait


def follows(servers: Servers, *states: Builder) -> None:
    """Have the controllers reach these states, one with each patch."""
    patch, left = servers.management.patch, list(states)

    async def patched(*arguments: Any, **options: Any) -> Obj:
        answer = await patch(*arguments, **options)
        servers.put(left.pop(0))
        return answer

    servers.management.patch = patched  # type: ignore[method-assign]


def test_waiting_upgrades_the_workers_after_the_control_plane(servers: Servers) -> None:
    follows(servers, cluster(control_plane=NEXT), cluster(control_plane=NEXT, workers=NEXT))
    result = upgrade(servers, "--yes", "--wait", "--timeout", "30s")
    assert result.exit_code == 0, result.output
    assert servers.management.requests == ["patch RKE2ControlPlane shop", "patch MachineDeployment shop-md-0"]
    assert f"2 of 2 machines run {NEXT}" in result.stdout


@pytest.mark.parametrize(("topology", "again"), [(True, False), (False, True)])
def test_an_interrupt_says_what_continues_without_the_command(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, topology: bool, again: bool
) -> None:
    async def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    servers.put(cluster(topology=topology))
    monkeypatch.setattr("commands.upgrade.until_done", interrupted)
    result = upgrade(servers, "--yes", "--wait")
    assert result.exit_code == 130
    assert "Interrupted. The rollout continues without this command" in result.stderr
    assert ("MachineDeployments are upgraded only when you run this command again" in result.stderr) is again


def test_a_conflict_while_it_waits_is_no_end(servers: Servers) -> None:
    follows(servers, cluster(control_plane=NEXT))
    servers.management.errors["patch MachineDeployment"] = Conflict(409, "Conflict", "modified")
    result = upgrade(servers, "--yes", "--wait", "--timeout", "1s", "-o", "json")
    assert (result.exit_code, "Timed out" in result.stderr) == (1, True)
    assert json.loads(result.stdout)["items"][0]["applied"] is True
    assert f"1 of 2 machines run {NEXT}" in result.stderr


def test_waiting_too_long_names_what_is_in_the_way(servers: Servers) -> None:
    builder = cluster(control_plane=NEXT, workers=NEXT)
    builder.break_machine("worker-1", "NoFreeAddress", "no pool has a free address", minutes=30)
    builder.machines["worker-1"]["status"]["conditions"] = []
    follows(servers, builder, builder)
    result = upgrade(servers, "--yes", "--wait", "--timeout", "1s")
    assert (result.exit_code, "Timed out" in result.stderr) == (1, True)
    assert "nothing is lost.\nSolve the problems above" in result.stderr
    assert result.output.count("no pool has a free address") == 2, "while it waits, and at its end"


def forbid(servers: Servers, kind: str) -> None:
    servers.management.errors[f"list {kind}"] = Forbidden(403, "Forbidden", f"no right to list {kind}")


@pytest.mark.parametrize("kind", ["Machine", "MachineDeployment", "RKE2ControlPlane"])
@pytest.mark.parametrize("version", [VERSION, NEXT], ids=["before", "control plane patched"])
def test_without_a_topology_nothing_is_upgraded_that_is_not_seen(servers: Servers, kind: str, version: str) -> None:
    builder = cluster()
    builder.control_plane["spec"]["version"] = version
    servers.put(builder)
    forbid(servers, kind)
    result = upgrade(servers, "--yes", "--force")
    assert (result.exit_code, f"no right to list {kind}" in result.stderr) == (2, True), result.output
    assert servers.management.requests == []


@pytest.mark.parametrize("kind", ["Machine", "MachineDeployment", "RKE2ControlPlane", "HarvesterMachine"])
def test_with_a_topology_a_check_says_what_is_not_seen(servers: Servers, kind: str) -> None:
    servers.put(cluster(topology=True))
    forbid(servers, kind)
    result = upgrade(servers, "--yes")
    assert (result.exit_code, servers.management.requests) == (0, ["patch Cluster shop"]), result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("- access: ")]
    assert f"no right to list {kind}" in line


def test_while_waiting_workers_are_not_upgraded_before_machines_are_seen(servers: Servers) -> None:
    builder = cluster()
    builder.control_plane["spec"]["version"] = NEXT
    objects = builder.objects()
    objects.machines = []
    objects.unseen = [Unseen("machines.cluster.x-k8s.io", "no answer")]
    assert observe_rollout(objects, Key("team", "shop"), NEXT).due == ()
