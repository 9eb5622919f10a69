"""What nodes of a definition start with, and keep until their machines are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from caphv.api.object import Obj
from packager.definitions.build import build
from tests.support.packager.definitions import RENDERER, built, definition, k3s, one, variables

pytestmark = pytest.mark.unit


def test_the_first_boot_has_the_settings_of_the_cni() -> None:
    files = variables(built(definition()))["controlPlaneFiles"]
    assert "mtu: 1450" in files[0]["content"]
    assert one(built(definition(individualObjects=True)), "RKE2ControlPlane")["spec"]["files"] == files


def test_files_of_the_first_boot_are_kept_when_a_setting_changes() -> None:
    existing = built(definition()).objects
    first = variables(built(definition()))["controlPlaneFiles"]
    changed = definition(addons={"cni": {"mtu": 1400}})
    found = build(changed, RENDERER, {}, existing)
    assert variables(found)["controlPlaneFiles"] == first
    assert found.rendered
    assert any(b"mtu: 1400" in content for content in found.rendered.tree.values())


REGISTRY: Obj = {"imageRegistry": "registry.example.com:5000"}
NO_MANIFESTS: Obj = {"cni": {"name": "none"}, "ccm": {"enabled": False}, "csi": {"enabled": False}}
AGENT_SETTINGS = {
    "rke2-registry-set": (definition, {}, REGISTRY),
    "rke2-registry-changed": (definition, REGISTRY, {"imageRegistry": "registry.example.net"}),
    "rke2-registry-removed": (definition, REGISTRY, {}),
    "rke2-first-file": (definition, NO_MANIFESTS, {**NO_MANIFESTS, **REGISTRY}),
    "k3s-registry-set": (k3s, {}, REGISTRY),
    "k3s-registry-removed": (k3s, REGISTRY, {}),
    "k3s-no-cloud-provider": (k3s, {}, {"ccm": {"enabled": False}}),
    "k3s-cloud-provider": (k3s, {"ccm": {"enabled": False}}, {}),
}


@pytest.mark.parametrize("case", AGENT_SETTINGS)
def test_a_setting_that_reaches_files_of_nodes_changes_nothing_of_a_running_topology(case: str) -> None:
    make, before, after = AGENT_SETTINGS[case]
    existing = built(make(addons=before)).objects
    fresh = built(make(addons=after))
    changed = build(make(addons=after), RENDERER, {}, existing)
    topology = existing[0]["spec"]["topology"]
    assert one(fresh, "Cluster")["spec"]["topology"] != topology
    assert one(changed, "Cluster")["spec"]["topology"] == topology


# Servers of K3s cannot join without its cloud controller where others run it: refused.
@pytest.mark.parametrize("case", sorted(AGENT_SETTINGS.keys() - {"k3s-cloud-provider"}))
def test_objects_one_by_one_keep_the_files_of_nodes(case: str) -> None:
    make, before, after = AGENT_SETTINGS[case]
    existing = built(make(addons=before, individualObjects=True)).objects
    changed = build(make(addons=after, individualObjects=True), RENDERER, {}, existing).objects
    assert node_files(changed) == node_files(existing)
    assert node_files(built(make(addons=after, individualObjects=True)).objects) != node_files(existing)


def node_files(objects: Sequence[Obj]) -> list[Any]:
    control_plane = next(obj["spec"] for obj in objects if obj["kind"].endswith("ControlPlane"))
    control_plane = control_plane.get("kthreesConfigSpec", control_plane)
    templates = [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"].endswith("ConfigTemplate")]
    return [spec.get("files") for spec in (control_plane, *templates)]


POOLS_OF_TWO: list[Obj] = [{"name": "a"}, {"name": "b"}]


@pytest.mark.parametrize(
    ("change", "servers", "workers"),
    [
        ({"kubernetesVersion": "v1.34.3+rke2r1"}, True, True),
        ({"machines": {"sshUser": "another"}}, True, True),
        ({"controlPlane": {"replicas": 3, "cpu": 16}}, True, False),
        ({"workers": [{"name": "a", "cpu": 16}, {"name": "b"}]}, False, False),
        ({"workers": [{"name": "a", "cpu": 16}, {"name": "b", "cpu": 16}]}, False, True),
        ({"workers": [{"name": "c"}]}, False, True),
        ({"workers": [*POOLS_OF_TWO, {"name": "c"}]}, False, False),
    ],
    ids=["version", "all-machines", "servers", "one-pool", "all-pools", "another-pool", "more-pools"],
)
@pytest.mark.parametrize("individual", [{}, {"individualObjects": True}], ids=["class", "individual"])
def test_files_are_refreshed_only_for_machines_that_a_change_replaces(
    change: Obj, servers: bool, workers: bool, individual: Obj
) -> None:
    existing = built(definition(workers=POOLS_OF_TWO, **individual)).objects
    found = build(
        definition(**{"workers": POOLS_OF_TWO, **change}, **individual, addons=REGISTRY), RENDERER, {}, existing
    )
    if individual:
        of_servers, *of_workers = node_files(found.objects)
    else:
        of_servers, of_workers = (variables(found).get(name) for name in ("controlPlaneFiles", "workerFiles"))
    assert ("50-caphv-registry" in str(of_servers)) is servers
    assert ("50-caphv-registry" in str(of_workers)) is workers


@pytest.mark.parametrize("individual", [{}, {"individualObjects": True}])
@pytest.mark.parametrize(
    "change", [{"kubernetesVersion": "v1.34.3"}, {"controlPlane": {"replicas": 3, "cpu": 16}}], ids=["version", "nodes"]
)
def test_files_of_the_first_boot_are_refreshed_with_the_next_roll_out(change: Obj, individual: Obj) -> None:
    existing = built(definition(**individual)).objects
    addons = {"cni": {"name": "calico", "mtu": 1400}}

    def files(**spec: Any) -> str:
        found = build(definition(**spec, **individual, addons=addons), RENDERER, {}, existing)
        return str(one(found, "RKE2ControlPlane")["spec"] if individual else variables(found)["controlPlaneFiles"])

    assert "mtu: 1450" in files()
    assert "mtu: 1400" in files(**change)


def test_k3s_starts_with_flannel_or_with_what_replaces_it() -> None:
    assert variables(built(k3s()))["cni"] == "flannel"
    found = variables(built(k3s(addons={"cni": {"name": "calico"}})))
    assert found["cni"] == "none"
    assert any("caphv-cni" in file["path"] for file in found["controlPlaneFiles"])
    assert [file["path"] for file in found["workerFiles"]] == ["/etc/rancher/k3s/config.yaml.d/50-caphv.yaml"]


def test_kube_proxy_is_turned_off_where_the_cni_replaces_it() -> None:
    addons = {"cni": {"name": "cilium", "kubeProxyReplacement": True}}
    files = {file["path"]: file["content"] for file in variables(built(definition(addons=addons)))["controlPlaneFiles"]}
    assert files["/etc/rancher/rke2/config.yaml.d/50-caphv.yaml"] == "disable-kube-proxy: true\n"
    individual = one(built(definition(addons=addons, individualObjects=True)), "RKE2ControlPlane")
    assert "kubeProxy" in individual["spec"]["serverConfig"]["disableComponents"]["kubernetesComponents"]


def test_without_a_cloud_provider_kubelets_do_not_wait_for_one() -> None:
    found = built(definition(individualObjects=True, addons={"ccm": {"enabled": False}}))
    spec = one(found, "RKE2ControlPlane")["spec"]
    assert "agentConfig" not in spec
    assert "cloudProviderName" not in spec["serverConfig"]
    left_to_others = built(definition(individualObjects=True, addonDelivery="None"))
    assert "agentConfig" in one(left_to_others, "RKE2ControlPlane")["spec"]
