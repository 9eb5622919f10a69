"""`caphv generate`: flags of the old generator, answers, definitions; what is wrong, and where secrets may go."""

from __future__ import annotations

import json
import shlex
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from caphv import data
from caphv.api.object import Obj
from commands.generate import generate
from commands.main import cli
from packager.definitions.flags import FLAGS
from packager.definitions.model import check
from tests.support.packager.repositories import Origin

pytestmark = pytest.mark.unit

TOKEN = "kubeconfig-user-abcde:0123456789"
KUBECONFIG = f"""\
apiVersion: v1
kind: Config
clusters: [{{name: harvester, cluster: {{server: "https://harvester.example.com:6443"}}}}]
users: [{{name: admin, user: {{token: "{TOKEN}"}}}}]
contexts: [{{name: main, context: {{cluster: harvester, user: admin}}}}]
current-context: main
"""
# The example of the operations guide, word for word but for the kubeconfig.
GUIDE = shlex.split(
    "--name production-cluster --namespace prod-ns --image default/sles15-sp7-minimal-vm.x86_64-cloud-qu2.qcow2 "
    "--ssh-keypair default/capi-ssh-key --network default/production --gateway 172.16.0.1 --subnet-mask 255.255.0.0 "
    "--ip-pool prod-ip-pool --dns 172.16.0.1 --cp-replicas 3 --worker-replicas 2 --cpu 4 --memory 8Gi --disk-size 80Gi "
    "--k8s-version v1.31.14"
)
LEAST = ["--name", "demo", "--image", "default/sles", "--ssh-keypair", "default/key", "--network", "default/production"]
OLD_FLAGS = shlex.split(
    "name namespace cp-replicas worker-replicas k8s-version cpu memory image disk-size extra-disk ssh-keypair ssh-user "
    "network gateway subnet-mask ip-pool ip-pool-refs dns harvester-kubeconfig cni cni-mtu cni-encapsulation cni-bgp "
    "pod-cidr fleet-addon-repo fleet-addon-branch class apply interactive"
)


def call(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["generate", *arguments], input=stdin, prog_name="caphv")


def objects(result: Result) -> list[Obj]:
    assert result.exit_code == 0, result.output
    return list(yaml.safe_load_all(result.stdout))


def offline(kubeconfig: Path) -> tuple[str, ...]:
    """A kubeconfig whose server does not exist."""
    return ("--harvester-kubeconfig", str(kubeconfig), "--no-harvester")


def definition(*arguments: str) -> Obj:
    (found,) = objects(call(*arguments, "-o", "definition"))
    assert check(found) == []
    return dict(found)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    file = tmp_path / "harvester.yaml"
    file.write_text(KUBECONFIG)
    return file


def test_every_flag_of_the_old_generator_is_there() -> None:
    known = {name for parameter in generate.params for name in parameter.opts}
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


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        (["--extra-disk", "10Gi:fast"], "machines.extraDisks", [{"size": "10Gi", "storageClass": "fast"}]),
        (["--extra-disk", "10Gi"], "machines.extraDisks", [{"size": "10Gi"}]),
        (["--ssh-user", "root"], "machines.sshUser", "root"),
        (["--class", "mine"], "clusterClass", "mine"),
        (["--cni", "cilium"], "addons.cni.name", "cilium"),
        (["--cni-mtu", "1450"], "addons.cni.mtu", 1450),
        (["--cni-encapsulation", "VXLAN"], "addons.cni.encapsulation", "VXLAN"),
        (["--cni-bgp", "Disabled"], "addons.cni.bgp", "Disabled"),
        (["--pod-cidr", "10.1.0.0/16"], "clusterNetwork.podCIDRs", ["10.1.0.0/16"]),
        (["--service-cidr", "10.2.0.0/16,fd00::/112"], "clusterNetwork.serviceCIDRs", ["10.2.0.0/16", "fd00::/112"]),
        (["--worker-replicas", "0"], "workers", [{"name": "workers", "replicas": 0}]),
        (["--lb-ip-pool", "lb"], "loadBalancer", {"ipamType": "pool", "ipPoolRef": "lb"}),
        (
            ["--external-endpoint", "api.example.com"],
            "loadBalancer",
            {"ipamType": "none", "endpoint": {"host": "api.example.com"}},
        ),
        (
            ["--external-endpoint", "172.16.0.5:443"],
            "loadBalancer",
            {"ipamType": "none", "endpoint": {"host": "172.16.0.5", "port": 443}},
        ),
        (["--distribution", "k3s"], "addonDelivery", "ClusterResourceSet"),
        (["--distribution", "kubeadm"], "addonDelivery", "None"),
        (["--individual-objects"], "individualObjects", True),
        (["--failure-domains", "zone-1,zone-2"], "controlPlane.failureDomains", ["zone-1", "zone-2"]),
        (["--worker-failure-domain", "zone-1"], "workers", [{"name": "workers", "failureDomain": "zone-1"}]),
        (["--cpu-max", "16"], "machines.cpuMax", 16),
        (["--memory-max", "64Gi"], "machines.memoryMax", "64Gi"),
        (
            ["--worker-devices", "nvidia.com/GA102GL_A10=2, kubevirt.io/node1-usb"],
            "workers",
            [
                {
                    "name": "workers",
                    "devices": [
                        {"resourceName": "nvidia.com/GA102GL_A10", "count": 2},
                        {"resourceName": "kubevirt.io/node1-usb"},
                    ],
                }
            ],
        ),
        (
            [
                *("--worker-cpu-pinning", "true", "--worker-isolate-emulator-thread", "false"),
                *("--worker-numa-passthrough", "true", "--worker-hugepages", "1Gi"),
            ],
            "workers",
            [
                {
                    "name": "workers",
                    "cpuPinning": True,
                    "isolateEmulatorThread": False,
                    "numaPassthrough": True,
                    "hugepages": "1Gi",
                }
            ],
        ),
        (["--cis-profile", "cis-1.23"], "hardening.cisProfile", "cis-1.23"),
        (["--fips-required"], "hardening", {"fipsRequired": True}),
        (["--stig", "--cis-profile", "cis"], "hardening", {"stig": True, "cisProfile": "cis"}),
        (["--stig"], "machines.firmware", {"efi": True, "secureBoot": True}),
        (["--stig"], "machines.tpm", {"enabled": True, "persistent": True}),
        (
            ["--disable-fstrim-timer", "--no-guest-agent"],
            "machines.guestConfig",
            {"disableFstrimTimer": True, "installGuestAgent": False},
        ),
        (
            ["--registry-mirror", "docker.io=https://a.example.com,docker.io=https://b.example.com"],
            "registries.mirrors",
            {"docker.io": {"endpoint": ["https://a.example.com", "https://b.example.com"]}},
        ),
        (
            ["--etcd-snapshot-schedule", "@daily", "--etcd-snapshot-retention", "28"],
            "etcdSnapshots",
            {"schedule": "@daily", "retention": 28},
        ),
        (
            [
                *("--etcd-s3-endpoint", "s3.example.com", "--etcd-s3-bucket", "etcd", "--etcd-s3-folder", "production"),
                *("--etcd-s3-retention", "84", "--etcd-s3-secret", "etcd-s3"),
            ],
            "etcdSnapshots.s3",
            {
                "endpoint": "s3.example.com",
                "bucket": "etcd",
                "folder": "production",
                "retention": 84,
                "credentialsSecretName": "etcd-s3",
            },
        ),
        (["--no-rancher-auto-import"], "rancherAutoImport", False),
        (["--target-namespace", "vms"], "targetNamespace", "vms"),
        (["--fleet-addon-repo", "https://git.example.com/f.git"], "addonDelivery", "Fleet"),
        (
            ["--fleet-addon-repo", "https://git.example.com/f.git", "--fleet-addon-branch", "next"],
            "fleet",
            {"repo": "https://git.example.com/f.git", "branch": "next"},
        ),
    ],
)
def test_a_flag_becomes_a_field(arguments: list[str], path: str, value: Any) -> None:
    found: Any = definition(*LEAST, *arguments)["spec"]
    for part in path.split("."):
        found = found[part]
    assert found == value


def test_flags_of_workers_are_for_all_pools(tmp_path: Path) -> None:
    flags = ["--worker-node-affinity", "example.com/rack=rack-1,gpu", "--worker-workload-affinity", "app=database"]
    (pool,) = definition(*LEAST, "--worker-replicas", "3", *flags)["spec"]["workers"]
    assert (pool["name"], pool["replicas"]) == ("workers", 3)
    (term,) = pool["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "example.com/rack", "operator": "In", "values": ["rack-1"]},
        {"key": "gpu", "operator": "Exists"},
    ]
    (near,) = pool["workloadAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["topologyKey"] == "kubernetes.io/hostname"
    file = tmp_path / "two.yaml"
    two = definition(*LEAST)
    two["spec"]["workers"] = [{"name": "a", "replicas": 1}, {"name": "b", "failureDomain": "zone-1"}]
    file.write_text(yaml.safe_dump(two))
    found = definition("--definition", str(file), "--worker-failure-domain", "zone-2")["spec"]["workers"]
    assert found == [{"name": "a", "replicas": 1, "failureDomain": "zone-2"}, {"name": "b", "failureDomain": "zone-2"}]


def test_a_wrong_value_for_workers_is_reported_with_its_flag() -> None:
    result = call(*LEAST, "--worker-failure-domain", "zone 1", "--worker-node-affinity", "=x", "--cis-profile", "none")
    assert result.exit_code == 1
    for flag in ("--worker-failure-domain: spec.workers[0].failureDomain", "--cis-profile: spec.hardening.cisProfile"):
        assert f"error: {flag}" in result.stderr


def test_user_data_of_guests_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "user-data.yaml"
    file.write_text("#cloud-config\nntp: {servers: [ntp.example.com]}\n")
    found = definition(*LEAST, "--user-data", str(file))["spec"]["machines"]["guestConfig"]
    assert found == {"userData": file.read_text()}
    absent = call(*LEAST, "--user-data", str(tmp_path / "absent"))
    assert (absent.exit_code, "--user-data" in absent.stderr) == (2, True)


def test_several_pools_are_asked_in_order() -> None:
    more = ["--ip-pool-refs", "pool-a, pool-b,pool-c", "--gateway", "10.0.0.1", "--subnet-mask", "255.255.255.0"]
    assert definition(*LEAST, *more)["spec"]["addresses"]["ipPoolRefs"] == ["pool-a", "pool-b", "pool-c"]


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


def test_a_folder_for_a_repository_gets_no_secret(tmp_path: Path, kubeconfig: Path) -> None:
    folder = tmp_path / "out"
    result = call(*GUIDE, *offline(kubeconfig), "--to", str(folder))
    assert result.exit_code == 0
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert "manifests/prod-ns/production-cluster/cluster/cluster.yaml" in files
    assert not any(TOKEN in text or "kind: Secret" in text for text in files.values())
    assert TOKEN not in result.output
    assert stat.S_IMODE((folder / "manifests").stat().st_mode) & 0o022 == 0


def test_files_that_exist_are_replaced_on_request_only(tmp_path: Path, kubeconfig: Path) -> None:
    folder = tmp_path / "out"
    words = (*GUIDE, *offline(kubeconfig), "--to", str(folder))
    assert call(*words).exit_code == 0
    assert call(*words).exit_code == 0
    cluster = folder / "manifests" / "prod-ns" / "production-cluster" / "cluster" / "cluster.yaml"
    cluster.write_text("mine\n")

    refused = call(*words, "--cni-mtu", "1400")
    assert refused.exit_code == 2
    assert "cluster/cluster.yaml" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert cluster.read_text() == "mine\n"

    assert call(*words, "--overwrite").exit_code == 0
    assert "kind: Cluster" in cluster.read_text()


def test_the_kubeconfig_to_check_with_is_never_written(tmp_path: Path, kubeconfig: Path) -> None:
    checked = call(*GUIDE, "--check-kubeconfig", str(kubeconfig), "--no-harvester")
    assert checked.exit_code == 0
    assert "Secret" not in {obj["kind"] for obj in objects(checked)}
    assert TOKEN not in checked.output

    bad = tmp_path / "bad.yaml"
    bad.write_text("a: 1")
    refused = call(*GUIDE, "--check-kubeconfig", str(bad), "--no-harvester")
    assert refused.exit_code == 1
    assert f"--check-kubeconfig {bad}" in refused.stderr


def test_answers_make_the_same_as_flags(kubeconfig: Path) -> None:
    reported = dict(zip(GUIDE[::2], GUIDE[1::2], strict=True))
    reported["--ip-pool-refs"] = reported.pop("--ip-pool")
    answers = [reported.get(flag.name, "") for flag in FLAGS if flag.ask]
    result = call("--interactive", "--no-harvester", stdin="\n".join([str(kubeconfig), *answers, "n", ""]))
    plain = call(*GUIDE, *offline(kubeconfig))
    shown = {obj["kind"]: obj for obj in objects(result)}
    wanted = {obj["kind"]: obj for obj in objects(plain)}
    assert shown.keys() == wanted.keys()
    assert shown["Cluster"]["spec"] == wanted["Cluster"]["spec"]
    assert TOKEN not in result.stderr
    asked = result.stderr.index("Apply to the management cluster [y/N]")
    summary = result.stderr[result.stderr.index("\nSummary\n") : asked]
    assert "prod-ns/production-cluster, rke2 v1.31.14+rke2r1" in summary
    assert "IPPool prod-ip-pool; gateway 172.16.0.1, mask 255.255.0.0" in summary
    assert "on https://harvester.example.com:6443" in summary


def test_the_summary_comes_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with_pools = ("--gateway", "--subnet-mask", "--dns")
    questions = [flag for flag in FLAGS if flag.ask and flag.name not in (*LEAST, *with_pools)]
    empty = "\n" * (len(questions) + 1)
    refused = call(*LEAST, "--interactive", "--to", str(out), stdin=f"{empty}n\n")
    assert (refused.exit_code, out.exists()) == (1, False)
    assert refused.stderr.index("Summary") < refused.stderr.index(f"Write to {out}?")
    assert call(*LEAST, "--interactive", "--to", str(out), stdin=f"{empty}y\n").exit_code == 0
    assert out.exists()


def test_an_unreachable_harvester_refuses_nothing(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.yaml"
    nowhere.write_text(KUBECONFIG.replace("harvester.example.com:6443", "127.0.0.1:9"))
    result = call(*LEAST, "--harvester-kubeconfig", str(nowhere))
    assert result.exit_code == 0
    assert "warning: Harvester does not answer, so that nothing was checked there" in result.stderr
    assert call(*LEAST, *offline(nowhere)).stderr == ""
    asked = call("--interactive", stdin=f"{tmp_path / 'none.yaml'}\n{nowhere}\ndemo\n")
    assert asked.stderr.count("Kubeconfig for Harvester") == 2
    assert "No such file" in asked.stderr
    assert "so there are no suggestions" in asked.stderr


def test_answers_are_kept_when_they_do_not_fit_together() -> None:
    wrong = (*LEAST, "--ip-pool-refs", "machines", "--dns", "10.0.0.1", "--interactive", "-o", "definition")
    result = call(*wrong, stdin="\n" * len(FLAGS))
    assert result.exit_code == 1
    (again,) = (line.strip() for line in result.stderr.splitlines() if line.startswith("  caphv generate"))
    assert "error: --gateway" in result.stderr
    words = shlex.split(again)[2:]
    fixed = call(*words, "--gateway", "10.0.0.2", "--subnet-mask", "255.255.255.0", "-o", "definition", stdin="\n" * 9)
    assert fixed.exit_code == 0, fixed.output
    assert next(yaml.safe_load_all(fixed.stdout))["spec"]["addresses"]["gateway"] == "10.0.0.2"


def test_a_wrong_answer_is_asked_for_again() -> None:
    answers = ["", "Demo", "demo", "", "latest", "v1.34.2", "rke", "rke2", "2", "3"]
    result = call("--interactive", "-o", "definition", stdin="\n".join(answers))
    assert result.stderr.count("Name of the cluster: ") == 2
    assert 'Error: must be "rke2", "k3s" or "kubeadm"' in result.stderr
    assert result.stderr.count("Machines of the control plane") == 2


def test_an_answer_that_is_required_is_asked_for_again_with_the_reason() -> None:
    names = [flag for flag in FLAGS if flag.ask]
    required = names.index(next(flag for flag in names if flag.name == "--network"))
    given = {"--name": "demo", "--image": "default/sles", "--ssh-keypair": "default/admin"}
    answers = ["", *(given.get(flag.name, "") for flag in names[:required]), "", "default/production"]
    result = call("--interactive", "-o", "definition", stdin="\n".join([*answers, *[""] * 9]))
    assert result.exit_code == 0, result.output
    assert "an answer is required, or give --network" in result.stderr


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


# Bundles of a cluster that Fleet is to equip


def test_without_push_the_output_names_what_is_missing() -> None:
    result = call(*LEAST, "--fleet-addon-repo", "https://git.example.com/f.git")
    assert result.exit_code == 0
    assert "no cloud provider and no CSI driver: add --push, or run a packager" in result.stderr
    assert call(*LEAST).stderr == ""


def test_push_puts_the_bundles_where_the_gitrepo_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    origin = Origin.make(tmp_path / "fleet.git")
    target = (*LEAST, "--fleet-addon-repo", origin.url, "--push")
    result = call(*target)
    assert result.exit_code == 0, result.stderr
    (path,) = next(obj for obj in yaml.safe_load_all(result.stdout) if obj["kind"] == "GitRepo")["spec"]["paths"]
    folder = path.removesuffix("/*")
    assert {f"{folder}/{bundle}/fleet.yaml" for bundle in ("ccm", "cni", "csi")} <= set(origin.files())
    assert "add --push" not in result.stderr
    # Again changes nothing; another setting is one more commit.
    assert "the bundles are already there" in call(*target).stderr
    assert call(*target, "--cni-mtu", "1400").exit_code == 0
    assert origin.count() == 2
    # What would break a running network is refused, and nothing is pushed.
    refused = call(*target, "--pod-cidr", "10.99.0.0/16")
    assert refused.exit_code == 1
    assert "live-network" in refused.stderr or "was rendered as" in refused.stderr
    assert origin.count() == 2


def test_push_needs_a_repository() -> None:
    result = call(*LEAST, "--push")
    assert result.exit_code == 2
    assert "name it with --fleet-addon-repo" in result.stderr
