"""How each add-on gets into a cluster, for every distribution and all choices: the table of the documentation."""

from itertools import product
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from packager.addons.facts import ClusterFacts
from packager.rendering.renderer import Renderer
from tests.support.packager.examples import PODS, cluster

pytestmark = pytest.mark.unit

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
RENDERER = Renderer()
KINDS = {
    "rke2": "RKE2ControlPlane",
    "k3s": "KThreesControlPlane",
    "kubeadm": "KubeadmControlPlane",
    "talos": "TalosControlPlane",
}
CONFIG, MANIFEST, CHART, NOTHING = "HelmChartConfig", "HelmChart", "Chart", ""
# A rule stands for a refusal.
CNI = {
    "rke2": {"calico": CONFIG, "canal": CONFIG, "cilium": CONFIG, "none": NOTHING},
    "k3s": {"calico": MANIFEST, "canal": "cni-distribution", "cilium": MANIFEST, "none": NOTHING},
    "kubeadm": {"calico": CHART, "canal": "cni-distribution", "cilium": CHART, "none": NOTHING},
    "talos": {"calico": CHART, "canal": "cni-distribution", "cilium": CHART, "none": NOTHING},
}
CLOUD_PROVIDER = {
    ("rke2", "external"): CHART,
    ("rke2", "harvester"): CONFIG,
    ("k3s", "external"): MANIFEST,
    ("k3s", "harvester"): "cloud-provider-distribution",
    ("kubeadm", "external"): CHART,
    ("kubeadm", "harvester"): "cloud-provider-distribution",
    ("talos", "external"): CHART,
    ("talos", "harvester"): "cloud-provider-distribution",
}


@pytest.mark.parametrize("distribution", KINDS)
def test_each_addon_is_installed_by_one_and_the_right_one(distribution: str) -> None:
    for cni, ccm, csi, provider in product(CNI[distribution], (True, False), (True, False), ("external", "harvester")):
        addons = {
            "cni": {"name": cni},
            "ccm": {"enabled": ccm},
            "csi": {"enabled": csi},
            "cloudProviderName": provider,
        }
        network, cloud = CNI[distribution][cni], CLOUD_PROVIDER[distribution, provider]
        result = RENDERER.render_one(made_by(KINDS[distribution], addons), {})
        refused = {rule for rule in (network, cloud) if "-" in rule}
        assert {finding.rule for finding in result.findings if not finding.advice} == refused
        if not refused:
            wanted = {"cni": network, "ccm": cloud if ccm else NOTHING, "csi": cloud if csi else NOTHING}
            assert {bundle: way(result.tree, bundle) for bundle in wanted} == wanted, (cni, ccm, csi, provider)
            assert way(result.tree, "cni-crds") == (CHART if (network, cni) == (CHART, "calico") else NOTHING)
        bundled = distribution == "rke2" and provider == "harvester"
        discouraged = [finding.field.rpartition("values]")[2] for finding in result.findings if finding.advice]
        assert discouraged == (
            [f".{name}.enabled" for name, on in (("ccm", ccm), ("csi", csi)) if not on] if bundled else []
        )


CHART_KINDS = {
    "rke2-calico": ["Installation"],
    "rke2-calico-crd": ["CustomResourceDefinition"],
    "rke2-snapshot-controller-crd": ["CustomResourceDefinition"],
    "harvester-csi-driver": ["VolumeSnapshotClass"],
}
"""Kinds of charts that an API server does not serve by itself, or that bring such kinds."""
BROUGHT = {"rke2-calico-crd": {"Installation"}, "rke2-snapshot-controller-crd": {"VolumeSnapshotClass"}}
_OF_KUBERNETES = {
    "StorageClass",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
    "CustomResourceDefinition",
}
SERVED = {
    "rke2": _OF_KUBERNETES | {"HelmChart", "HelmChartConfig", "VolumeSnapshotClass", "Installation"},
    "k3s": _OF_KUBERNETES | {"HelmChart", "HelmChartConfig"},
    "kubeadm": _OF_KUBERNETES,
    "talos": _OF_KUBERNETES,
}


@pytest.mark.parametrize("distribution", KINDS)
def test_bundles_can_be_installed_in_an_order_in_which_every_kind_is_served(distribution: str) -> None:
    for cni, provider in product(CNI[distribution], ("external", "harvester")):
        addons = {
            "cni": {"name": cni},
            "cloudProviderName": provider,
            "ccm": {"loadBalancer": {"ipam": "pool"}},
            "csi": {"storageClasses": [{"name": "fast", "hostStorageClass": "nvme"}]},
        }
        result = RENDERER.render_one(made_by(KINDS[distribution], addons), {})
        if not result.ok:
            continue
        waiting = bundles_of(result.tree)
        served, installed = set(SERVED[distribution]), set[str]()
        while waiting:
            ready = [name for name, (needs, _, _) in waiting.items() if needs <= installed]
            assert ready, f"a circle, or a bundle that does not exist: {waiting}"
            for name in ready:
                _, kinds, brought = waiting.pop(name)
                assert kinds <= served, (distribution, cni, name)
                installed.add(name)
                served |= brought


def bundles_of(tree: Any) -> dict[str, tuple[set[str], set[str], set[str]]]:
    """Bundles by name: those that they depend on, kinds that they need to be served, and kinds that they bring."""
    found = {}
    for path, content in tree.items():
        if not path.endswith("/fleet.yaml"):
            continue
        fleet = yaml.load(content, Loader=LOADER)
        folder = path.removesuffix("fleet.yaml")
        others = [text for name, text in tree.items() if name.startswith(folder) and name != path]
        objects = [obj for text in others for obj in yaml.load_all(text, Loader=LOADER)]
        # A Helm controller tries again until the kinds of a chart are served, so HelmCharts need no order.
        charts = [fleet["helm"]["chart"].rpartition("/")[2]] if "chart" in fleet["helm"] else []
        kinds = {obj["kind"] for obj in objects} | {kind for chart in charts for kind in CHART_KINDS.get(chart, ())}
        brought = {kind for chart in charts for kind in BROUGHT.get(chart, ())}
        needs = {row["name"] for row in fleet.get("dependsOn", ())}
        found[fleet["name"]] = needs, kinds, brought
    return found


def made_by(kind: str, addons: Obj | None = None, **more: Any) -> ClusterFacts:
    """A Cluster whose control plane is of a kind."""
    spec = {"topology": None, "controlPlaneRef": {"kind": kind}, "clusterNetwork": PODS}
    return cluster("a", addons, spec=spec, **more)


def way(tree: Any, bundle: str) -> str:
    """How Fleet or the cluster's own Helm controller installs a bundle."""
    files = {path.split("/")[-1]: content for path, content in tree.items() if path.split("/")[3] == bundle}
    if not files:
        return NOTHING
    fleet = yaml.load(files.pop("fleet.yaml"), Loader=LOADER)
    manifests = {document["kind"] for content in files.values() for document in yaml.load_all(content, Loader=LOADER)}
    (found,) = manifests | ({CHART} if "chart" in fleet["helm"] else set())
    return str(found)


@pytest.mark.parametrize("distribution", KINDS)
def test_without_a_setting_a_cluster_keeps_the_network_of_its_distribution(distribution: str) -> None:
    for facts in (made_by(KINDS[distribution]), cluster("a", {"distribution": distribution}, spec={"topology": None})):
        settings = RENDERER.render_one(facts, {}).settings
        assert settings is not None
        assert (settings.distribution, settings.cni.name) == (
            distribution,
            "calico" if distribution == "rke2" else "none",
        )


def test_another_kind_of_control_plane_gets_no_manifests_of_rke2() -> None:
    settings = RENDERER.render_one(made_by("KamajiControlPlane"), {}).settings
    assert settings is not None
    assert (settings.distribution, settings.cni.name, settings.packaging) == ("kubeadm", "none", CHART)


@pytest.mark.parametrize(
    ("name", "distribution"), [("harvester-kubeadm", "kubeadm"), ("harvester-k3s", "k3s"), ("x", "rke2")]
)
def test_a_file_with_a_cluster_of_a_shipped_class_alone(name: str, distribution: str) -> None:
    topology = {"classRef": {"name": name}, "version": "v1.34.1"}
    settings = RENDERER.render_one(cluster("a", spec={"topology": topology}), {}).settings
    assert settings is not None
    assert settings.distribution == distribution


@pytest.mark.parametrize("distribution", ["kubeadm", "talos"])
def test_a_network_by_fleet_needs_an_agent_without_one(distribution: str) -> None:
    imported = {"cluster-api.cattle.io/rancher-auto-import": "true"}
    for addons, labels, rule in (
        ({"cni": {"name": "cilium"}}, imported, "cni-fleet-agent"),
        ({"cni": {"name": "cilium", "kubeProxyReplacement": True}}, {}, "cni-kube-proxy"),
    ):
        (finding,) = RENDERER.render_one(made_by(KINDS[distribution], addons, labels=labels), {}).findings
        assert (finding.rule, distribution in str(finding)) == (rule, True)
    assert RENDERER.render_one(made_by(KINDS[distribution], labels=imported), {}).ok


def test_talos_gets_no_files() -> None:
    harvester = {"cloudConfig": {"delivery": "File"}}
    (finding,) = RENDERER.render_one(made_by("TalosControlPlane", harvester=harvester), {}).findings
    assert (finding.rule, finding.field) == ("cloud-config-distribution", "spec.cloudConfig.delivery")
    assert RENDERER.render_one(made_by("KubeadmControlPlane", harvester=harvester), {}).ok


def test_a_version_that_has_no_effect_is_reported() -> None:
    reported = {"cni": {"name": "calico", "version": "v3.32.003"}, "ccm": {"version": "0.2.14"}}
    (advice,) = RENDERER.render_one(made_by("RKE2ControlPlane", reported), {}).findings
    assert (advice.advice, advice.rule, advice.field.endswith(".cni.version")) == (True, "addons-without-effect", True)
    assert not RENDERER.render_one(made_by("KubeadmControlPlane", reported), {}).findings


def test_the_version_that_rke2_installs_is_named() -> None:
    own = {"cloudProviderName": "harvester", "ccm": {"version": "0.2.15"}, "csi": {"version": "0.1.31"}}
    topology = {"classRef": {"name": "harvester-rke2"}, "version": "v1.34.4+rke2r1"}
    facts = cluster("a", own, spec={"topology": topology, "clusterNetwork": PODS})
    versions = {finding.field.rpartition(".")[0][-3:]: finding for finding in RENDERER.render_one(facts, {}).findings}
    assert {finding.rule for finding in versions.values()} == {"addons-without-effect"}
    assert "and is 0.2.11 in v1.34.4+rke2r1" in versions["ccm"].detail
    assert "and is 0.1.25 in v1.34.4+rke2r1" in versions["csi"].detail
