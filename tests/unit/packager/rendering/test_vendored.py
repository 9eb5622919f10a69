"""Charts in the repository: bundles hold them instead of addresses, by digest, and their releases stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from packager.checks.contents import ChartRef, bundles_of
from packager.rendering.nodefiles import node_files
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.rendering.vendored import INDEX, ROOT, TOP, VendoredChart, folder_of, read
from packager.tree import Tree, content_hash
from tests.support.packager.charts import archived, shipped
from tests.support.packager.commands import call, manifest, write
from tests.support.packager.examples import K3S, KUBEADM, cluster
from tests.support.packager.repositories import Origin

pytestmark = pytest.mark.unit

TEMPLATE = b"{{ if .Values.a }}\nkind: x\n{{ end }}\n"
FILES = {"Chart.yaml": b"name: harvester-cloud-provider\n", "templates/all.yaml": TEMPLATE}
CCM = VendoredChart("harvester-cloud-provider", "0.2.15", "https://charts.harvesterhci.io", FILES)
PLACE = "clusters/clusters/a"


def repository(*charts: VendoredChart) -> dict[str, bytes]:
    (folders,) = folder_of(charts).values()
    return {
        f"{ROOT.name}/{name}/{path}": text for name, folder in folders.items() for path, text in folder.files.items()
    }


def render(previous: Tree, **more: Any) -> Rendered:
    return Renderer().render_one(cluster("a", **more), previous)


def helm(result: Rendered, bundle: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(result.tree[f"{PLACE}/{bundle}/fleet.yaml"])["helm"]
    return found


class SameFile(dict[str, bytes]):
    """A repository in which every path leads to one content; `read` counts the bytes that were asked for."""

    read = 0

    def get(self, key: str, default: Any = None) -> Any:
        content = super().get(key, CONTENT)
        self.read += len(content)
        return content


CONTENT = b" " * 1024 * 1024


def test_charts_that_are_larger_than_all_charts_may_be_are_not_read() -> None:
    files = {str(number): CONTENT for number in range(40)}
    row = {"name": "a", "digest": content_hash(files), "files": sorted(files)}
    rows = [{**row, "version": str(version)} for version in range(100)]
    tree = SameFile({INDEX: yaml.safe_dump({"charts": rows}).encode()})
    with pytest.raises(ValueError, match="have more than 67,108,864 bytes"):
        read(tree)
    assert tree.read < 66 * 1024 * 1024
    with pytest.raises(ValueError, match="have more than"):
        folder_of([VendoredChart("a", "1", "", {str(number): CONTENT for number in range(65)})])


@pytest.mark.parametrize("spec", [{}, KUBEADM])
def test_a_bundle_holds_its_vendored_chart(spec: Any) -> None:
    without, result = render({}, spec=spec), render(repository(CCM), spec=spec)
    found, before = helm(result, "ccm"), helm(without, "ccm")
    assert (found.pop("chart"), before.pop("chart"), before.pop("repo")) == (
        "chart",
        "harvester-cloud-provider",
        "https://charts.harvesterhci.io",
    )
    # Name, values and version of the release stay, so Helm upgrades it in place.
    assert found == before
    inner = {path.partition("/chart/")[2]: text for path, text in result.tree.items() if "/ccm/chart/" in path}
    assert inner == FILES
    # What is not vendored stays as it is.
    assert helm(result, "csi") == helm(without, "csi")
    assert {path for path in without.tree if path not in result.tree} == set()
    again = Renderer().render_one(cluster("a", spec=spec), {**repository(CCM), **result.tree})
    assert again.tree == result.tree


def test_a_renderer_notices_a_vendored_chart() -> None:
    renderer = Renderer()
    assert "repo" in yaml.safe_load(renderer.render_one(cluster("a"), {}).tree[f"{PLACE}/ccm/fleet.yaml"])["helm"]
    result = renderer.render_one(cluster("a"), repository(CCM))
    assert "repo" not in yaml.safe_load(result.tree[f"{PLACE}/ccm/fleet.yaml"])["helm"]


def test_another_version_keeps_its_address() -> None:
    other = VendoredChart(CCM.name, "0.2.14", CCM.repository, FILES)
    assert render(repository(other)).tree == render({}).tree


def test_a_helm_controller_needs_no_vendored_chart() -> None:
    assert render(repository(CCM), spec=K3S).tree == render({}, spec=K3S).tree


def test_nodes_boot_without_files_of_charts() -> None:
    boot = node_files(render(repository(CCM)))
    assert boot == node_files(render({}))


def test_a_changed_chart_is_refused() -> None:
    tree = repository(CCM)
    tree[f"{TOP}/harvester-cloud-provider-0.2.15/Chart.yaml"] = b"name: other\n"
    for broken in (tree, {INDEX: b"text"}, {INDEX: b"charts: [{name: a}]"}, {INDEX: b"charts: [b"}):
        result = render(broken)
        assert ([finding.rule for finding in result.findings], result.tree) == (["bundles-vendored-chart"], {})


def test_a_restored_chart_is_accepted_again() -> None:
    renderer = Renderer()
    valid = repository(CCM)
    changed = {**valid, f"{TOP}/harvester-cloud-provider-0.2.15/Chart.yaml": b"name: other\n"}
    assert not renderer.render_one(cluster("a"), changed).ok
    assert renderer.render_one(cluster("a"), valid).ok


def test_charts_are_read_as_they_were_written() -> None:
    assert read(repository(CCM)) == {(CCM.name, CCM.version): CCM}
    assert read({}) == {}


def test_checks_know_the_name_of_a_vendored_chart() -> None:
    releases = [release for bundle in bundles_of(render(repository(CCM)).tree) for release in bundle.releases]
    assert ChartRef("harvester-cloud-provider", "", "0.2.15") in [release.chart for release in releases]


def test_the_command_vendors_once_for_all_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CAPHV_HELM", "/bin/sh")
    origin, charts = Origin.make(tmp_path / "origin"), shipped(tmp_path / "charts")
    archived(charts / "harvester-csi-driver", "0.1.31")
    clusters = write(tmp_path / "clusters", manifest("a"), manifest("b", {"distribution": "kubeadm"}))
    assert call("push", clusters, "--repo", origin.url).exit_code == 0
    arguments = (clusters, "--repo", origin.url, "--charts", charts)
    result = call("vendor", *arguments)
    assert result.exit_code == 0, result.output
    assert call("vendor", *arguments).stdout == "nothing changed\n"
    index = yaml.safe_load(origin.files()[INDEX])
    assert [row["name"] for row in index["charts"]] == [
        "harvester-cloud-provider",
        "harvester-csi-driver",
        "rke2-snapshot-controller",
        "rke2-snapshot-controller-crd",
    ]
    assert call("push", clusters, "--repo", origin.url).exit_code == 0
    assert call("verify", clusters, "--repo", origin.url).exit_code == 0
    files = origin.files()
    assert not any("repo: https://" in text for path, text in files.items() if path.endswith("/fleet.yaml"))
    copies = {files[f"clusters/team/{name}/csi/chart/templates/all.yaml"] for name in ("a", "b")}
    assert copies == {files[f"{TOP}/harvester-csi-driver-0.1.31/templates/all.yaml"]}


def test_a_chart_that_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPHV_HELM", "/bin/sh")
    clusters = write(tmp_path / "clusters", manifest("a"))
    fleet = tmp_path / "fleet"
    assert call("push", clusters, "--folder", fleet).exit_code == 0
    assert call("vendor", clusters, "--folder", fleet).exit_code == 2
    (tmp_path / "charts").mkdir()
    result = call("vendor", clusters, "--folder", fleet, "--charts", tmp_path / "charts")
    assert result.exit_code == 1
    assert "chart harvester-cloud-provider 0.2.15: not available" in result.stderr
