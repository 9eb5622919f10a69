"""Definitions become all objects of their clusters, in shapes that others accept."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv.api import crds, hostresources
from caphv.api.object import Obj
from packager.definitions.build import Built, build
from packager.definitions.files import files_of
from tests.support.foreign_crds import violations
from tests.support.openapi import object_schema
from tests.support.packager.definitions import RENDERER, built, definition, k3s, kinds, kubeadm, one, variables
from webhooks import crossobject

pytestmark = pytest.mark.unit

HOSTS = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "example.com/rack", "operator": "In", "values": ["rack-1"]}]}
        ]
    }
}
NEAR = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "database"}}, "topologyKey": "kubernetes.io/hostname"}
    ]
}
PLACED: Obj = {
    "controlPlane": {"failureDomains": ["zone-1", "zone-2"], "nodeAffinity": HOSTS},
    "workers": [{"name": "near", "failureDomain": "zone-1", "nodeAffinity": HOSTS, "workloadAffinity": NEAR}],
    "machines": {"guestConfig": {"disableFstrimTimer": True}},
}
MIRRORS = {"mirrors": {"docker.io": {"endpoint": ["https://registry.example.com:5000"]}}}
SECURE: Obj = {
    "hardening": {"cisProfile": "cis", "stig": True, "fipsRequired": True},
    "machines": {"firmware": {"efi": True, "secureBoot": True}, "tpm": {"enabled": True}},
    "registries": {**MIRRORS, "configs": {"docker.io": {"authSecret": {"name": "registry", "namespace": "team-a"}}}},
}
SNAPSHOTS = {
    "schedule": "0 */6 * * *",
    "retention": 28,
    "s3": {
        "endpoint": "s3.example.com",
        "bucket": "etcd",
        "folder": "team-a/production",
        "retention": 84,
        "credentialsSecretName": "etcd-s3",
        "caSecretName": "ca",
    },
}
CASES = {
    "placed": definition(**PLACED),
    "placed-individual": definition(**PLACED, individualObjects=True),
    "secure": definition(**SECURE),
    "secure-individual": definition(**SECURE, individualObjects=True),
    "snapshots-individual": definition(etcdSnapshots=SNAPSHOTS, individualObjects=True),
    "k3s-snapshots-individual": k3s(etcdSnapshots=SNAPSHOTS, individualObjects=True),
    "k3s-individual": k3s(registries=MIRRORS, hardening={"fipsRequired": True}, individualObjects=True),
    "class": definition(),
    "class-sets": definition(addonDelivery="ClusterResourceSet"),
    "individual": definition(individualObjects=True, fleet={"repo": "https://git.example.com/fleet.git"}),
    "dhcp": definition(addresses=None, loadBalancer=None, controlPlane=None, workers=None, individualObjects=True),
    "k3s": k3s(),
    "k3s-calico": k3s(addons={"cni": {"name": "calico"}}),
    "k3s-sets": k3s(addonDelivery="ClusterResourceSet", individualObjects=True),
    "kubeadm": kubeadm(),
    "kubeadm-individual": kubeadm(individualObjects=True),
}


@pytest.fixture(scope="module", params=CASES)
def result(request: pytest.FixtureRequest) -> Built:
    found = built(CASES[request.param])
    assert found.ok, [str(finding) for finding in found.findings]
    return found


def test_every_object_has_its_own_name_and_the_clusters_namespace(result: Built) -> None:
    places = [(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in result.objects]
    assert len(set(places)) == len(places)
    assert {namespace for kind, namespace, _ in places if kind != "GitRepo"} == {"team-a"}
    assert places[0][0] == "Cluster"


def test_references_lead_to_objects_of_the_cluster(result: Built) -> None:
    there = {(obj["kind"], obj["metadata"]["name"]) for obj in result.objects}
    named = {(ref["kind"], ref["name"]) for obj in result.objects for ref in references(obj.get("spec", {}))}
    assert named <= there
    unused = {kind for kind, _ in there if kind.endswith("Template")} - {kind for kind, _ in named}
    assert unused == set()


def references(value: Any) -> list[Obj]:
    if isinstance(value, list):
        return [found for item in value for found in references(item)]
    if not isinstance(value, dict):
        return []
    own = [child for key, child in value.items() if key.endswith("Ref") and isinstance(child, dict) and "kind" in child]
    return own + [found for child in value.values() for found in references(child)]


def test_the_webhook_accepts_everything(result: Built) -> None:
    objects = [*(obj for group in result.shared.values() for obj in group), *result.objects]
    assert [str(finding) for obj in objects for finding in crossobject.check(obj)] == []
    findings = [located.finding for located in crossobject.check_together(objects)]
    assert [str(finding) for finding in findings if finding.rule != "identity-absent"] == []


def test_no_secret_is_among_the_objects(result: Built) -> None:
    objects = [*(obj for group in result.shared.values() for obj in group), *result.objects]
    assert not [obj for obj in objects if obj["kind"] == "Secret"]


def test_our_crds_know_every_field(result: Built) -> None:
    schemas = {
        crd["spec"]["names"]["kind"]: object_schema(crd, "v1beta1") for crd in crds.custom_resource_definitions()
    }
    for obj in result.objects:
        if obj["kind"] in schemas:
            assert violations(obj, schemas[obj["kind"]]) == []


def test_crds_of_rke2_and_fleet_know_every_field(shared_crds: Path) -> None:
    files = [*shared_crds.glob("*rke2*.yaml"), shared_crds / "fleet.cattle.io.yaml"]
    crds_ = [crd for file in files for crd in yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader) if crd]
    by_kind = {(crd["spec"]["group"], crd["spec"]["names"]["kind"]): crd for crd in crds_}
    seen = set()
    for obj in [*built(CASES["individual"]).objects, *built(CASES["secure-individual"]).objects]:
        group, _, version = obj["apiVersion"].rpartition("/")
        if crd := by_kind.get((group, obj["kind"])):
            seen.add(obj["kind"])
            assert violations(obj, object_schema(crd, version)) == []
    assert seen == {"RKE2ControlPlane", "RKE2ConfigTemplate", "GitRepo"}


def test_objects_of_a_class() -> None:
    found = built(definition())
    assert kinds(found) == ["Cluster", "MachineHealthCheck"]
    assert list(found.shared) == ["namespace", "harvester-rke2"]
    assert found.shared["harvester-rke2"][-1]["kind"] == "ClusterClass"
    given_ = variables(found)
    assert given_["identitySecretName"] == "harvester-identity"
    assert given_["controlPlane"]["cpuCount"] == 4
    (pool,) = one(found, "Cluster")["spec"]["topology"]["workers"]["machineDeployments"]
    assert pool["variables"]["overrides"][0]["value"]["memorySize"] == "16Gi"
    assert one(found, "Cluster")["spec"]["topology"]["version"] == "v1.36.2+rke2r1"


def test_credentials_that_are_shared_take_the_place_of_the_secret() -> None:
    shared = definition(identitySecret=None, identityRef={"name": "shared"})
    given_ = variables(built(shared))
    assert given_["clusterIdentityName"] == "shared"
    assert "identitySecretName" not in given_
    single = built({**shared, "spec": {**shared["spec"], "individualObjects": True}})
    spec = one(single, "HarvesterCluster")["spec"]
    assert spec["identityRef"] == {"name": "shared"}
    assert "identitySecret" not in spec


def test_maxima_of_all_machines_and_of_a_pool() -> None:
    workers = [{"name": "own", "cpuMax": 16}, {"name": "common"}]
    grown = definition(machines={"cpuMax": 8, "memoryMax": "32Gi"}, workers=workers)
    control_plane, own, common = {"cpuMax": 8, "memoryMax": "32Gi"}, {"cpuMax": 16, "memoryMax": "32Gi"}, {"cpuMax": 8}
    topology = built(grown)
    pools = one(topology, "Cluster")["spec"]["topology"]["workers"]["machineDeployments"]
    assert control_plane.items() <= variables(topology)["controlPlane"].items()
    assert own.items() <= pools[0]["variables"]["overrides"][0]["value"].items()
    assert common.items() <= pools[1]["variables"]["overrides"][0]["value"].items()

    single = built({**grown, "spec": {**grown["spec"], "individualObjects": True}})
    templates = [obj for obj in single.objects if obj["kind"] == "HarvesterMachineTemplate"]
    specs = [obj["spec"]["template"]["spec"] for obj in templates]
    assert [spec["cpuMax"] for spec in specs] == [8, 16, 8]
    assert {spec["memoryMax"] for spec in specs} == {"32Gi"}


def test_image_by_version_and_images_to_import() -> None:
    lookup = {"format": "default/{{.BaseOS}}-{{.K8sVersion}}", "baseOS": "sles-15-sp7"}
    images = [{"name": "default/sles-15-sp7-1.36.2-rke2r1", "url": "https://i.example.com/a", "checksum": "a" * 128}]
    found = definition(machines={"imageLookup": lookup}, images=images)
    del found["spec"]["machines"]["image"]
    topology = built(found)
    assert variables(topology)["images"] == images
    assert variables(topology)["controlPlane"]["volumes"][0]["imageLookup"] == lookup

    single = built({**found, "spec": {**found["spec"], "individualObjects": True}})
    assert one(single, "HarvesterCluster")["spec"]["images"] == images
    templates = [obj for obj in single.objects if obj["kind"] == "HarvesterMachineTemplate"]
    for obj in templates:
        boot = obj["spec"]["template"]["spec"]["volumes"][0]
        assert boot["imageLookup"] == lookup
        assert "imageName" not in boot

    # A template with another name would replace the machines before their version does.
    newer = {**found["spec"], "individualObjects": True, "kubernetesVersion": "v1.36.3"}
    names = {obj["metadata"]["name"] for obj in built({**found, "spec": newer}).objects}
    assert {obj["metadata"]["name"] for obj in templates} <= names


def test_machines_without_maxima_have_no_such_field() -> None:
    found = built(CASES["individual"])
    for obj in found.objects:
        assert "cpuMax" not in json.dumps(obj)
        assert not any(field in json.dumps(obj) for field in hostresources.FIELDS)


def test_resources_of_hosts_of_all_machines_and_of_a_pool() -> None:
    gpu = [{"resourceName": "nvidia.com/GA102GL_A10", "nodeResource": "nvidia.com/gpu"}]
    workers = [{"name": "gpu", "devices": gpu, "cpuPinning": False}, {"name": "common", "hugepages": "1Gi"}]
    special = definition(machines={"cpuPinning": True}, workers=workers)
    topology = built(special)
    pools = one(topology, "Cluster")["spec"]["topology"]["workers"]["machineDeployments"]
    sizes = [variables(topology)["controlPlane"], *(pool["variables"]["overrides"][0]["value"] for pool in pools)]
    fields = ("devices", "cpuPinning", "hugepages")
    expected = [{"cpuPinning": True}, {"devices": gpu}, {"cpuPinning": True, "hugepages": "1Gi"}]
    assert [{field: size[field] for field in fields if field in size} for size in sizes] == expected

    single = built({**special, "spec": {**special["spec"], "individualObjects": True}})
    specs = [obj["spec"]["template"]["spec"] for obj in single.objects if obj["kind"] == "HarvesterMachineTemplate"]
    assert [{field: spec[field] for field in fields if field in spec} for spec in specs] == expected


def test_interfaces_of_all_machines_and_of_a_pool() -> None:
    pool = {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "v4"}
    common = [{"network": "default/production", "addressesFromPools": [pool], "dnsServers": ["9.9.9.9"]}]
    own = [{"network": "default/production", "addressesFromPools": [{**pool, "name": "v6"}]}]
    workers = [{"name": "own", "networkInterfaces": own}, {"name": "none", "networkInterfaces": []}, {"name": "common"}]
    special = definition(machines={"networkInterfaces": common}, workers=workers, addresses=None)
    topology = built(special)
    pools = one(topology, "Cluster")["spec"]["topology"]["workers"]["machineDeployments"]
    sizes = [variables(topology)["controlPlane"], *(pool["variables"]["overrides"][0]["value"] for pool in pools)]
    expected = [common, own, None, common]
    assert [size.get("networkInterfaces") for size in sizes] == expected

    single = built({**special, "spec": {**special["spec"], "individualObjects": True}})
    specs = [obj["spec"]["template"]["spec"] for obj in single.objects if obj["kind"] == "HarvesterMachineTemplate"]
    assert [spec.get("networkInterfaces") for spec in specs] == expected


def test_the_guides_objects_with_cluster_resource_sets() -> None:
    found = built(definition(addonDelivery="ClusterResourceSet"))
    assert sorted(kinds(found)) == sorted(
        ["Cluster", "MachineHealthCheck", *["ConfigMap"] * 3, *["ClusterResourceSet"] * 3]
    )
    cluster = one(found, "Cluster")["metadata"]
    assert cluster["annotations"]["addons.caphv.io/suspend"] == "true"
    manifests = {}
    for obj in found.objects:
        if obj["kind"] == "ConfigMap":
            manifests[obj["metadata"]["name"]] = [
                m["kind"] for text in obj["data"].values() for m in yaml.safe_load_all(text)
            ]
        if obj["kind"] == "ClusterResourceSet":
            assert obj["spec"]["clusterSelector"]["matchLabels"].items() <= cluster["labels"].items()
    assert manifests == {
        "production-ccm": ["HelmChart"],
        "production-cni": ["HelmChartConfig"],
        "production-csi": ["HelmChart"],
    }


def test_another_size_is_another_machine_template() -> None:
    names = {
        one_["metadata"]["name"]
        for cpu in (2, 4)
        for one_ in built(definition(individualObjects=True, controlPlane={"cpu": cpu})).objects
        if one_["kind"] == "HarvesterMachineTemplate"
    }
    assert len(names) == 3  # two of the control plane, one of the workers


def test_extra_disks_and_firmware() -> None:
    modes = {"accessMode": "ReadWriteOnce", "volumeMode": "Filesystem"}
    machines = {
        "extraDisks": [{"size": "10Gi"}, {"size": "1Gi", **modes}],
        "firmware": {"efi": True},
        "tpm": {"enabled": True},
    }
    found = built(definition(machines=machines, individualObjects=True))
    template = next(obj for obj in found.objects if obj["kind"] == "HarvesterMachineTemplate")["spec"]["template"][
        "spec"
    ]
    assert template["volumes"][1] == {"volumeType": "storageClass", "storageClass": "longhorn", "volumeSize": "10Gi"}
    assert template["volumes"][2].items() >= modes.items()
    assert template["firmware"] == {"efi": True}
    assert variables(built(definition(machines=machines)))["tpm"] == {"enabled": True}


def test_zones_affinities_and_guest_configuration_reach_the_machines_they_are_for() -> None:
    by_class = built(CASES["placed"])
    assert variables(by_class)["failureDomains"] == ["zone-1", "zone-2"]
    assert variables(by_class)["guestConfig"] == {"disableFstrimTimer": True}
    topology = one(by_class, "Cluster")["spec"]["topology"]
    assert topology["controlPlane"]["variables"]["overrides"] == [{"name": "nodeAffinity", "value": HOSTS}]
    (pool,) = topology["workers"]["machineDeployments"]
    assert pool["failureDomain"] == "zone-1"
    own = {row["name"]: row["value"] for row in pool["variables"]["overrides"]}
    assert (own["nodeAffinity"], own["workloadAffinity"]) == (HOSTS, NEAR)

    individual = built(CASES["placed-individual"])
    assert one(individual, "HarvesterCluster")["spec"]["controlPlaneFailureDomains"] == ["zone-1", "zone-2"]
    assert one(individual, "MachineDeployment")["spec"]["template"]["spec"]["failureDomain"] == "zone-1"
    servers, workers = (
        obj["spec"]["template"]["spec"] for obj in individual.objects if obj["kind"] == "HarvesterMachineTemplate"
    )
    assert servers["guestConfig"] == workers["guestConfig"] == {"disableFstrimTimer": True}
    assert servers["nodeAffinity"] == HOSTS
    assert "workloadAffinity" not in servers
    assert (workers["nodeAffinity"], workers["workloadAffinity"]) == (HOSTS, NEAR)


def test_backups_of_replaced_machines_reach_the_cluster_by_class_and_one_by_one() -> None:
    field = {"keep": 3, "timeoutSeconds": 3600, "deletionPolicy": "Retain"}
    assert variables(built(definition(controlPlaneBackups=field)))["controlPlaneBackups"] == field
    individual = built(definition(controlPlaneBackups=field, individualObjects=True))
    assert one(individual, "HarvesterCluster")["spec"]["controlPlaneBackups"] == field
    assert "controlPlaneBackups" not in variables(built(definition()))
    plain = one(built(definition(individualObjects=True)), "HarvesterCluster")["spec"]
    assert "controlPlaneBackups" not in plain


def test_hardening_and_mirrors_are_variables_of_a_class() -> None:
    given_ = variables(built(CASES["secure"]))
    assert {name: given_[name] for name in ("cisProfile", "stig", "fipsRequired")} == SECURE["hardening"]
    assert given_["registries"] == SECURE["registries"]
    # The patches of the class add their own files.
    assert not any("pss" in file["path"] for file in given_["controlPlaneFiles"])


def test_objects_one_by_one_are_hardened_as_the_patches_of_the_class_do_it() -> None:
    found = built(CASES["secure-individual"])
    spec = one(found, "RKE2ControlPlane")["spec"]
    worker = one(found, "RKE2ConfigTemplate")["spec"]["template"]["spec"]
    (cluster_class,) = (obj for obj in built(CASES["secure"]).shared["harvester-rke2"] if obj["kind"] == "ClusterClass")
    patches = {patch["name"]: patch["definitions"] for patch in cluster_class["spec"]["patches"]}

    def values(name: str, role: int) -> list[Any]:
        return [patch["value"] for patch in patches[name][role]["jsonPatches"] if "value" in patch]

    files = {file["path"]: file for file in spec["files"]}
    policy, config, api_server, *kubelet = values("stig", 0)
    for file in (*values("podSecurity", 0), policy, config):
        assert files[file["path"]] == file
    assert spec["serverConfig"]["kubeAPIServer"] == api_server
    assert spec["agentConfig"]["podSecurityAdmissionConfigFile"] == values("cisProfile", 0)[0]
    assert values("stig", 1) == kubelet
    (prepared,) = patches["nodePreparation"][0]["jsonPatches"]
    lines = [line[2:] for line in prepared["valueFrom"]["template"].splitlines() if line.startswith("- ")]
    for node in (spec, worker):
        assert node["agentConfig"]["cisProfile"] == "cis"
        assert node["agentConfig"]["kubelet"]["extraArgs"] == ["cloud-provider=external", *kubelet]
        assert node["preRKE2Commands"] == lines
        assert node["privateRegistriesConfig"] == SECURE["registries"]


def test_pod_security_exempts_the_namespaces_of_fleets_agents() -> None:
    """Of Rancher's Fleet, and of CAAPF, whose agent is on the host network."""
    found = {
        file["path"]: file["content"]
        for file in one(built(CASES["secure-individual"]), "RKE2ControlPlane")["spec"]["files"]
    }
    (plugin,) = yaml.safe_load(found["/etc/rancher/rke2/rancher-pss.yaml"])["plugins"]
    exempt = plugin["configuration"]["exemptions"]["namespaces"]
    assert {"cattle-fleet-system", "fleet-addon-agent"} <= set(exempt)


@pytest.mark.parametrize("individual", [{}, {"individualObjects": True}])
def test_hardening_refreshes_the_files_of_nodes_because_it_replaces_them(individual: Obj) -> None:
    existing = built(definition(**individual)).objects
    addons = {"cni": {"name": "calico", "mtu": 1400}}
    hardened = definition(**individual, addons=addons, hardening={"cisProfile": "cis"})
    text = str(build(hardened, RENDERER, {}, existing).objects)
    assert "rancher-pss" in text or not individual
    assert "mtu: 1450" not in text
    again = build(hardened, RENDERER, {}, build(hardened, RENDERER, {}, existing).objects)
    assert str(again.objects) == text


def test_the_files_of_a_stig_come_with_its_arguments_on_hardened_servers() -> None:
    hardened = {**SECURE, "individualObjects": True}
    without = {**hardened, "hardening": {"cisProfile": "cis", "fipsRequired": True}}
    found = build(definition(**hardened), RENDERER, {}, built(definition(**without)).objects)
    spec = one(found, "RKE2ControlPlane")["spec"]
    assert spec == one(built(definition(**hardened)), "RKE2ControlPlane")["spec"]
    assert any(file["path"].endswith("60-stig.yaml") for file in spec["files"])


def test_k3s_reads_mirrors_from_a_file_on_all_nodes() -> None:
    by_class = variables(built(k3s(registries=MIRRORS)))
    assert by_class["registries"] == MIRRORS
    individual = built(CASES["k3s-individual"])
    for kind, path in (("KThreesControlPlane", "kthreesConfigSpec"), ("KThreesConfigTemplate", "template")):
        spec = one(individual, kind)["spec"][path]
        spec = spec.get("spec", spec)
        files = {
            file["path"]: yaml.safe_load(file["content"]) for file in spec["files"] if "registries" in file["path"]
        }
        assert files == {"/etc/rancher/k3s/registries.yaml": MIRRORS}
        assert len(spec["preK3sCommands"]) == 1


def test_a_node_of_kubeadm_refuses_an_image_without_fips() -> None:
    found = built(kubeadm(individualObjects=True, hardening={"fipsRequired": True}))
    assert "fips_enabled" in str(one(found, "KubeadmControlPlane")["spec"]["kubeadmConfigSpec"]["preKubeadmCommands"])
    assert "fips_enabled" in str(one(found, "KubeadmConfigTemplate")["spec"]["template"]["spec"]["preKubeadmCommands"])


def test_bundles_go_where_the_cluster_is_imported() -> None:
    fleet = {"repo": "https://git.example.com/fleet.git", "path": "add-ons", "clientSecretName": "git-access"}
    repo = one(built(definition(fleet=fleet)), "GitRepo")
    assert repo["metadata"]["namespace"] == "fleet-default"
    assert repo["spec"]["paths"] == ["add-ons/clusters/team-a/production/*"]
    assert repo["spec"]["clientSecretName"] == "git-access"
    apart = one(built(definition(fleet=fleet, rancherAutoImport=False)), "GitRepo")
    assert apart["metadata"]["namespace"] == "team-a"


@pytest.mark.parametrize("individual", [False, True])
def test_the_load_balancer_has_the_health_check_of_the_definition(individual: bool) -> None:
    balancer = {"ipamType": "dhcp", "healthCheck": {"periodSeconds": 2, "timeoutSeconds": 2}}
    objs = built(definition(loadBalancer=balancer, individualObjects=individual))
    if individual:
        spec = one(objs, "HarvesterCluster")["spec"]["loadBalancerConfig"]
        assert spec["healthCheck"] == balancer["healthCheck"]
    else:
        variables = one(objs, "Cluster")["spec"]["topology"]["variables"]
        assert {"name": "loadBalancer", "value": balancer} in variables


@pytest.mark.parametrize("individual", [False, True])
def test_an_external_endpoint_leaves_no_load_balancer(individual: bool) -> None:
    balancer = {"ipamType": "none", "endpoint": {"host": "api.example.com"}}
    objs = built(definition(loadBalancer=balancer, individualObjects=individual))
    if individual:
        spec = one(objs, "HarvesterCluster")["spec"]
        assert spec["loadBalancerConfig"] == {"ipamType": "none"}
        assert spec["controlPlaneEndpoint"] == {"host": "api.example.com", "port": 6443}
    else:
        variables = one(objs, "Cluster")["spec"]["topology"]["variables"]
        assert {"name": "loadBalancer", "value": balancer} in variables


def test_the_health_check_can_be_left_out_and_tuned() -> None:
    assert kinds(built(definition(healthCheck={"enabled": False}))) == ["Cluster"]
    check = one(built(definition(healthCheck={"unhealthyLessThanOrEqualTo": 1})), "MachineHealthCheck")["spec"]
    assert check["remediation"]["triggerIf"]["unhealthyLessThanOrEqualTo"] == 1


NAMES = st.from_regex(r"[ab](-?[ab]){0,3}", fullmatch=True) | st.sampled_from(["a-control", "a-control-plane", "a-cni"])
POOLS = st.sampled_from(["plane", "a", "b", "cni", "workers"])
WAYS = st.sampled_from(
    [{"individualObjects": True, "addonDelivery": "ClusterResourceSet"}, {"individualObjects": True}, {}]
)


@settings(max_examples=25)
@given(st.lists(st.tuples(NAMES, POOLS, WAYS), min_size=2, max_size=3, unique_by=lambda case: case[0]))
def test_two_clusters_of_a_namespace_never_share_an_object(cases: list[tuple[str, str, Obj]]) -> None:
    names = []
    for name, pool, way in cases:
        found = built(definition(name, workers=[{"name": pool}], **way))
        assert found.ok
        names.append({(obj["kind"], obj["metadata"]["name"]) for obj in found.objects})
    for first, second in itertools.combinations(names, 2):
        assert first & second == set()


def test_fleet_ignores_variables_that_the_core_completes() -> None:
    def ignored(obj: Obj) -> list[Obj]:
        (text,) = (text for path, text in files_of(built(obj)).items() if path.endswith("cluster/fleet.yaml"))
        return list(yaml.safe_load(text).get("diff", {}).get("comparePatches", ()))

    (patch,) = ignored(definition())
    assert (patch["kind"], patch["namespace"], patch["name"]) == ("Cluster", "team-a", "production")
    assert patch["jsonPointers"] == ["/spec/topology/variables"]
    assert ignored(definition(individualObjects=True)) == []
