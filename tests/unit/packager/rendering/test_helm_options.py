"""Options of Helm that Fleet and Helm controllers need so that changes arrive and nothing is uninstalled."""

from __future__ import annotations

import pytest
import yaml

from caphv.api.object import Obj
from caphv.api.supported import support
from packager.rendering.bundles import FLEET_YAML
from tests.support.packager.examples import rendered

pytestmark = pytest.mark.unit


def documents(suffix: str) -> list[Obj]:
    return [
        document
        for result in rendered()
        for path, content in result.tree.items()
        if path.endswith(suffix)
        for document in yaml.safe_load_all(content)
    ]


def test_manifests_are_corrected_by_replacement_and_charts_upgraded_by_it() -> None:
    bundles = documents(FLEET_YAML)
    charts = [bundle for bundle in bundles if bundle["helm"].keys() & {"chart", "repo"}]
    manifests = [bundle for bundle in bundles if bundle not in charts]
    assert len(charts) > 20
    assert len(manifests) > 20
    assert all(bundle["helm"]["force"] is True for bundle in charts)
    assert all(bundle["correctDrift"] == {"enabled": True, "force": True} for bundle in manifests)


def test_releases_are_named_like_their_bundles() -> None:
    assert [bundle["name"] for bundle in documents(FLEET_YAML) if "releaseName" in bundle["helm"]] == []


def test_no_helm_controller_uninstalls_a_failed_chart() -> None:
    charts = documents("/helmchart.yaml")
    configs = documents("/helmchartconfig.yaml")
    assert {chart["spec"]["failurePolicy"] for chart in charts} == {"abort", "retry"}
    assert {config["spec"]["failurePolicy"] for config in configs} <= {"abort", "retry"}
    for chart in charts:
        assert chart["spec"].get("forceConflicts", False) is (chart["spec"]["failurePolicy"] == "retry")


@pytest.mark.parametrize(
    ("version", "policy"),
    [
        ("", "abort"),
        ("v1.36", "abort"),
        ("v1.28.15+k3s1", "abort"),
        ("v1.32.99+k3s1", "abort"),
        ("v1.33.13+k3s1", "abort"),
        ("v1.33.14+k3s1", "retry"),
        ("v1.34.9+rke2r1", "abort"),
        ("v1.34.10+rke2r1", "retry"),
        ("v1.35.6+k3s1", "abort"),
        ("v1.35.7+k3s1", "retry"),
        ("v1.36.2+k3s1", "abort"),
        ("v1.36.3+k3s1", "retry"),
        ("v1.37.0+k3s1", "retry"),
    ],
)
def test_failed_charts_are_retried_where_the_helm_controller_knows_how(version: str, policy: str) -> None:
    options = support().helm_controller(version)
    assert (options.failure_policy, options.force_conflicts) == (policy, policy == "retry")
