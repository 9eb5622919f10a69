"""Settings with which servers of a running cluster were started: new servers could not join with others."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from packager.definitions.build import Built, build
from tests.support.packager.definitions import RENDERER, built, definition, k3s, kubeadm, one, variables

pytestmark = pytest.mark.unit

MAKE = {"k3s": k3s, "rke2": definition}
NEWER = {"k3s": "v1.35.2+k3s1", "rke2": "v1.35.2+rke2r1"}
WITHOUT: Obj = {"ccm": {"enabled": False}, "csi": {"enabled": False}}
CNI: Obj = {"name": "calico"}
FORCED = "addons.caphv.io/allow-network-change"


def addons(distribution: str, **more: Any) -> Obj:
    return {**({"cni": CNI} if distribution == "rke2" else {}), **more}


def drop_in(found: Built) -> Obj:
    """Settings of servers of K3s in the file of the packager."""
    individual = [obj for obj in found.objects if obj["kind"] == "KThreesControlPlane"]
    files = individual[0]["spec"]["kthreesConfigSpec"]["files"] if individual else variables(found)["controlPlaneFiles"]
    (content,) = (file["content"] for file in files if file["path"].endswith("50-caphv.yaml"))
    return dict(yaml.safe_load(content))


def refused(found: Built) -> list[tuple[str, str]]:
    assert not found.ok
    return [(finding.rule, finding.field) for finding in found.findings if not finding.advice]


@pytest.mark.parametrize("individual", [True, False], ids=["individual", "class"])
def test_servers_of_k3s_join_after_the_cloud_provider_is_disabled(individual: bool) -> None:
    existing = built(k3s(individualObjects=individual)).objects
    disabled = build(k3s(individualObjects=individual, addons=WITHOUT), RENDERER, {}, existing)
    # The files come with the next version.
    newer = k3s(individualObjects=individual, addons=WITHOUT, kubernetesVersion=NEWER["k3s"])
    found = build(newer, RENDERER, {}, disabled.objects)
    config = drop_in(found)
    assert (config["disable"], config["disable-cloud-controller"]) == (["servicelb"], True)
    # New nodes do not wait for a cloud provider.
    assert "kubelet-arg" not in config
    if individual:
        for one_ in (disabled, found):
            server = one(one_, "KThreesControlPlane")["spec"]["kthreesConfigSpec"]["serverConfig"]
            assert server == {"disableCloudController": True, "disableComponents": ["servicelb"]}
    enabled = k3s(individualObjects=individual, kubernetesVersion=NEWER["k3s"])
    assert drop_in(build(enabled, RENDERER, {}, found.objects))["disable-cloud-controller"] is True


@pytest.mark.parametrize("provider", ["external", "harvester"])
def test_servers_of_rke2_join_after_the_cloud_provider_is_disabled(provider: str) -> None:
    def make(**more: Any) -> Obj:
        return definition(individualObjects=True, addons={"cni": CNI, "cloudProviderName": provider, **more})

    existing = built(make()).objects
    config = one(build(make(**WITHOUT), RENDERER, {}, existing), "RKE2ControlPlane")["spec"]["serverConfig"]
    assert config["disableComponents"]["kubernetesComponents"] == ["cloudController"]
    assert "cloudProviderName" not in config


@pytest.mark.parametrize("distribution", MAKE)
def test_a_new_cluster_without_a_cloud_provider_keeps_that_of_its_distribution(distribution: str) -> None:
    make = MAKE[distribution]
    without = make(individualObjects=True, addons=addons(distribution, **WITHOUT))
    existing = built(without).objects
    assert "loudController" not in str([obj for obj in existing if obj["kind"].endswith("ControlPlane")])
    assert build(without, RENDERER, {}, existing).objects == existing
    enabled = make(individualObjects=True, addons=addons(distribution))
    found = build(enabled, RENDERER, {}, existing)
    assert refused(found) == [("live-servers", "spec.addons.ccm.enabled")]
    assert FORCED in found.findings[0].detail
    enabled["metadata"]["annotations"] = {FORCED: "true"}
    assert "loudController" in str(build(enabled, RENDERER, {}, existing).objects)


@pytest.mark.parametrize("delivery", ["ClusterResourceSet", "None"])
@pytest.mark.parametrize("distribution", MAKE)
@pytest.mark.parametrize("individual", [True, False], ids=["individual", "class"])
def test_networks_stay_without_a_lockfile(distribution: str, delivery: str, individual: bool) -> None:
    spec: Obj = {"addonDelivery": delivery, "individualObjects": individual, "addons": addons(distribution)}
    existing = built(MAKE[distribution](**spec)).objects
    network = {"podCIDRs": ["10.8.0.0/16"], "serviceCIDRs": ["10.9.0.0/16"]}
    changed = build(MAKE[distribution](**spec, clusterNetwork=network), RENDERER, {}, existing)
    assert refused(changed) == [("live-servers", f"spec.clusterNetwork.{field}") for field in network]


def test_servers_of_kubeadm_take_the_networks_of_the_cluster_that_they_join() -> None:
    existing = built(kubeadm(addonDelivery="None")).objects
    changed = kubeadm(addonDelivery="None", clusterNetwork={"podCIDRs": ["10.8.0.0/16"]})
    assert build(changed, RENDERER, {}, existing).ok


@pytest.mark.parametrize(("old", "new"), [("none", "calico"), ("calico", "none")])
@pytest.mark.parametrize("individual", [True, False], ids=["individual", "class"])
def test_k3s_keeps_its_flannel_without_a_lockfile(old: str, new: str, individual: bool) -> None:
    spec: Obj = {"addonDelivery": "ClusterResourceSet", "individualObjects": individual}
    existing = built(k3s(**spec, addons={"cni": {"name": old}})).objects
    changed = build(k3s(**spec, addons={"cni": {"name": new}}), RENDERER, {}, existing)
    assert refused(changed) == [("live-servers", "spec.addons.cni.name")]


CILIUM: Obj = {"name": "cilium"}
CNI_CHANGES = {
    "name": (CNI, CILIUM, ["name", "encapsulation"]),
    "encapsulation": (CNI, {**CNI, "encapsulation": "VXLAN"}, ["encapsulation"]),
    "kube-proxy": (CILIUM, {**CILIUM, "kubeProxyReplacement": True}, ["kubeProxyReplacement"]),
}


@pytest.mark.parametrize("case", CNI_CHANGES)
@pytest.mark.parametrize("delivery", ["ClusterResourceSet", "None"])
@pytest.mark.parametrize("distribution", MAKE)
@pytest.mark.parametrize("individual", [True, False], ids=["individual", "class"])
def test_the_cni_stays_without_a_lockfile(distribution: str, delivery: str, individual: bool, case: str) -> None:
    def make(cni: Obj) -> Obj:
        spec: Obj = {"addonDelivery": delivery, "individualObjects": individual}
        return MAKE[distribution](**spec, addons={"cni": cni})

    old, new, fields = CNI_CHANGES[case]
    existing = built(make(old)).objects
    changed = make(new)
    found = build(changed, RENDERER, {}, existing)
    assert refused(found) == [("live-network", f"spec.addons.cni.{field}") for field in sorted(fields)]
    assert "in the running cluster and would become" in found.findings[0].detail

    changed["metadata"]["annotations"] = {FORCED: "true"}
    forced = build(changed, RENDERER, {}, existing)
    assert forced.ok
    # The annotation may be removed once it has had its effect.
    assert build(make(new), RENDERER, {}, forced.objects).ok


@pytest.mark.parametrize("delivery", ["ClusterResourceSet", "None"])
def test_other_settings_of_the_cni_change_without_a_lockfile(delivery: str) -> None:
    existing = built(definition(addonDelivery=delivery, addons={"cni": CNI})).objects
    assert build(definition(addonDelivery=delivery, addons={"cni": {**CNI, "mtu": 1400}}), RENDERER, {}, existing).ok


def test_a_damaged_file_of_servers_is_not_compared() -> None:
    existing = built(k3s(individualObjects=True)).objects
    for obj in existing:
        for file in obj["spec"].get("kthreesConfigSpec", {}).get("files", ()):
            file["content"] = "a: b: c"
    assert build(k3s(individualObjects=True), RENDERER, {}, existing).ok
