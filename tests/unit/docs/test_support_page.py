"""The table of supported releases, its page, and how versions compare with it."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from caphv.api.supported import page, support
from sandbox.harvester.releases import RELEASES
from sandbox.processes import binaries
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit


def test_page_is_fresh() -> None:
    """After a change: `python -m caphv.api.supported`."""
    assert (CHECKOUT / "docs" / "reference" / "support.md").read_text(encoding="utf-8") == page(support())


def test_ranges_are_those_of_what_is_shipped_and_run() -> None:
    """A release that another file allows, or a test runs, is in the table, and the table promises no other."""
    components = support().components
    chart = yaml.safe_load((CHECKOUT / "deploy" / "chart" / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["kubeVersion"] == f">={components['management'].oldest}.0-0"
    assert components["management"].problem(binaries.KUBE_APISERVER.version) == ""

    bundles = json.loads((CHECKOUT / "fleet-bundles" / "versions.json").read_text(encoding="utf-8"))["releases"][0]
    kubernetes = bundles["supports"]["kubernetes"]
    for name in ("kubernetes", "rke2", "k3s"):
        assert (components[name].oldest, components[name].newest) == (kubernetes["from"], kubernetes["to"])

    cores = [core.version for core in (binaries.CLUSTER_API_CORE, *binaries.OTHER_CORES.values())]
    assert [problem for core in cores if (problem := components["cluster-api"].problem(core))] == []
    minors = {core.rpartition(".")[0] for core in cores}
    assert {components["cluster-api"].oldest, components["cluster-api"].newest} <= minors
    assert set(re.findall(r"[\d.]+\d", components["cluster-api"].tested)) == set(cores)

    assert {RELEASES[name].name for name in RELEASES} >= {
        components["harvester"].oldest,
        components["harvester"].newest,
    }
    talos = yaml.safe_load_all((CHECKOUT / "examples" / "talos.yaml").read_text(encoding="utf-8"))
    versions = {
        obj["spec"]["controlPlaneConfig"]["controlplane"]["talosVersion"]
        for obj in talos
        if "ControlPlane" in obj["kind"]
    }
    assert [components["talos"].problem(version) for version in versions] == [""]


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("v0.16.1", ""),
        ("v0.13.0", ""),
        ("v0.12.9", "older than 0.13.0"),
        ("v0.15.0", "leaves what others changed"),
        ("v0.15.1", ""),
        ("v0.17.0", "newer than 0.16"),
        ("main", ""),
    ],
)
def test_versions_of_fleet(version: str, problem: str) -> None:
    found = support().components["fleet"].problem(version)
    assert problem in found
    assert bool(found) == bool(problem)
