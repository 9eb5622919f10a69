"""Our CRDs on a real API server: every field of the Go provider's is accepted and kept, in both versions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from caphv import data
from caphv.api.names import STORED_VERSION, VERSIONS
from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Invalid
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.openapi import CRDS, example_object, without_rules

pytestmark = pytest.mark.integration

NAMESPACE = "fields"


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    """The shared API server, with our CRDs."""

    async def define() -> None:
        crds = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        async with api_server.client() as client:
            await manifests.apply(client, [*crds, namespace])

    asyncio.run(define())
    return api_server


def resource_of(crd: Obj, version: str) -> Resource:
    spec = crd["spec"]
    return Resource(spec["group"], version, spec["names"]["plural"], spec["names"]["kind"])


async def stored(client: ApiClient, crd: Obj, version: str) -> Obj:
    """Create an object with every field of the Go provider's CRD, status included; unknown fields are errors."""
    resource, name = resource_of(crd, version), f"{crd['spec']['names']['singular']}-{version}"
    obj = example_object(crd, version, name, NAMESPACE)
    path = resource.path(NAMESPACE)
    strict = {"fieldValidation": "Strict"}
    made = await client.request("POST", path, resource=resource, body=obj, query=strict)
    if "status" in obj:
        body = {**made, "status": obj["status"]}
        await client.request(
            "PUT", resource.path(NAMESPACE, name, "status"), resource=resource, body=body, query=strict
        )
    return obj


async def test_every_field_of_the_go_provider_is_kept_in_both_versions(server: ApiServer, shared_crds: Path) -> None:
    theirs: Sequence[Obj] = manifests.read(sorted((shared_crds / "go-provider").glob("*.yaml")))
    assert len(theirs) == 4

    async with server.client() as client:
        # With fields, too, that exclude each other: the Go provider's CRDs let them be stored.
        async with without_rules(client, [crd["metadata"]["name"] for crd in theirs]):
            objects = [(crd, await stored(client, crd, version)) for crd in theirs for version in VERSIONS]
        for crd, obj in objects:
            for read in VERSIONS:
                await the_fields_are_there(client, resource_of(crd, read), obj)
            written = resource_of(crd, obj["apiVersion"].rpartition("/")[2])
            labels = {"metadata": {"labels": {"still": "accepted"}}}
            await client.patch(written, obj["metadata"]["name"], NAMESPACE, labels)


async def the_fields_are_there(client: ApiClient, resource: Resource, obj: Obj) -> None:
    found = await client.get(resource, obj["metadata"]["name"], NAMESPACE)
    assert found["apiVersion"] == resource.api_version
    for part in ("spec", "status"):
        assert found.get(part) == obj.get(part), f"{part} of {resource} written as {obj['apiVersion']}"


async def test_crds_are_stored_in_one_version_and_need_no_conversion(checkout: Path, server: ApiServer) -> None:
    async with server.client() as client:
        listed = await client.list(CRDS)
        ours = [crd for crd in listed["items"] if crd["spec"]["group"] == "infrastructure.cluster.x-k8s.io"]
        assert {f"{crd['spec']['group']}_{crd['spec']['names']['plural']}.yaml" for crd in ours} == {
            path.name for path in (checkout / "deploy" / "crds").glob("*.yaml")
        }
        for crd in ours:
            versions = crd["spec"]["versions"]
            assert {version["name"] for version in versions if version["served"]} == set(VERSIONS)
            assert [version["name"] for version in versions if version["storage"]] == [STORED_VERSION]
            assert crd["spec"]["conversion"]["strategy"] == "None"
            refused = [c for c in crd["status"]["conditions"] if c["type"] == "NonStructuralSchema"]
            assert refused == []


async def test_volume_type_is_an_enumeration_in_the_new_version_only(server: ApiServer) -> None:
    machines = {v: Resource("infrastructure.cluster.x-k8s.io", v, "harvestermachines", "X") for v in VERSIONS}
    spec = {
        "cpu": 1,
        "memory": "1Gi",
        "sshUser": "sles",
        "sshKeyPair": "default/caphv",
        "networks": ["default/production"],
        "volumes": [{"volumeType": "something", "volumeSize": "1Gi"}],
    }

    async with server.client() as client:
        for version, accepted in (("v1alpha1", True), ("v1beta1", False)):
            obj = {
                "apiVersion": f"infrastructure.cluster.x-k8s.io/{version}",
                "kind": "HarvesterMachine",
                "metadata": {"name": f"volume-{version}", "namespace": NAMESPACE},
                "spec": spec,
            }
            if accepted:
                await client.create(machines[version], obj, dry_run=True)
            else:
                with pytest.raises(Invalid, match="volumeType"):
                    await client.create(machines[version], obj, dry_run=True)
