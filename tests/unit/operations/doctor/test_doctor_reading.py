"""What doctor reads on a management cluster, and what it passes over."""

from __future__ import annotations

from typing import cast

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from operations.doctor.reading import read_management_facts
from tests.support.doctor import ManagementServer

pytestmark = pytest.mark.unit


def webhooks(*configurations: Obj) -> Obj:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "caphv-validating-webhook-configuration"},
        "webhooks": [{"clientConfig": each} for each in configurations],
    }


def endpoints(name: str, service: str) -> Obj:
    labels = {"kubernetes.io/service-name": service}
    metadata = {"name": name, "namespace": "caphv-system", "labels": labels}
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata}


SERVICE = {"service": {"name": "webhooks", "namespace": "caphv-system"}}


@pytest.mark.parametrize(
    ("configuration", "names"),
    [
        (webhooks(SERVICE), ["own"]),
        (webhooks({"url": "https://10.0.0.1"}), []),
        (webhooks(), []),
        (None, []),
    ],
)
async def test_endpoints_are_those_of_the_service_of_the_webhook(configuration: Obj | None, names: list[str]) -> None:
    server = ManagementServer(endpoints("own", "webhooks"), endpoints("other", "another"))
    if configuration:
        server.put(configuration)
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert (facts.version, facts.cluster_api) == ("v1.34.0", ("v1beta2", "v1beta1"))
    assert [obj["metadata"]["name"] for obj in facts.endpoints or ()] == names


async def test_a_missing_right_is_noted_and_hides_nothing_else() -> None:
    server = ManagementServer()
    metadata = {"name": "caphv", "namespace": "caphv-system"}
    server.put({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata})
    server.errors["get Deployment"] = Forbidden(403, "Forbidden", "cannot get")
    server.errors["list Certificate"] = Forbidden(403, "Forbidden", "cannot list")
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert {each.what for each in facts.unseen} == {"deployments", "certificates"}
    assert (facts.deployment, facts.webhooks, facts.certificates, facts.fleet, facts.crds) == (None, None, [], None, [])
