"""The cloud config in manifests of a ConfigMap, and who may name one of another namespace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from caphv.api import names
from caphv.api.object import CONFIG_MAPS, SERVICE_ACCOUNTS, Obj
from caphv.runtime.errors import Forbidden, Unreachable
from reconciler.cluster.references import refused_references
from tests.support.reconciler.guests import READY, Guests, tokens
from tests.support.reconciler.memorycase import MemoryCase, stall

pytestmark = pytest.mark.unit

MANIFESTS = {
    "manifestsConfigMapNamespace": "team",
    "manifestsConfigMapName": "manifests",
    "manifestsConfigMapKey": "ccm.yaml",
    "cloudConfigCredentialsSecretName": "cloud-config",
    "cloudConfigCredentialsSecretKey": "cloud-config",
}


def manifests(**data: str) -> Obj:
    metadata = {"name": "manifests", "namespace": "team"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


async def test_credentials_are_written_into_a_config_map_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, updateCloudProviderConfig=MANIFESTS)
    await case.reconcile()
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")
    case.management.put(manifests(**{"ccm.yaml": "kind: DaemonSet\n", "other": "x"}))
    for _ in range(3):
        await case.reconcile()
    assert case.condition(READY)[0] == "True"
    (found,) = case.management.stored(CONFIG_MAPS)
    assert found["data"]["other"] == "x"
    secret = [each for each in yaml.safe_load_all(found["data"]["ccm.yaml"]) if each["kind"] == "Secret"]
    assert tokens(secret[0]) == {"token of demo-token"}
    assert [request for request in case.management.requests if "ConfigMap" in request] == ["patch ConfigMap manifests"]
    assert case.events.count(("Normal", "CloudConfigWritten")) == 1
    # Nor is it written after a restart.
    case.restart()
    await case.reconcile()
    assert case.events.count(("Normal", "CloudConfigWritten")) == 1
    # What a user changes is completed again.
    case.management.put(manifests(**{"ccm.yaml": "kind: DaemonSet\n"}))
    await case.reconcile()
    assert case.events.count(("Normal", "CloudConfigWritten")) == 2


@pytest.mark.parametrize("is_older", [True, False])
async def test_config_map_of_two_clusters_has_the_credentials_of_the_older_one(
    monkeypatch: pytest.MonkeyPatch, *, is_older: bool
) -> None:
    """A template names one ConfigMap for all of its clusters, which would replace each other's all the time."""
    case = await Guests.ready(monkeypatch, updateCloudProviderConfig=MANIFESTS)
    own = {**case.obj["metadata"], "creationTimestamp": "2026-01-02T00:00:00Z"}
    case.management.put({**case.obj, "metadata": own})
    created = f"2026-01-0{1 if is_older else 3}T00:00:00Z"
    metadata = {"name": "other", "namespace": "team", "uid": "other-uid", "creationTimestamp": created}
    other = case.management.put({**case.obj, "metadata": metadata})
    case.management.put(manifests(**{"ccm.yaml": "kind: DaemonSet\n"}))
    await case.reconcile()
    (found,) = case.management.stored(CONFIG_MAPS)
    assert ("Secret" in found["data"]["ccm.yaml"]) is not is_older
    assert case.condition("Ready")[0] == "True"
    if not is_older:
        assert case.condition(READY)[0] == "True"
        return

    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")
    case.management.put({**other, "metadata": {**metadata, "deletionTimestamp": "2026-01-03T00:00:00Z"}})
    await case.reconcile()
    assert case.condition(READY)[0] == "True"


async def test_cluster_that_may_not_use_a_config_map_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, updateCloudProviderConfig=MANIFESTS)
    metadata = {"name": "other", "namespace": "tenant", "uid": "other-uid", "creationTimestamp": "2026-01-01T00:00:00Z"}
    own = {**case.obj["metadata"], "creationTimestamp": "2026-01-02T00:00:00Z"}
    case.management.put({**case.obj, "metadata": own})
    case.management.put({**case.obj, "metadata": metadata})
    case.management.put(manifests(**{"ccm.yaml": "kind: DaemonSet\n"}))
    await case.reconcile()
    assert case.condition(READY)[0] == "True"


async def test_a_config_map_that_was_written_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, updateCloudProviderConfig=MANIFESTS)
    case.management.put(manifests(**{"ccm.yaml": "kind: DaemonSet\n"}))
    stall(monkeypatch, case.management, CONFIG_MAPS)
    await case.reconcile()
    case.management.errors["get ConfigMap"] = Unreachable("was read")
    await case.reconcile()
    assert case.condition(READY)[0] == "True"


async def test_a_permission_that_was_found_withdrawn_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = {**MANIFESTS, "manifestsConfigMapNamespace": "other"}
    case = await Guests.ready(monkeypatch, updateCloudProviderConfig=elsewhere)
    found = manifests(**{"ccm.yaml": "kind: DaemonSet\n"})
    permission = {names.ALLOWED_NAMESPACES_ANNOTATION: "team"}
    case.management.put({**found, "metadata": {**found["metadata"], "namespace": "other", "annotations": permission}})
    stall(monkeypatch, case.management, CONFIG_MAPS)
    case.management.put({**found, "metadata": {**found["metadata"], "namespace": "other"}})
    await case.reconcile()
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")
    case.management.errors["get ConfigMap"] = Unreachable("was read")
    await case.reconcile()
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")


async def test_broken_manifest_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, updateCloudProviderConfig=MANIFESTS)
    case.management.put(manifests(**{"ccm.yaml": "["}))
    await case.reconcile()
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")


@pytest.mark.parametrize("allowed", [True, False])
async def test_config_map_of_another_namespace_needs_permission(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    case = await Guests.ready(
        monkeypatch, updateCloudProviderConfig={**MANIFESTS, "manifestsConfigMapNamespace": "other"}
    )
    # Its status says that it was provisioned under the rule.
    status = {**case.obj["status"], "initialization": {}}
    case.management.put({**case.obj, "status": status})
    found = manifests(**{"ccm.yaml": "kind: DaemonSet\n"})
    found["metadata"] |= {"namespace": "other"}
    found["metadata"]["annotations"] = {names.ALLOWED_NAMESPACES_ANNOTATION: "team" if allowed else "else"}
    case.management.put(found)
    await case.reconcile()
    assert (case.condition(READY)[0] == "True") is allowed
    stored = case.management.find("ConfigMap", "manifests", "other")
    assert stored is not None
    assert ("Secret" in stored["data"]["ccm.yaml"]) is allowed
    # A ConfigMap that may not be used is not even read, and costs no account.
    assert bool(case.harvester.stored(SERVICE_ACCOUNTS)) is allowed
    assert case.condition("ReferencesAllowed")[0] == ("True" if allowed else "False")


async def test_config_map_whose_permission_was_withdrawn_after_the_check_is_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = {**MANIFESTS, "manifestsConfigMapNamespace": "other"}
    case = await Guests.ready(monkeypatch, updateCloudProviderConfig=elsewhere)
    case.management.put({**case.obj, "status": {**case.obj["status"], "initialization": {}}})
    found = manifests(**{"ccm.yaml": "kind: DaemonSet\n"})
    found["metadata"] |= {"namespace": "other", "annotations": {names.ALLOWED_NAMESPACES_ANNOTATION: "team"}}
    older = SimpleNamespace(get=lambda *_: {**found, "metadata": {**found["metadata"], "resourceVersion": "1"}})
    older.observe = older.forget = lambda *_: None

    async def ensure(*_: object) -> Any:
        return older

    monkeypatch.setattr(case.context.object_watches, "ensure", ensure)
    case.management.put({**found, "metadata": {**found["metadata"], "annotations": {}}})
    await case.reconcile()
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")
    stored = case.management.find("ConfigMap", "manifests", "other")
    assert stored is not None
    assert "Secret" not in stored["data"]["ccm.yaml"]


async def test_reference_that_is_never_read_opens_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user changes the reference all the time, until the cluster is ready, and names the Secret of others then."""
    elsewhere = {**MANIFESTS, "manifestsConfigMapNamespace": "other"}
    case = MemoryCase(monkeypatch, updateCloudProviderConfig=elsewhere)

    async def unread(*_: object) -> None:
        return None

    async def refused() -> list[str]:
        scope = case.scope()
        references = await refused_references(scope)
        case.management.put({**case.obj, "status": scope.draft.fields})
        return [str(reference) for reference in references]

    monkeypatch.setattr(case.context.object_watches, "ensure", unread)
    assert await refused() == ["ConfigMap other/manifests"]
    assert case.condition("ReferencesAllowed") == ("Unknown", "ReferencesChecking")
    of_others = {**case.obj["spec"], "identitySecret": {"namespace": "other", "name": "identity"}}
    for status in (case.obj["status"], {}):
        provisioned = {**status, "initialization": {"provisioned": True}}
        case.management.put({**case.obj, "spec": of_others, "status": provisioned})
        assert "Secret other/identity" in await refused()


@pytest.mark.parametrize("error", [None, Forbidden(403, "Forbidden", "may not get configmaps")])
async def test_config_map_that_cannot_be_written_keeps_no_token_from_its_renewal(
    monkeypatch: pytest.MonkeyPatch, error: Forbidden | None
) -> None:
    """A cluster that has moved to another delivery may still name the ConfigMap of the former one."""
    case = await Guests.ready(monkeypatch, updateCloudProviderConfig=MANIFESTS, cloudConfig={"delivery": "Secret"})
    if error is not None:
        case.management.put(manifests(**{"ccm.yaml": "kind: DaemonSet\n"}))
        case.management.errors["get ConfigMap"] = error
    await case.reconcile()
    assert tokens(case.secret) == {"expiring-1"}
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")
    case.clock[0] += 1000
    case.note(names.RENEW_AT_ANNOTATION, "2026-01-01T00:00:00Z")
    await case.reconcile()
    assert tokens(case.secret) == {"expiring-2"}
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")


async def test_config_map_of_another_namespace_that_does_not_exist_is_refused_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = {**MANIFESTS, "manifestsConfigMapNamespace": "other"}
    case = await Guests.ready(monkeypatch, updateCloudProviderConfig=elsewhere)
    case.management.put({**case.obj, "status": {**case.obj["status"], "initialization": {}}})
    await case.reconcile()
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")
    assert case.condition("ReferencesAllowed")[0] == "False"
