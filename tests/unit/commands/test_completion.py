"""What a shell completes: clusters and namespaces, wherever a command takes one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import pytest
import yaml
from click.shell_completion import ShellComplete

from commands.main import cli
from commands.options.completion import complete_clusters, complete_namespaces
from tests.support import kubeconfigs
from tests.support.clusters import Builder
from tests.support.commandlist import leaf_commands
from tests.support.commandservers import Servers

pytestmark = pytest.mark.unit

# Their namespaces are of Harvester.
OTHER_NAMESPACES = {"cloud-config create", "cloud-config renew", "cloud-config revoke"}

HARVESTER = ("--harvester-kubeconfig", "kubeconfig")
NETWORK = "k8s.cni.cncf.io/v1"


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


@pytest.fixture
def harvester(servers: Servers) -> Servers:
    """A Harvester with one object of each kind that is completed."""
    for kind, version, name, namespace in (
        ("Namespace", "v1", "vms", ""),
        ("Node", "v1", "h0", ""),
        ("VirtualMachineImage", "harvesterhci.io/v1beta1", "sles", "vms"),
        ("KeyPair", "harvesterhci.io/v1beta1", "ann", "vms"),
        ("NetworkAttachmentDefinition", NETWORK, "lan", "vms"),
        ("IPPool", "loadbalancer.harvesterhci.io/v1beta1", "machines", ""),
    ):
        metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
        servers.harvester.put({"apiVersion": version, "kind": kind, "metadata": metadata})
    return servers


@pytest.mark.usefixtures("harvester")
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("identity", "create", *HARVESTER, "--target-namespace", ""), ["vms"]),
        (("identity", "create", *HARVESTER, "--namespace", "v"), ["vms"]),
        (("identity", "create", *HARVESTER, "--import-images", "x"), []),
        (("cloud-config", "create", *HARVESTER, "-n", ""), ["vms"]),
        (("generate", *HARVESTER, "--target-namespace", ""), ["vms"]),
        (("generate", "--check-kubeconfig", "kubeconfig", "--image", "vms/"), ["vms/sles"]),
        (("generate", *HARVESTER, "--ssh-keypair", ""), ["vms/ann"]),
        (("generate", *HARVESTER, "--network", "vms/other,vms/l"), ["vms/other,vms/lan"]),
        (("generate", *HARVESTER, "--ip-pool", "m"), ["machines"]),
        (("generate", *HARVESTER, "--lb-ip-pool", ""), ["machines"]),
        (("evacuate", *HARVESTER, ""), ["h0"]),
        (("pools", "audit", *HARVESTER, ""), ["machines"]),
    ],
    ids=" ".join,
)
def test_objects_of_harvester_are_completed_with_its_kubeconfig(words: tuple[str, ...], names: list[str]) -> None:
    assert completed(*words) == names


def test_without_a_kubeconfig_harvester_is_asked_with_identities(harvester: Servers) -> None:
    harvester.put(Builder("shop"))
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "identity", "namespace": "team"}}
    config = kubeconfigs.encoded(yaml.safe_dump(kubeconfigs.valid()).encode())
    harvester.management.put({**secret, "data": {"kubeconfig": config}})
    assert completed("evacuate", "") == ["h0"]
    assert completed("park", "--all-on", "") == ["harvester"]
    # It has no option for the management cluster.
    assert completed("identity", "create", "--target-namespace", "") == []


def test_what_cannot_be_read_completes_nothing(harvester: Servers) -> None:
    harvester.management.errors["list Cluster"] = RuntimeError("no answer")  # type: ignore[assignment]
    assert completed("scale", "f") == []
    harvester.harvester.errors["list Node"] = RuntimeError("no answer")  # type: ignore[assignment]
    assert completed("evacuate", *HARVESTER, "") == []


def test_a_slow_server_completes_nothing(harvester: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    async def list_slowly(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr("commands.options.completion._TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr("operations.read.harvesterclient.list_everywhere", list_slowly)
    assert completed("evacuate", *HARVESTER, "") == []


def test_a_name_that_is_misspelt_is_suggested(servers: Servers) -> None:
    result = servers.caphv("status", "frist")
    assert (result.exit_code, 'did you mean "default/first"?' in result.output) == (2, True), result.output
    nowhere = servers.caphv("status", "frist", "-n", "elsewhere")
    assert "clusters of all namespaces: caphv status -A" in nowhere.output
    assert isinstance(cli, click.Group)
