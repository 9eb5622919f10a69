"""The mirror of charts and custom templates are pinned: leaving one out is refused, `default` restores both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from packager.addons.versions import load_table
from packager.rendering.options import render_options
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.rendering.sources import Sources
from packager.tree import Tree
from tests.support.packager.examples import cluster

pytestmark = pytest.mark.unit

HTTPS, OCI = "https://charts.example.com", "oci://registry.example.com/charts"
PLACE = "clusters/clusters/a"


def render(previous: Tree, templates: object = "", mirror: str = "", **more: Any) -> Rendered:
    return Renderer(render_options(str(templates), mirror)).render_one(cluster("a", **more), previous)


def faults(result: Rendered) -> list[str]:
    return [finding.field for finding in result.findings if not finding.advice]


def record(tree: Tree) -> Any:
    return yaml.safe_load(tree[f"{PLACE}/caphv.yaml"])


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "ccm").mkdir()
    (tmp_path / "ccm" / "extra.yaml.j2").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n")
    return tmp_path


def test_without_a_mirror_the_lockfile_is_unchanged() -> None:
    first = render({})
    assert set(record(first.tree)) == {"cluster", "contentHash", "network", "versions"}
    assert render(first.tree).tree == first.tree


@pytest.mark.parametrize("mirror", [HTTPS, OCI])
def test_a_forgotten_mirror_is_refused_with_the_remedy(mirror: str) -> None:
    tree = render({}, mirror=mirror).tree
    assert record(tree)["sources"] == {"chartRepository": mirror}
    assert render(tree, mirror=mirror).tree == tree
    refused = render(tree)
    assert (faults(refused), refused.tree) == (["sources.chartRepository"], {})
    assert f"--chart-repo {mirror} (or CAPHV_CHART_REPO)" in str(refused.findings[0])
    # Another mirror, and none at all, are asked for.
    assert record(render(tree, mirror="https://other.example.com").tree)["sources"] == {
        "chartRepository": "https://other.example.com"
    }
    back = render(tree, mirror="default")
    assert back.tree == render({}).tree


def test_forgotten_templates_are_refused(own: Path) -> None:
    tree = render({}, own).tree
    assert faults(render(tree)) == ["sources.templates"]
    assert render(tree, own).tree == tree
    (own / "ccm" / "extra.yaml.j2").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\n")
    assert record(render(tree, own).tree)["sources"] != record(tree)["sources"]
    assert render(tree, "default").tree == render({}).tree


def test_an_upgrade_forgets_neither(own: Path) -> None:
    tree = render({}, own, HTTPS).tree
    facts = cluster("a")
    upgraded = Renderer().render_one(facts, tree, load_table().releases[-1])
    assert faults(upgraded) == ["sources.chartRepository", "sources.templates"]


def test_a_lockfile_with_odd_sources_is_refused() -> None:
    tree = dict(render({}, mirror=HTTPS).tree)
    for odd in ("text", {"chartRepository": 1}):
        tree[f"{PLACE}/caphv.yaml"] = yaml.safe_dump({**record(tree), "sources": odd}).encode()
        assert [finding.rule for finding in render(tree).findings] == ["bundles-record"]


def test_defaults_are_not_written() -> None:
    assert Sources().as_data() == {}
