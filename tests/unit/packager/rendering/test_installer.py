"""Charts by RKE2's Helm controller: which clusters may choose it, and that an existing one keeps what it has."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.tree import Tree
from tests.support.packager.examples import K3S, KUBEADM, cluster
from tools.bench.fleet import VENDORED, measure

pytestmark = pytest.mark.unit

BY_FLEET, BY_CONTROLLER = {"charts": {"installedBy": "Fleet"}}, {"charts": {"installedBy": "HelmController"}}


def render(addons: Any, previous: Tree | None = None, **more: Any) -> Rendered:
    return Renderer().render_one(cluster("a", addons, **more), previous or {})


def rules(result: Rendered) -> list[str]:
    return [finding.rule for finding in result.findings if not finding.advice]


@pytest.mark.parametrize(
    ("addons", "spec", "wanted"),
    [
        (BY_CONTROLLER, {}, []),
        (BY_FLEET, {}, []),
        (BY_CONTROLLER, K3S, []),
        (BY_FLEET, K3S, ["charts-installed-by"]),
        (BY_CONTROLLER, KUBEADM, ["charts-installed-by"]),
        (BY_FLEET, KUBEADM, []),
        ({**BY_CONTROLLER, "cloudProviderName": "harvester"}, {}, ["charts-installed-by"]),
    ],
)
def test_who_can_install_charts(addons: Any, spec: Any, wanted: list[str]) -> None:
    assert rules(render(addons, spec=spec)) == wanted


def test_the_default_renders_what_0_11_rendered() -> None:
    assert render(BY_FLEET).tree == render({}).tree
    assert "installedBy" not in yaml.safe_load(render({}).tree["clusters/clusters/a/caphv.yaml"])


def test_no_existing_cluster_changes_its_installer() -> None:
    by_fleet, by_controller = render({}), render(BY_CONTROLLER)
    for before, addons in ((by_fleet, BY_CONTROLLER), (by_controller, {}), (by_controller, BY_FLEET)):
        refused = render(addons, before.tree)
        assert (rules(refused), refused.tree) == (["charts-installer"], {})
        assert "create a new cluster" in str(refused.findings[0])
    assert render(BY_CONTROLLER, by_controller.tree).tree == by_controller.tree
    # K3s has one way only, and its lockfile needs no word about it.
    k3s = render({}, spec=K3S)
    assert render(BY_CONTROLLER, k3s.tree, spec=K3S).tree == k3s.tree


def test_a_changed_setting_downloads_no_chart() -> None:
    """The figures of docs/performance.md, in small."""
    rows = [measure(6, 2, how) for how in ("Fleet", "HelmController", VENDORED)]
    assert [row["chart downloads"] for row in rows] == [12, 0, 0]
    assert [row["bundles changed"] for row in rows] == [1, 1, 1]
    assert [row["bundles read"] for row in rows] == [18, 18, 18]
    assert [row["GitRepos run"] for row in rows] == [2, 2, 2]
