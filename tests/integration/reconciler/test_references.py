"""References to objects of other namespaces: their owner decides, and each change of mind counts at once."""

from __future__ import annotations

import pytest

from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION
from caphv.api.object import CONFIG_MAPS, SECRETS, Obj, Resource
from tests.support.reconciler.case import AT_ONCE, HARVESTER_CLUSTERS, Case
from tests.support.reconciler.cloudconfig import config_map
from tests.support.reconciler.conditions import is_false, is_ready, is_true

pytestmark = pytest.mark.integration

CONDITION = "ReferencesAllowed"


async def allow(owner: Case, resource: Resource, name: str, namespaces: str | None) -> None:
    """Set or remove the permission on an object in the owner's namespace."""
    patch = {"metadata": {"annotations": {ALLOWED_NAMESPACES_ANNOTATION: namespaces}}}
    await owner.management.patch(resource, name, owner.name, patch)


def identity_of(owner: Case, name: str = "identity") -> Obj:
    return {"name": name, "namespace": owner.name}


async def test_identity_of_another_namespace_needs_permission_of_its_owner(case: Case, other: Case) -> None:
    await other.identity()
    await case.write_secret("bootstrap", {"value": ""})
    await case.create_cluster(identitySecret=identity_of(other))
    refused = is_false("HarvesterConnectionReady", "HarvesterConnectionFailed", ALLOWED_NAMESPACES_ANNOTATION)
    await case.until(HARVESTER_CLUSTERS, case.name, refused)
    await case.until(HARVESTER_CLUSTERS, case.name, is_false(CONDITION, "ReferenceNotAllowed"))
    await case.until_event(case.name, "Warning", "ReferenceNotAllowed")
    await allow(other, SECRETS, "identity", f"elsewhere, {case.name}")
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("HarvesterConnectionReady"), timeout=AT_ONCE)
    assert is_true(CONDITION)(await case.ready())
    await allow(other, SECRETS, "identity", None)
    await case.until(HARVESTER_CLUSTERS, case.name, refused, timeout=AT_ONCE)
    await allow(other, SECRETS, "identity", "*")
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    await case.delete()  # before the namespace of its identity


async def test_refusal_does_not_say_whether_the_secret_exists(case: Case, other: Case) -> None:
    await case.create_cluster(identitySecret=identity_of(other, "absent"))
    refused = is_false("HarvesterConnectionReady", "HarvesterConnectionFailed", "may not be used from namespace")
    await case.until(HARVESTER_CLUSTERS, case.name, refused)


async def test_reference_of_the_go_providers_cluster_needs_permission_too(case: Case, other: Case) -> None:
    await other.identity()
    await case.write_secret("bootstrap", {"value": ""})
    await case.create_cluster(paused=True, identitySecret=identity_of(other))
    # As the Go provider, which has no such rule, has left it.
    status = {"status": {"ready": True, "initialization": {"provisioned": True}}}
    await case.management.patch(HARVESTER_CLUSTERS, case.name, case.name, status, subresource="status")
    await case.pause(False)
    refused = is_false("HarvesterConnectionReady", "HarvesterConnectionFailed", ALLOWED_NAMESPACES_ANNOTATION)
    await case.until(HARVESTER_CLUSTERS, case.name, refused)
    await case.until_event(case.name, "Warning", "ReferenceNotAllowed")
    await allow(other, SECRETS, "identity", case.name)
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: is_true(CONDITION)(obj) and is_ready(obj))
    await case.delete()  # before the namespace of its identity


async def test_config_map_of_another_namespace_is_not_changed_without_permission(case: Case, other: Case) -> None:
    config = await config_map(other)
    name = config["manifestsConfigMapName"]
    before = await other.management.get(CONFIG_MAPS, name, other.name)
    await case.ready_cluster(updateCloudProviderConfig=config)
    refused = is_false("CloudProviderConfigReady", "CloudProviderConfigGenerationFailed", ALLOWED_NAMESPACES_ANNOTATION)
    await case.until(HARVESTER_CLUSTERS, case.name, refused)
    assert await other.management.get(CONFIG_MAPS, name, other.name) == before
    await allow(other, CONFIG_MAPS, name, case.name)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("CloudProviderConfigReady"))
    assert (await other.management.get(CONFIG_MAPS, name, other.name))["data"] != before["data"]
