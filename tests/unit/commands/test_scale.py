"""`caphv scale`: what it writes, its exit status, and what it waits for."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import Obj
from caphv.runtime.errors import Conflict, Forbidden
from commands import scale
from tests.support.clusters import Builder
from tests.support.commandservers import Servers
from tests.support.overview import KINDS

pytestmark = pytest.mark.unit


def without_topology(workers: int = 2) -> Builder:
    builder = Builder(workers=workers)
    del builder.cluster["spec"]["topology"]
    builder.deployment["status"] |= {"replicas": workers, "readyReplicas": workers}
    return builder


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    found.put(without_topology())
    return found


def replicas(servers: Servers, kind: str = "MachineDeployment", name: str = "shop-md-0") -> int:
    obj = servers.management.find(kind, name, "team")
    assert obj is not None
    return int(obj["spec"]["replicas"])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "nothing to do"),
        (("--workers", "many"), "'many' is not [POOL=]REPLICAS with 0 to 1000 replicas"),
        (("--workers", "shop-md-0=1001"), "is not [POOL=]REPLICAS"),
        (("--workers", "shop-md-0=-1"), "is not [POOL=]REPLICAS"),
        (("--workers", "shop-md-0=²"), "is not [POOL=]REPLICAS"),
        (("--workers", "shop-md-0="), "is not [POOL=]REPLICAS"),
        (("--workers", "a=1", "--workers", "a=2"), "pool a is given twice"),
        (("--workers", "1", "--workers", "2"), "pool without a name is given twice"),
        (("--workers", "shop-md-1=3"), "did you mean shop-md-0?"),
        (("--workers", "3"), "confirmation needs a terminal"),
    ],
)
def test_what_cannot_be_meant_or_is_not_confirmed_changes_nothing(
    servers: Servers, options: tuple[str, ...], problem: str
) -> None:
    result = servers.caphv("scale", "team/shop", *options)
    assert (result.exit_code, problem in result.output) == (2, True), result.output
    assert servers.management.requests == []


def test_a_cluster_that_does_not_exist_is_named(servers: Servers) -> None:
    result = servers.caphv("scale", "team/gone", "--workers", "3", "--yes")
    assert (result.exit_code, "no such cluster on Harvester: team/gone" in result.output) == (2, True)


@pytest.mark.parametrize("number", [0, 3, 1000])
def test_workers_get_the_number(servers: Servers, number: int) -> None:
    result = servers.caphv("scale", "team/shop", "--workers", str(number), "--yes")
    assert result.exit_code == 0, result.output
    assert replicas(servers) == number
    assert servers.management.requests == ["patch MachineDeployment shop-md-0"]
    assert "caphv status team/shop --watch" in result.stdout


def test_control_plane_and_workers_change_in_one_command(servers: Servers) -> None:
    data = servers.item("scale", "team/shop", "--control-plane", "3", "--workers", "shop-md-0=1", "--yes")
    assert (replicas(servers), replicas(servers, "RKE2ControlPlane", "shop")) == (1, 3)
    assert data["applied"] is True
    assert [(change["object"], change["before"], change["after"]) for change in data["changes"]] == [
        ("RKE2ControlPlane team/shop", "1", "3"),
        ("MachineDeployment team/shop-md-0", "2", "1"),
    ]


def test_a_dry_run_only_shows_the_change(servers: Servers) -> None:
    data = servers.item("scale", "team/shop", "--workers", "5", "--dry-run", "--wait")
    assert (data["applied"], data["changes"][0]["after"]) == (False, "5")
    text = servers.caphv("scale", "team/shop", "--workers", "5", "--dry-run")
    assert (text.exit_code, "spec.replicas: 2 → 5" in text.output) == (0, True)
    assert "--watch" not in text.output
    assert servers.management.requests == []


def test_a_number_that_it_has_is_nothing_to_do(servers: Servers) -> None:
    data = servers.item("scale", "team/shop", "--workers", "2")
    assert (data["applied"], data["changes"]) == (False, [])
    result = servers.caphv("scale", "team/shop", "--workers", "2")
    assert (result.exit_code, servers.management.requests) == (0, [])
    assert "Nothing to change: the objects of cluster team/shop are up to date" in result.output


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_failed_check_forbids_the_change_unless_it_is_forced(servers: Servers, output: str) -> None:
    words = ("scale", "team/shop", "--control-plane", "2", "--yes", "-o", output)
    result = servers.caphv(*words)
    assert (result.exit_code, "Nothing was changed: a check failed" in result.stderr) == (1, True)
    assert servers.management.requests == []
    if output == "json":
        assert json.loads(result.stdout)["items"][0]["applied"] is False
    assert servers.caphv(*words, "--force").exit_code == 0
    assert replicas(servers, "RKE2ControlPlane", "shop") == 2


def test_a_failed_check_is_no_failure_where_nothing_changes(servers: Servers) -> None:
    builder = without_topology()
    builder.control_plane["spec"]["replicas"] = 2
    servers.put(builder)
    result = servers.caphv("scale", "team/shop", "--control-plane", "2")
    assert (result.exit_code, "Nothing was changed" in result.output) == (0, False)


def test_an_object_that_changes_all_the_time_is_left_alone(servers: Servers) -> None:
    servers.management.errors["patch MachineDeployment"] = Conflict(409, "Conflict", "modified")
    result = servers.caphv("scale", "team/shop", "--workers", "5", "--yes")
    assert (result.exit_code, "cluster team/shop was modified meanwhile; run the command again" in result.output) == (
        1,
        True,
    )
    assert replicas(servers) == 2


def test_a_missing_right_is_reported(servers: Servers) -> None:
    servers.management.errors["patch MachineDeployment"] = Forbidden(403, "Forbidden", "cannot patch")
    result = servers.caphv("scale", "team/shop", "--workers", "5", "--yes")
    assert (result.exit_code, "your account may not do that: cannot patch" in result.output) == (2, True)


# With --wait


def finishes(servers: Servers, builder: Builder) -> None:
    """Have the controllers finish as soon as something is patched."""
    patch = servers.management.patch

    async def patched(*arguments: Any, **options: Any) -> Obj:
        answer = await patch(*arguments, **options)
        servers.put(builder)
        return answer

    servers.management.patch = patched  # type: ignore[method-assign]


def test_waiting_ends_when_all_machines_work(servers: Servers) -> None:
    finishes(servers, without_topology(3))
    result = servers.caphv("scale", "team/shop", "--workers", "3", "--yes", "--wait", "--timeout", "30s")
    assert result.exit_code == 0, result.output
    assert "1/1 control plane, 3/3 workers" in result.stdout
    assert "caphv status" not in result.output


def test_with_data_the_progress_is_on_standard_error(servers: Servers) -> None:
    finishes(servers, without_topology(3))
    words = ("--workers", "3", "--yes", "--wait", "--timeout", "30s", "-o", "json")
    result = servers.caphv("scale", "team/shop", *words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["items"][0]["applied"] is True
    assert "3/3 workers" in result.stderr


def test_waiting_for_what_is_done_ends_at_once(servers: Servers) -> None:
    assert servers.caphv("scale", "team/shop", "--workers", "2", "--wait", "--timeout", "30s").exit_code == 0


def test_an_interrupted_wait_says_that_the_change_continues(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(scale, "until_done", interrupted)
    result = servers.caphv("scale", "team/shop", "--workers", "3", "--yes", "--wait")
    assert result.exit_code == 130
    assert "The change continues without this command. Follow it: caphv status team/shop --watch" in result.stderr
    assert replicas(servers) == 3


def test_waiting_too_long_names_what_is_in_the_way(servers: Servers) -> None:
    builder = without_topology(3)
    builder.break_machine("worker-3", "NoFreeAddress", "no pool has a free address", minutes=30)
    builder.machines["worker-3"]["status"]["conditions"] = []
    finishes(servers, builder)
    before = logging.getLogger("caphv.runtime").level
    result = servers.caphv("scale", "team/shop", "--workers", "3", "--yes", "--wait", "--timeout", "1s")
    assert result.exit_code == 1
    assert "Timed out. The change continues without this command" in result.stderr
    # When it is seen, and again at the end.
    assert result.output.count("no pool has a free address") == 2
    assert logging.getLogger("caphv.runtime").level == before, "the next command of this process may log"


def test_a_cluster_that_is_deleted_meanwhile_ends_the_wait(servers: Servers) -> None:
    patch = servers.management.patch

    async def patched(*arguments: Any, **options: Any) -> Obj:
        answer = await patch(*arguments, **options)
        await servers.management.delete(KINDS["Cluster"], "shop", "team")
        return answer

    servers.management.patch = patched  # type: ignore[method-assign]
    result = servers.caphv("scale", "team/shop", "--workers", "3", "--yes", "--wait", "--timeout", "30s")
    assert (result.exit_code, "cluster team/shop does not exist" in result.output) == (2, True)


def forbid(servers: Servers, kind: str) -> None:
    servers.management.errors[f"list {kind}"] = Forbidden(403, "Forbidden", f"no right to list {kind}")


@pytest.mark.parametrize(
    ("option", "kind"), [("--workers", "MachineDeployment"), ("--control-plane", "RKE2ControlPlane")]
)
def test_what_is_not_seen_is_not_called_absent(servers: Servers, option: str, kind: str) -> None:
    forbid(servers, kind)
    result = servers.caphv("scale", "team/shop", option, "3", "--yes")
    assert (result.exit_code, servers.management.requests) == (2, [])
    assert f"no right to list {kind}" in result.stderr
    assert "cluster team/shop has no" not in result.stderr


@pytest.mark.parametrize("kind", ["Machine", "HarvesterMachine", "RKE2ControlPlane"])
def test_a_check_says_what_is_not_seen(servers: Servers, kind: str) -> None:
    forbid(servers, kind)
    result = servers.caphv("scale", "team/shop", "--workers", "3", "--yes")
    assert (result.exit_code, replicas(servers)) == (0, 3), result.output
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("- access: ")]
    assert f"no right to list {kind}" in line


def test_a_change_that_was_made_in_part_says_so(servers: Servers) -> None:
    servers.management.errors["patch MachineDeployment"] = Forbidden(403, "Forbidden", "no right to patch it")
    result = servers.caphv("scale", "team/shop", "--control-plane", "3", "--workers", "5", "--yes", "-o", "json")
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert "RKE2ControlPlane team/shop changed, and nothing else: no right to patch it" in result.stderr

    result = servers.caphv("scale", "team/shop", "--workers", "5", "--yes")
    assert (result.exit_code, "your account may not do that: no right to patch it" in result.stderr) == (2, True)
