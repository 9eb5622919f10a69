"""The shipped ClusterClasses fit the CRDs of their templates, and their patches fit the templates."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from caphv import data
from caphv.runtime.resource import Obj
from sandbox.rke2 import crds as rke2
from tests.support import object_schema

pytestmark = pytest.mark.unit

CLASSES = sorted(folder.name for folder in data.folder("clusterclass").iterdir() if folder.is_dir())


def objects(name: str) -> list[Obj]:
    files = sorted((data.folder("clusterclass") / name).glob("*.yaml"))
    return [obj for file in files for obj in yaml.safe_load_all(file.read_text())]


def the_class(name: str) -> Obj:
    (found,) = (obj for obj in objects(name) if obj["kind"] == "ClusterClass")
    return found


def read_crds(folder: Path) -> dict[tuple[str, str], Obj]:
    found = [crd for file in folder.glob("*.yaml") for crd in yaml.load_all(file.read_text(), yaml.CSafeLoader)]
    crds = [crd for crd in found if crd and crd.get("kind") == "CustomResourceDefinition"]
    return {(crd["spec"]["group"], crd["spec"]["names"]["kind"]): crd for crd in crds}


def strict(schema: Any) -> Any:
    """The schema with all unknown fields refused, as the core's server side apply does."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    free = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not free:
        found["additionalProperties"] = False
    return found


def problems(obj: Obj, crd: Obj) -> list[str]:
    version = obj["apiVersion"].rpartition("/")[2]
    schema = copy.deepcopy(object_schema(crd, version))
    schema["properties"]["metadata"] = {"type": "object"}
    validator = jsonschema.Draft202012Validator(strict(schema))
    return [f"{obj['kind']} {error.json_path}: {error.message}" for error in validator.iter_errors(obj)]


def templates(name: str) -> Iterator[tuple[tuple[str, str], Obj]]:
    for obj in objects(name):
        if obj["kind"] != "ClusterClass":
            yield (obj["apiVersion"].partition("/")[0], obj["kind"]), obj


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


@pytest.mark.parametrize("name", CLASSES)
def test_templates_fit_our_own_crds_and_those_of_the_sandbox(name: str) -> None:
    crds = read_crds(data.folder("deploy/crds"))
    for crd in rke2.custom_resource_definitions():
        crds[crd["spec"]["group"], crd["spec"]["names"]["kind"]] = crd
    found = [problem for kind, obj in templates(name) for problem in problems(obj, crds[kind])]
    assert found == []


@pytest.mark.parametrize("name", CLASSES)
def test_templates_fit_the_real_crds_of_rke2(name: str, shared_crds: Path) -> None:
    crds = read_crds(shared_crds)
    checked = [(kind, obj) for kind, obj in templates(name) if kind in crds]
    assert len(checked) == 2
    assert [problem for kind, obj in checked for problem in problems(obj, crds[kind])] == []


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
    for definition in definitions(name):
        selected = by_kind[definition["selector"]["apiVersion"], definition["selector"]["kind"]]
        for patch in definition["jsonPatches"]:
            path = patch["path"].strip("/").split("/")
            for template in selected:
                parent = template
                for part in path[:-1]:
                    parent = parent[part]
                assert (path[-1] in parent) is (patch["op"] == "replace"), patch


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


@pytest.mark.parametrize("name", CLASSES)
def test_addons_have_no_defaults_which_the_core_would_write_into_every_cluster(name: str) -> None:
    (addons,) = (variable for variable in the_class(name)["spec"]["variables"] if variable["name"] == "addons")
    assert "default" not in yaml.safe_dump(addons)


@pytest.mark.parametrize("name", CLASSES)
def test_variables_of_clusters_of_the_go_provider_are_taken_as_they_are(name: str) -> None:
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
        "ipPoolRef": "prod-ip-pool",
        "dnsServers": ["172.16.0.1"],
    }
    variables = {variable["name"]: variable for variable in the_class(name)["spec"]["variables"]}
    for key, value in values.items():
        jsonschema.validate(value, strict(variables[key]["schema"]["openAPIV3Schema"]))
    assert {key for key, variable in variables.items() if variable["required"]} <= values.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_machines_are_replaced_as_the_operations_guide_says(name: str) -> None:
    spec = the_class(name)["spec"]
    for role in (spec["controlPlane"], *spec["workers"]["machineDeployments"]):
        check = role["healthCheck"]
        assert check["remediation"]["triggerIf"]["unhealthyLessThanOrEqualTo"] == "34%"
        assert check["checks"]["nodeStartupTimeoutSeconds"] == 20 * 60
        found = {
            (entry["type"], entry["status"], entry["timeoutSeconds"])
            for entry in check["checks"]["unhealthyNodeConditions"]
        }
        assert found == {("Ready", "False", 300), ("Ready", "Unknown", 300)}
