"""Objects of all kinds in both versions through the webhook, on a real API server and over TLS."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest

from caphv.api.object import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer
from tests.support.waiting import until
from tests.support.webhooks import VERSIONS, Server, example, resource, wrong
from webhooks.admission import KINDS
from webhooks.configuration import NAMES

pytestmark = pytest.mark.integration

EVERY = pytest.mark.parametrize(("kind", "version"), [(kind, version) for kind in KINDS for version in VERSIONS])


@asynccontextmanager
async def connected(management: ApiServer) -> AsyncIterator[ApiClient]:
    """A client, once the API server calls the webhooks."""
    async with management.client() as client:

        async def called() -> bool:
            obj, _ = wrong("HarvesterMachine", "v1beta1", "probe")
            try:
                await client.create(resource("HarvesterMachine"), obj, dry_run=True)
            except ApiError as error:
                return error.status == 422
            return False

        await until(called, "the API server calls the webhooks")
        yield client


def named(kind: str, version: str, what: str) -> str:
    return f"{what}-{kind.lower()}-{version}"


@EVERY
async def test_right_objects_are_made_changed_and_deleted(
    kind: str, version: str, management: ApiServer, webhook: Server
) -> None:
    where, name = resource(kind, version), named(kind, version, "right")
    async with connected(management) as client:
        await client.create(where, example(kind, version, name), dry_run=True)
        made = await client.create(where, example(kind, version, name))
        made["metadata"]["labels"] = {"changed": "yes"}
        assert (await client.replace(where, made))["metadata"]["labels"] == {"changed": "yes"}
        await client.delete(where, name, "default")


@EVERY
async def test_wrong_objects_are_refused_by_field(
    kind: str, version: str, management: ApiServer, webhook: Server
) -> None:
    obj, field = wrong(kind, version, named(kind, version, "wrong"))
    async with connected(management) as client:
        for dry_run in (True, False):
            with pytest.raises(ApiError) as refused:
                await client.create(resource(kind, version), obj, dry_run=dry_run)
            assert refused.value.status == 422
            assert refused.value.reason == "Invalid"
            infix = "" if version == "v1alpha1" else f".{version}"
            # What is wrong with clusters the CRDs say by themselves, before any webhook is asked.
            if "Machine" in kind:
                assert f'"v{kind.lower()}{infix}.kb.io" denied the request' in str(refused.value)
            assert f"{field}: Invalid value" in str(refused.value)


async def test_all_errors_come_at_once_as_causes(management: ApiServer, webhook: Server) -> None:
    obj = example("HarvesterMachine", "v1beta1", "many", cpu=4000, memory="1Mi")
    async with connected(management):
        answer, _ = await post(management, obj)
    assert (answer["kind"], answer["code"], answer["reason"]) == ("Status", 422, "Invalid")
    causes = answer["details"]["causes"]
    assert {"spec.cpu", "spec.memory"} <= {cause["field"] for cause in causes}
    assert {cause["reason"] for cause in causes} == {"FieldValueInvalid"}
    assert answer["details"]["kind"] == "HarvesterMachine"
    assert all(f"{cause['field']}: {cause['message']}" in answer["message"] for cause in causes)


async def test_a_change_to_something_wrong_is_refused(management: ApiServer, webhook: Server) -> None:
    kind, version = "HarvesterMachine", "v1beta1"
    where = resource(kind, version)
    async with connected(management) as client:
        made = await client.create(where, example(kind, version, "to-wrong"))
        with pytest.raises(ApiError) as refused:
            await client.replace(where, {**made, "spec": made["spec"] | {"cpu": 4000}})
        assert refused.value.status == 422
        await client.delete(where, "to-wrong", "default")


async def test_warnings_reach_the_client(management: ApiServer, webhook: Server) -> None:
    obj = example("HarvesterMachine", "v1beta1", "small", cpu=1, memory="2Gi")
    async with connected(management):
        answer, warnings = await post(management, obj, dry_run=True)
    assert answer["kind"] == "HarvesterMachine"
    assert any("spec.cpu" in warning or "spec.memory" in warning for warning in warnings)
    assert max(len(warning.encode()) for warning in warnings) <= 280


async def test_defaults_are_filled_in(management: ApiServer, webhook: Server) -> None:
    obj = example("HarvesterCluster", "v1beta1", "defaulted", controlPlaneEndpoint={"host": "10.0.0.1"})
    async with connected(management) as client:
        made = await client.create(resource("HarvesterCluster"), obj, dry_run=True)
    assert made["spec"]["controlPlaneEndpoint"] == {"host": "10.0.0.1", "port": 6443}


async def test_the_dry_run_of_a_cluster_topology_passes(management: ApiServer, webhook: Server) -> None:
    """The ClusterClass controller finds out with a server side apply dry-run whether a template has to be rotated."""
    kind = "HarvesterMachineTemplate"
    async with connected(management) as client:
        made = await client.create(resource(kind), example(kind, "v1beta1", "rotated"))
        wanted = example(kind, "v1beta1", "rotated", cpu=8)
        with pytest.raises(ApiError):
            await client.apply(resource(kind), wanted, manager="capi-topology")
        wanted["metadata"]["annotations"] = {"topology.cluster.x-k8s.io/dry-run": ""}
        found, _ = await post(management, wanted, dry_run=True, apply=True)
        assert found["spec"]["template"]["spec"]["cpu"] == 8
        now = await client.get(resource(kind), "rotated", "default")
        assert now["spec"] == made["spec"]
        await client.delete(resource(kind), "rotated", "default")


async def test_deletion_ends_although_the_object_is_wrong_and_no_webhook_is_there(
    management: ApiServer, webhook: Server
) -> None:
    obj, _ = wrong("HarvesterMachine", "v1beta1", "going")
    obj["metadata"]["finalizers"] = ["example.com/keep"]
    where = resource("HarvesterMachine")
    async with management.client() as client:
        await webhook.stop()
        try:
            for kind, name in zip(
                (VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS), NAMES.values(), strict=True
            ):
                await client.delete(kind, name)

            async def made() -> bool:
                try:
                    await client.create(where, obj)
                except ApiError:
                    return False
                return True

            await until(made, "the API server forgets the webhooks")
            await webhook.start()
            async with connected(management):
                await webhook.stop()
                # Nothing is served now, and the configurations are there.
                with pytest.raises(ApiError):
                    await client.create(where, example("HarvesterMachine", "v1beta1", "unserved"))
                await client.delete(where, "going", "default")
                await client.patch(where, "going", "default", {"metadata": {"finalizers": None}})

            async def gone() -> bool:
                found = await client.list(where, "default", field_selector="metadata.name=going")
                return not found["items"]

            await until(gone, "the object is deleted")
        finally:
            await webhook.stop()
            await webhook.start()


async def post(management: ApiServer, obj: Obj, *, dry_run: bool = False, apply: bool = False) -> tuple[Obj, list[str]]:
    """Send an object as kubectl does; answers the body and the warnings of the answer."""
    where = resource(obj["kind"], obj["apiVersion"].rpartition("/")[2])
    context = management_tls(management)
    query: dict[str, Any] = {"dryRun": "All"} if dry_run else {}
    path, method, content_type = where.path("default"), "POST", "application/json"
    if apply:
        path, method = where.path("default", obj["metadata"]["name"]), "PATCH"
        content_type, query = "application/apply-patch+yaml", query | {"fieldManager": "capi-topology", "force": "true"}
    async with (
        aiohttp.ClientSession(management.url, connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.request(
            method, path, data=orjson.dumps(obj), params=query, headers={"Content-Type": content_type}
        ) as answer,
    ):
        return await answer.json(), answer.headers.getall("Warning", [])


def management_tls(management: ApiServer) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=management.ca.certificate.decode())
    pair: pki.KeyPair = management.ca.client("admin", ["system:masters"])
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "crt"), Path(folder, "key")
        files[0].write_bytes(pair.certificate)
        files[1].write_bytes(pair.key)
        context.load_cert_chain(*files)
    return context
