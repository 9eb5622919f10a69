"""Identity Secrets: when they are read, what is refused, and what is reported of credentials that expire."""

from __future__ import annotations

import asyncio
import base64
import copy
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION, Reason
from caphv.api.object import Key
from reconciler.blocked import Blocked
from reconciler.cluster.identity import WARN_AHEAD, Identities, Identity, PermissionWithdrawn, expiry_of
from reconciler.remote.clusteridentities import RenewedTokens
from reconciler.remote.workloadcluster import _load_kubeconfig
from sandbox.processes import pki

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def test_credentials_without_a_date_are_left_alone() -> None:
    verdict = expiry_of(None, NOW)
    assert (verdict.reason, verdict.check_after) == (None, None)


def test_far_from_the_end_the_timer_is_deleted_off_seven_days_before_it() -> None:
    verdict = expiry_of(NOW + timedelta(days=30), NOW)
    assert verdict.reason is None
    assert verdict.check_after == timedelta(days=23).total_seconds()
    assert "2026-12-21T09:00:00Z" in verdict.message


def test_seven_days_before_the_end_it_is_reported_and_the_next_look_is_at_the_end() -> None:
    verdict = expiry_of(NOW + WARN_AHEAD, NOW)
    assert verdict.reason is Reason.IDENTITY_EXPIRING
    assert verdict.check_after == WARN_AHEAD.total_seconds()
    assert "new kubeconfig" in verdict.message


def test_after_the_end_there_is_nothing_to_wait_for() -> None:
    verdict = expiry_of(NOW, NOW)
    assert (verdict.reason, verdict.check_after) == (Reason.IDENTITY_EXPIRED, None)


@given(st.timedeltas(min_value=timedelta(days=-100), max_value=timedelta(days=4000)))
def test_each_timer_leads_to_the_next_verdict(left: timedelta) -> None:
    first = expiry_of(NOW + left, NOW)
    if first.check_after is not None:
        assert first.check_after > 0
        assert expiry_of(NOW + left, NOW + timedelta(seconds=first.check_after)).reason is not first.reason


class Secrets:
    """One identity Secret on a management cluster; `reads` counts how often it was read."""

    def __init__(self, **cluster: Any) -> None:
        inner = {"server": "https://harvester", **cluster}
        config = pki.kubeconfig("", b"", name="h", user="u", credentials={"token": "opaque"})
        config["clusters"][0]["cluster"] = inner
        self.secret = {
            "metadata": {"namespace": "ns", "name": "identity", "resourceVersion": "1"},
            "data": {"kubeconfig": base64.b64encode(pki.to_yaml(config)).decode()},
        }
        self.reads = 0

    def scope(self, name: str = "demo", namespace: str = "ns", **annotations: str) -> Any:
        reference = {"namespace": "ns", "name": "identity"}
        metadata = {"namespace": namespace, "name": name, "annotations": annotations}
        context = SimpleNamespace(
            client=self,
            caches=SimpleNamespace(secrets=SimpleNamespace(get=lambda *_: self.secret)),
            cluster_identities=SimpleNamespace(renewed=RenewedTokens("caphv-system")),
        )
        obj = {"metadata": metadata, "spec": {"identitySecret": reference}}
        return SimpleNamespace(key=Key(namespace, name), obj=obj, context=context)

    async def get(self, *_where: object) -> dict[str, Any]:
        self.reads += 1
        return self.secret


def read(identities: Identities, scope: Any) -> Identity:
    return asyncio.run(identities.read(scope))


def test_server_that_is_not_verified_is_refused_unless_allowed() -> None:
    secrets = Secrets(**{"insecure-skip-tls-verify": True})
    with pytest.raises(Blocked, match=r"ns/identity: .*insecure-skip-tls-verify: refused"):
        read(Identities(allow_insecure=False), secrets.scope())
    assert read(Identities(allow_insecure=True), secrets.scope()).access.insecure


def test_secret_of_another_namespace_is_not_read_when_there_is_only_one() -> None:
    secrets = Secrets()
    with pytest.raises(
        Blocked, match="identity Secret ns/identity: this provider reads Secrets in namespace other only"
    ):
        read(Identities(allow_insecure=False, namespace="other"), secrets.scope())
    assert secrets.reads == 0
    read(Identities(allow_insecure=False, namespace="ns"), secrets.scope())


def test_secret_is_read_once_for_all_clusters_until_it_changes_or_a_user_asks() -> None:
    secrets, identities = Secrets(), Identities(allow_insecure=False)
    for name in ("one", "two", "one", "two"):
        read(identities, secrets.scope(name))
    assert secrets.reads == 1
    secrets.secret["metadata"]["resourceVersion"] = "2"
    for name in ("one", "two"):
        read(identities, secrets.scope(name))
    assert secrets.reads == 2
    for _ in range(2):
        read(identities, secrets.scope("one", **{"caphv.io/reconcile-at": "now"}))
    assert secrets.reads == 3


def test_secret_that_no_one_uses_is_forgotten() -> None:
    secrets, identities = Secrets(), Identities(allow_insecure=False)
    read(identities, secrets.scope("one"))
    read(identities, secrets.scope("two"))
    identities.release(Key("ns", "one"))
    read(identities, secrets.scope("two"))
    assert secrets.reads == 1
    identities.release(Key("ns", "two"))
    read(identities, secrets.scope("two"))
    assert secrets.reads == 2


CREDENTIAL = "harvestercredentialConfig-kubeconfigContent"


@pytest.mark.parametrize("encoded", [False, True], ids=["text", "base64"])
def test_cloud_credential_of_rancher_is_an_identity(encoded: bool) -> None:
    secrets = Secrets()
    value = secrets.secret["data"].pop("kubeconfig")
    if encoded:
        value = base64.b64encode(value.encode() + b"\n").decode()
    others = {"clusterId": "c-m-abc", "clusterType": "imported"}
    names = {f"harvestercredentialConfig-{name}": text for name, text in others.items()}
    secrets.secret["data"] = {CREDENTIAL: value, **names}
    identity = read(Identities(allow_insecure=False), secrets.scope())
    assert identity.access.server == "https://harvester"


def test_key_of_rancher_counts_only_without_the_other() -> None:
    secrets = Secrets()
    secrets.secret["data"][CREDENTIAL] = "damaged"
    assert read(Identities(allow_insecure=False), secrets.scope()).access.server == "https://harvester"


@pytest.mark.parametrize("value", ["damaged", "", base64.b64encode(b"a: {{").decode()])
def test_cloud_credential_that_is_none_is_refused_without_its_content(value: str) -> None:
    secrets = Secrets()
    secrets.secret["data"] = {CREDENTIAL: value}
    with pytest.raises(Blocked) as blocked:
        read(Identities(allow_insecure=False), secrets.scope())
    assert "identity Secret ns/identity" in blocked.value.message
    assert not value or value not in blocked.value.message


def test_cloud_credential_in_a_namespace_of_rancher_needs_permission() -> None:
    secrets, identities = Secrets(), Identities(allow_insecure=False)
    secrets.secret["data"] = {CREDENTIAL: secrets.secret["data"]["kubeconfig"]}
    with pytest.raises(PermissionWithdrawn):
        read(identities, secrets.scope(namespace="fleet-default"))
    allow(secrets, "fleet-default")
    assert read(identities, secrets.scope(namespace="fleet-default")).access


def allow(secrets: Secrets, namespaces: str) -> None:
    secrets.secret["metadata"]["annotations"] = {ALLOWED_NAMESPACES_ANNOTATION: namespaces}


def test_permission_counts_of_the_version_that_is_read_and_not_of_the_cache() -> None:
    """The owner withdraws the permission; the cache does not know yet."""
    secrets, identities = Secrets(), Identities(allow_insecure=False)
    scope = secrets.scope(namespace="other")
    allow(secrets, "other")
    listed = copy.deepcopy(secrets.secret)
    scope.context.caches.secrets.get = lambda *_: listed
    allow(secrets, "")
    secrets.secret["metadata"]["resourceVersion"] = "2"
    secrets.secret["data"] = {"kubeconfig": "damaged"}
    with pytest.raises(PermissionWithdrawn):
        read(identities, scope)


def test_what_was_read_for_its_owner_is_not_used_by_others() -> None:
    """The permission is withdrawn between the check and the use, and the owner's own cluster has read that version."""
    secrets, identities = Secrets(), Identities(allow_insecure=False)
    read(identities, secrets.scope())
    with pytest.raises(PermissionWithdrawn):
        read(identities, secrets.scope(namespace="other"))
    allow(secrets, "other")
    secrets.secret["metadata"]["resourceVersion"] = "2"
    read(identities, secrets.scope(namespace="other"))
    read(identities, secrets.scope())
    with pytest.raises(PermissionWithdrawn):
        read(identities, secrets.scope(namespace="third"))


@pytest.mark.parametrize("content", [b"- a\n" * 180_000, b"a: [" + b"b," * 350_000, b"? " * 350_000], ids=len)
def test_the_largest_secret_costs_the_event_loop_no_time(content: bytes) -> None:
    secrets = Secrets()
    secrets.secret["data"] = {"kubeconfig": base64.b64encode(content).decode()}

    async def seconds() -> float:
        started = time.thread_time()
        with pytest.raises(Blocked):
            await Identities(allow_insecure=False).read(secrets.scope())
        assert (
            await _load_kubeconfig(Key("ns", "one"), {"data": {"value": secrets.secret["data"]["kubeconfig"]}}) is None
        )
        return time.thread_time() - started

    assert asyncio.run(seconds()) < 0.05
