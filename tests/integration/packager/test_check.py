"""`caphv bundles check` with the real helm and small charts, and its tables against a real API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import Invalid
from packager.checks import immutable, kinds
from sandbox import manifests
from sandbox.processes import binaries
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.charts import archived, calico, chart, cilium, shipped
from tests.support.packager.commands import Obj, call, manifest, write
from tests.support.packager.repositories import Origin

pytestmark = pytest.mark.integration

KUBEADM: Obj = {"distribution": "kubeadm"}


@pytest.fixture(autouse=True)
def helm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPHV_HELM", str(binaries.binary("helm")))


@pytest.fixture
def charts(tmp_path: Path) -> Path:
    folder = shipped(tmp_path / "charts")
    cilium(folder)
    return folder


@pytest.fixture
def clusters(tmp_path: Path) -> Path:
    return tmp_path / "clusters"


def check(*arguments: object) -> tuple[int, list[tuple[str, str, bool]], Any]:
    """Exit status, findings as file, field and whether they are advice, and all that is printed."""
    result = call("check", *arguments, "-o", "json")
    content = json.loads(result.stdout)
    rows = [row for one in content["items"] for row in one["findings"]]
    return result.exit_code, [(row["file"].split("/", 3)[3], row["field"], row["advice"]) for row in rows], content


@pytest.mark.parametrize("distribution", ["rke2", "k3s", "kubeadm", "talos"])
def test_shipped_bundles_are_clean(clusters: Path, charts: Path, distribution: str) -> None:
    addons = {"distribution": distribution, "cni": {"name": "none"}}
    status, found, content = check(write(clusters, manifest("a", addons)), "--charts", charts)
    assert (status, found) == (0, [])
    wanted = {"harvester-cloud-provider", "harvester-csi-driver"}
    wanted |= {"rke2-snapshot-controller", "rke2-snapshot-controller-crd"} if distribution != "rke2" else set()
    assert {row["name"] for row in content["items"][0]["charts"] if row["rendered"]} == wanted


@pytest.mark.parametrize("pods", [["10.42.0.0/16"], ["fd00:1::/56"], ["10.42.0.0/16", "fd00:1::/56"]])
def test_cilium_serves_each_family_of_the_pods(clusters: Path, charts: Path, pods: list[str]) -> None:
    cni = {"name": "cilium", "podCIDRs": pods}
    write(clusters, manifest("a", {"distribution": "k3s", "cni": cni}))
    status, found, content = check(clusters, "--charts", charts)
    assert (status, found) == (0, [])
    assert "rke2-cilium" in {row["name"] for row in content["items"][0]["charts"] if row["rendered"]}
    # As a user's templates may.
    values = {"global": {"clusterCIDRv4": None, "clusterCIDRv6": None}}
    write(clusters, manifest("a", {"distribution": "k3s", "cni": {**cni, "values": values}}))
    status, found, _ = check(clusters, "--charts", charts)
    keys = [f"data.enable-ipv{'6' if ':' in cidr else '4'}" for cidr in pods]
    off = [row for row in found if row[1].startswith("data.")]
    assert (status, off) == (1, [("cni/helmchart.yaml", key, False) for key in keys])


def test_kinds_of_charts_that_rke2_installs_itself_come_with_rke2(clusters: Path, charts: Path) -> None:
    calico(charts)
    write(clusters, manifest("a", {"distribution": "rke2", "cni": {"name": "calico"}}))
    status, found, content = check(clusters, "--charts", charts)
    assert (status, found) == (0, [])
    assert "rke2-calico" in {row["name"] for row in content["items"][0]["charts"] if row["rendered"]}


def test_unknown_values_name_the_key_that_was_meant(clusters: Path, charts: Path) -> None:
    values = {"replicas": 2, "image": {"repo": "x", "repository": "y"}, "kube-vip": {"enabled": False}}
    write(clusters, manifest("a", {**KUBEADM, "ccm": {"values": values}}))
    status, found, content = check(clusters, "--charts", charts)
    assert status == 1
    assert found == [
        ("ccm/fleet.yaml", "helm.values.image.repo", False),
        ("ccm/fleet.yaml", "helm.values.replicas", False),
    ]
    assert "write replicasCount" in content["items"][0]["findings"][1]["message"]


def test_kinds_without_their_crds(clusters: Path, charts: Path) -> None:
    addons = {**KUBEADM, "csi": {"snapshotController": False}}
    _, found, content = check(write(clusters, manifest("a", addons)), "--charts", charts)
    assert found == [("csi/fleet.yaml", "kind", False)]
    assert "no matches for kind VolumeSnapshotClass" in content["items"][0]["findings"][0]["message"]


def test_names_of_objects_that_do_not_exist(clusters: Path, charts: Path) -> None:
    values = {"account": "missing", "cloudConfig": {"secretName": "elsewhere"}}
    write(clusters, manifest("a", {**KUBEADM, "ccm": {"values": values}}))
    status, found, _ = check(clusters, "--charts", charts)
    account = "spec.template.spec.serviceAccountName"
    secret = "spec.template.spec.volumes[0].secret.secretName"
    # Secrets are never in a bundle: users or controllers create them.
    assert (status, found) == (1, [("ccm/fleet.yaml", account, False), ("ccm/fleet.yaml", secret, True)])


def test_changes_of_immutable_fields_against_the_repository(clusters: Path, charts: Path, tmp_path: Path) -> None:
    origin = Origin.make(tmp_path / "origin")
    write(clusters, manifest("a", KUBEADM), manifest("b", KUBEADM))
    assert call("push", clusters, "--repo", origin.url).exit_code == 0
    changed = {**KUBEADM, "ccm": {"values": {"app": "other"}}, "csi": {"values": {"hostStorageClass": "hdd"}}}
    write(clusters, manifest("a", changed), manifest("b", KUBEADM))
    status, found, content = check(clusters, "--charts", charts, "--repo", origin.url)
    assert (status, found) == (1, [("ccm/fleet.yaml", "spec.selector", False), ("csi/fleet.yaml", "parameters", False)])
    assert [one["name"] for one in content["items"] if one["findings"]] == ["team/a"]
    # A chart that the folder no longer has could have changed anything.
    write(clusters, manifest("a", {**KUBEADM, "ccm": {"version": "0.2.14"}}), manifest("b", KUBEADM))
    (charts / "harvester-cloud-provider" / "Chart.yaml").write_text("name: harvester-cloud-provider\nversion: 0.2.14\n")
    _, found, _ = check(clusters, "--charts", charts, "--repo", origin.url)
    assert ("ccm/fleet.yaml", "helm.version", True) in found


def test_vendored_charts_are_rendered_from_their_bundles(clusters: Path, charts: Path, tmp_path: Path) -> None:
    write(clusters, manifest("a", {"ccm": {"values": {"replicas": 2}}}))
    fleet = tmp_path / "fleet"
    assert call("push", clusters, "--folder", fleet).exit_code == 0
    assert call("vendor", clusters, "--folder", fleet, "--charts", charts).exit_code == 0
    assert call("push", clusters, "--folder", fleet).exit_code == 0
    (tmp_path / "none").mkdir()
    status, found, content = check(clusters, "--folder", fleet, "--charts", tmp_path / "none")
    assert (status, found) == (1, [("ccm/fleet.yaml", "helm.values.replicas", False)])
    rows = {row["name"]: row["rendered"] for row in content["items"][0]["charts"]}
    assert rows == {"harvester-cloud-provider": True, "harvester-csi-driver": True, "rke2-calico": False}


def test_charts_that_are_not_available(clusters: Path, charts: Path, tmp_path: Path) -> None:
    write(clusters, manifest("a"))
    # Without charts, manifests are checked; with some, a missing one is an error. RKE2 brings its own charts.
    status, found, content = check(clusters)
    assert (status, found) == (0, [])
    assert not any(row["rendered"] for row in content["items"][0]["charts"])
    (tmp_path / "few").mkdir()
    status, found, _ = check(clusters, "--charts", tmp_path / "few")
    assert (status, {row[0] for row in found}) == (1, {"ccm/fleet.yaml", "csi/fleet.yaml"})


def test_a_chart_that_fails_and_one_that_is_no_archive(clusters: Path, charts: Path) -> None:
    archived(charts / "harvester-csi-driver", "0.1.31").write_bytes(b"nothing")
    fails = '{{ required "a name is needed" .Values.absent }}'
    chart(charts, "harvester-cloud-provider", "0.2.15", {}, templates__all=fails)
    status, _, content = check(write(clusters, manifest("a")), "--charts", charts)
    ccm, csi = (row["message"] for row in content["items"][0]["findings"])
    assert status == 1
    assert "a name is needed" in ccm
    assert "is not an archive of a chart" in csi


def test_text_for_people_and_wrong_usage(clusters: Path, charts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(clusters, manifest("a", {"ccm": {"values": {"replicas": 1}}}))
    result = call("check", clusters, "--charts", charts)
    first, *_, last = result.stdout.splitlines()
    assert first.startswith("clusters/team/a/ccm/fleet.yaml: error: helm.values.replicas: Unknown field: chart harv")
    assert last == "1 cluster, 2 charts rendered: 1 error, 0 warnings"
    assert call("check", clusters, "--charts", "/nowhere").exit_code == 2
    monkeypatch.delenv("CAPHV_HELM")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CAPHV_CACHE", "/nowhere")
    without = call("check", clusters, "--charts", charts)
    assert (without.exit_code, "there is no helm" in without.output) == (2, True)


async def test_tables_are_those_of_a_real_api_server(management: ApiServer) -> None:
    async with management.client() as client:
        groups = (await client.request("GET", "/apis"))["groups"]
        listed = ["v1", *(version["groupVersion"] for group in groups for version in group["versions"])]
        there = set()
        for version in listed:
            answer = await client.request("GET", f"/apis/{version}" if "/" in version else f"/api/{version}")
            there |= {(version, row["kind"]) for row in answer["resources"] if "/" not in row["name"]}
    known = kinds.served_kinds("kubeadm", "v1.36.3")
    assert known - there == set()
    # The rest is of requests that store nothing, of groups with a flag, and of CRDs of other tests.
    missing = {kind for kind in there - known if "beta" not in kind[0] and "alpha" not in kind[0]}
    assert {kind for kind in missing if kind[0].endswith("k8s.io/v1") and not kind[1].endswith("Review")} <= {
        ("apiregistration.k8s.io/v1", "APIService")
    }


CHANGES: list[tuple[Obj, Obj]] = [
    (
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "check"},
            "provisioner": "example.com/a",
        },
        {
            "parameters": {"a": "b"},
            "provisioner": "example.com/b",
            "reclaimPolicy": "Retain",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    ),
    (
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "check"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        },
        {"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}},
    ),
    (
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "check", "namespace": "default"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b", "c": "d"}},
                    "spec": {"containers": [{"name": "main", "image": "example.com/a:1"}]},
                },
            },
        },
        {"spec": {"selector": {"matchLabels": {"c": "d"}}}},
    ),
    (
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "check"},
            "value": 1,
        },
        {"value": 2},
    ),
    (
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": "check"},
            "spec": {"attachRequired": True},
        },
        {"spec": {"attachRequired": False}},
    ),
]


@pytest.mark.parametrize(("before", "change"), CHANGES, ids=lambda obj: str(obj.get("kind", "")))
async def test_an_api_server_refuses_what_the_check_refuses(management: ApiServer, before: Obj, change: Obj) -> None:
    async with management.client() as client:
        await manifests.apply(client, [before])
        resource = await Discovery(client).resource(before)
        for field, value in change.items():
            merged = {**before, field: {**before[field], **value} if isinstance(before.get(field), dict) else value}
            one = immutable.identity(before, "default")
            assert list(immutable.changes({one: before}, {one: merged})), field
            metadata = before["metadata"]
            with pytest.raises(Invalid):
                await client.patch(resource, metadata["name"], metadata.get("namespace", ""), {field: merged[field]})
