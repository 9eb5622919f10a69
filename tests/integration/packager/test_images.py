"""`caphv bundles images` with the real helm and small charts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox.processes import binaries
from tests.support.packager.charts import chart, shipped
from tests.support.packager.commands import call, manifest, write

pytestmark = pytest.mark.integration

REGISTRY = {"imageRegistry": "registry.example.com"}


@pytest.fixture(autouse=True)
def helm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPHV_HELM", str(binaries.binary("helm")))


@pytest.fixture
def charts(tmp_path: Path) -> Path:
    folder = shipped(tmp_path / "charts")
    # As charts that only document their images.
    values = {
        "image": {
            "csi": {"repository": "rancher/csi", "tag": "v1"},
            "other": {"registry": "quay.io", "repository": "x/y"},
        }
    }
    chart(folder, "harvester-csi-driver", "0.1.31", values, templates__all="")
    return folder


def test_charts_and_their_images(tmp_path: Path, charts: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a", REGISTRY), manifest("b", {"distribution": "kubeadm"}))
    result = call("images", clusters, "--charts", charts, "-o", "json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    # Named as at their origin, whatever registry a cluster uses.
    assert content["images"] == ["quay.io/x/y", "rancher/csi:v1", "rancher/harvester-cloud-provider"]
    sources = {row["name"]: row["source"] for row in content["items"]}
    assert sources == {
        "harvester-cloud-provider": "rendered",
        "harvester-csi-driver": "documented",
        "rke2-snapshot-controller": "documented",
        "rke2-snapshot-controller-crd": "documented",
    }


def test_lists_for_scripts(tmp_path: Path, charts: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    listed = call("images", clusters, "--charts", charts, "-o", "images").stdout
    assert listed.splitlines() == ["quay.io/x/y", "rancher/csi:v1", "rancher/harvester-cloud-provider"]
    result = call("images", clusters, "-o", "charts", "--chart-repo", "oci://registry.example.com/charts")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (
        0,
        "oci://registry.example.com/charts/harvester-cloud-provider harvester-cloud-provider 0.2.15",
    )
    text = call("images", clusters, "--charts", charts).stdout
    assert text.startswith("CHART ")
    assert "\nIMAGE " in text


def test_charts_that_are_not_available(tmp_path: Path) -> None:
    result = call("images", write(tmp_path / "clusters", manifest("a")))
    assert result.exit_code == 1
    assert "harvester-csi-driver 0.1.31" in result.stderr
