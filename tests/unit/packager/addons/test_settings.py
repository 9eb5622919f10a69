"""Settings of a cluster: sources in their order, every fault at the place where a user wrote it."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.object import Obj
from packager.addons.facts import ClusterFacts, FleetCluster
from packager.addons.merge import merge
from packager.addons.settings import AddonSettings, Packaging, settings_of
from packager.rendering.bundles import targets, workspace
from tests.support.packager.examples import KUBEADM, TALOS, cluster

pytestmark = pytest.mark.unit


def settings(facts: ClusterFacts) -> AddonSettings:
    found, findings = settings_of(facts)
    assert found is not None, findings
    return found


def faults(facts: ClusterFacts) -> dict[str, str]:
    """Field in the source → rule, for all findings."""
    return {finding.field: finding.rule for finding in settings_of(facts)[1]}


ANNOTATION = "metadata.annotations[addons.caphv.io/values]"


def test_defaults_come_from_the_cluster() -> None:
    network = {"pods": {"cidrBlocks": ["10.9.0.0/16"]}, "services": {"cidrBlocks": ["10.8.0.0/16"]}}
    found = settings(cluster("a", spec={"clusterNetwork": network, "topology": {"controlPlane": {"replicas": 1}}}))
    assert found.cni.pod_cidrs == ("10.9.0.0/16",)
    assert found.cni.service_cidrs == ("10.8.0.0/16",)
    assert (found.cni.name, found.cni.encapsulation, found.distribution) == ("calico", "VXLANCrossSubnet", "rke2")
    assert (found.single_node, found.fleet.imported_by, found.packaging) == (True, "caapf", Packaging.CHART)


@pytest.mark.parametrize(
    ("workers", "is_reported"),
    [([], True), ([{"name": "a", "replicas": 0}], True), ([{"name": "a", "replicas": 1}], False), ([{}], False)],
)
def test_a_cni_of_fleet_needs_a_worker(workers: list[Obj], is_reported: bool) -> None:
    topology = {**KUBEADM["topology"], "controlPlane": {"replicas": 3}, "workers": {"machineDeployments": workers}}
    facts = cluster("a", {"cni": {"name": "calico"}}, spec={**KUBEADM, "topology": topology})
    assert list(faults(facts).values()) == (["cni-workers"] if is_reported else [])
    without = cluster("a", {"cni": {"name": "none"}}, spec={**KUBEADM, "topology": topology})
    assert faults(without) == {}


def test_later_sources_win_field_by_field() -> None:
    facts = cluster("a", {"cni": {"encapsulation": "VXLAN"}}, labels={"cni": "calico"})
    metadata = facts.cluster["metadata"]
    metadata["annotations"] |= {"caphv.io/cni-mtu": "1400", "caphv.io/cni-bgp": "Enabled"}
    variable = {"cni": {"mtu": 1450, "encapsulation": "IPIP"}}
    facts.cluster["spec"]["topology"]["variables"] = [{"name": "addons", "value": variable}]
    cni = settings(facts).cni
    assert (cni.mtu, cni.bgp, cni.encapsulation, cni.name) == (1450, True, "VXLAN", "calico")


@pytest.mark.parametrize("empty", [{}, {"cni": {}}])
def test_an_empty_object_is_the_origin_of_no_setting(empty: Obj) -> None:
    network = {"pods": {"cidrBlocks": ["10.9.0.1/16"]}}
    assert faults(cluster("a", empty, spec={"clusterNetwork": network})) == {
        "spec.clusterNetwork.pods.cidrBlocks[0]": "cidr"
    }


def test_the_registry_of_the_nodes_is_that_of_the_add_ons_unless_they_name_another() -> None:
    rows = [
        {"name": "addons", "value": {"cni": {"mtu": 1450}}},
        {"name": "imageRegistry", "value": "mirror.example.com"},
    ]
    facts = cluster("a")
    facts.cluster["spec"]["topology"]["variables"] = rows
    found = settings(facts)
    assert (found.image_registry, found.cni.mtu) == ("mirror.example.com", 1450)
    rows[0]["value"] = {"imageRegistry": "other.example.com"}
    assert settings(facts).image_registry == "other.example.com"


@pytest.mark.parametrize(
    ("harvester", "wanted"),
    [
        ({"cloudConfig": {"delivery": "Secret"}}, ("harvester-cloud-config", "cloud-config", "")),
        ({"cloudConfig": {"delivery": "File"}}, ("", "", "/etc/kubernetes/cloud-config")),
        (
            {
                "updateCloudProviderConfig": {
                    "cloudConfigCredentialsSecretName": "s",
                    "cloudConfigCredentialsSecretKey": "k",
                }
            },
            ("s", "k", ""),
        ),
    ],
)
def test_cloud_config_is_where_the_controller_puts_it(harvester: Obj, wanted: tuple[str, str, str]) -> None:
    found = settings(cluster("a", harvester=harvester)).cloud_config
    assert (found.secret_name, found.secret_key, found.host_path) == wanted


def test_the_key_that_the_csi_driver_reads_must_be_in_the_secret() -> None:
    def field(addons: Obj, harvester: Obj | None = None) -> list[str]:
        found = faults(cluster("a", addons, harvester=harvester))
        return [field for field, rule in found.items() if rule == "csi-secret-key"]

    own: Obj = {"cloudConfig": {"secretName": "s", "secretKey": "k"}}
    assert field(own) == [f"{ANNOTATION}.cloudConfig.secretKey"]
    assert settings(cluster("a", own)).csi.enabled, "it is advice: the Secret may have both keys"
    manifest = {"cloudConfigCredentialsSecretName": "s", "cloudConfigCredentialsSecretKey": "cloud-config"}
    assert field({}, {"updateCloudProviderConfig": manifest}) != []
    # What the controller delivers has both keys.
    assert field({}) == field({}, {"cloudConfig": {"delivery": "Secret"}}) == []
    assert field({}, {"cloudConfig": {"delivery": "File"}}) == []
    assert field({**own, "csi": {"enabled": False}}) == []
    assert field({"cloudConfig": {"secretName": "s", "secretKey": "cloud-provider-config"}}) == []


def test_control_plane_tells_distribution_and_cni() -> None:
    k3s = settings(cluster("a", spec={"controlPlaneRef": {"kind": "KThreesControlPlane"}}))
    assert (k3s.distribution, k3s.cni.name, k3s.packaging) == ("k3s", "none", Packaging.HELM_CHART)
    server = {"cni": "cilium", "cloudProviderName": "harvester"}
    rke2 = settings(cluster("a", control_plane={"kind": "RKE2ControlPlane", "spec": {"serverConfig": server}}))
    assert (rke2.cni.name, rke2.packaging) == ("cilium", Packaging.HELM_CHART_CONFIG)


@pytest.mark.parametrize(
    ("addons", "field", "rule"),
    [
        ({"cni": {"mtu": 1}}, ".cni.mtu", "schema-minimum"),
        ({"cni": {"colour": 1}}, ".cni.colour", "schema-additionalProperties"),
        ({"cni": {"encapsulation": "Geneve"}}, ".cni.encapsulation", "cni-encapsulation"),
        ({"cni": {"encapsulation": "IPIP"}}, ".cni.encapsulation", "cni-bgp"),
        ({"cni": {"name": "canal", "bgp": "Enabled"}}, ".cni.bgp", "cni-bgp"),
        ({"cni": {"name": "canal", "kubeProxyReplacement": True}}, ".cni.kubeProxyReplacement", "cni-kube-proxy"),
        ({"cni": {"podCIDRs": ["10.1.2.0/16"]}}, ".cni.podCIDRs[0]", "cidr"),
        ({"cni": {"podCIDRs": ["10.43.0.0/24"]}}, ".cni.podCIDRs", "cidr-overlap"),
        ({"cni": {"podCIDRs": ["10.1.0.0/16", "10.2.0.0/16"]}}, ".cni.podCIDRs", "cidr"),
        ({"distribution": "k3s", "cni": {"name": "canal"}}, ".cni.name", "cni-distribution"),
        (
            {"distribution": "k3s", "cloudProviderName": "harvester"},
            ".cloudProviderName",
            "cloud-provider-distribution",
        ),
        (
            {"ccm": {"loadBalancer": {"ipam": "dhcp", "kubeVip": False}}},
            ".ccm.loadBalancer.ipam",
            "load-balancer-kube-vip",
        ),
        ({"ccm": {"nodeExcludeIPRanges": ["::::"]}}, ".ccm.nodeExcludeIPRanges[0]", "cidr"),
        (
            {"csi": {"storageClasses": [{"name": "a", "hostStorageClass": "b"}] * 2}},
            ".csi.storageClasses[1].name",
            "storage-class-name-unique",
        ),
        (
            {"csi": {"storageClasses": [{"name": n, "hostStorageClass": "b", "default": True} for n in "ab"]}},
            ".csi.storageClasses[1].default",
            "storage-class-default",
        ),
    ],
)
def test_faults_are_found_where_they_stand(addons: Obj, field: str, rule: str) -> None:
    assert faults(cluster("a", addons)) == {ANNOTATION + field: rule}
    assert settings_of(cluster("a", addons))[0] is None


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: &x {}\nb: *x",
        "- 1",
        "2: x",
        "cni: {values: {at: 2026-11-21}}",
        'cni: {values: {a: "\\ud800"}}',
        "x" * 70000,
    ],
)
def test_hostile_yaml_is_a_finding(text: str) -> None:
    facts = cluster("a", {})
    facts.cluster["metadata"]["annotations"]["addons.caphv.io/values"] = text
    found, findings = settings_of(facts)
    assert found is None
    assert all(finding.field.startswith(ANNOTATION) for finding in findings)


def test_nesting_without_end_is_a_finding() -> None:
    facts = cluster("a", {})
    facts.cluster["metadata"]["annotations"]["addons.caphv.io/values"] = (
        "cni: {values: " + "{a: " * 400 + "1" + "}" * 401
    )
    assert settings_of(facts)[0] is None


def test_labels_and_old_annotations_are_checked() -> None:
    facts = cluster("a", labels={"cni": "weave", "csi": "rook"})
    facts.cluster["metadata"]["annotations"] = {"caphv.io/cni-mtu": "big"}
    assert set(faults(facts)) == {
        "metadata.labels.cni",
        "metadata.labels.csi",
        "metadata.annotations[caphv.io/cni-mtu]",
    }


def test_cluster_and_settings_must_agree() -> None:
    network = {"pods": {"cidrBlocks": ["10.9.0.0/16"]}}
    wrong = cluster("a", {"cni": {"podCIDRs": ["10.7.0.0/16"]}}, spec={"clusterNetwork": network})
    assert faults(wrong) == {f"{ANNOTATION}.cni.podCIDRs": "cidr-of-cluster"}
    part = cluster("a", {"cni": {"podCIDRs": ["10.9.128.0/17"]}}, spec={"clusterNetwork": network})
    assert faults(part) == {}
    control_plane = {"spec": {"serverConfig": {"cni": "canal", "cloudProviderName": "harvester"}}}
    other = cluster("a", {"cloudProviderName": "external"}, labels={"cni": "calico"}, control_plane=control_plane)
    assert set(faults(other).values()) == {"cni-installed", "cloud-provider-installed"}


@pytest.mark.parametrize("spec", [KUBEADM, TALOS])
def test_cilium_needs_a_network_for_pods_where_the_distribution_has_no_default(spec: Obj) -> None:
    cilium, without = {"cni": {"name": "cilium"}}, {**spec, "clusterNetwork": None}
    assert faults(cluster("a", cilium, spec=spec)) == {}
    assert set(faults(cluster("a", cilium, spec=without)).values()) == {"cni-pod-network"}
    assert faults(cluster("a", {"cni": {"name": "calico"}}, spec=without)) == {}
    # Its own pools need no network of Nodes.
    own = {"cni": {"name": "cilium", "values": {"ipam": {"mode": "cluster-pool"}}}}
    assert faults(cluster("a", own, spec=without)) == {}
    assert faults(cluster("a", cilium)) == {}, "RKE2 has a default"


def test_load_balancer_default_needs_kubernetes_that_can() -> None:
    addons = {"ccm": {"loadBalancer": {"ipam": "pool"}}}
    old = cluster("a", addons, spec={"topology": {"version": "v1.35.9"}})
    assert faults(old) == {f"{ANNOTATION}.ccm.loadBalancer.ipam": "load-balancer-ipam"}
    assert faults(cluster("a", addons)) == {}


IMPORTED = {"cluster-api.cattle.io/rancher-auto-import": "true"}
CAAPF_S = FleetCluster("caapf", "clusters", "a")
RANCHER_S = FleetCluster("rancher", "fleet-default", "c-abcde")


def with_fleet(facts: ClusterFacts, *found: FleetCluster) -> ClusterFacts:
    return replace(facts, fleet_clusters=frozenset(found))


def test_two_fleet_agents_are_refused() -> None:
    assert set(faults(with_fleet(cluster("a"), CAAPF_S, RANCHER_S)).values()) == {"fleet-twice"}
    wrong = with_fleet(cluster("a", {"fleet": {"importedBy": "caapf"}}, labels=IMPORTED), RANCHER_S)
    assert set(faults(wrong).values()) == {"fleet-twice"}


def test_rancher_may_leave_fleet_to_caapf() -> None:
    """Turtles with feature `use-caapf`: Rancher imports the cluster, and CAAPF alone makes a Fleet Cluster."""
    found, findings = settings_of(with_fleet(cluster("a", labels=IMPORTED), CAAPF_S))
    assert (found and found.fleet.imported_by, findings) == ("caapf", [])
    # Turtles imports clusters of labelled namespaces, too.
    assert settings(with_fleet(cluster("a"), RANCHER_S)).fleet.imported_by == "rancher"
    # Files do not tell whether Turtles has the feature.
    found, findings = settings_of(cluster("a", {"fleet": {"importedBy": "caapf"}}, labels=IMPORTED))
    assert found
    assert found.fleet.imported_by == "caapf"
    assert [(finding.rule, finding.advice) for finding in findings] == [("fleet-use-caapf", True)]


def test_fleet_cluster_may_have_a_name_and_workspace_of_its_own() -> None:
    prefixed = CAAPF_S._replace(name="prod-a")
    assert faults(with_fleet(cluster("a"), prefixed)) == {"fleet.clusterName": "fleet-cluster-name"}
    named = cluster("a", {"fleet": {"clusterName": "prod-a"}})
    assert faults(with_fleet(named, prefixed)) == {}
    found, _ = settings_of(named)
    assert found
    assert (targets(found), workspace(found)) == ([{"clusterName": "prod-a"}], "clusters")
    found, _ = settings_of(cluster("a", {"fleet": {"workspace": "edge"}}, labels=IMPORTED))
    assert found
    assert workspace(found) == "edge"
    both = {"fleet": {"importedBy": "rancher", "clusterName": "x"}}
    assert set(faults(cluster("a", both, labels=IMPORTED)).values()) == {"fleet-cluster-name"}


@pytest.mark.parametrize("workspace_of_others", ["team-b", "fleet-default", "fleet-local"])
def test_bundles_do_not_go_to_a_fleet_cluster_of_others(workspace_of_others: str) -> None:
    """A tenant names the Fleet Cluster of another one, or that of the management cluster, as its own."""
    fleet = {"importedBy": "caapf", "workspace": workspace_of_others, "clusterName": "local"}
    hostile = cluster("a", {"fleet": fleet})
    assert faults(hostile) == {f"{ANNOTATION}.fleet.workspace": "fleet-workspace"}
    assert faults(cluster("a", {"fleet": {**fleet, "workspace": hostile.key.namespace}})) == {}
    # With Rancher the labels of the Fleet Cluster say whose it is.
    of_rancher, _ = settings_of(cluster("a", {"fleet": {"workspace": workspace_of_others}}, labels=IMPORTED))
    assert of_rancher
    owner = {names.CAPI_OWNER_LABEL: "a", names.CAPI_OWNER_NAMESPACE_LABEL: hostile.key.namespace}
    assert targets(of_rancher) == [{"clusterSelector": {"matchLabels": owner}}]


def test_objects_of_any_shape_are_no_exception() -> None:
    for spec in ({"topology": 1}, {"clusterNetwork": {"pods": {"cidrBlocks": "x"}}}, {"topology": {"variables": [1]}}):
        settings_of(ClusterFacts({"metadata": {"name": "a"}, "spec": spec}))


LAYERS = st.fixed_dictionaries(
    {},
    optional={
        "cni": st.fixed_dictionaries({}, optional={"mtu": st.integers(576, 9216), "bgp": st.sampled_from(["Enabled"])}),
        "csi": st.fixed_dictionaries({}, optional={"enabled": st.booleans(), "storageClasses": st.just([])}),
        "singleNode": st.booleans(),
    },
)


@given(LAYERS, LAYERS, LAYERS)
def test_merging_is_associative_and_later_wins(a: Obj, b: Obj, c: Obj) -> None:
    before = copy.deepcopy((a, b, c))
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(merge(a, b), b) == merge(a, b)
    assert (a, b, c) == before
