"""The stand-ins for controllers of kube-controller-manager."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from caphv.api.object import CONFIG_MAPS, NAMESPACES, SECRETS, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.processes.apiserver import ApiServer
from sandbox.processes.garbage import GarbageCollector
from sandbox.processes.tokens import ACCOUNT, SECRET_TYPE, SERVICE_ACCOUNTS, TokenController
from tests.support.waiting import until

pytestmark = pytest.mark.integration


async def test_token_secret_is_filled_and_ends_with_its_account(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        await client.create(NAMESPACES, {"metadata": {"name": "tokens"}})
        async with _running(TokenController(client, api_server.ca.certificate.decode()).run()):
            metadata = {"name": "cloud", "namespace": "tokens"}
            await client.create(SERVICE_ACCOUNTS, {"metadata": metadata})
            annotated = {"name": "cloud-token", "namespace": "tokens", "annotations": {ACCOUNT: "cloud"}}
            await client.create(SECRETS, {"metadata": annotated, "type": SECRET_TYPE})
            data = await until(lambda: _token(client))
            assert base64.b64decode(data["namespace"]) == b"tokens"
            assert base64.b64decode(data["ca.crt"]) == api_server.ca.certificate
            token = base64.b64decode(data["token"]).decode()
            assert await _who_am_i(api_server, token) == "system:serviceaccount:tokens:cloud"
            await client.delete(SERVICE_ACCOUNTS, "cloud", "tokens")
            await until(lambda: _gone(client, SECRETS, "cloud-token", "tokens"))


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_dependents_go_with_their_owner(api_server: ApiServer, propagation: str) -> None:
    async with api_server.client() as client, _running(GarbageCollector(client).run()):
        namespace = f"garbage-{propagation.lower()}"
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        owner = await _config_map(client, namespace, "owner")
        await _config_map(client, namespace, "child", owner)
        await _config_map(client, namespace, "stranger")
        await client.delete(CONFIG_MAPS, "owner", namespace, propagation=propagation)
        for name in ("owner", "child"):
            await until(lambda name=name: _gone(client, CONFIG_MAPS, name, namespace))
        assert await client.get(CONFIG_MAPS, "stranger", namespace)
        await client.delete(NAMESPACES, namespace)
        await until(lambda: _gone(client, NAMESPACES, namespace))


async def test_orphan_of_an_earlier_time_goes_too(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        await client.create(NAMESPACES, {"metadata": {"name": "orphans"}})
        owner = await _config_map(client, "orphans", "owner")
        await client.delete(CONFIG_MAPS, "owner", "orphans")
        await _config_map(client, "orphans", "owner")  # the same name, another uid
        await _config_map(client, "orphans", "child", owner)
        async with _running(GarbageCollector(client).run()):
            await until(lambda: _gone(client, CONFIG_MAPS, "child", "orphans"))
        assert await client.get(CONFIG_MAPS, "owner", "orphans")


async def test_references_to_deleted_owners_are_removed_while_another_owner_exists(api_server: ApiServer) -> None:
    async with api_server.client() as client:
        await client.create(NAMESPACES, {"metadata": {"name": "two-owners"}})
        lost, kept = [await _config_map(client, "two-owners", name) for name in ("lost", "kept")]
        child = await _config_map(client, "two-owners", "child", kept)
        references = [*child["metadata"]["ownerReferences"], _reference(lost)]
        await client.patch(CONFIG_MAPS, "child", "two-owners", {"metadata": {"ownerReferences": references}})
        await client.delete(CONFIG_MAPS, "lost", "two-owners")

        async def only_the_other_is_left() -> bool:
            live = await client.get(CONFIG_MAPS, "child", "two-owners")
            return [owner["name"] for owner in live["metadata"]["ownerReferences"]] == ["kept"]

        async with _running(GarbageCollector(client).run()):
            await until(only_the_other_is_left)


@asynccontextmanager
async def _running(work: Any) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _config_map(client: ApiClient, namespace: str, name: str, owner: Obj | None = None) -> Obj:
    metadata: Obj = {"name": name, "namespace": namespace}
    if owner:
        metadata["ownerReferences"] = [_reference(owner)]
    return await client.create(CONFIG_MAPS, {"metadata": metadata})


def _reference(owner: Obj) -> Obj:
    identity = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", **identity}


async def _token(client: ApiClient) -> Obj | None:
    data = (await client.get(SECRETS, "cloud-token", "tokens")).get("data") or {}
    return data if "token" in data else None


async def _gone(client: ApiClient, resource: Resource, name: str, namespace: str = "") -> bool:
    try:
        await client.get(resource, name, namespace)
    except NotFound:
        return True
    return False


async def _who_am_i(server: ApiServer, token: str) -> str:
    client = Kubeconfig(server=server.url, ca=server.ca.certificate.decode(), token=token).client(name="account")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=review)
        return str(answer["status"]["userInfo"]["username"])
    finally:
        await client.close()
