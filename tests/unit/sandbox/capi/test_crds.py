"""The sandbox's CRDs of others ask for nothing that the real ones do not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from caphv.api.object import Obj
from sandbox.capi import crds as providers
from sandbox.harvester.fixtures import custom_resource_definitions
from tests.support.openapi import fields, object_schema

pytestmark = pytest.mark.unit

CRDS = (*custom_resource_definitions(), *providers.custom_resource_definitions())
OLDER = providers.custom_resource_definitions("v1beta1")
# Each kind, and those of RKE2's providers in v1beta1, too.
OURS = {crd["metadata"]["name"]: crd for crd in CRDS} | {
    f"{crd['metadata']['name']} of v1beta1": crd for crd in OLDER if crd["spec"]["names"]["kind"].startswith("RKE2")
}
# These, and those of CDI, K3s, kubeadm and Talos, are not among the CRDs that we have to compare with.
WITHOUT_REAL = {"network-attachment-definitions.k8s.cni.cncf.io", "virtualmachinebackups.harvesterhci.io"} | {
    name for name in OURS if name.startswith(("kthrees", "kubeadm", "talos")) or name.endswith("cdi.kubevirt.io")
}


@pytest.fixture(scope="module")
def real(shared_crds: Path) -> dict[str, Obj]:
    found = [crd for file in shared_crds.glob("*.yaml") for crd in yaml.load_all(file.read_text(), yaml.CSafeLoader)]
    return {crd["metadata"]["name"]: crd for crd in found if crd and crd.get("kind") == "CustomResourceDefinition"}


@pytest.mark.parametrize("name", sorted(OURS.keys() - WITHOUT_REAL))
def test_every_property_is_in_the_real_one_with_its_type(name: str, real: dict[str, Obj]) -> None:
    for version in OURS[name]["spec"]["versions"]:
        theirs = dict(fields(object_schema(real[OURS[name]["metadata"]["name"]], version["name"])))
        for path, schema in fields(object_schema(OURS[name], version["name"])):
            assert path in theirs, path
            assert _type(schema) == _type(theirs[path]), path


# A user of v1beta1 may leave out more than the sandbox does.
@pytest.mark.parametrize("name", sorted({crd["metadata"]["name"] for crd in CRDS} - WITHOUT_REAL))
def test_all_that_the_real_one_requires_is_required(name: str, real: dict[str, Obj]) -> None:
    for version in OURS[name]["spec"]["versions"]:
        theirs = dict(fields(object_schema(real[OURS[name]["metadata"]["name"]], version["name"])))
        for path, schema in fields(object_schema(OURS[name], version["name"])):
            if "properties" in schema:
                assert set(schema.get("required", ())) == set(theirs[path].get("required", ())), path


@pytest.mark.parametrize("name", sorted(OURS.keys() - WITHOUT_REAL))
def test_scope_names_and_subresources_are_the_real_ones(name: str, real: dict[str, Obj]) -> None:
    ours, theirs = OURS[name]["spec"], real[OURS[name]["metadata"]["name"]]["spec"]
    assert ours["scope"] == theirs["scope"]
    assert ours["names"]["kind"] == theirs["names"]["kind"]
    for version in ours["versions"]:
        other = next(entry for entry in theirs["versions"] if entry["name"] == version["name"])
        assert ("status" in version.get("subresources", {})) == ("status" in (other.get("subresources") or {}))


def test_nodes_of_rke2_find_where_they_join_in_each_contract() -> None:
    for crds in (CRDS, OLDER):
        (crd,) = [crd for crd in crds if crd["spec"]["names"]["kind"] == "RKE2ControlPlane"]
        for version in crd["spec"]["versions"]:
            assert ".status.availableServerIPs" in dict(fields(object_schema(crd, version["name"])))


def _type(schema: Obj) -> str:
    return "int-or-string" if schema.get("x-kubernetes-int-or-string") else str(schema.get("type"))
