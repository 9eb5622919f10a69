"""`caphv plan`: which manifests it reads, and what its exit status says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from caphv.runtime.errors import Forbidden, Invalid
from tests.support.commandservers import Servers

pytestmark = pytest.mark.unit

CORE, INFRASTRUCTURE = "cluster.x-k8s.io/v1beta2", "infrastructure.cluster.x-k8s.io/v1beta1"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    kinds = [(CORE, kind) for kind in ("Cluster", "Machine", "MachineDeployment", "ClusterClass")]
    kinds += [(INFRASTRUCTURE, f"Harvester{kind}") for kind in ("Cluster", "Machine", "MachineTemplate")]
    for version, kind in kinds:
        found.management.serve(version, kind)
    return found


def settings(name: str = "a", **data: str) -> Obj:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "team"}, "data": data}


def plan(servers: Servers, *objs: Any, name: str = "manifests.yaml") -> tuple[int, dict[str, str]]:
    """Return exit status and actions by object."""
    Path(name).write_text(yaml.safe_dump_all(objs))
    result = servers.caphv("plan", "-f", name, "-o", "json", "--no-harvester")
    found = json.loads(result.stdout) if result.stdout.startswith("{") else {"objects": []}
    return result.exit_code, {each["object"]: each["action"] for each in found["objects"]}


def test_exit_status_says_whether_something_would_change(servers: Servers) -> None:
    servers.management.put(settings(x="1"))
    assert plan(servers, settings(x="1")) == (0, {})
    assert plan(servers, settings(x="2")) == (3, {"ConfigMap team/a": "change in place"})
    assert plan(servers, settings("b")) == (3, {"ConfigMap team/b": "create"})
    servers.management.errors["dry-run create ConfigMap"] = Invalid(422, "Invalid", "no")
    assert plan(servers, settings("b")) == (1, {"ConfigMap team/b": "refused"})
    assert servers.management.requests == []
    assert servers.management.closed


def test_lists_and_directories_are_taken_apart(servers: Servers, tmp_path: Path) -> None:
    lists = {"apiVersion": "v1", "kind": "List", "items": [settings("a"), settings("b")]}
    assert set(plan(servers, lists, None, settings("c"))[1]) == {f"ConfigMap team/{name}" for name in "abc"}
    folder = tmp_path / "folder" / "deep"
    folder.mkdir(parents=True)
    (folder / "one.yml").write_text(yaml.safe_dump(settings("one")))
    (folder / "two.json").write_text(json.dumps(settings("two")))
    (folder / "notes.txt").write_text("no manifest")
    result = servers.caphv("plan", "-f", "folder", "-o", "json", "--no-harvester")
    assert {each["object"] for each in json.loads(result.stdout)["objects"]} == {
        "ConfigMap team/one",
        "ConfigMap team/two",
    }


def test_manifests_come_from_standard_input(servers: Servers) -> None:
    result = servers.caphv("plan", "-f", "-", "-o", "json", "--no-harvester", stdin=yaml.safe_dump(settings()))
    assert result.exit_code == 3
    assert "ConfigMap team/a" in result.stdout


def test_namespace_is_that_of_the_option(servers: Servers) -> None:
    Path("x.yaml").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}))
    result = servers.caphv("plan", "-f", "x.yaml", "-n", "mine", "-o", "json")
    assert "Secret mine/s" in result.stdout


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "- 1",
        "text",
        "kind: ConfigMap\nmetadata: {name: a}",
        "apiVersion: v1\nmetadata: {name: a}",
        "apiVersion: v1\nkind: ConfigMap",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 1}",
        "apiVersion: caphv.io/v1\nkind: ClusterDefinition\nmetadata: {name: a}",
        "kind: List\nitems: text",
    ],
)
def test_what_is_no_manifest_is_refused_before_a_request(servers: Servers, text: str) -> None:
    Path("x.yaml").write_text(text)
    servers.management.errors["discover"] = Forbidden(403, "Forbidden", "asked")
    assert servers.caphv("plan", "-f", "x.yaml").exit_code == 2


def test_the_command_for_a_definition_fits_a_shell(servers: Servers) -> None:
    Path("my cluster.yaml").write_text("apiVersion: caphv.io/v1\nkind: ClusterDefinition\nmetadata: {name: a}")
    result = servers.caphv("plan", "-f", "my cluster.yaml")
    assert "caphv generate --definition 'my cluster.yaml' | caphv plan -f -" in result.stderr


def test_files_that_do_not_exist_and_empty_directories_are_refused(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("gone.yaml", "empty"):
        assert servers.caphv("plan", "-f", name).exit_code == 2


@pytest.mark.parametrize("arguments", [(), ("shop", "-f", "manifests.yaml")])
def test_either_a_cluster_or_manifests_are_given(servers: Servers, arguments: tuple[str, ...]) -> None:
    Path("manifests.yaml").write_text(yaml.safe_dump(settings()))
    assert servers.caphv("plan", *arguments).exit_code == 2


def test_cluster_that_does_not_exist_has_no_plan(servers: Servers) -> None:
    assert servers.caphv("plan", "team/gone", "--no-harvester").exit_code == 2


def test_what_may_not_be_read_is_named_on_standard_error(servers: Servers) -> None:
    servers.management.errors["list HarvesterMachine"] = Forbidden(403, "Forbidden", "cannot list")
    cluster = {"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "shop", "namespace": "team"}, "spec": {}}
    Path("x.yaml").write_text(yaml.safe_dump(cluster))
    result = servers.caphv("plan", "-f", "x.yaml", "--no-harvester")
    assert result.exit_code == 3
    assert "cannot list" in result.stderr


# What `caphv status` answers


def test_status_of_no_clusters_is_fine_and_a_missing_one_an_error(servers: Servers) -> None:
    result = servers.caphv("status", "-A", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["items"]) == (0, [])
    assert servers.caphv("status", "-A").exit_code == 0
    assert servers.caphv("status", "team/gone").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("-A", "-n", "team"),
        ("--watch", "-o", "json"),
        ("--serve", "-o", "yaml"),
        ("--serve", "--watch"),
        ("a/b/c",),
        ("--serve", "--bind-address", "8642"),
        ("--serve", "--bind-address", ":8642"),
        ("--serve", "--bind-address", "localhost:65536"),
        ("--serve", "--bind-address", "localhost:http"),
    ],
)
def test_status_refuses_what_makes_no_sense(servers: Servers, arguments: tuple[str, ...]) -> None:
    assert servers.caphv("status", *arguments).exit_code == 2
