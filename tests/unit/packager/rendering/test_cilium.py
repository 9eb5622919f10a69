"""Cilium outside of RKE2: its chart turns an IP family off unless a value names a network of that family."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from packager.checks.contents import bundles_of
from packager.rendering.renderer import Rendered, Renderer
from tests.support.packager.examples import DUAL_STACK, IPV6, K3S, KUBEADM, TALOS, cluster

pytestmark = pytest.mark.unit

FOUR, SIX = "10.42.0.0/16", "fd00:1::/56"
NETWORKS = {"ipv4": [FOUR], "ipv6": [SIX], "dual-stack": [FOUR, SIX]}
OTHERS = {"k3s": K3S, "kubeadm": KUBEADM, "talos": TALOS}
ALL = {**OTHERS, "rke2": {}}


def render(pods: list[str], spec: Obj, *, release: str = "", **values: Any) -> Rendered:
    services = IPV6["serviceCIDRs"] if pods == [SIX] else ["10.43.0.0/16"]
    network = {"pods": {"cidrBlocks": pods}, "services": {"cidrBlocks": services}}
    addons = {"cni": {"name": "cilium", **({"values": values} if values else {})}}
    renderer = Renderer()
    pin = renderer.table.release(release) if release else None
    return renderer.render_one(cluster("a", addons, spec={**spec, "clusterNetwork": network}), {}, pin)


def values_of(result: Rendered) -> Obj:
    assert result.ok, result.findings
    (release,) = (
        one for bundle in bundles_of(result.tree) for one in bundle.releases if one.chart.name == "rke2-cilium"
    )
    return dict(release.values)


@pytest.mark.parametrize("distribution", OTHERS)
@pytest.mark.parametrize("family", NETWORKS)
def test_the_chart_gets_a_network_of_each_family_of_the_pods(distribution: str, family: str) -> None:
    wanted = {f"clusterCIDRv{'6' if ':' in cidr else '4'}": cidr for cidr in NETWORKS[family]}
    assert values_of(render(NETWORKS[family], OTHERS[distribution]))["global"] == wanted


@pytest.mark.parametrize("family", NETWORKS)
def test_rke2_gives_its_own_chart_the_networks(family: str) -> None:
    assert "global" not in values_of(render(NETWORKS[family], {}))


@pytest.mark.parametrize("distribution", ALL)
def test_nodes_without_ipv4_reach_each_other_over_ipv6(distribution: str) -> None:
    found = {family: values_of(render(pods, ALL[distribution])) for family, pods in NETWORKS.items()}
    assert found["ipv6"]["underlayProtocol"] == "ipv6"
    assert {"underlayProtocol"}.isdisjoint({*found["ipv4"], *found["dual-stack"]})


@pytest.mark.parametrize("distribution", OTHERS)
def test_an_older_release_is_reported_with_what_to_do(distribution: str) -> None:
    def advice(pods: list[str], **values: Any) -> list[str]:
        result = render(pods, OTHERS[distribution], release="2026.11", **values)
        assert result.ok, result.findings
        return [finding.detail.partition("or set ")[2] for finding in result.findings]

    assert advice([FOUR]) == ["cni.values.global.clusterCIDRv4"]
    assert advice([SIX]) == ["cni.values.global.clusterCIDRv6"]
    assert advice([FOUR, SIX]) == ["cni.values.global.clusterCIDRv4 and cni.values.global.clusterCIDRv6"]
    assert advice([FOUR], **{"global": {"clusterCIDRv4": FOUR}}) == []
    assert advice([FOUR, SIX], **{"global": {"clusterCIDRv4": FOUR}, "ipv6": {"enabled": True}}) == []


def test_rke2_and_the_newest_release_are_not_reported() -> None:
    assert render([FOUR], {}, release="2026.11").findings == ()
    assert render([FOUR], {"clusterNetwork": DUAL_STACK, **K3S}).findings == ()
