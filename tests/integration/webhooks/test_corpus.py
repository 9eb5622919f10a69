"""The corpus through the webhook: as reviews over TLS, and as objects that a real API server asks the webhook about."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from caphv.api.object import NAMESPACES, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, ApiError
from sandbox.processes.apiserver import ApiServer
from tests import corpus
from tests.corpus import Case
from tests.support.waiting import until
from tests.support.webhooks import GROUP, VERSIONS, Server, resource, settled
from webhooks.admission import KINDS
from webhooks.handler import API_VERSION, path_of

pytestmark = pytest.mark.integration

EVERY = pytest.mark.parametrize(("kind", "version"), [(kind, version) for kind in KINDS for version in VERSIONS])
BOTH = pytest.mark.parametrize("cases", [corpus.valid, corpus.invalid], ids=["valid", "invalid"])
Cases = Callable[[], list[Case]]


def of(cases: Cases, kind: str, version: str) -> list[Case]:
    return [case for case in cases() if (case.kind, case.version) == (kind, version)]


def review(case: Case) -> Obj:
    return {
        "apiVersion": API_VERSION,
        "kind": "AdmissionReview",
        "request": {
            "uid": "0c4f1a52",
            "kind": {"group": GROUP, "version": case.version, "kind": case.kind},
            "operation": "UPDATE" if case.old else "CREATE",
            "name": case.object["metadata"].get("name", ""),
            "namespace": case.object["metadata"].get("namespace", ""),
            "object": case.object,
            "oldObject": case.old,
            "dryRun": case.dry_run,
        },
    }


@BOTH
@EVERY
async def test_reviews_over_tls_name_every_field(kind: str, version: str, cases: Cases, webhook: Server) -> None:
    context = ssl.create_default_context(cadata=webhook.ca.certificate.decode())
    unexpected: dict[str, Any] = {}
    async with aiohttp.ClientSession(webhook.url, connector=aiohttp.TCPConnector(ssl=context)) as session:
        for case in of(cases, kind, version):
            async with session.post(path_of("validate", version, kind), json=review(case)) as answer:
                assert answer.status == 200
                response = (await answer.json())["response"]
            causes = response.get("status", {}).get("details", {}).get("causes", [])
            found = {cause["field"] for cause in causes}
            if found != {path for path, _ in case.errors} or response["allowed"] is not (not case.errors):
                unexpected[str(case)] = response.get("status", {}).get("message", "allowed")
    assert unexpected == {}


@BOTH
@pytest.mark.parametrize(
    ("kind", "version"),
    [
        # The older version's rules are the same: reviews go through all cases of both, and so do CRDs.
        pytest.param(kind, version, marks=[pytest.mark.long] if version == "v1alpha1" else [])
        for kind in KINDS
        for version in VERSIONS
    ],
)
async def test_the_api_server_takes_the_right_ones_only(
    kind: str, version: str, cases: Cases, management: ApiServer, webhook: Server
) -> None:
    unexpected: dict[str, str] = {}
    validated = 0
    async with management.client() as client:
        await until(lambda: settled(client, "corpus"), "objects are validated")
        found = of(cases, kind, version)
        for namespace in {case.object["metadata"].get("namespace", "default") for case in found}:
            with contextlib.suppress(AlreadyExists):
                await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        for case in found:
            refusal = await refused(client, case)
            validated += refusal is not None
            if refusal is not None and bool(refusal) is not bool(case.errors):
                unexpected[str(case)] = refusal or "accepted"
    assert unexpected == {}
    assert validated > 10


async def refused(client: ApiClient, case: Case) -> str | None:
    """The message of the refusal, empty for none; None when the object before the change cannot even be made."""
    where = resource(case.kind, case.version)
    namespace = case.object["metadata"].get("namespace", "default")
    if case.old is None:
        return await refusal_of(client.create(where, case.object, dry_run=True))
    try:
        made = await client.create(where, case.old)
    except ApiError:
        return None
    name = made["metadata"]["name"]
    try:
        if case.old.get("status"):
            status = {"status": case.old["status"]}
            made = await client.patch(where, name, namespace, status, subresource="status")
        changed = case.object | {"metadata": made["metadata"] | case.object["metadata"]}
        query = {"dryRun": "All" if case.dry_run else ""}
        path = where.path(namespace, name)
        return await refusal_of(client.request("PUT", path, resource=where, body=changed, query=query))
    finally:
        await client.delete(where, name, namespace)


async def refusal_of(request: Any) -> str:
    try:
        await request
    except ApiError as error:
        if error.status not in (400, 422):
            raise
        return str(error)
    return ""
