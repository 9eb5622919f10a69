"""The CRDs have what Cluster API's contract v1beta2 demands of an infrastructure provider's kinds.

The rules are those of cluster-api v1.13.6, docs/book/src/developer/providers/contracts: infra-cluster.md and
infra-machine.md. docs/reference/contract.md lists them all, with these and other tests.
"""

import pytest
import yaml

from caphv import data
from caphv.api import crds, names
from caphv.api.object import Obj
from tests.support.openapi import object_schema

pytestmark = pytest.mark.unit

CRDS = {crd["spec"]["names"]["kind"]: crd for crd in crds.custom_resource_definitions()}
KINDS = ("HarvesterCluster", "HarvesterMachine")
# No part of the contract: credentials that clusters share.
IDENTITY = "HarvesterClusterIdentity"
VERSIONED = [(kind, version) for kind in CRDS for version in names.VERSIONS]
# What the core accepts at most for Cluster.status.failureDomains and Machine.status.failureDomain.
LONGEST_DOMAIN = 256
ADDRESS_TYPES = {"Hostname", "ExternalIP", "InternalIP", "ExternalDNS", "InternalDNS"}
ARCHITECTURES = {"amd64", "arm64", "s390x", "ppc64le"}


def schema(kind: str, version: str, *path: str) -> Obj:
    """The schema of a field; `[]` leads to the items of a list."""
    node = object_schema(CRDS[kind], version)
    for name in path:
        node = node["items"] if name == "[]" else node["properties"][name]
    return node


def types(node: Obj) -> dict[str, str]:
    return {name: child["type"] for name, child in node["properties"].items()}


def test_each_kind_and_its_template_are_namespaced_and_have_the_names_that_the_core_computes() -> None:
    """The core finds a CRD by the plural of the kind in lower case, and the group."""
    assert sorted(CRDS) == sorted([*KINDS, *(f"{kind}Template" for kind in KINDS), IDENTITY])
    for kind, crd in CRDS.items():
        if kind == IDENTITY:
            continue
        spec, plural = crd["spec"], f"{kind.lower()}s"
        assert spec["scope"] == "Namespaced"
        assert crd["metadata"]["name"] == f"{plural}.{spec['group']}"
        assert (spec["names"]["plural"], spec["names"]["listKind"]) == (plural, f"{kind}List")
        # In this group the core's role may write; another one would need a role of its own for the core.
        assert spec["group"] == "infrastructure.cluster.x-k8s.io"


@pytest.mark.parametrize(("kind", "version"), VERSIONED)
def test_each_kind_has_type_and_object_metadata(kind: str, version: str) -> None:
    found = types(schema(kind, version))
    assert {name: found[name] for name in ("apiVersion", "kind", "metadata", "spec")} == {
        "apiVersion": "string",
        "kind": "string",
        "metadata": "object",
        "spec": "object",
    }


@pytest.mark.parametrize("kind", CRDS)
def test_labels_name_served_versions_for_the_contract_of_the_newest_release_series(kind: str) -> None:
    metadata = yaml.safe_load((data.folder("deploy/clusterctl") / "metadata.yaml").read_text(encoding="utf-8"))
    newest = max(metadata["releaseSeries"], key=lambda series: (series["major"], series["minor"]))
    served = [version["name"] for version in CRDS[kind]["spec"]["versions"] if version["served"]]
    labels = CRDS[kind]["metadata"]["labels"]
    contracts = [name.partition("/")[2] for name in labels if name.startswith("cluster.x-k8s.io/v")]
    assert newest["contract"] == max(contracts) == "v1beta2"
    label = labels[f"cluster.x-k8s.io/{newest['contract']}"]
    assert label.split("_") == served
    # The core takes the last one.
    assert label.endswith(f"_{names.STORED_VERSION}")


@pytest.mark.parametrize("version", names.VERSIONS)
def test_control_plane_endpoint_has_host_and_port(version: str) -> None:
    endpoint = schema("HarvesterCluster", version, "spec", "controlPlaneEndpoint")
    assert types(endpoint) == {"host": "string", "port": "integer"}
    assert "required" not in endpoint
    assert "controlPlaneEndpoint" not in schema("HarvesterCluster", version, "spec").get("required", ())


@pytest.mark.parametrize("version", names.VERSIONS)
def test_failure_domains_have_name_role_and_attributes(version: str) -> None:
    domain = schema("HarvesterCluster", version, "status", "failureDomains", "[]")
    assert types(domain) == {"name": "string", "controlPlane": "boolean", "attributes": "object"}
    assert domain["properties"]["name"]["maxLength"] == LONGEST_DOMAIN
    assert domain["properties"]["attributes"]["additionalProperties"] == {"type": "string"}
    assert schema("HarvesterMachine", version, "status", "failureDomain")["type"] == "string"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", names.VERSIONS)
def test_status_reports_provisioning_to_both_contracts_and_conditions(kind: str, version: str) -> None:
    assert types(schema(kind, version, "status", "initialization")) == {"provisioned": "boolean"}
    assert schema(kind, version, "status", "ready")["type"] == "boolean"
    assert types(schema(kind, version, "status", "conditions", "[]")) == {
        "type": "string",
        "status": "string",
        "reason": "string",
        "message": "string",
        "lastTransitionTime": "string",
        "observedGeneration": "integer",
    }
    (served,) = [found for found in CRDS[kind]["spec"]["versions"] if found["name"] == version]
    assert served["subresources"] == {"status": {}}


@pytest.mark.parametrize("version", names.VERSIONS)
def test_machine_has_provider_id_and_typed_addresses(version: str) -> None:
    assert schema("HarvesterMachine", version, "spec", "providerID")["type"] == "string"
    assert "providerID" not in schema("HarvesterMachine", version, "spec").get("required", ())
    address = schema("HarvesterMachine", version, "status", "addresses", "[]")
    assert types(address) == {"type": "string", "address": "string"}
    assert set(address["properties"]["type"]["enum"]) == ADDRESS_TYPES


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", names.VERSIONS)
def test_template_embeds_metadata_and_the_spec_of_its_kind(kind: str, version: str) -> None:
    template = schema(f"{kind}Template", version, "spec", "template")
    assert set(types(template)) == {"metadata", "spec"}
    assert types(template["properties"]["metadata"]) == {"labels": "object", "annotations": "object"}
    assert types(template["properties"]["spec"]) == types(schema(kind, version, "spec"))


@pytest.mark.parametrize("version", names.VERSIONS)
def test_machine_template_reports_capacity_and_platform_for_scaling_from_zero(version: str) -> None:
    status = schema("HarvesterMachineTemplate", version, "status")
    assert status["properties"]["capacity"]["additionalProperties"]["x-kubernetes-int-or-string"]
    platform = status["properties"]["nodeInfo"]
    assert types(platform) == {"architecture": "string", "operatingSystem": "string"}
    assert set(platform["properties"]["architecture"]["enum"]) == ARCHITECTURES
