"""Values that the variables of a ClusterClass allow, and the objects that it makes of them do not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv import data
from caphv.api.object import Obj
from caphv.validation.finding import Finding
from webhooks.crossobject import check_together
from webhooks.crossobject.topology import shipped_class

pytestmark = pytest.mark.unit

RULE, SHIPPED = "topology-objects", ("harvester-rke2", "harvester-k3s", "harvester-kubeadm")
VARIABLES: Obj = {"vmNetworks": ["default/production"], "sshKeyPair": "default/admin", "image": "default/sles"}
POOLS: Obj = {"ipPoolRef": "machines", "gateway": "172.16.0.1", "subnetMask": "255.255.0.0"}
TEMPLATES = list(yaml.safe_load_all((data.folder("clusterclass") / SHIPPED[0] / "templates.yaml").read_text()))
VALUE = "spec.topology.variables[3].value"


def cluster(variables: Obj, class_name: str = SHIPPED[0], **workers: Obj) -> Obj:
    entries = [
        {
            "class": "default-worker",
            "name": name,
            "replicas": 1,
            "variables": {"overrides": [{"name": one, "value": value} for one, value in overrides.items()]},
        }
        for name, overrides in workers.items()
    ]
    topology = {
        "classRef": {"name": class_name},
        "version": "v1.36.2",
        "controlPlane": {"replicas": 3},
        "workers": {"machineDeployments": entries},
        "variables": [{"name": name, "value": value} for name, value in variables.items()],
    }
    metadata = {"name": "production", "namespace": "clusters"}
    api = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}
    return {**api, "metadata": metadata, "spec": {"topology": topology}}


def findings(*objs: Obj) -> list[Finding]:
    return [located.finding for located in check_together(objs)]


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("more", [{}, POOLS])
def test_values_that_work_are_no_finding(name: str, more: Obj) -> None:
    assert findings(cluster(VARIABLES | more, name, first={}, second={"cpuCount": 8})) == []


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"targetNamespace": "My_Team"}, VALUE),
        ({"loadBalancer": {"ipamType": "dhcp", "ipPoolRef": "balancers"}}, f"{VALUE}.ipPoolRef"),
        ({"volumes": [{"volumeType": "image", "imageName": "default/x"}]}, f"{VALUE}[0].volumeSize"),
        ({"controlPlane": {"volumes": [{"volumeType": "image"}]}}, f"{VALUE}.volumes[0].volumeSize"),
        ({"controlPlane": {"cpuCount": 4000}}, f"{VALUE}.cpuCount"),
        ({"tpm": {"persistent": True}}, f"{VALUE}.persistent"),
        ({"memorySize": "4"}, VALUE),
        ({"cpuCount": 4000}, VALUE),
        ({"sshUser": "open suse"}, VALUE),
        ({"ipPoolRef": "machines", "subnetMask": "255.255.0.0"}, VALUE),
        (POOLS | {"subnetMask": "255.0.255.0"}, "spec.topology.variables[5].value"),
        (POOLS | {"dnsSearch": ["example.com", "example com"]}, "spec.topology.variables[6].value[1]"),
        ({"vmNetworks": ["default/a", "default/a"]}, "spec.topology.variables[0].value[0]"),
        ({"image": None}, "spec.topology.variables"),
    ],
)
@pytest.mark.parametrize("name", SHIPPED)
def test_finding_is_at_the_variable(name: str, given: Obj, field: str) -> None:
    variables = {one: value for one, value in (VARIABLES | given).items() if value is not None}
    found = findings(cluster(variables, name, workers={}))
    assert (RULE, field) in {(each.rule, each.field) for each in found}, found
    assert len({str(each) for each in found}) == len(found)


def test_finding_names_the_object_and_the_override() -> None:
    (found,) = findings(cluster(VARIABLES, first={}, second={"cpuCount": 4000}))
    assert found.field == "spec.topology.workers.machineDeployments[1].variables.overrides[0].value"
    assert "(spec.template.spec.cpu of the HarvesterMachineTemplate of MachineDeployment second)" in found.detail


def of_user() -> tuple[Obj, list[Obj]]:
    """A ClusterClass of a user with its templates."""
    shipped = shipped_class(SHIPPED[0])
    assert shipped
    return {**shipped.obj, "metadata": {"name": "own"}}, copy.deepcopy(TEMPLATES)


def test_class_among_the_files_is_used() -> None:
    own, templates = of_user()
    assert findings(own, *templates, cluster(VARIABLES, "own")) == []
    (found,) = findings(own, *templates, cluster(VARIABLES | {"cpuCount": 4000}, "own"))
    assert (found.rule, found.field) == (RULE, "spec.topology.variables[3].value")
    bare = findings(own, cluster(VARIABLES | {"cpuCount": 4000}, "own"))
    assert RULE not in {each.rule for each in bare}, "the templates are unknown"


def test_fault_of_a_template_is_not_repeated() -> None:
    own, templates = of_user()
    next(each for each in templates if each["kind"] == "HarvesterClusterTemplate")["spec"]["template"]["spec"] |= {
        "loadBalancerConfig": {"ipamType": "dhcp", "ipPoolRef": "balancers"}
    }
    assert findings(own, *templates, cluster(VARIABLES, "own")) == []


DISKS: Obj = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"volumeType": {"type": "string", "default": "image"}, "imageName": {"type": "string"}},
        "additionalProperties": {"x-kubernetes-preserve-unknown-fields": True},
    },
}
KINDS: Obj = {"type": "object", "additionalProperties": {"type": "object", "properties": {"cpu": {"default": 2}}}}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("networks/0", {"variable": "nets[0]"}),
        ("networks/0", {"variable": "nets[7]"}),
        ("networks/0", {"variable": "net"}),
        ("volumes", {"variable": "disks"}),
        ("cpu", {"variable": "kinds.small.cpu"}),
        ("sshUser", {"variable": "builtin.machineDeployment.name"}),
        ("sshUser", {"variable": "builtin.cluster.uid"}),
        ("sshUser", {"variable": "builtin.machineDeployment"}),
        ("sshUser", {"template": "u{{ .builtin.machineDeployment.name }}"}),
        ("sshUser", {"template": "{{ $b := .builtin }}u{{ $b.cluster.topology.class }}"}),
        ("sshUser", {"template": "{{ if .builtin.controlPlane }}not valid{{ else }}u{{ end }}"}),
        ("cpu", {"variable": "builtin.machineDeployment.replicas"}),
    ],
)
def test_valid_clusters_of_other_classes_are_no_finding(path: str, source: Obj) -> None:
    own, templates = of_user()
    schemas = {"nets": {"type": "array", "items": {"type": "string"}}, "disks": DISKS, "kinds": KINDS}
    selector = {
        "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
        "kind": "HarvesterMachineTemplate",
        "matchResources": {"machineDeploymentClass": {"names": ["default-worker"]}},
    }
    operation = {"op": "replace", "path": f"/spec/template/spec/{path}", "valueFrom": source}
    definitions = [{"selector": selector, "jsonPatches": [operation]}]
    variables = [{"name": name, "schema": {"openAPIV3Schema": schema}} for name, schema in schemas.items()]
    own["spec"] = {
        **own["spec"],
        "variables": [*own["spec"]["variables"], *variables],
        "patches": [*own["spec"]["patches"], {"name": "own", "definitions": definitions}],
    }
    disk = {"imageName": "default/sles", "volumeSize": "40Gi", "bootOrder": 1}
    values = VARIABLES | {"nets": ["default/a"], "disks": [disk], "kinds": {"small": {}}}
    assert findings(own, *templates, cluster(values, "own", first={})) == []


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("a{} .", max_size=6),
    lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from(["name", "spec"]), below, max_size=2),
    max_leaves=4,
)
PLACES = st.sampled_from(["metadata", "infrastructure", "controlPlane", "workers", "variables", "patches"])


@settings(max_examples=40)
@given(PLACES, ANYTHING, st.booleans())
def test_class_of_another_form_raises_nothing(place: str, value: Any, in_class: bool) -> None:
    own, templates = of_user()
    made = cluster(VARIABLES, "own", workers={})
    changed = own if in_class else made
    inner = changed if place == "metadata" else changed["spec"] if in_class else changed["spec"]["topology"]
    changes = {**inner, place: value}
    if place == "metadata":
        changed = changes
    elif in_class:
        changed = {**own, "spec": changes}
    else:
        changed = {**made, "spec": {"topology": changes}}
    findings(*(changed, made) if in_class else (own, changed), *templates)
