"""Cluster API's API for IPAM providers, and a provider by its contract, with pools that a test makes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from caphv.api import resources
from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, Obj, Resource, at, being_deleted, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, NotFound, RequestError, TooManyRequests
from sandbox import manifests
from sandbox.processes import binaries
from tests.support.waiting import in_background, until

VERSION = resources.IPAM_VERSIONS[0]
CLAIMS, ADDRESSES = resources.ip_address_claims(VERSION), resources.ip_addresses(VERSION)
POOL_KIND = "InClusterIPPool"
# As the in-cluster provider has them.
RELEASE, PROTECT = "ipam.cluster.x-k8s.io/ReleaseAddress", "ipam.cluster.x-k8s.io/ProtectAddress"
_LONG_AGO = "2026-01-01T00:00:00Z"


def crds(*served: str) -> list[Obj]:
    """The CRDs of the core, with all versions or these."""
    folder = binaries.cluster_api_manifests() / "crd" / "bases"
    found = manifests.read(sorted(folder.glob("ipam.cluster.x-k8s.io_*.yaml")))
    for crd in found:
        for version in crd["spec"]["versions"] if served else ():
            version["served"] = version["storage"] = version["name"] in served
    return found


async def install(client: ApiClient, *served: str) -> None:
    """Install the CRDs, and wait until they are served."""
    await manifests.apply(client, crds(*served))


async def uninstall(client: ApiClient) -> None:
    """Remove the CRDs with all objects, also with those that wait for a provider that no longer runs."""

    async def removed() -> bool:
        found = False
        for resource in (CLAIMS, ADDRESSES):
            with contextlib.suppress(NotFound):
                for obj in (await client.list(resource))["items"]:
                    key = key_of(obj)
                    await client.patch(resource, key.name, key.namespace, {"metadata": {"finalizers": None}})
            with contextlib.suppress(NotFound):
                await client.delete(CUSTOM_RESOURCE_DEFINITIONS, str(resource))
                found = True
        return not found

    await until(removed, "CRDs of IPAM stay")


def pool_reference(name: str) -> dict[str, str]:
    """An entry of `addressesFromPools`."""
    return {"apiGroup": resources.IPAM_GROUP, "kind": POOL_KIND, "name": name}


def interface(*pools: str, network: str = "default/production", **settings: object) -> Obj:
    """An entry of `networkInterfaces` with these pools."""
    return {"network": network, "addressesFromPools": [pool_reference(name) for name in pools], **settings}


@dataclass
class Pool:
    """Addresses with their prefix and gateway; `used` has their claims."""

    addresses: list[str]
    prefix: int
    gateway: str = ""
    used: dict[str, str] = field(default_factory=dict)

    def take(self, claim: str) -> str:
        """An address for a claim; empty if none is free."""
        for address in self.addresses:
            if self.used.setdefault(address, claim) == claim:
                return address
        return ""

    def release(self, claim: str) -> None:
        """Take the address of a claim back."""
        self.used = {address: holder for address, holder in self.used.items() if holder != claim}


class IpamProvider:
    """A provider of `InClusterIPPool`s, which answers the claims of a namespace while it runs.

    It uses the API in `version`.
    """

    def __init__(self, client: ApiClient, namespace: str, *, version: str = VERSION, **pools: Pool) -> None:
        self._client, self._namespace = client, namespace
        self._claims, self._addresses = resources.ip_address_claims(version), resources.ip_addresses(version)
        self.pools = pools

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[IpamProvider]:
        """Answer claims until the end of the block."""
        async with in_background(self._run()):
            yield self

    async def _run(self) -> None:
        while True:
            # The storage of a new kind is not ready at once.
            with contextlib.suppress(Conflict, NotFound, TooManyRequests):
                for claim in (await self._client.list(self._claims, self._namespace))["items"]:
                    await self._answer(claim)
            await asyncio.sleep(0.05)

    async def _answer(self, claim: Obj) -> None:
        name, pool = claim["metadata"]["name"], self.pools.get(claim["spec"]["poolRef"]["name"])
        if being_deleted(claim):
            await self._release(claim, pool)
            return
        if at(claim, "status", "addressRef") or pool is None:
            return

        await self._set_finalizers(self._claims, claim, [RELEASE])
        address = pool.take(name)
        if not address:
            await self._report(name, "False", "PoolExhausted", "no free address")
            return
        owner = {
            "apiVersion": self._claims.api_version,
            "kind": self._claims.kind,
            "name": name,
            "uid": claim["metadata"]["uid"],
        }
        obj = {
            "apiVersion": self._addresses.api_version,
            "kind": self._addresses.kind,
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "ownerReferences": [
                    {**owner, "controller": True, "blockOwnerDeletion": True},
                    {**_pool_owner(claim), "controller": False, "blockOwnerDeletion": False},
                ],
                "finalizers": [PROTECT],
            },
            "spec": {
                "claimRef": {"name": name},
                "poolRef": claim["spec"]["poolRef"],
                "address": address,
                "prefix": pool.prefix,
                **({"gateway": pool.gateway} if pool.gateway else {}),
            },
        }
        with contextlib.suppress(Conflict):
            await self._client.create(self._addresses, obj)
        await self._report(name, "True", "Ready", "allocated", addressRef={"name": name})

    async def _release(self, claim: Obj, pool: Pool | None) -> None:
        name = claim["metadata"]["name"]
        with contextlib.suppress(NotFound):
            address = await self._client.get(self._addresses, name, self._namespace)
            await self._set_finalizers(self._addresses, address, [])
            await self._client.delete(self._addresses, name, self._namespace)
        if pool is not None:
            pool.release(name)
        await self._set_finalizers(self._claims, claim, [])

    async def _set_finalizers(self, resource: Resource, obj: Obj, finalizers: list[str]) -> None:
        if (obj["metadata"].get("finalizers") or []) != finalizers:
            patch = {"metadata": {"finalizers": finalizers}}
            await self._client.patch(resource, obj["metadata"]["name"], self._namespace, patch)

    async def _report(self, name: str, status: str, reason: str, message: str, **fields: Obj) -> None:
        condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
        patch = {"status": {"conditions": [{**condition, "lastTransitionTime": _LONG_AGO}], **fields}}
        await self._client.patch(self._claims, name, self._namespace, patch, subresource="status")


def _pool_owner(claim: Obj) -> Obj:
    name = claim["spec"]["poolRef"]["name"]
    return {"apiVersion": f"{resources.IPAM_GROUP}/v1alpha2", "kind": POOL_KIND, "name": name, "uid": f"uid-of-{name}"}


async def claims_of(client: ApiClient, namespace: str) -> dict[str, Obj]:
    """The claims of a namespace by name; none without the API."""
    try:
        return {claim["metadata"]["name"]: claim for claim in (await client.list(CLAIMS, namespace))["items"]}
    except RequestError:
        return {}
