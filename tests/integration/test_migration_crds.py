"""Our CRDs over those of the Go provider: without its conversion webhook, everything stays readable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from caphv import data
from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, Obj, Resource, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Invalid, NotFound
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.openapi import example_object, without_rules
from tests.support.predecessor import crds
from tests.support.reconciler.machines import machine_spec
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.integration

SPACE = "team-a"
OLD, NEW = "v1alpha1", "v1beta1"
CLUSTER = {
    "targetNamespace": "team-a-vms",
    "identitySecret": {"name": "identity", "namespace": SPACE},
    "loadBalancerConfig": {"ipamType": "dhcp"},
    "server": "https://192.0.2.1:6443",
    "controlPlaneEndpoint": {"host": "192.0.2.10", "port": 6443},
}
SPECS: dict[str, Obj] = {
    "HarvesterCluster": CLUSTER,
    "HarvesterClusterTemplate": {"template": {"spec": CLUSTER}},
    "HarvesterMachine": {**machine_spec(), "providerID": "harvester://0c4f1a52"},
    "HarvesterMachineTemplate": {"template": {"spec": machine_spec()}},
}
Install = Callable[[ApiClient, Obj], Awaitable[None]]


@pytest.fixture
def server(runner: asyncio.Runner, api_server: ApiServer) -> Iterator[ApiServer]:
    """The shared API server, where each test finds a namespace and none of the CRDs."""
    runner.run(cleared(api_server))
    yield api_server
    runner.run(cleared(api_server))


async def cleared(server: ApiServer) -> None:
    async with server.client() as client:
        await manifests.apply(client, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}])
        names = [f"{kind.lower()}s.{crds.GROUP}" for kind in SPECS]
        for name in names:
            with contextlib.suppress(NotFound):
                # Objects are deleted with their CRD, if the API server can read them.
                await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, "", crds.WITHOUT_WEBHOOK)
                await client.delete(CUSTOM_RESOURCE_DEFINITIONS, name)
        # kube-apiserver's finalizer of CRDs begins again after a minute, if it still finds objects.
        await until(lambda: gone(client, names), "the CRDs are deleted", seconds=3 * PATIENCE)


async def gone(client: ApiClient, names: list[str]) -> bool:
    for name in names:
        with contextlib.suppress(NotFound):
            await client.get(CUSTOM_RESOURCE_DEFINITIONS, name)
            return False
    return True


def resource(kind: str, version: str) -> Resource:
    return Resource(crds.GROUP, version, f"{kind.lower()}s", kind)


def ours() -> list[Obj]:
    """Our CRDs of the kinds that the Go provider has, too."""
    crds = manifests.read(sorted(data.folder("deploy/crds").glob("*.yaml")))
    return [crd for crd in crds if crd["spec"]["names"]["kind"] in SPECS]


async def merged(client: ApiClient, crd: Obj) -> None:
    """As clusterctl and the operator of Turtles do: the whole manifest is a merge patch."""
    await client.patch(CUSTOM_RESOURCE_DEFINITIONS, crd["metadata"]["name"], "", crd)


async def applied(client: ApiClient, crd: Obj) -> None:
    """As `kubectl apply --server-side --force-conflicts` does."""
    await client.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, manager="kubectl")


@asynccontextmanager
async def left_by_the_go_provider(server: ApiServer, folder: Path) -> AsyncIterator[tuple[ApiClient, dict[str, Obj]]]:
    """A server with objects of both storage versions, and these by kind and name; no conversion webhook answers."""
    async with server.client() as client:
        async with crds.conversion_webhook(folder) as client_config:
            await manifests.apply(client, crds.custom_resource_definitions(client_config, stored=OLD))
            await write(client, OLD, "early")
            for crd in crds.custom_resource_definitions(client_config):
                await client.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, manager="clusterctl")
            await until_stored(client)
            await write(client, NEW, "late")
            objects = {
                f"{kind}/{name}": obj for kind in SPECS for name, obj in (await listed(client, kind, NEW)).items()
            }
        assert len(objects) == 8
        yield client, objects


async def write(client: ApiClient, version: str, name: str) -> None:
    for kind, spec in SPECS.items():
        metadata = {"name": name, "namespace": SPACE}
        found = resource(kind, version)
        obj = {"apiVersion": found.api_version, "kind": kind, "metadata": metadata, "spec": spec}
        await client.create(found, obj)


async def until_stored(client: ApiClient) -> None:
    """Until the API server stores the newer version, which shows a moment after its CRD."""
    for kind in SPECS:
        await until(lambda kind=kind: stores(client, kind, [OLD, NEW]), lambda kind=kind: f"{kind} is stored otherwise")


async def stores(client: ApiClient, kind: str, versions: list[str]) -> bool:
    crd = await client.get(CUSTOM_RESOURCE_DEFINITIONS, f"{kind.lower()}s.{crds.GROUP}")
    return bool(crd["status"]["storedVersions"] == versions)


async def listed(client: ApiClient, kind: str, version: str) -> dict[str, Obj]:
    found = await client.list(resource(kind, version), SPACE)
    return {obj["metadata"]["name"]: obj for obj in found["items"]}


async def until_served(client: ApiClient) -> None:
    """Until the API server has taken up other CRDs: for a moment it still asks the webhook of the former ones."""

    async def answers() -> bool:
        with contextlib.suppress(ApiError):
            for kind in SPECS:
                for version in (OLD, NEW):
                    await listed(client, kind, version)
            return True
        return False

    await until(answers, lambda: "objects cannot be read in both versions")


@pytest.mark.parametrize("install", [merged, applied])
async def test_objects_of_both_storage_versions_stay_without_the_webhook(
    server: ApiServer, tmp_path: Path, install: Install
) -> None:
    async with left_by_the_go_provider(server, tmp_path) as (client, before):
        with pytest.raises(ApiError, match="conversion webhook"):
            await write(client, OLD, "refused")
        await crds_are_replaced(client, install)
        for version in (OLD, NEW):
            for kind in SPECS:
                for name, obj in (await listed(client, kind, version)).items():
                    was = before[f"{kind}/{name}"]
                    assert (uid_of(obj), obj["spec"]) == (uid_of(was), was["spec"])
        await they_can_be_written_in_both_versions(client)
        await storage_can_be_moved_on(client)


async def crds_are_replaced(client: ApiClient, install: Install) -> None:
    """First the guide's patch, without which no way of installing gets the webhook out."""
    for crd in ours():
        with pytest.raises(Invalid, match="strategy"):
            await install(client, crd)
        await client.patch(CUSTOM_RESOURCE_DEFINITIONS, crd["metadata"]["name"], "", crds.WITHOUT_WEBHOOK)
        await install(client, crd)
    await until_served(client)


async def they_can_be_written_in_both_versions(client: ApiClient) -> None:
    for version in (OLD, NEW):
        for name in ("early", "late"):
            patch = {"status": {"ready": True, "allocatedIPAddress": "192.0.2.20"}}
            machines = resource("HarvesterMachine", version)
            written = await client.patch(machines, name, SPACE, patch, subresource="status")
            assert written["status"] == patch["status"]


async def storage_can_be_moved_on(client: ApiClient) -> None:
    """What docs/migration.md says about `storedVersions`: write each object once, then forget the older version."""
    for kind in SPECS:
        assert await stores(client, kind, [OLD, NEW])
        for obj in (await listed(client, kind, NEW)).values():
            await client.replace(resource(kind, NEW), obj)
        status = {"status": {"storedVersions": [NEW]}}
        name = f"{kind.lower()}s.{crds.GROUP}"
        await client.patch(CUSTOM_RESOURCE_DEFINITIONS, name, "", status, subresource="status")
        assert await stores(client, kind, [NEW])
        assert set(await listed(client, kind, OLD)) == {"early", "late"}


async def test_the_go_provider_finds_all_its_fields_after_us(server: ApiServer, shared_crds: Path) -> None:
    """Rollback to its real CRDs: what it knows is as we had it, and what it does not know no longer exists."""
    theirs: list[Obj] = manifests.read(sorted((shared_crds / "go-provider").glob("*.yaml")))

    async with server.client() as client:
        await manifests.apply(client, ours())
        # With fields, too, that exclude each other: whatever was stored has to be found.
        async with without_rules(client, [crd["metadata"]["name"] for crd in theirs]):
            for crd in theirs:
                await write_all_fields(client, crd)
        for crd in theirs:
            await client.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, manager="caphv-sandbox")
        await until_served(client)
        for crd in theirs:
            obj = example_object(crd, NEW, "all", SPACE)
            found = await client.get(resource(crd["spec"]["names"]["kind"], NEW), "all", SPACE)
            assert {part: found.get(part) for part in ("spec", "status")} == {
                part: obj.get(part) for part in ("spec", "status")
            }


async def write_all_fields(client: ApiClient, crd: Obj) -> None:
    """An object with all fields of the Go provider's CRD, and some that only we know."""
    kind = crd["spec"]["names"]["kind"]
    obj = example_object(crd, NEW, "all", SPACE)
    made = await client.create(resource(kind, NEW), {**obj, **beyond(kind, obj)})
    if "status" in obj:
        status = {**made, "status": {**obj["status"], "virtualMachine": {"uid": "0c4f1a52"}}}
        await client.replace(resource(kind, NEW), status, subresource="status")


def beyond(kind: str, obj: Obj) -> Obj:
    """The spec of an object with a field that only we know."""
    if kind == "HarvesterMachine":
        return {"spec": {**obj["spec"], "guestConfig": {"disableFstrimTimer": True}}}
    if kind == "HarvesterCluster":
        return {"spec": {**obj["spec"], "cloudConfig": {"delivery": "Secret"}}}
    return {}


async def test_crds_of_the_go_provider_can_come_back(server: ApiServer, tmp_path: Path) -> None:
    """Rollback: its CRDs, webhook included, over ours; what both know is as it was, for readers of both versions."""

    async with left_by_the_go_provider(server, tmp_path) as (client, before):
        await crds_are_replaced(client, merged)
        async with crds.conversion_webhook(tmp_path) as client_config:
            for crd in crds.custom_resource_definitions(client_config):
                await merged(client, crd)
            await until_served(client)
            for version in (OLD, NEW):
                for kind in SPECS:
                    for name, obj in (await listed(client, kind, version)).items():
                        was = before[f"{kind}/{name}"]
                        assert (uid_of(obj), obj["spec"]) == (uid_of(was), was["spec"])
