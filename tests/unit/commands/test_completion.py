"""What a shell completes: clusters and namespaces, wherever a command takes one."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from commands.main import cli
from commands.options.completion import complete_clusters, complete_namespaces
from tests.support.commandlist import leaf_commands
from tests.support.commandservers import Servers

pytestmark = pytest.mark.unit

# Their namespaces are of Harvester, or of what a process in the cluster watches.
OTHER_NAMESPACES = {"cloud-config create", "cloud-config renew", "cloud-config revoke"}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    for name, namespace in (("first", "default"), ("shop", "team"), ("stage", "team")):
        metadata = {"name": name, "namespace": namespace}
        found.management.put({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata})
    return found


def completed(*words: str) -> list[str]:
    found = ShellComplete(cli, {}, "caphv", "_CAPHV_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


def test_every_command_that_takes_a_cluster_or_a_namespace_completes_it() -> None:
    lacking = []
    for path, command in leaf_commands():
        for parameter in command.params:
            wanted = {"cluster": complete_clusters, "clusters": complete_clusters}.get(str(parameter.name))
            if parameter.name == "namespace" and "-n" in parameter.opts and path not in OTHER_NAMESPACES:
                wanted = complete_namespaces
            if wanted and getattr(parameter, "_custom_shell_complete", None) is not wanted:
                lacking.append(f"{path} {parameter.name}")
    assert lacking == []


@pytest.mark.usefixtures("servers")
def test_clusters_are_completed_with_and_without_their_namespace() -> None:
    assert completed("scale", "f") == ["first"]
    assert completed("scale", "") == ["first", "default/first", "team/shop", "team/stage"]
    assert completed("scale", "team/s") == ["team/shop", "team/stage"]
    assert completed("upgrade", "-n", "team", "sh") == ["shop"]
    assert completed("status", "-n", "") == ["default", "team"]
    assert completed("generate", "--namespace", "te") == ["team"]


def test_what_cannot_be_read_completes_nothing(servers: Servers) -> None:
    servers.management.errors["list Cluster"] = RuntimeError("no answer")  # type: ignore[assignment]
    assert completed("scale", "f") == []


def test_a_name_that_is_misspelt_is_suggested(servers: Servers) -> None:
    result = servers.caphv("status", "frist")
    assert (result.exit_code, 'did you mean "default/first"?' in result.output) == (2, True), result.output
    nowhere = servers.caphv("status", "frist", "-n", "elsewhere")
    assert "clusters of all namespaces: caphv status -A" in nowhere.output
    assert isinstance(cli, click.Group)
