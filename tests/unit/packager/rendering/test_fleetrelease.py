"""Bundles are refused, or come with advice, where the Fleet that reads them lacks what they ask for."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from caphv.api.supported import support
from caphv.validation.finding import Fault
from packager.rendering.options import RenderOptions
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from tests.support.packager.examples import K3S, KUBEADM, cluster

pytestmark = pytest.mark.unit

OCI, HTTPS = "oci://registry.example.com/charts", "https://charts.example.com"
CALICO = "rke2-calico"


def rendered(release: str, mirror: str = "", spec: Obj = KUBEADM) -> Rendered:
    options = RenderOptions(chart_repository=mirror, fleet_version=release)
    return Renderer(options).render_one(cluster("a", {"cni": {"name": "calico"}}, spec=spec), {})


def findings(release: str, mirror: str = "", spec: Obj = KUBEADM) -> list[tuple[str, object, bool]]:
    found = rendered(release, mirror, spec).findings
    return [(finding.field, finding.value, finding.advice) for finding in found if finding.rule == "bundles-fleet"]


def test_charts_from_a_registry_are_refused_for_a_fleet_that_does_not_read_them() -> None:
    result = rendered("v0.12.5", OCI)
    assert (result.ok, result.tree) == (False, {})
    refusals = {finding.field: finding for finding in result.findings}
    refusal = refusals["cni[fleet.yaml].helm.repo"]
    assert (refusal.fault, refusal.value) == (Fault.UNSUPPORTED, f"{OCI}/{CALICO}")
    assert "Fleet v0.12.5 does not read" in refusal.detail
    assert "upgrade Fleet to 0.13.0 or later" in refusal.detail
    assert {f"{bundle}[fleet.yaml].helm.repo" for bundle in ("ccm", "csi", "cni", "cni-crds")} <= refusals.keys()


@pytest.mark.parametrize("release", ["", "v0.13.0", "v0.16.1", "0.16.1"])
def test_a_supported_fleet_gets_the_same_bundles_and_no_finding(release: str) -> None:
    assert findings(release, OCI) == []
    assert rendered(release, OCI).tree == rendered("", OCI).tree
    assert rendered(release, OCI).ok


def test_charts_that_a_helm_controller_pulls_do_not_depend_on_fleet() -> None:
    assert all(advice for _, _, advice in findings("v0.12.5", OCI, K3S))
    assert rendered("v0.12.5", OCI, K3S).ok


def test_an_old_fleet_with_https_is_advised_against() -> None:
    assert findings("v0.12.5", HTTPS) == [("fleetVersion", "v0.12.5", True)]
    assert rendered("v0.12.5", HTTPS).ok


def test_lost_drift_correction_is_advised_once() -> None:
    (advice,) = [finding for finding in rendered("v0.15.0", spec=K3S).findings if finding.rule == "bundles-fleet"]
    assert (advice.field, advice.value, advice.advice) == ("ccm[fleet.yaml].correctDrift", "v0.15.0", True)
    assert "leaves what others changed" in advice.detail
    assert "set --fleet-version" in advice.detail
    assert rendered("v0.15.0", spec=K3S).ok
    assert findings("v0.15.1", spec=K3S) == []


def test_a_fleet_newer_than_the_tested_ones_is_advised_against() -> None:
    assert findings("v0.99.0") == [("fleetVersion", "v0.99.0", True)]


@pytest.mark.parametrize("release", ["latest", "0.16", "v0.16.1\n", "v1" * 1000])
def test_anything_but_a_release_is_refused(release: str) -> None:
    with pytest.raises(ValueError, match=r"is not a release of Fleet: use one such as v0\.16\.1"):
        Renderer(RenderOptions(fleet_version=release))


def test_the_oldest_supported_fleet_has_every_feature() -> None:
    fleet = support().components["fleet"]
    assert fleet.features
    assert not [feature for feature in fleet.features if fleet.lacks(feature, fleet.oldest)]
