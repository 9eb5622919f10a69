"""HarvesterClusterIdentities: only allowed namespaces get the credentials, and each change counts at once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from caphv.api.names import VERSIONS
from caphv.api.object import NAMESPACES, SECRETS, Obj, Resource
from caphv.api.resources import HARVESTER_CLUSTER_IDENTITIES
from caphv.runtime.errors import Invalid
from tests.support.reconciler.case import AT_ONCE, HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.reconciler.environment import IDENTITY_TOKEN
from tests.support.reconciler.sharedidentity import PROVIDER, change, share, shared_identity, unshare

pytestmark = pytest.mark.integration

CONNECTION = "HarvesterConnectionReady"
REFUSED = is_false(CONNECTION, "HarvesterConnectionFailed", "does not allow namespace")


@contextlib.asynccontextmanager
async def sharing(case: Case, allowed: Obj | None) -> AsyncIterator[Obj]:
    """Share an identity; yield the fields of a HarvesterCluster that refers to it."""
    try:
        name = await share(case, allowed)
        await case.write_secret("bootstrap", {"value": "#cloud-config\nruncmd: [echo]\n"})
        yield {"identitySecret": None, "identityRef": {"name": name}}
        await case.delete()  # before its identity
    finally:
        await unshare(case)


def is_refused(obj: Obj) -> Any:
    return REFUSED(obj) and is_false("ReferencesAllowed", "ReferenceNotAllowed")(obj)


async def label(case: Case, **labels: str | None) -> None:
    await case.management.patch(NAMESPACES, case.name, "", {"metadata": {"labels": labels}})


async def test_allowed_namespace_gets_machines_and_loses_access_with_the_permission(case: Case) -> None:
    async with sharing(case, {"list": ["elsewhere"]}) as identity:
        await case.create_cluster(**identity)
        refused = await case.until(HARVESTER_CLUSTERS, case.name, is_refused)
        assert "server" not in refused["spec"], "not even the address of Harvester is shown"
        await case.until_event(case.name, "Warning", "ReferenceNotAllowed")

        await change(case, allowedNamespaces={"list": ["elsewhere", case.name]})
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONNECTION), timeout=AT_ONCE)
        assert is_true("ReferencesAllowed")(await case.ready())
        await case.ready_machine("one")

        # No machine is made without the permission.
        await change(case, allowedNamespaces={"list": ["elsewhere"]})
        await case.until(HARVESTER_CLUSTERS, case.name, is_refused, timeout=AT_ONCE)
        before = case.environment.audit_position(case.environment.harvester)
        await case.create_machine("two")
        waits = "waiting for the HarvesterCluster to connect"
        await case.until(
            HARVESTER_MACHINES, "two", lambda obj: waits in (condition_of(obj, "Ready").get("message") or "")
        )
        writes = [
            event
            for event in case.environment.requests(case.environment.harvester, before)
            if event["verb"] not in ("get", "list", "watch") and event["objectRef"].get("namespace") == case.target
        ]
        assert writes == []
        assert is_ready(await case.get(HARVESTER_MACHINES, "one")), "what runs keeps running"

        await change(case, allowedNamespaces={"list": ["*"]})
        await case.until(HARVESTER_MACHINES, "two", is_ready)


async def test_labels_of_the_namespace_decide_where_a_selector_asks_for_them(case: Case) -> None:
    async with sharing(case, {"selector": {"matchLabels": {"harvester": case.name}}}) as identity:
        await case.create_cluster(**identity)
        await case.until(HARVESTER_CLUSTERS, case.name, is_refused)
        await label(case, harvester=case.name)
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONNECTION), timeout=AT_ONCE)
        await label(case, harvester="another")
        await case.until(HARVESTER_CLUSTERS, case.name, is_refused, timeout=AT_ONCE)
        await label(case, harvester=case.name)
        await case.ready()


async def test_the_secret_may_change_and_the_identity_may_come_later(case: Case) -> None:
    async with sharing(case, {"list": [case.name]}) as identity:
        await case.management.delete(HARVESTER_CLUSTER_IDENTITIES, case.name)
        await case.create_cluster(**identity)
        await case.until(HARVESTER_CLUSTERS, case.name, is_refused)
        await case.management.create(HARVESTER_CLUSTER_IDENTITIES, shared_identity(case.name, {"list": [case.name]}))
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONNECTION), timeout=AT_ONCE)
        await case.ready()

        secret = await case.management.get(SECRETS, case.name, PROVIDER)
        assert not secret["metadata"].get("finalizers"), "the administrator's Secret is not written"
        bad = {"stringData": {"kubeconfig": "not a kubeconfig"}}
        await case.management.patch(SECRETS, case.name, PROVIDER, bad)
        named = f"Secret of HarvesterClusterIdentity {case.name}: "
        wrong = is_false(CONNECTION, "HarvesterConnectionFailed", named)
        await case.until(HARVESTER_CLUSTERS, case.name, wrong, timeout=AT_ONCE)
        await case.management.patch(SECRETS, case.name, PROVIDER, {"data": secret["data"]})
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(CONNECTION), timeout=AT_ONCE)


async def test_a_tenant_reaches_no_secret_by_an_identity(case: Case, other: Case) -> None:
    """Neither the Secret of the identity by name, nor Secrets elsewhere, nor an identity of others."""
    async with sharing(case, {"list": [other.name]}) as identity:
        by_name = {"identitySecret": {"name": case.name, "namespace": PROVIDER}}
        await case.create_cluster(**by_name)
        refused = is_false(CONNECTION, "HarvesterConnectionFailed", "may not be used from namespace")
        await case.until(HARVESTER_CLUSTERS, case.name, refused)
        await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": identity})
        await case.until(HARVESTER_CLUSTERS, case.name, is_refused)

        # An identity may not lead to a Secret of a tenant, which the tenant could read and replace.
        await other.identity()
        await change(
            case, allowedNamespaces={"list": [case.name]}, secretRef={"name": "identity", "namespace": other.name}
        )
        elsewhere = is_false(CONNECTION, "HarvesterConnectionFailed", f"not in namespace {PROVIDER} of the provider")
        await case.until(HARVESTER_CLUSTERS, case.name, elsewhere)

        text = str(await case.get(HARVESTER_CLUSTERS, case.name)) + case.environment.provider.log
        assert IDENTITY_TOKEN not in text
        await change(case, secretRef={"name": case.name, "namespace": PROVIDER})
        await case.ready()


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_crd_refuses_what_could_be_misread(case: Case, version: str) -> None:
    identities = Resource("infrastructure.cluster.x-k8s.io", version, "harvesterclusteridentities", "", False)

    async def check(allowed: Any, **secret: str) -> None:
        obj = {**shared_identity(case.name, allowed, **secret), "apiVersion": f"{identities.group}/{version}"}
        await case.management.create(identities, {**obj, "kind": "HarvesterClusterIdentity"}, dry_run=True)

    await check(None)
    await check({"list": ["team-a", "*"], "selector": {"matchLabels": {"a": "b"}}})
    # What is misspelt is dropped, and must not leave an object that allows all.
    for wrong in ({}, {"names": ["team-a"]}, {"selector": {}}, {"selector": {"matchLabels": {}}}, {"list": ["Team"]}):
        with pytest.raises(Invalid, match="allowedNamespaces"):
            await check(wrong)
    # Ignored expressions would leave a selector that selects more.
    expression = {"key": "suspended", "operator": "DoesNotExist"}
    with pytest.raises(Invalid, match=r"selector\.matchExpressions: Too many"):
        await check({"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [expression]}})
    with pytest.raises(Invalid, match="namespace"):
        await check(None, namespace="")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_cluster_names_credentials_once(case: Case, version: str) -> None:
    clusters = Resource(HARVESTER_CLUSTERS.group, version, HARVESTER_CLUSTERS.plural, HARVESTER_CLUSTERS.kind)
    secret, reference = {"name": "identity", "namespace": case.name}, {"name": "shared"}

    async def check(**identity: Obj) -> None:
        spec = {"targetNamespace": "vms", "loadBalancerConfig": {"ipamType": "dhcp"}, **identity}
        obj = {"apiVersion": f"{clusters.group}/{version}", "kind": clusters.kind}
        metadata = {"name": "checked", "namespace": case.name}
        await case.management.create(clusters, {**obj, "metadata": metadata, "spec": spec}, dry_run=True)

    await check(identitySecret=secret)
    await check(identityRef=reference)
    with pytest.raises(Invalid, match="identityRef: Forbidden: excludes identitySecret"):
        await check(identitySecret=secret, identityRef=reference)
    with pytest.raises(Invalid, match="identitySecret: Required value: name the Secret"):
        await check()
