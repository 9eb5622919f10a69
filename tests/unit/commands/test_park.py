"""`caphv park` and `caphv resume`: what they write, what they refuse, and their exit status."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import yaml

from caphv.api.names import PARK_ANNOTATION
from caphv.api.object import Key, Obj, annotations_of
from caphv.runtime.errors import Forbidden
from operations.change import parking as operation
from tests.support import kubeconfigs
from tests.support.clusters import Builder, condition
from tests.support.commandservers import Servers

pytestmark = pytest.mark.unit


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    found.put(Builder())
    return found


def cluster(servers: Servers) -> Obj:
    obj = servers.management.find("Cluster", "shop", "team")
    assert obj is not None
    return obj


def park(servers: Servers, *, reported: str = "True", message: str = "3 VMs stopped") -> None:
    builder = Builder()
    builder.cluster["metadata"]["annotations"] = {PARK_ANNOTATION: "true", "caphv.io/parked-since": "x"}
    reason = "" if reported == "True" else "Parking"
    builder.harvester_cluster["status"]["conditions"].append(condition("Parked", reported, reason, message))
    servers.put(builder)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "name clusters, or a Harvester with --all-on"),
        (("team/shop", "--all-on", "harvester"), "name clusters, or a Harvester with --all-on"),
        (("team/shop",), "confirmation needs a terminal"),
        (("team/shops", "--yes"), "no such cluster on Harvester: team/shops"),
        (("--all-on", "elsewhere", "--yes"), "no cluster has an identity for Harvester elsewhere"),
    ],
)
def test_what_cannot_be_meant_or_is_not_confirmed_changes_nothing(
    servers: Servers, words: tuple[str, ...], problem: str
) -> None:
    result = servers.caphv("park", *words)
    assert (result.exit_code, problem in result.output) == (2, True), result.output
    assert PARK_ANNOTATION not in annotations_of(cluster(servers))


def test_a_cluster_is_parked_by_its_annotation(servers: Servers) -> None:
    result = servers.caphv("park", "team/shop", "--yes")
    assert result.exit_code == 0, result.output
    assert "3 machines will be stopped" in result.stdout
    assert "caphv status team/shop --watch" in result.stdout
    assert "hosts" not in result.stdout, "they are not to be shut down"
    assert annotations_of(cluster(servers))[PARK_ANNOTATION] == "true"
    assert servers.management.requests == ["patch Cluster shop"]


def test_a_dry_run_only_shows_the_change(servers: Servers) -> None:
    item = servers.item("park", "team/shop", "--dry-run")
    assert (item["cluster"], item["applied"]) == ("team/shop", False)
    assert item["changes"][0]["after"] == "true"
    assert servers.management.requests == []


def test_a_check_that_failed_stops_it_unless_it_is_forced(servers: Servers) -> None:
    park(servers)
    # The Harvester of these tests shows no host, and cannot be read with the identity.
    result = servers.caphv("resume", "team/shop", "--yes")
    assert (result.exit_code, "Nothing was changed: a check failed" in result.output) == (1, True), result.output
    assert annotations_of(cluster(servers))[PARK_ANNOTATION] == "true"
    result = servers.caphv("resume", "team/shop", "--yes", "--force")
    assert result.exit_code == 0, result.output
    assert PARK_ANNOTATION not in annotations_of(cluster(servers))


def test_a_parked_cluster_needs_no_change(servers: Servers) -> None:
    park(servers)
    result = servers.caphv("park", "team/shop")
    assert (result.exit_code, "Nothing to change" in result.output) == (0, True), result.output
    assert servers.management.requests == []


def test_what_remains_for_the_hosts_is_shown_when_all_is_parked(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a host that is shut down takes running VMs with it."""
    monkeypatch.setattr(operation, "clusters_on", lambda *_: [Key("team", "shop")])
    result = servers.caphv("park", "--all-on", "harvester", "--yes")
    assert result.exit_code == 0, result.output
    assert "run this command again with --wait" in result.stdout
    assert "To shut the hosts down" not in result.stdout
    assert "hosts" not in servers.caphv("park", "--all-on", "harvester", "--yes", "-o", "json").stdout, "it is data"
    park(servers)
    assert "To shut the hosts down" in servers.caphv("park", "--all-on", "harvester", "--yes", "--wait").stdout


def test_a_wait_ends_when_a_cluster_needs_a_user(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commands.output.clusterprogress._BLOCKED_SECONDS", 0.0)
    builder = Builder()
    builder.cluster["metadata"]["annotations"] = {PARK_ANNOTATION: "true", "caphv.io/parked-since": "x"}
    blocked = condition("Parked", "False", "ParkBlocked", "grant its ServiceAccount patch")
    builder.harvester_cluster["status"]["conditions"].append(blocked)
    servers.put(builder)
    result = servers.caphv("park", "team/shop", "--wait", "--timeout", "60s")
    assert result.exit_code == 1
    assert "grant its ServiceAccount patch" in result.output
    assert "Run this command again" in result.output
    assert "Timed out" not in result.output


def test_a_cluster_in_deletion_keeps_no_other_of_its_harvester(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation, "clusters_on", lambda *_: [Key("team", "gone"), Key("team", "shop")])
    gone = Builder(name="gone")
    gone.cluster["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z"
    servers.put(gone)
    result = servers.caphv("park", "--all-on", "harvester", "--yes")
    assert result.exit_code == 0, result.output
    assert "skipped team/gone: it is being deleted" in result.output
    assert annotations_of(cluster(servers))[PARK_ANNOTATION] == "true"


@pytest.mark.parametrize("command", ["park", "resume"])
def test_a_check_says_what_is_not_seen(servers: Servers, command: str) -> None:
    servers.management.errors["list Machine"] = Forbidden(403, "Forbidden", "no right to list Machine")
    result = servers.caphv(command, "team/shop", "--dry-run")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("- access: ")]
    assert "no right to list Machine" in line


@pytest.fixture
def two(servers: Servers) -> Servers:
    """Two clusters on one Harvester, of which the second has an identity that does not exist."""
    config = yaml.safe_dump(kubeconfigs.with_cluster(server="https://harvester:6443"))
    metadata = {"name": "identity", "namespace": "team"}
    data = {"kubeconfig": base64.b64encode(config.encode()).decode()}
    servers.management.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    other = Builder("other", prefix="other-")
    other.harvester_cluster["spec"]["identitySecret"] = {"namespace": "team", "name": "lost"}
    servers.put(other)
    return servers


def test_no_cluster_of_a_harvester_is_left_out_silently(two: Servers) -> None:
    result = two.caphv("park", "--all-on", "harvester", "--yes")
    assert (result.exit_code, two.management.requests) == (2, []), result.output
    assert "team/other: also on this Harvester, but without a usable identity" in result.stderr
    assert "identity Secret team/lost: does not exist" in result.stderr

    result = two.caphv("park", "--all-on", "harvester", "--yes", "--force")
    assert (result.exit_code, two.management.requests) == (0, ["patch Cluster shop"]), result.output
    assert "skipped team/other: its identity cannot be used" in result.stderr


def test_a_cluster_of_another_harvester_may_have_any_identity(two: Servers) -> None:
    other = Builder("other", prefix="other-")
    other.harvester_cluster["spec"] |= {
        "identitySecret": {"namespace": "team", "name": "lost"},
        "server": "https://elsewhere:6443",
    }
    two.put(other)
    result = two.caphv("park", "--all-on", "harvester", "--yes")
    assert (result.exit_code, two.management.requests) == (0, ["patch Cluster shop"]), result.output
    assert "team/other" not in result.output


def test_a_harvester_whose_identities_cannot_be_read_says_why(servers: Servers) -> None:
    result = servers.caphv("park", "--all-on", "harvester", "--yes")
    assert result.exit_code == 2
    assert "no cluster has an identity for Harvester harvester" in result.stderr
    assert "identity Secret team/identity: does not exist" in result.stderr


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_cluster_that_may_not_be_changed_keeps_no_other_from_being_parked(servers: Servers, output: str) -> None:
    servers.put(Builder("other", prefix="other-"))
    servers.management.errors["patch Cluster other"] = Forbidden(403, "Forbidden", "no right to patch it")
    result = servers.caphv("park", "team/other", "team/shop", "--yes", "--wait", "-o", output)
    assert result.exit_code == 1, result.output
    assert annotations_of(cluster(servers))[PARK_ANNOTATION] == "true"
    assert "no right to patch it" in result.stderr
    assert "not changed: team/other" in result.stderr
    if output == "json":
        items = json.loads(result.stdout)["items"]
        assert {item["cluster"]: item["applied"] for item in items} == {"team/other": False, "team/shop": True}


def test_an_only_cluster_that_may_not_be_changed_is_an_error_of_the_server(servers: Servers) -> None:
    servers.management.errors["patch Cluster shop"] = Forbidden(403, "Forbidden", "no right to patch it")
    result = servers.caphv("park", "team/shop", "--yes", "-o", "json")
    assert (result.exit_code, result.stdout, "no right to patch it" in result.stderr) == (2, "", True)
