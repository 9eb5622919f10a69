"""Cluster templates and the examples that are made from them: accepted by our CRDs, and complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from caphv import data
from tests.support.docpages import unknown_fields
from tests.support.openapi import object_schema
from tools.release import components

pytestmark = pytest.mark.unit

VALUES = {
    "CLUSTER_NAME": "production",
    "NAMESPACE": "team-a",
    "KUBERNETES_VERSION": "v1.36.2",
    "CONTROL_PLANE_MACHINE_COUNT": "3",
    "WORKER_MACHINE_COUNT": "2",
    "HARVESTER_TARGET_NAMESPACE": "team-a",
    "HARVESTER_IMAGE": "default/sles-15-sp7",
    "HARVESTER_SSH_KEYPAIR": "default/admin",
    "HARVESTER_NETWORK": "default/production",
    "HARVESTER_VM_IP_POOL": "machines",
    "HARVESTER_LB_IP_POOL": "load-balancers",
    "HARVESTER_GATEWAY": "172.16.0.1",
    "HARVESTER_SUBNET_MASK": "255.255.0.0",
    "HARVESTER_DNS": "172.16.0.1",
    "TALOS_VERSION": "v1.12",
}
# Example -> template; the values above are filled in.
EXAMPLES = {
    "rke2-pools.yaml": "cluster-template.yaml",
    "rke2-dhcp.yaml": "cluster-template-dhcp.yaml",
    "kubeadm.yaml": "cluster-template-kubeadm.yaml",
    "k3s.yaml": "cluster-template-k3s.yaml",
    "talos.yaml": "cluster-template-talos.yaml",
    "rke2-clusterclass.yaml": "cluster-template-topology.yaml",
    "rke2-stig.yaml": "cluster-template-stig.yaml",
    "k3s-clusterclass.yaml": "cluster-template-topology-k3s.yaml",
    "kubeadm-clusterclass.yaml": "cluster-template-topology-kubeadm.yaml",
}


@pytest.fixture(scope="module")
def templates(checkout: Path) -> dict[str, str]:
    return components.templates(checkout / "deploy" / "clusterctl" / "parts")


def filled(template: str) -> str:
    return re.sub(r"\$\{(\w+)(?::=([^}]*))?\}", lambda found: VALUES.get(found[1], found[2]), template)


def schemas() -> dict[str, dict[str, Any]]:
    crds = [yaml.safe_load(path.read_text()) for path in data.folder("deploy/crds").glob("*.yaml")]
    return {crd["spec"]["names"]["kind"]: object_schema(crd, "v1beta1") for crd in crds}


def test_every_template_has_its_example_and_says_the_same(templates: dict[str, str], checkout: Path) -> None:
    assert set(EXAMPLES.values()) == templates.keys()
    for example, template in EXAMPLES.items():
        text = (checkout / "examples" / example).read_text()
        assert list(yaml.safe_load_all(text)) == list(yaml.safe_load_all(filled(templates[template]))), example


def test_nodes_of_talos_have_the_names_of_their_harvestermachines(templates: dict[str, str]) -> None:
    """The provider of its control planes gives Machines other names, and Nodes are found by those of the VMs."""
    objects = [*yaml.safe_load_all(filled(templates["cluster-template-talos.yaml"]))]
    specs = {
        obj["kind"]: obj["spec"]["controlPlaneConfig"]["controlplane"]
        if obj["kind"] == "TalosControlPlane"
        else obj["spec"]["template"]["spec"]
        for obj in objects
        if obj["kind"] in ("TalosControlPlane", "TalosConfigTemplate")
    }
    assert {spec["hostname"]["source"] for spec in specs.values()} == {"InfrastructureName"}
    assert len(specs) == 2


def sizes(objects: list[dict[str, Any]]) -> dict[str, tuple[Any, Any, Any]]:
    """CPU, memory and disk of control plane and workers, from templates of machines or variables of a class."""
    cluster = objects[0]
    if "topology" in cluster["spec"]:
        given = {entry["name"]: entry["value"] for entry in cluster["spec"]["topology"]["variables"]}
        return {
            role: tuple(given.get(name, {}).get(field) for field in ("cpuCount", "memorySize", "diskSize"))
            for role, name in (("control-plane", "controlPlane"), ("workers", "worker"))
        }
    machines = {
        obj["metadata"]["name"].removeprefix(f"{cluster['metadata']['name']}-"): obj["spec"]["template"]["spec"]
        for obj in objects
        if obj["kind"] == "HarvesterMachineTemplate"
    }
    return {role: (spec["cpu"], spec["memory"], spec["volumes"][0]["volumeSize"]) for role, spec in machines.items()}


@pytest.mark.parametrize("template", EXAMPLES.values())
def test_variables_set_the_sizes_of_machines(
    templates: dict[str, str], template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> dict[str, tuple[Any, Any, Any]]:
        return sizes([*yaml.safe_load_all(filled(templates[template]))])

    # What docs/installation.md says.
    assert found() == {"control-plane": (4, "8Gi", "40Gi"), "workers": (4, "8Gi", "40Gi")}
    given = {"control-plane": (6, "12Gi", "60Gi"), "workers": (16, "64Gi", "200Gi")}
    for role, values in given.items():
        prefix = role.removesuffix("s").replace("-", "_").upper()
        for field, value in zip(("CPU", "MEMORY", "DISK"), values, strict=True):
            monkeypatch.setitem(VALUES, f"{prefix}_MACHINE_{field}", str(value))
    assert found() == given


@pytest.mark.parametrize("example", EXAMPLES)
def test_objects_of_ours_are_accepted(checkout: Path, example: str) -> None:
    known = schemas()
    objects = list(yaml.safe_load_all((checkout / "examples" / example).read_text()))
    ours = [obj for obj in objects if obj["kind"] in known]
    assert ours or "topology" in objects[0]["spec"]
    for obj in ours:
        schema = known[obj["kind"]]
        Draft202012Validator(schema).validate(obj)
        assert unknown_fields(obj["spec"], schema["properties"]["spec"]) == []


@pytest.mark.parametrize(("name", "release"), [("k3s", "+k3s1"), ("kubeadm", "")])
def test_a_cluster_of_another_class_differs_by_its_name_and_version(checkout: Path, name: str, release: str) -> None:
    def topology(distribution: str) -> dict[str, Any]:
        (cluster,) = yaml.safe_load_all((checkout / "examples" / f"{distribution}-clusterclass.yaml").read_text())
        return cluster["spec"]["topology"]

    found, wanted = topology(name), topology("rke2")
    assert found["classRef"]["name"] == f"harvester-{name}"
    assert found["version"] == wanted["version"].replace("+rke2r1", release)
    own = ("classRef", "version", "variables")
    assert {key: found[key] for key in found if key not in own} == {
        key: wanted[key] for key in wanted if key not in own
    }
    assert found["variables"] == [entry for entry in wanted["variables"] if entry["name"] != "cni"]


@pytest.mark.parametrize("example", [name for name in EXAMPLES if name.endswith(("-clusterclass.yaml", "-stig.yaml"))])
def test_variables_are_those_of_the_class(checkout: Path, example: str) -> None:
    (cluster,) = yaml.safe_load_all((checkout / "examples" / example).read_text())
    topology = cluster["spec"]["topology"]
    folder = data.folder("clusterclass") / topology["classRef"]["name"]
    known = yaml.safe_load((folder / "clusterclass.yaml").read_text())["spec"]["variables"]
    schemas = {entry["name"]: entry["schema"]["openAPIV3Schema"] for entry in known}
    given = {entry["name"]: entry["value"] for entry in topology["variables"]}
    for name, value in given.items():
        Draft202012Validator(schemas[name]).validate(value)
    assert {entry["name"] for entry in known if entry["required"]} <= given.keys()


@pytest.mark.parametrize("name", ["rke2-pools", "rke2-dhcp", "k3s", "kubeadm"])
def test_objects_one_by_one_say_what_the_class_of_the_distribution_says(checkout: Path, name: str) -> None:
    folder = data.folder("clusterclass") / f"harvester-{name.partition('-')[0]}"
    classes = {obj["kind"]: obj for obj in yaml.safe_load_all((folder / "templates.yaml").read_text())}
    specs = {
        obj["kind"]: obj["spec"] for obj in yaml.safe_load_all((checkout / "examples" / f"{name}.yaml").read_text())
    }
    (control_plane,) = (kind for kind in specs if kind.endswith("ControlPlane"))
    (bootstrap,) = (kind for kind in specs if kind.endswith("ConfigTemplate"))
    inner = classes[f"{control_plane}Template"]["spec"]["template"]["spec"]
    assert {field: specs[control_plane][field] for field in inner} == inner
    assert specs[bootstrap] == classes[bootstrap]["spec"]
    # RKE2's nodes register at a port of their own.
    balancer = classes["HarvesterClusterTemplate"]["spec"]["template"]["spec"]["loadBalancerConfig"]
    assert specs["HarvesterCluster"]["loadBalancerConfig"].get("listeners") == balancer.get("listeners")
    assert ("listeners" in balancer) is name.startswith("rke2")


@pytest.mark.parametrize(
    "example", [name for name in EXAMPLES if not name.endswith(("-clusterclass.yaml", "-stig.yaml"))]
)
def test_machines_are_replaced_as_with_a_class(checkout: Path, example: str) -> None:
    known = yaml.safe_load((data.folder("clusterclass") / "class.yaml").read_text())["healthCheck"]
    objects = yaml.safe_load_all((checkout / "examples" / example).read_text())
    (check,) = (obj["spec"] for obj in objects if obj["kind"] == "MachineHealthCheck")
    assert {field: check[field] for field in known} == known


@pytest.mark.parametrize("example", EXAMPLES)
def test_references_lead_to_objects_of_the_example(checkout: Path, example: str) -> None:
    objects = list(yaml.safe_load_all((checkout / "examples" / example).read_text()))
    present = {(obj["kind"], obj["metadata"]["name"]) for obj in objects}
    assert {(ref["kind"], ref["name"]) for obj in objects for ref in references(obj.get("spec"))} <= present


def references(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        return [ref for item in value for ref in references(item)]
    if not isinstance(value, dict):
        return []
    own = [
        child for name, child in value.items() if name.endswith("Ref") and isinstance(child, dict) and "kind" in child
    ]
    return own + [ref for child in value.values() for ref in references(child)]
