"""`caphv bundles check`, `images` and `vendor` with small charts, and a program in place of helm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caphv.api.object import Obj
from tests.support.packager.charts import chart, shipped
from tests.support.packager.commands import call, manifest, write
from tests.support.packager.repositories import Origin

pytestmark = pytest.mark.unit

INVALID: Obj = {"cni": {"mtu": 1}}
KUBEADM: Obj = {"distribution": "kubeadm", "cni": {"name": "none"}}
RENDERED = """\
---
# Source: chart/templates/all.yaml
apiVersion: v1
kind: Pod
metadata: {name: main, namespace: kube-system}
spec: {containers: [{name: main, image: rancher/main:v1}]}
"""


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, no repository of the user, and a helm that renders each chart alike."""
    monkeypatch.delenv("CAPHV_GIT_REPO", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "rendered").write_text(RENDERED)
    helm = tmp_path / "helm"
    helm.write_text(f"#!/bin/sh\ncat > /dev/null\ncat {tmp_path}/rendered\n")
    helm.chmod(0o755)
    monkeypatch.setenv("CAPHV_HELM", str(helm))


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin.make(tmp_path / "origin.git")


@pytest.fixture
def clusters(tmp_path: Path) -> Path:
    return tmp_path / "clusters"


@pytest.fixture
def charts(tmp_path: Path) -> Path:
    return shipped(tmp_path / "charts")


def test_images_are_those_of_rendered_charts(clusters: Path, charts: Path) -> None:
    write(clusters, manifest("a", KUBEADM))
    result = call("images", clusters, "--charts", charts, "-o", "images")
    assert (result.exit_code, result.stdout) == (0, "rancher/main:v1\n")
    assert result.stderr == ""


def test_images_of_charts_that_are_not_available_are_unknown(clusters: Path) -> None:
    write(clusters, manifest("a", KUBEADM))
    result = call("images", clusters)
    assert result.exit_code == 1
    assert "images of chart harvester-csi-driver 0.1.31 are unknown: use --charts or --fetch" in result.stderr
    # A list of charts needs none of them.
    listed = call("images", clusters, "-o", "charts")
    assert (listed.exit_code, listed.stderr) == (0, "")
    assert any(line.endswith(" harvester-csi-driver 0.1.31") for line in listed.stdout.splitlines())


def test_charts_have_the_versions_that_the_repository_pins(clusters: Path, origin: Origin) -> None:
    write(clusters, manifest("a", KUBEADM))
    assert call("push", clusters, "--repo", origin.url).exit_code == 0
    newest = call("images", clusters, "-o", "charts").stdout
    upgraded = call("upgrade", clusters, "--all", "--release", "2026.11", "--repo", origin.url)
    assert "for release 2026.11" in upgraded.stderr
    pinned = call("images", clusters, "-o", "charts", "--repo", origin.url).stdout
    assert pinned != newest
    assert call("images", clusters, "-o", "charts").stdout == newest


@pytest.mark.parametrize("command", ["images", "check", "vendor"])
def test_a_cluster_that_cannot_be_rendered_and_a_file_that_cannot_be_read_fail(
    command: str, clusters: Path, charts: Path, tmp_path: Path
) -> None:
    write(clusters, manifest("a", KUBEADM))
    options = ["--charts", charts, *(["--folder", tmp_path / "fleet"] if command == "vendor" else [])]
    (tmp_path / "fleet").mkdir()
    assert call(command, clusters, *options).exit_code == 0
    write(clusters, manifest("a", KUBEADM), manifest("bad", INVALID))
    failed = call(command, clusters, *options)
    assert failed.exit_code == 1
    assert "caphv bundles: " in failed.stderr
    assert "cluster team/bad: error: " in failed.stderr
    (clusters / "broken.yaml").write_text("[")
    assert call(command, clusters, *options).exit_code == 2


def test_a_check_fails_for_errors_and_not_for_advice(clusters: Path, charts: Path) -> None:
    write(clusters, manifest("a", KUBEADM))
    good = call("check", clusters, "--charts", charts, "-o", "json")
    (report,) = json.loads(good.stdout)["items"]
    assert (good.exit_code, report["findings"]) == (0, [])
    assert {row["name"] for row in report["charts"] if row["rendered"]} >= {"harvester-csi-driver"}
    without = call("check", clusters)
    assert without.exit_code == 0
    assert "not rendered: " in without.stdout

    values = {"replicas": 2}
    write(clusters, manifest("a", {**KUBEADM, "ccm": {"values": values}}))
    bad = call("check", clusters, "--charts", charts, "-o", "json")
    (row,) = json.loads(bad.stdout)["items"][0]["findings"]
    assert (bad.exit_code, row["field"], row["advice"]) == (1, "helm.values.replicas", False)


def test_a_check_compares_with_what_the_repository_holds(
    clusters: Path, charts: Path, origin: Origin, tmp_path: Path
) -> None:
    write(clusters, manifest("a", {**KUBEADM, "csi": {"values": {"hostStorageClass": "ssd"}}}))
    assert call("push", clusters, "--repo", origin.url).exit_code == 0
    write(clusters, manifest("a", {**KUBEADM, "csi": {"values": {"hostStorageClass": "hdd"}}}))
    # The program renders what it is given, so that another value is another class.
    class_ = "---\n# Source: chart/templates/class.yaml\napiVersion: storage.k8s.io/v1\n"
    class_ += "kind: StorageClass\nmetadata: {name: x}\nprovisioner: x\nparameters:"
    helm = tmp_path / "helm"
    values = "grep -o '\"hostStorageClass\":\"[a-z]*\"' | sed 's/:/: /; s/^/  /'"
    helm.write_text(f"#!/bin/sh\nprintf '%s\\n' '{class_}'\n{values}\nexit 0\n")
    changed = call("check", clusters, "--charts", charts, "--repo", origin.url, "-o", "json")
    rows = [row for one in json.loads(changed.stdout)["items"] for row in one["findings"]]
    assert (changed.exit_code, [row["field"] for row in rows]) == (1, ["parameters"]), changed.output
    assert "parameters" not in call("check", clusters, "--charts", charts).stdout


def test_a_helm_that_is_missing_is_wrong_usage(
    clusters: Path, charts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(clusters, manifest("a", KUBEADM))
    monkeypatch.delenv("CAPHV_HELM")
    monkeypatch.setenv("CAPHV_CACHE", str(tmp_path / "nothing"))
    monkeypatch.setattr("commands.bundles.check.shutil.which", lambda _: None)
    monkeypatch.setattr("sandbox.processes.binaries.cache_folder", lambda: tmp_path)
    result = call("check", clusters, "--charts", charts)
    assert (result.exit_code, "there is no helm: " in result.output) == (2, True)
    built = tmp_path / "bin"
    built.mkdir()
    (tmp_path / "helm").rename(built / "helm-v4")
    assert call("check", clusters, "--charts", charts).exit_code == 0


def test_charts_are_vendored_once(clusters: Path, charts: Path, origin: Origin) -> None:
    write(clusters, manifest("a", KUBEADM), manifest("b", KUBEADM))
    options = ("--charts", charts, "--repo", origin.url)
    first = call("vendor", clusters, *options, "-o", "json")
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["commit"] == origin.head()
    assert "Vendor charts, so that Fleet downloads none." in origin.message()
    files = origin.files()
    assert any(path.endswith("Chart.yaml") and "harvester-csi-driver" in path for path in files)
    # Those that were vendored stay as they are.
    chart(charts, "harvester-csi-driver", "0.1.31", {"changed": True})
    assert call("vendor", clusters, *options, "--message", "again").stdout == "nothing changed\n"
    assert (origin.files(), origin.count()) == (files, 1)


def test_a_vendored_chart_that_was_changed_by_hand_is_not_replaced(
    clusters: Path, charts: Path, tmp_path: Path
) -> None:
    write(clusters, manifest("a", KUBEADM))
    (tmp_path / "fleet").mkdir()
    options = ("--charts", charts, "--folder", tmp_path / "fleet")
    assert call("vendor", clusters, *options).exit_code == 0
    (file,) = (tmp_path / "fleet").rglob("harvester-csi-driver-*/Chart.yaml")
    file.write_text("changed")
    result = call("vendor", clusters, *options)
    assert (result.exit_code, "does not match its digest" in result.output) == (2, True), result.output
    assert file.read_text() == "changed"


def test_charts_that_are_not_available_are_not_vendored(clusters: Path, origin: Origin, tmp_path: Path) -> None:
    write(clusters, manifest("a", KUBEADM))
    (tmp_path / "none").mkdir()
    result = call("vendor", clusters, "--charts", tmp_path / "none", "--repo", origin.url)
    assert result.exit_code == 1
    assert "chart harvester-csi-driver 0.1.31: not available" in result.stderr
    assert origin.branches() == []
    unnamed = call("vendor", clusters, "--repo", origin.url)
    assert (unnamed.exit_code, "name the source of charts" in unnamed.output) == (2, True)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert call("vendor", empty, "--charts", tmp_path / "none", "--repo", origin.url).exit_code == 2
