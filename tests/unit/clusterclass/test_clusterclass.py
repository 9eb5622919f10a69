"""The shipped ClusterClasses fit the CRDs of their templates, and their patches fit the templates."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from caphv import data
from caphv.api import generated
from caphv.api.object import Obj
from caphv.clusterclass.gotemplate import render
from caphv.clusterclass.templates import Part, apply_patches, variables_of
from sandbox.capi import crds as providers
from tests.support import observed
from tests.support.clusterclasses import objects, problems, strict, templates
from tools.generate import clusterclasses

pytestmark = pytest.mark.unit

FIELDS = ("guestConfig", "nodeAffinity", "workloadAffinity")
HOST_RESOURCES = ("devices", "cpuPinning", "isolateEmulatorThread", "numaPassthrough", "hugepages", "networkInterfaces")
POOL = {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "v4"}
POOLED = {"network": "default/production", "addressesFromPools": [POOL], "dnsServers": ["9.9.9.9"]}
GPU = {"resourceName": "nvidia.com/GA102GL_A10", "count": 2}
CLASSES = ("harvester-k3s", "harvester-kubeadm", "harvester-rke2")


def the_class(name: str) -> Obj:
    (found,) = (obj for obj in objects(name) if obj["kind"] == "ClusterClass")
    return found


@functools.cache
def read_crds(folder: Path) -> dict[tuple[str, str], Obj]:
    found = [crd for file in folder.glob("*.yaml") for crd in yaml.load_all(file.read_text(), yaml.CSafeLoader)]
    crds = [crd for crd in found if crd and crd.get("kind") == "CustomResourceDefinition"]
    return {(crd["spec"]["group"], crd["spec"]["names"]["kind"]): crd for crd in crds}


def references(node: Any) -> Iterator[Obj]:
    if isinstance(node, dict):
        if "templateRef" in node:
            yield node["templateRef"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def definitions(name: str) -> Iterator[Obj]:
    for patch in the_class(name)["spec"]["patches"]:
        yield from patch["definitions"]


def infrastructure(name: str, **values: Any) -> Obj:
    """The spec of the HarvesterCluster that a class creates for Cluster team/demo with these variables."""
    (template,) = (obj for _, obj in templates(name) if obj["kind"] == "HarvesterClusterTemplate")
    topology = {"variables": [{"name": name, "value": value} for name, value in values.items()]}
    cluster = {"metadata": {"name": "demo", "namespace": "team"}, "spec": {"topology": topology}}
    variables = variables_of(the_class(name), cluster)
    return apply_patches(the_class(name), Part("infrastructure", template), variables)


@functools.cache
def crds_of_the_sandbox() -> dict[tuple[str, str], Obj]:
    others = {
        (crd["spec"]["group"], crd["spec"]["names"]["kind"]): crd for crd in providers.custom_resource_definitions()
    }
    return read_crds(data.folder("deploy/crds")) | others


def test_the_files_are_what_their_sources_say(checkout: Path) -> None:
    assert generated.stale(clusterclasses.files(checkout)) == []


def test_a_changed_or_missing_file_is_reported(tmp_path: Path, checkout: Path) -> None:
    shutil.copytree(checkout / "clusterclass", tmp_path / "clusterclass")
    (tmp_path / "clusterclass" / "harvester-k3s" / "templates.yaml").write_text("")
    (tmp_path / "clusterclass" / "variables.md").unlink()
    folder = tmp_path / "clusterclass"
    stale = generated.stale(clusterclasses.files(tmp_path))
    assert stale == [folder / "harvester-k3s" / "templates.yaml", folder / "variables.md"]


def test_a_variable_has_the_rules_of_its_machine_field(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = {"rule": "self.size() < 9", "message": "must be shorter"}
    names = {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}
    field = {"type": "object", "properties": {"names": {**names, "x-kubernetes-validations": [rule]}}}
    monkeypatch.setattr(clusterclasses, "_machine_fields", lambda: dict.fromkeys((*FIELDS, *HOST_RESOURCES), field))
    files = clusterclasses.render(clusterclasses.CHECKOUT / "clusterclass")
    (cluster_class,) = (
        obj for obj in yaml.safe_load_all(files["clusterclass/harvester-rke2/clusterclass.yaml"]) if obj
    )
    (schema,) = (
        variable["schema"]["openAPIV3Schema"]
        for variable in cluster_class["spec"]["variables"]
        if variable["name"] == "guestConfig"
    )
    assert schema["properties"]["names"] == {
        "type": "array",
        "items": {"type": "string"},
        "x-kubernetes-validations": [rule],
    }


def test_each_folder_is_a_class() -> None:
    assert sorted(path.name for path in data.folder("clusterclass").iterdir() if path.is_dir()) == list(CLASSES)


def test_classes_differ_only_in_variables_for_what_their_distribution_has() -> None:
    own = {
        "harvester-rke2": {"cni", "cisProfile", "stig", "imageRegistry", "registries", "etcdSnapshots"},
        "harvester-k3s": {"cni", "imageRegistry", "registries", "etcdSnapshots"},
        "harvester-kubeadm": set[str](),
    }
    variables = {name: {entry["name"]: entry for entry in the_class(name)["spec"]["variables"]} for name in CLASSES}
    common = variables["harvester-kubeadm"]
    assert {name: variables[name].keys() - common.keys() for name in CLASSES} == own
    assert all(variables[name][field] == entry for name in CLASSES for field, entry in common.items())


def test_variables_of_0_12_are_optional_and_have_no_default_so_that_the_class_changes_no_cluster() -> None:
    new = {
        *("guestConfig", "nodeAffinity", "workloadAffinity", "fipsRequired"),
        *("cisProfile", "stig", "imageRegistry", "registries", "etcdSnapshots"),
        *("cpuMax", "memoryMax"),
        *HOST_RESOURCES,
        *("imageLookup", "images"),
    }
    found = [variable for name in CLASSES for variable in the_class(name)["spec"]["variables"]]
    checked = [variable for variable in found if variable["name"] in new]
    assert {variable["name"] for variable in checked} == new
    for variable in checked:
        assert not variable["required"]
        assert "default:" not in yaml.safe_dump(variable["schema"], width=10_000)


@pytest.mark.parametrize("name", CLASSES)
def test_templates_fit_our_own_crds_and_those_of_the_sandbox(name: str) -> None:
    crds = crds_of_the_sandbox()
    found = [problem for kind, obj in templates(name) for problem in problems(obj, crds[kind])]
    assert found == []


def test_templates_fit_the_real_crds_of_rke2(shared_crds: Path) -> None:
    crds = read_crds(shared_crds)
    checked = [(kind, obj) for kind, obj in templates("harvester-rke2") if kind in crds]
    assert len(checked) == 2
    assert [problem for kind, obj in checked for problem in problems(obj, crds[kind])] == []


@pytest.mark.parametrize("name", CLASSES)
def test_control_plane_and_each_class_of_workers_have_sizes_of_their_own(name: str) -> None:
    sizes = {
        patch["name"]: patch["definitions"][0]["selector"]["matchResources"]
        for patch in the_class(name)["spec"]["patches"]
        if patch["name"].endswith("Size")
    }
    assert sizes == {
        "controlPlaneSize": {"controlPlane": True},
        "workerSize": {"machineDeploymentClass": {"names": ["default-worker"]}},
        "largeWorkerSize": {"machineDeploymentClass": {"names": ["large-worker"]}},
    }
    assert [worker["class"] for worker in the_class(name)["spec"]["workers"]["machineDeployments"]] == [
        "default-worker",
        "large-worker",
    ]


@pytest.mark.parametrize("name", CLASSES)
def test_each_reference_names_a_template_that_is_there_and_each_template_is_used(name: str) -> None:
    there = {(obj["apiVersion"], obj["kind"], obj["metadata"]["name"]) for _, obj in templates(name)}
    wanted = {(ref["apiVersion"], ref["kind"], ref["name"]) for ref in references(the_class(name))}
    assert wanted == there


@pytest.mark.parametrize("name", CLASSES)
def test_each_replacement_finds_what_it_replaces_and_each_addition_its_parent(name: str) -> None:
    by_kind: dict[tuple[str, str], list[Obj]] = {}
    for _, obj in templates(name):
        by_kind.setdefault((obj["apiVersion"], obj["kind"]), []).append(obj)
    lists: set[str] = set()
    for definition in definitions(name):
        selected = by_kind[definition["selector"]["apiVersion"], definition["selector"]["kind"]]
        for patch in definition["jsonPatches"]:
            path = patch["path"].strip("/").split("/")
            if patch["op"] == "add" and patch.get("value") == []:
                lists.add(patch["path"])
            for template in selected:
                if patch["path"].removesuffix("/-") in lists:
                    # An earlier patch makes this list where there is none.
                    continue
                parent = template
                for part in path[:-1]:
                    parent = parent[part]
                assert (path[-1] in parent) is (patch["op"] != "add"), patch


@pytest.mark.parametrize("name", CLASSES)
def test_each_variable_is_described_with_examples_and_used_and_no_other_is(name: str) -> None:
    variables = the_class(name)["spec"]["variables"]
    text = yaml.safe_dump(the_class(name)["spec"]["patches"], width=10_000)
    for variable in variables:
        schema = variable["schema"]["openAPIV3Schema"]
        assert schema["description"]
        assert "example" in schema or schema["type"] == "object" or "properties" in schema["items"], variable["name"]
        # The packager reads these settings, machines do not.
        assert variable["name"] == "addons" or variable["name"] in text, variable["name"]
    used = {
        patch["valueFrom"]["variable"].partition(".")[0]
        for definition in definitions(name)
        for patch in definition["jsonPatches"]
        if "variable" in patch.get("valueFrom", {})
    }
    assert used - {"builtin"} <= {variable["name"] for variable in variables}


def test_agents_of_k3s_get_no_flags_of_servers() -> None:
    """`k3s agent` does not start with a flag that only `k3s server` has, for example `system-default-registry`."""
    found = list(definitions("harvester-k3s"))
    files = {
        kind: "".join(str(each["jsonPatches"]) for each in found if each["selector"]["kind"] == kind)
        for kind in ("KThreesControlPlaneTemplate", "KThreesConfigTemplate")
    }
    assert "/etc/rancher/k3s/config.yaml.d/" in files["KThreesControlPlaneTemplate"]
    assert "/etc/rancher/k3s/registries.yaml" in files["KThreesConfigTemplate"]
    assert "/etc/rancher/k3s/config.yaml" not in files["KThreesConfigTemplate"]


@pytest.mark.parametrize("name", CLASSES)
def test_addons_have_no_defaults_which_the_core_would_write_into_every_cluster(name: str) -> None:
    (addons,) = (variable for variable in the_class(name)["spec"]["variables"] if variable["name"] == "addons")
    assert "default" not in yaml.safe_dump(addons)


# The core and the Go provider's generator write the default of the variable that is not used.
@pytest.mark.parametrize(
    "pools", [{"ipPoolRef": "prod-ip-pool", "ipPoolRefs": []}, {"ipPoolRef": "", "ipPoolRefs": ["a", "b"]}]
)
@pytest.mark.parametrize("name", CLASSES)
def test_variables_of_clusters_of_the_go_provider_are_taken_as_they_are(name: str, pools: Obj) -> None:
    values = {
        "vmNetworks": ["default/production"],
        "volumes": [
            {"volumeType": "image", "imageName": "default/sles", "volumeSize": "40Gi", "bootOrder": 1},
            {"volumeType": "storageClass", "storageClass": "longhorn", "volumeSize": "10Gi"},
        ],
        "cpuCount": 4,
        "memorySize": "8Gi",
        "sshUser": "sles",
        "sshKeyPair": "default/capi-ssh-key",
        "identitySecretName": "hv-identity-secret",
        "targetNamespace": "default",
        "gateway": "172.16.0.1",
        "subnetMask": "255.255.0.0",
        **pools,
        "dnsServers": ["172.16.0.1"],
        "fipsRequired": False,
        **({"cni": "calico", "cisProfile": ""} if name == "harvester-rke2" else {}),
    }
    variables = {variable["name"]: variable for variable in the_class(name)["spec"]["variables"]}
    for key, value in values.items():
        jsonschema.validate(value, strict(variables[key]["schema"]["openAPIV3Schema"]))
    assert {key for key, variable in variables.items() if variable["required"]} <= values.keys()


@pytest.mark.parametrize("field", ["guestConfig", "nodeAffinity", "workloadAffinity"])
def test_a_variable_of_a_machine_field_refuses_what_the_field_refuses(field: str) -> None:
    values: dict[str, tuple[Obj, Obj]] = {
        "guestConfig": ({"disableFstrimTimer": True, "userData": "#cloud-config\n"}, {"disableFstrim": True}),
        "nodeAffinity": (
            {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["1"]}]}]
                }
            },
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpression": []}]}},
        ),
        "workloadAffinity": (
            {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "kubernetes.io/hostname"}
                ]
            },
            {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"app": "db"}}}]},
        ),
    }
    valid, invalid = values[field]
    for name in CLASSES:
        (variable,) = (entry for entry in the_class(name)["spec"]["variables"] if entry["name"] == field)
        schema = strict(variable["schema"]["openAPIV3Schema"])
        jsonschema.validate(valid, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(invalid, schema)


@pytest.mark.parametrize(
    ("common", "own", "found"),
    [
        ({}, {}, {}),
        ({"cpuPinning": True}, {}, {"cpuPinning": True}),
        # An explicit false is the same as no field, so that no machine is replaced.
        ({"cpuPinning": True}, {"cpuPinning": False}, {}),
        ({}, {"cpuPinning": False, "devices": []}, {}),
        ({"cpuPinning": False, "devices": []}, {}, {}),
        ({}, {"devices": [GPU]}, {"devices": [GPU]}),
        ({"devices": [GPU]}, {"devices": []}, {}),
        ({"hugepages": "2Mi"}, {"hugepages": "1Gi"}, {"hugepages": "1Gi"}),
        ({"networkInterfaces": [POOLED]}, {}, {"networkInterfaces": [POOLED]}),
        ({"networkInterfaces": [POOLED]}, {"networkInterfaces": []}, {}),
    ],
)
@pytest.mark.parametrize(
    ("pool", "worker_class"), [("controlPlane", ""), ("worker", "default-worker"), ("largeWorker", "large-worker")]
)
def test_resources_of_hosts_are_those_of_the_pool_else_the_common_ones(
    common: Obj, own: Obj, found: Obj, pool: str, worker_class: str
) -> None:
    cluster_class = the_class("harvester-rke2")
    patches = [
        patch
        for patch in cluster_class["spec"]["patches"]
        if patch["name"].removeprefix(pool)[:1].lower() + patch["name"].removeprefix(pool)[1:] in HOST_RESOURCES
    ]
    assert len(patches) == len(HOST_RESOURCES)
    document: Obj = {}
    for patch in patches:
        variables = {**common, pool: own}
        if render(patch["enabledIf"], variables) != "true":
            continue
        (definition,) = patch["definitions"]
        worker = definition["selector"]["matchResources"].get("machineDeploymentClass", {"names": [""]})
        assert worker["names"] == [worker_class]
        (change,) = definition["jsonPatches"]
        field = change["path"].rpartition("/")[2]
        document[field] = yaml.safe_load(render(change["valueFrom"]["template"], variables))
    assert document == found


@pytest.mark.parametrize("name", CLASSES)
def test_machines_are_replaced_as_the_operations_guide_says(name: str) -> None:
    spec = the_class(name)["spec"]
    roles = [(spec["controlPlane"], "34%"), *((worker, 1) for worker in spec["workers"]["machineDeployments"])]
    for role, most in roles:
        check = role["healthCheck"]
        assert check["remediation"]["triggerIf"]["unhealthyLessThanOrEqualTo"] == most
        assert check["checks"]["nodeStartupTimeoutSeconds"] == 20 * 60
        found = {
            (entry["type"], entry["status"], entry["timeoutSeconds"])
            for entry in check["checks"]["unhealthyNodeConditions"]
        }
        assert found == {("Ready", "False", 300), ("Ready", "Unknown", 300)}


@pytest.mark.parametrize("name", CLASSES)
def test_the_cluster_of_the_readme_has_thirty_lines_and_suits_each_class(name: str) -> None:
    text = (data.folder("clusterclass") / "README.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    assert len(text.splitlines()) <= 30
    topology = yaml.safe_load(text)["spec"]["topology"]
    spec = the_class(name)["spec"]
    known = {entry["name"]: entry for entry in spec["variables"]}
    given = {entry["name"]: entry["value"] for entry in topology["variables"]}
    for variable, value in given.items():
        jsonschema.validate(value, strict(known[variable]["schema"]["openAPIV3Schema"]))
    assert {key for key, entry in known.items() if entry["required"]} <= given.keys()
    classes = {entry["class"] for entry in spec["workers"]["machineDeployments"]}
    assert {entry["class"] for entry in topology["workers"]["machineDeployments"]} <= classes


@pytest.mark.parametrize(
    ("file", "name", "variable", "field"),
    [
        ("bootstrap", "registry-config-without-secret", "registries", "privateRegistriesConfig"),
        ("bootstrap", "cis-profile-of-older-kubernetes", "cisProfile", "agentConfig.cisProfile"),
        ("userdata", "only-one-of-two-registry-configs-is-kept", "registries", "privateRegistriesConfig"),
    ],
)
def test_the_class_refuses_what_stops_or_loses_bootstrap_data(file: str, name: str, variable: str, field: str) -> None:
    """CAPRKE2 reports it in its log only, or not at all."""
    found = observed.records(f"rancher-cluster-api-provider-rke2/{file}.yaml")
    value = next(record for record in found if record.name == name).input
    for step in field.split("."):
        value = value[step]

    variables = the_class("harvester-rke2")["spec"]["variables"]
    schema = next(each["schema"]["openAPIV3Schema"] for each in variables if each["name"] == variable)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ({"host": "api.example.com"}, {"host": "api.example.com", "port": 6443}),
        ({"host": "172.16.0.5", "port": 443}, {"host": "172.16.0.5", "port": 443}),
    ],
)
def test_an_external_endpoint_replaces_the_load_balancer(name: str, endpoint: Obj, expected: Obj) -> None:
    balancer = {"ipamType": "none", "endpoint": endpoint}
    spec = infrastructure(name, loadBalancer=balancer, identitySecretName="identity", targetNamespace="demo")
    assert spec["controlPlaneEndpoint"] == expected
    # CRD and webhook refuse listeners and pools with an external endpoint.
    assert spec["loadBalancerConfig"] == {"ipamType": "none"}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, {"identitySecret": {"name": "identity", "namespace": "team"}}),
        ({"clusterIdentityName": "shared"}, {"identityRef": {"name": "shared"}}),
    ],
)
def test_shared_credentials_take_the_place_of_the_secret(name: str, value: Obj, expected: Obj) -> None:
    spec = infrastructure(name, **{"identitySecretName": "identity", "targetNamespace": "demo", **value})
    assert {key: spec[key] for key in ("identitySecret", "identityRef") if key in spec} == expected


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("delivery", "expected"),
    [
        ("Secret", {"cloudConfig": {"delivery": "Secret"}}),
        (
            "Manifest",
            {
                "updateCloudProviderConfig": {
                    "manifestsConfigMapNamespace": "team",
                    "manifestsConfigMapName": "cloud-config-addon-demo",
                    "manifestsConfigMapKey": "cloud-config.yaml",
                    "cloudConfigCredentialsSecretName": "cloud-config",
                    "cloudConfigCredentialsSecretKey": "cloud-config",
                }
            },
        ),
    ],
)
def test_guests_get_their_kubeconfig_as_the_variable_says(name: str, delivery: str, expected: Obj) -> None:
    spec = infrastructure(name, identitySecretName="identity", targetNamespace="demo", cloudConfigDelivery=delivery)
    assert {key: spec[key] for key in ("cloudConfig", "updateCloudProviderConfig") if key in spec} == expected
