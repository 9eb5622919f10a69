"""kube-vip in a definition: the same with a ClusterClass and without, and when servers are replaced."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv.api.object import Obj
from packager.definitions.build import build
from packager.definitions.kubevip import FILES, kubeadm_commands, server_files
from tests.support.kubevip import DISTRIBUTIONS, balancer, server
from tests.support.packager.definitions import RENDERER, built, definition, k3s, kubeadm, one, variables

pytestmark = pytest.mark.unit

SETTINGS = st.fixed_dictionaries(
    {},
    optional={"interface": st.sampled_from(["eth0", "enp1s0"]), "image": st.just("example.com/kube-vip:v9")},
)


EXAMPLES = {"rke2": definition, "k3s": k3s, "kubeadm": kubeadm}


def parsed(files: Any) -> Any:
    """Return files with the content of manifests as objects, and variables of containers by their names."""
    result = []
    for file in files:
        pod = yaml.safe_load(file["content"])
        for container in pod["spec"]["containers"]:
            container["env"] = {entry.pop("name"): entry for entry in container["env"]}
        result.append({**file, "content": pod})
    return result


def server_of(objs: Any) -> Obj:
    (obj,) = (obj for obj in objs.objects if obj["kind"].endswith("ControlPlane"))
    spec = obj["spec"]
    return spec.get("kthreesConfigSpec") or spec.get("kubeadmConfigSpec") or spec


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@given(settings_=SETTINGS)
@settings(max_examples=10, deadline=None)
def test_servers_are_configured_as_by_the_class(distribution: str, settings_: Obj) -> None:
    of_the_class = server(distribution, loadBalancer=balancer(**settings_))
    assert parsed(of_the_class["files"]) == parsed(server_files(distribution, balancer(**settings_)))
    if distribution == "kubeadm":
        commands = of_the_class["preKubeadmCommands"], of_the_class["postKubeadmCommands"]
        assert commands == kubeadm_commands(balancer(**settings_))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_it_is_part_of_a_variable_of_the_class(distribution: str) -> None:
    result = built(EXAMPLES[distribution](loadBalancer=balancer(interface="eth0")))
    assert variables(result)["loadBalancer"] == balancer(interface="eth0")
    assert not any(file["path"] in FILES.values() for file in variables(result).get("controlPlaneFiles", ()))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_objects_one_by_one_have_it(distribution: str) -> None:
    result = built(EXAMPLES[distribution](loadBalancer=balancer(), individualObjects=True))
    spec = server_of(result)
    assert [file["path"] for file in spec["files"]].count(FILES[distribution]) == 1
    assert ("postKubeadmCommands" in spec) is (distribution == "kubeadm")

    infrastructure = one(result, "HarvesterCluster")["spec"]
    assert infrastructure["loadBalancerConfig"] == {"ipamType": "none"}
    assert infrastructure["controlPlaneEndpoint"] == {"host": "172.16.0.5", "port": 6443}
    without = built(EXAMPLES[distribution](individualObjects=True))
    assert "kube-vip.yaml" not in str(without.objects)


@pytest.mark.parametrize("individual", [{}, {"individualObjects": True}])
def test_image_comes_from_the_registry_of_the_add_ons_unless_one_is_chosen(individual: Obj) -> None:
    addons = {"imageRegistry": "registry.example.com:5000/mirror"}
    for settings_, image in (
        ({}, "registry.example.com:5000/mirror/kube-vip/kube-vip:v1.2.3"),
        ({"image": "example.com/kube-vip:v9"}, "example.com/kube-vip:v9"),
    ):
        result = built(definition(addons=addons, loadBalancer=balancer(**settings_), **individual))
        assert image in str(result.objects)
        assert ("mirror/kube-vip" in str(result.objects)) is ("mirror" in image)


@pytest.mark.parametrize("individual", [{}, {"individualObjects": True}])
def test_a_change_refreshes_the_files_of_servers_because_it_replaces_them(individual: Obj) -> None:
    def files(result: Any) -> Any:
        return server_of(result)["files"] if individual else variables(result)["controlPlaneFiles"]

    addons = {"cni": {"name": "calico", "mtu": 1400}}
    existing = built(definition(loadBalancer=balancer(), **individual)).objects
    same = definition(loadBalancer=balancer(), addons=addons, **individual)
    assert "mtu: 1450" in str(files(build(same, RENDERER, {}, existing)))
    changed = definition(loadBalancer=balancer(interface="eth1"), addons=addons, **individual)
    assert files(build(changed, RENDERER, {}, existing)) == files(built(changed))


def test_servers_of_kubeadm_keep_it_with_a_change_that_replaces_none() -> None:
    existing = built(kubeadm(loadBalancer=balancer(), individualObjects=True)).objects
    changed = kubeadm(loadBalancer=balancer(), individualObjects=True, workers=[{"name": "more", "replicas": 5}])
    assert server_of(build(changed, RENDERER, {}, existing)) == server_of(built(changed))


EXTERNAL: Obj = {"ipamType": "none", "endpoint": {"host": "172.16.0.5"}}


@pytest.mark.parametrize("individual", [{}, {"individualObjects": True}], ids=["class", "individual"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_running_cluster_neither_gets_it_nor_loses_it(distribution: str, individual: Obj) -> None:
    make = EXAMPLES[distribution]
    for old, new, word in (
        (EXTERNAL, balancer(), "added"),
        (balancer(), EXTERNAL, "removed"),
        (balancer(), {"ipamType": "dhcp"}, "removed"),
        (balancer(), None, "removed"),
    ):
        existing = built(make(loadBalancer=old, **individual)).objects
        result = build(make(loadBalancer=new, **individual), RENDERER, {}, existing)
        assert not result.ok
        (finding,) = (finding for finding in result.findings if not finding.advice)
        assert (finding.rule, finding.field) == ("live-kube-vip", "spec.loadBalancer.kubeVip")
        assert f"must not be {word}" in finding.detail


@pytest.mark.parametrize("individual", [{}, {"individualObjects": True}], ids=["class", "individual"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_new_cluster_may_have_it_and_a_running_one_may_keep_it(distribution: str, individual: Obj) -> None:
    desired = EXAMPLES[distribution](loadBalancer=balancer(image="example.com/kube-vip:v9"), **individual)
    existing = built(EXAMPLES[distribution](loadBalancer=balancer(), **individual)).objects
    assert build(desired, RENDERER, {}, existing).ok
    # An application that was interrupted has created a part of the objects, or none.
    others = built(EXAMPLES[distribution](loadBalancer=EXTERNAL, individualObjects=True)).objects
    interrupted = [obj for obj in others if not obj["kind"].endswith("ControlPlane")]
    for part in ([], interrupted):
        assert build(desired, RENDERER, {}, part).ok


def test_a_pod_of_the_user_for_services_may_be_removed() -> None:
    existing = built(definition(individualObjects=True)).objects
    (obj,) = (obj for obj in existing if obj["kind"] == "RKE2ControlPlane")
    obj["spec"].setdefault("files", []).append({"path": FILES["rke2"], "content": "kind: Pod"})
    assert build(definition(individualObjects=True), RENDERER, {}, existing).ok
