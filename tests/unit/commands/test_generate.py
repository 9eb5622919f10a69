"""`caphv generate`: flags of the old generator, the guide's example, definitions, and what is wrong."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from caphv import data
from commands.generate import generate
from tests.support.generate import GUIDE, KUBECONFIG, LEAST, TOKEN, call, definition, objects, offline

pytestmark = pytest.mark.unit

OLD_FLAGS = shlex.split(
    "name namespace cp-replicas worker-replicas k8s-version cpu memory image disk-size extra-disk ssh-keypair ssh-user "
    "network gateway subnet-mask ip-pool ip-pool-refs dns harvester-kubeconfig cni cni-mtu cni-encapsulation cni-bgp "
    "pod-cidr fleet-addon-repo fleet-addon-branch class apply dry-run interactive"
)


def test_every_flag_of_the_old_generator_is_there() -> None:
    known = {name for parameter in generate.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {f"--{name}" for name in OLD_FLAGS} <= known


def test_the_executable_is_installed(checkout: Path) -> None:
    project = tomllib.loads((checkout / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["caphv-generate"] == "caphv.__main__:generate"
    assert CliRunner().invoke(generate, ["--help"]).exit_code == 0


def test_the_guides_example_makes_the_guides_objects(kubeconfig: Path) -> None:
    found = objects(call(*GUIDE, *offline(kubeconfig)))
    kinds = [obj["kind"] for obj in found]
    assert kinds[:2] == ["Namespace", "Secret"]
    assert {
        kind: kinds.count(kind) for kind in ("Cluster", "ConfigMap", "ClusterResourceSet", "MachineHealthCheck")
    } == {
        "Cluster": 1,
        "ConfigMap": 3,
        "ClusterResourceSet": 3,
        "MachineHealthCheck": 1,
    }
    secret = found[1]
    assert yaml.safe_load(secret["stringData"]["kubeconfig"]) == yaml.safe_load(KUBECONFIG)
    (cluster,) = (obj for obj in found if obj["kind"] == "Cluster")
    topology = cluster["spec"]["topology"]
    assert topology["version"] == "v1.31.14+rke2r1"
    assert topology["classRef"]["name"] == "harvester-rke2"
    variables = {row["name"]: row["value"] for row in topology["variables"]}
    assert variables["identitySecretName"] == secret["metadata"]["name"] == "production-cluster-harvester-identity"
    assert cluster["metadata"]["labels"]["cluster-api.cattle.io/rancher-auto-import"] == "true"


def test_shared_credentials_need_no_secret(kubeconfig: Path) -> None:
    found = objects(call(*LEAST, "--cluster-identity", "shared", *offline(kubeconfig)))
    assert "Secret" not in [obj["kind"] for obj in found]
    (cluster,) = (obj for obj in found if obj["kind"] == "Cluster")
    variables = {row["name"]: row["value"] for row in cluster["spec"]["topology"]["variables"]}
    assert variables["clusterIdentityName"] == "shared"
    assert "identitySecretName" not in variables
    spec = definition(*LEAST, "--cluster-identity", "shared")["spec"]
    assert (spec["identityRef"], "identitySecret" in spec) == ({"name": "shared"}, False)


def test_the_namespace_is_the_name_unless_it_is_reported() -> None:
    assert definition(*LEAST)["metadata"] == {"name": "demo", "namespace": "demo"}
    assert definition(*LEAST, "--namespace", "team-a")["metadata"]["namespace"] == "team-a"


def test_with_a_fleet_repository_there_is_a_git_repo_in_place_of_config_maps() -> None:
    kinds = [obj["kind"] for obj in objects(call(*LEAST, "--fleet-addon-repo", "https://git.example.com/f.git"))]
    assert "GitRepo" in kinds
    assert "ConfigMap" not in kinds


def test_json_is_a_list() -> None:
    found = json.loads(call(*LEAST, "-o", "json").stdout)
    assert found["kind"] == "List"
    assert "Cluster" in [obj["kind"] for obj in found["items"]]


def test_everything_that_is_wrong_is_reported_at_once_with_its_flag(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(KUBECONFIG.replace(f'token: "{TOKEN}"', "exec: {command: rm}"))
    result = call("--name", "demo", "--cpu", "four", "--cni", "flannel", "--harvester-kubeconfig", str(bad))
    assert result.exit_code == 1
    assert result.stdout == ""
    for flag in ("--cpu", "--cni", "--image", "--network", "--ssh-keypair", "--harvester-kubeconfig"):
        assert f"error: {flag}" in result.stderr
    assert "it would run a program" in result.stderr


def test_a_kubeconfig_that_is_not_there_is_reported(tmp_path: Path) -> None:
    result = call(*LEAST, "--harvester-kubeconfig", str(tmp_path / "none.yaml"))
    assert result.exit_code == 2
    assert "No such file" in result.stderr


@pytest.mark.parametrize("name", ["$(touch x)", "a; reboot", "../../etc", 'a"\nkind: Secret', "--apply", "a" * 60])
def test_hostile_values_are_refused_and_nothing_is_run(name: str, tmp_path: Path) -> None:
    result = call(*LEAST, f"--name={name}", "--to", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "metadata.name" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_definition_is_read_and_flags_win_over_it(tmp_path: Path) -> None:
    file = tmp_path / "demo.yaml"
    file.write_text(yaml.safe_dump(definition(*LEAST, "--cpu", "4")))
    again = definition("--definition", str(file), "--cpu", "8", "--memory", "16Gi")
    assert again["spec"]["machines"]["cpu"] == 8
    assert objects(call("--definition", "-", stdin=file.read_text())) == objects(call(*LEAST, "--cpu", "4"))


def test_a_wrong_definition_is_reported_by_line(tmp_path: Path) -> None:
    text = yaml.safe_dump(definition(*LEAST), sort_keys=False).replace(
        "addonDelivery: ClusterResourceSet", "colour: red"
    )
    line = text.splitlines().index("  colour: red") + 1
    file = tmp_path / "demo.yaml"
    file.write_text(text)
    result = call("--definition", str(file))
    assert result.exit_code == 1
    assert f"error: line {line}: spec.colour: Unknown field" in result.stderr
    for content in ("a: [", "[]", "", "a: 1\n---\nb: 2\n"):
        file.write_text(content)
        assert call("--definition", str(file)).exit_code == 2


def test_help_lists_the_flags_in_groups() -> None:
    text = call("--help").output
    groups = ["Input:", "Cluster:", "Machines:", "Addresses:", "Harvester:", "Registries:", "Hardening:", "Output:"]
    places = [text.index(f"\n{group}\n") for group in groups]
    assert places == sorted(places)
    for group, flag in (("Machines:", "--ssh-keypair"), ("Addresses:", "--gateway"), ("Output:", "--apply")):
        start = text.index(f"\n{group}\n")
        assert flag in text[start : text.index("\n\n", start)]


def test_a_shell_completes_what_the_schema_takes() -> None:
    addons = json.loads((data.folder("schemas") / "cluster-addons.json").read_text())["properties"]
    spec = json.loads((data.folder("schemas") / "clusterdefinition.json").read_text())["$defs"]["spec"]
    cni = addons["cni"]["properties"]
    wanted = {
        "--distribution": spec["properties"]["distribution"]["enum"],
        "--cni": cni["name"]["enum"],
        "--cni-encapsulation": cni["encapsulation"]["enum"],
        "--cni-bgp": cni["bgp"]["enum"],
    }
    assert {name: completed(name, "") for name in wanted} == wanted
    assert completed("--cni", "ca") == ["calico", "canal"]
    assert completed("--name", "a") == []


def completed(flag: str, begun: str) -> list[str]:
    shell = ShellComplete(generate, {}, "caphv-generate", "_CAPHV_GENERATE_COMPLETE")
    return [item.value for item in shell.get_completions([flag], begun)]
