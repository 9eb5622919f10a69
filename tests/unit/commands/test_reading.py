"""Commands that only read, with servers in memory: what they print, and what their exit status says."""

from __future__ import annotations

import base64
import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api import names
from caphv.api.object import Obj
from caphv.runtime.errors import Forbidden, Unreachable
from operations.status.page.livepage import LivePage
from tests.support import kubeconfigs
from tests.support.clusters import Builder
from tests.support.commandservers import Servers
from tests.support.overview import KINDS

pytestmark = pytest.mark.unit

AWAY = Unreachable("https://harvester:6443: no answer")


def identity(name: str = "identity", server: str = "https://harvester:6443", **user: str) -> Obj:
    config = kubeconfigs.with_cluster(server=server)
    config["users"][0]["user"] |= user
    data = {"kubeconfig": base64.b64encode(yaml.safe_dump(config).encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "team"}, "data": data}


def lease(seconds: float) -> Obj:
    renewed = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    metadata = {"name": names.LEASE, "namespace": "caphv-system"}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {"renewTime": renewed},
    }


def host(name: str, *, cordoned: bool = False) -> Obj:
    status = {
        "allocatable": {"cpu": "8", "memory": "32Gi"},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": "zone-1"}},
        "spec": {"unschedulable": cordoned},
        "status": status,
    }


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    found = Servers(monkeypatch, tmp_path)
    found.put(Builder())
    found.management.put(identity())
    found.harvester.put(host("host-1"))
    found.harvester.serve("kubevirt.io/v1", "VirtualMachineInstance")
    return found


# caphv status and tree


def broken() -> Builder:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester", hours=1)
    return builder


@pytest.mark.parametrize("command", ["status", "tree"])
@pytest.mark.parametrize("output", ["text", "json", "yaml"])
def test_exit_status_says_whether_something_is_wrong(servers: Servers, command: str, output: str) -> None:
    words = (command, "team/shop", "--no-deep", "-o", output)
    healthy = servers.caphv(*words)
    assert healthy.exit_code == 0, healthy.output
    assert not healthy.stdout.endswith("\n\n")
    assert "shop" in healthy.stdout
    servers.put(broken())
    result = servers.caphv(*words)
    assert (result.exit_code, "the VirtualMachine does not exist" in result.stdout) == (1, True), result.output


@pytest.mark.parametrize("command", ["status", "tree"])
def test_a_silent_provider_comes_first_and_is_wrong(servers: Servers, command: str) -> None:
    servers.management.put(lease(5))
    assert servers.caphv(command, "team/shop", "--no-deep").exit_code == 0
    servers.management.put(lease(3600))
    result = servers.caphv(command, "team/shop", "--no-deep")
    assert result.exit_code == 1
    assert result.stdout.startswith("✗ provider: silent: Lease caphv-system/")


@pytest.mark.parametrize("command", ["status", "tree"])
def test_what_may_not_be_read_is_named(servers: Servers, command: str) -> None:
    servers.management.errors["list HarvesterMachine"] = Forbidden(403, "Forbidden", "cannot list")
    for output in ("text", "json"):
        result = servers.caphv(command, "team/shop", "--no-deep", "-o", output)
        assert "not seen: " in result.stderr
        assert "cannot list" in result.stderr


@pytest.mark.parametrize("command", ["status", "tree"])
def test_only_a_deep_look_asks_harvester(servers: Servers, command: str) -> None:
    servers.harvester.errors["discover"] = AWAY
    shallow = servers.caphv(command, "team/shop", "--no-deep")
    assert (shallow.exit_code, "no answer" in shallow.output) == (0, False)
    deep = servers.caphv(command, "team/shop", "--deep")
    assert "Harvester https://harvester:6443 by identity team/identity: no answer" in deep.stderr


@pytest.mark.parametrize("command", ["status", "tree", "doctor"])
def test_a_name_alone_is_no_cluster_of_all_namespaces(servers: Servers, command: str) -> None:
    result = servers.caphv(command, "-A", "shop")
    assert result.exit_code == 2
    assert "'shop' is not NAMESPACE/NAME, for example team-a/demo" in result.output


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--serve", "--watch"), "--serve and --watch are mutually exclusive"),
        (("--serve", "-o", "json"), "--output cannot be used with --watch or --serve"),
        (("--watch", "-o", "yaml"), "--output cannot be used with --watch or --serve"),
        (("--serve", "--bind-address", "8642"), "'8642' is not HOST:PORT"),
        (("--serve", "--bind-address", ":8642"), "':8642' is not HOST:PORT"),
        (("--serve", "--bind-address", "host:http"), "'host:http' is not HOST:PORT"),
        (("--serve", "--bind-address", "host:65536"), "'host:65536' is not HOST:PORT"),
        (("--serve", "--token-file", "absent"), "cannot read absent"),
        (("--serve", "--token-file", "short"), "must contain 16 to 128 letters"),
        (("--serve", "--token-file", "bytes"), "cannot read bytes"),
    ],
)
def test_a_live_page_that_cannot_be_meant_is_wrong_usage(
    servers: Servers, tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    (tmp_path / "short").write_text("a" * 15)
    (tmp_path / "bytes").write_bytes(b"\xff" * 20)
    result = servers.caphv("status", "-A", *words)
    assert (result.exit_code, problem in " ".join(result.stderr.split())) == (2, True), result.output


@pytest.mark.parametrize(
    ("address", "host", "port"), [("host:65535", "host", 65535), ("[::1]:0", "::1", 0), ("127.0.0.1:1", "127.0.0.1", 1)]
)
def test_a_live_page_that_cannot_be_served_says_where(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, host: str, port: int
) -> None:
    """The address is in use, for example."""

    def serving(page: LivePage, *place: object) -> Any:
        assert place == (host, port)
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(LivePage, "serving", serving)
    (tmp_path / "token").write_text("a" * 16 + "\n")
    result = servers.caphv("status", "-A", "--serve", "--bind-address", address, "--token-file", "token")
    assert result.exit_code == 1
    assert f"cannot serve at {address}: Address already in use" in result.stderr


def test_a_tree_is_deep_unless_it_is_refused_and_status_is_not(servers: Servers) -> None:
    servers.harvester.errors["discover"] = AWAY
    assert "no answer" in servers.caphv("tree", "team/shop").stderr
    assert "no answer" not in servers.caphv("status", "team/shop").stderr


def test_conditions_of_a_tree_show_on_request(servers: Servers) -> None:
    assert "VMUpToDate" not in servers.caphv("tree", "team/shop", "--no-deep").stdout
    assert "VMUpToDate" in servers.caphv("tree", "team/shop", "--no-deep", "--conditions").stdout


def test_hosts_of_machines_are_shown_with_their_zones(servers: Servers) -> None:
    builder = Builder()
    servers.put(builder)
    assert "on harvester-1 (zone-1)" in servers.caphv("tree", "team/shop", "--no-deep").stdout
    for machine in builder.harvester_machines.values():
        machine["status"]["failureDomain"] = "harvester-1"
    servers.put(builder)
    shown = servers.caphv("tree", "team/shop", "--no-deep").stdout
    assert "on harvester-1 " in shown
    assert "(" not in shown.partition("on harvester-1")[2].partition("\n")[0]


def test_conditions_of_groups_and_bundles_show_on_request_or_when_they_are_wrong(servers: Servers) -> None:
    builder = Builder()
    builder.control_plane["status"]["conditions"] = [{"type": "EtcdClusterHealthy", "status": "True"}]
    for status, word in (("True", "Ready"), ("False", "Pending")):
        condition = {"type": "AddonBundlesReady", "status": status, "reason": "Deploying", "message": "1 of 2 applied"}
        conditions = [
            each for each in builder.harvester_cluster["status"]["conditions"] if each["type"] != "AddonBundlesReady"
        ]
        builder.harvester_cluster["status"]["conditions"] = [*conditions, condition]
        servers.put(builder)
        short = servers.caphv("tree", "team/shop", "--no-deep").stdout
        assert f"bundles {word}" in short
        assert ("1 of 2 applied" in short) is (status == "False")
        assert "EtcdClusterHealthy" not in short
        assert "EtcdClusterHealthy" in servers.caphv("tree", "team/shop", "--no-deep", "--conditions").stdout


def test_clusters_of_one_namespace_have_no_column_for_it(servers: Servers) -> None:
    assert servers.caphv("status", "-n", "team").stdout.split()[0] == "CLUSTER"
    assert servers.caphv("status", "-A").stdout.split()[0] == "NAMESPACE"


def test_clusters_of_several_namespaces_are_read_together(servers: Servers) -> None:
    other = Builder("other", prefix="other-")
    for obj in (other.cluster, other.harvester_cluster, other.control_plane, other.deployment):
        obj["metadata"]["namespace"] = "second"
    for obj in (*other.machines.values(), *other.harvester_machines.values()):
        obj["metadata"]["namespace"] = "second"
    servers.put(other)
    found = json.loads(servers.caphv("status", "team/shop", "second/other", "--no-deep", "-o", "json").stdout)
    assert {(cluster["namespace"], cluster["name"]) for cluster in found["items"]} == {
        ("team", "shop"),
        ("second", "other"),
    }


def test_an_empty_namespace_names_the_way_to_all(servers: Servers) -> None:
    result = servers.caphv("status", "-n", "empty")
    assert (result.exit_code, "in namespace empty; all namespaces: -A" in result.stderr) == (0, True)
    assert "No clusters" not in servers.caphv("status", "-n", "team").stderr


# caphv capacity


def test_capacity_is_that_of_each_harvester_that_clusters_use(servers: Servers) -> None:
    (found,) = servers.data("capacity")
    assert (found["harvester"], found["total"]["hosts"], found["total"]["cpu"]) == ("https://harvester:6443", 1, 8.0)
    text = servers.caphv("capacity").stdout
    assert "Harvester https://harvester:6443" in text
    assert "host-1" not in text
    assert "host-1 (zone-1)" in servers.caphv("capacity", "--hosts").stdout
    servers.harvester.put(host("host-1", cordoned=True))
    (found,) = servers.data("capacity")
    assert found["total"]["hosts"] == 0


def test_a_harvester_that_cannot_be_read_is_named_and_none_is_no_answer(servers: Servers) -> None:
    servers.harvester.errors["discover"] = AWAY
    result = servers.caphv("capacity")
    assert (result.exit_code, "no Harvester can be read" in result.output) == (2, True)
    assert "https://harvester:6443: no answer" in result.output
    assert servers.harvester.closed


def test_capacity_of_all_namespaces_is_the_default(servers: Servers) -> None:
    assert servers.data("capacity", "-A") == servers.data("capacity")
    empty = servers.caphv("capacity", "-n", "empty")
    assert (empty.exit_code, "name its kubeconfig with --harvester-kubeconfig" in empty.output) == (2, True)
    result = servers.caphv("capacity", "-A", "-n", "team")
    assert (result.exit_code, "are mutually exclusive" in result.output) == (2, True)


@pytest.mark.parametrize("words", [("capacity",), ("pools", "audit"), ("leftovers",)], ids=" ".join)
def test_a_cluster_without_a_target_namespace_does_not_hide_a_harvester(
    servers: Servers, words: tuple[str, ...]
) -> None:
    older = Builder("older", prefix="older-")
    del older.harvester_cluster["spec"]["targetNamespace"]
    servers.put(older)
    result = servers.caphv(*words, "HARVESTER")
    assert isinstance(result.exception, SystemExit | None), result.exception


def test_an_identity_without_a_namespace_is_a_problem_of_its_cluster(servers: Servers) -> None:
    builder = Builder()
    builder.harvester_cluster["spec"]["identitySecret"] = {"namespace": "", "name": "identity"}
    servers.put(builder)
    result = servers.caphv("doctor", "team/shop")
    assert "✗ Secret identity" in result.stdout.splitlines(), result.output


def test_identities_of_one_harvester_are_one(servers: Servers) -> None:
    other = Builder("other", prefix="other-")
    other.harvester_cluster["spec"] |= {"identitySecret": {"namespace": "team", "name": "second"}}
    servers.put(other)
    servers.management.put(identity("second", token="another"))
    assert len(servers.data("capacity")) == 1


def test_an_identity_that_is_missing_does_not_hide_the_others(servers: Servers) -> None:
    other = Builder("other", prefix="other-")
    other.harvester_cluster["spec"] |= {"identitySecret": {"namespace": "team", "name": "gone"}}
    servers.put(other)
    result = servers.caphv("capacity")
    assert (result.exit_code, "team/gone" in result.stderr) == (0, True)


def test_an_administrator_asks_with_a_kubeconfig(servers: Servers) -> None:
    servers.management.errors["get Secret"] = Forbidden(403, "Forbidden", "cannot get")
    assert servers.caphv("capacity").exit_code == 2
    quota = {"metadata": {"name": "default", "namespace": "vms"}, "spec": {"hard": {"limits.cpu": "10"}}}
    servers.harvester.put({"apiVersion": "v1", "kind": "ResourceQuota", **quota, "status": {"used": {"limits.cpu": 4}}})
    (found,) = servers.data("capacity", "HARVESTER")
    assert [(quota["namespace"], quota["hard"], quota["used"]) for quota in found["quotas"]] == [("vms", 10.0, 4.0)]


def test_an_account_of_one_namespace_sees_the_harvesters_of_its_clusters(servers: Servers) -> None:
    list_ = servers.management.list

    async def listed(resource: Any, namespace: str = "", **options: Any) -> Obj:
        if not namespace:
            raise Forbidden(403, "Forbidden", f"cannot list {resource.plural} at the cluster scope")
        return await list_(resource, namespace, **options)

    servers.management.list = listed  # type: ignore[method-assign]
    assert servers.caphv("capacity", "-n", "team").exit_code == 0
    result = servers.caphv("status", "-A")
    assert (result.exit_code, "name a namespace that you may read with -n" in result.output) == (2, True)


# caphv doctor and support-bundle


def checks(servers: Servers, *words: str) -> dict[str, set[str]]:
    """Results by subject of the checks."""
    found: dict[str, set[str]] = {}
    for check in servers.data("doctor", *words):
        found.setdefault(check["subject"], set()).add(check["result"])
    return found


def test_doctor_names_what_is_wrong_and_fails(servers: Servers) -> None:
    servers.put(broken())
    result = servers.caphv("doctor", "team/shop")
    assert result.exit_code == 1
    assert "the VirtualMachine does not exist on Harvester" in result.stdout
    assert "error" in checks(servers, "team/shop")["Cluster team/shop"]


def test_doctor_of_a_cluster_that_does_not_exist_is_an_error(servers: Servers) -> None:
    result = servers.caphv("doctor", "team/gone")
    assert (result.exit_code, "team/gone" in result.output) == (2, True)


def test_doctor_says_when_there_was_no_cluster_to_check(servers: Servers) -> None:
    def messages(*words: str) -> list[str]:
        return [check["message"] for check in servers.data("doctor", *words) if check["subject"] == "Clusters"]

    (message,) = messages("-n", "empty")
    assert message.endswith("there is none on Harvester in namespace empty; all namespaces: -A")
    assert messages("-n", "team") == []
    assert messages("-n", "empty", "--harvester", "team/identity") == []
    assert messages("-A") == []


def test_doctor_of_an_empty_management_cluster_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    servers = Servers(monkeypatch, tmp_path)
    for kind, resource in KINDS.items():
        servers.management.serve(resource.api_version, kind)
    result = servers.caphv("doctor", "-A")
    assert "no cluster was checked: there is none on Harvester in any namespace" in result.stdout


def test_doctor_may_be_asked_about_one_harvester(servers: Servers) -> None:
    other = Builder("other", prefix="other-")
    other.harvester_cluster["spec"] |= {"identitySecret": {"namespace": "team", "name": "second"}}
    servers.put(other)
    servers.management.put(identity("second", server="https://second:6443"))
    every, first = checks(servers, "-n", "team"), checks(servers, "-n", "team", "--harvester", "identity")
    assert {"Cluster team/shop", "Cluster team/other"} <= every.keys()
    assert "Cluster team/shop" in first
    assert "Cluster team/other" not in first
    assert checks(servers, "-n", "team", "--harvester", "team/identity").keys() == first.keys()
    assert any("second" in subject for subject in every)
    assert not any("second" in subject for subject in first)


def test_doctor_says_each_thing_once_of_a_harvester_with_two_identities(servers: Servers) -> None:
    other = Builder("other", prefix="other-")
    other.harvester_cluster["spec"] |= {"identitySecret": {"namespace": "team", "name": "second"}}
    servers.put(other)
    servers.management.put(identity("second", token="another"))
    found = [json.dumps(check, sort_keys=True) for check in servers.data("doctor", "-n", "team")]
    assert len(found) == len(set(found))


def test_doctor_checks_annotations_of_its_clusters_only(servers: Servers) -> None:
    typo = "caphv.io/force-delte"
    for builder in (Builder(), Builder("other", prefix="other-")):
        for obj in (builder.cluster, builder.harvester_cluster, builder.harvester_machines[_first(builder)]):
            obj["metadata"]["annotations"] = {typo: "true"}
        servers.put(builder)
    found = [check for check in servers.data("doctor", "team/shop") if typo in check["message"]]
    text = json.dumps(found)
    for name in ("shop", "shop-x", "cp-1"):
        assert f"team/{name}" in text
    assert "team/other" not in text


def _first(builder: Builder) -> str:
    return next(iter(builder.harvester_machines))


def test_a_support_bundle_is_private_and_has_no_secret(servers: Servers, tmp_path: Path) -> None:
    for namespace in ("team", "caphv-system", "other"):
        metadata = {"name": "event", "namespace": namespace}
        servers.management.put(
            {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "message": f"message in {namespace}"}
        )
    result = servers.caphv("support-bundle", "team/shop", "--file", "bundle.tar.gz")
    assert result.exit_code == 0, result.output
    file = tmp_path / "bundle.tar.gz"
    assert file.stat().st_mode & 0o777 == 0o600
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        content = b"".join(archive.extractfile(name).read() for name in archive.getnames())  # type: ignore[union-attr]
    assert {"overview.json", "doctor.json", "events.txt"} <= names
    assert any(name.startswith("logs/") for name in names)
    assert {"management/cluster/team/shop.yaml", "harvester-1/server.txt"} <= names
    assert b"message in team" in content
    assert b"message in caphv-system" in content
    assert b"message in other" not in content
    assert f"wrote {len(names)} files to bundle.tar.gz" in result.stdout
    assert kubeconfigs.CANARY.encode() not in content
    assert {item["name"] for item in servers.data("support-bundle", "team/shop", "--file", "data.tar.gz")} == names
    missing = servers.caphv("support-bundle", "team/gone", "--file", "other.tar.gz")
    assert (missing.exit_code, (tmp_path / "other.tar.gz").exists()) == (2, False)


def test_a_support_bundle_has_a_name_of_its_own(servers: Servers, tmp_path: Path) -> None:
    assert servers.caphv("support-bundle", "team/shop").exit_code == 0
    (file,) = tmp_path.glob("caphv-support-*.tar.gz")
    with tarfile.open(file) as archive:
        assert {name.partition("/")[0] for name in archive.getnames()} == {file.name.removesuffix(".tar.gz")}


# caphv identity list


def test_identities_are_listed_with_their_clusters(servers: Servers) -> None:
    (found,) = servers.data("identity", "list", "-A")
    assert (found["secret"], found["clusters"], found["state"]) == ("team/identity", ["team/shop"], "valid")
    assert servers.caphv("identity", "list", "-A").exit_code == 0
    other = Builder("other", prefix="other-")
    other.harvester_cluster["spec"] |= {"identitySecret": {"namespace": "team", "name": "gone"}}
    servers.put(other)
    result = servers.caphv("identity", "list", "-A")
    assert (result.exit_code, "team/gone" in result.stdout) == (1, True)


def test_a_namespace_without_identities_is_named(servers: Servers) -> None:
    result = servers.caphv("identity", "list", "-n", "elsewhere")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No identities in namespace elsewhere; all namespaces: -A" in result.stderr
