"""Cilium outside of RKE2: its chart turns an IP family off unless a value names a network of that family."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from packager.checks.contents import bundles_of
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from tests.support.packager.examples import IPV6, K3S, KUBEADM, TALOS, cluster

pytestmark = pytest.mark.unit

FOUR, SIX = "10.42.0.0/16", "fd00:1::/56"
NETWORKS = {"ipv4": [FOUR], "ipv6": [SIX], "dual-stack": [FOUR, SIX]}
OTHERS = {"k3s": K3S, "kubeadm": KUBEADM, "talos": TALOS}
ALL = {**OTHERS, "rke2": {}}


def render(pods: list[str], spec: Obj) -> Rendered:
    services = IPV6["serviceCIDRs"] if pods == [SIX] else ["10.43.0.0/16"]
    network = {"pods": {"cidrBlocks": pods}, "services": {"cidrBlocks": services}}
    facts = cluster("a", {"cni": {"name": "cilium"}}, spec={**spec, "clusterNetwork": network})
    return Renderer().render_one(facts, {})


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
