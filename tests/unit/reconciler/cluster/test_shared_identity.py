"""Sessions by shared credentials: which namespaces get one, and how it ends with the permission."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from caphv.api import names, resources
from caphv.api.object import NAMESPACES, SECRETS, Obj
from caphv.api.tokenrenewal import SECRET_TYPE, issued_at
from caphv.runtime.errors import (
    Forbidden,
    NotFound,
    ServerFault,
    Unreachable,
)
from reconciler.blocked import Blocked
from reconciler.cluster import identity
from reconciler.cluster.connection import ensure_connection
from reconciler.cluster.deletion import advice, may_force_delete
from reconciler.cluster.identity import ensure_session
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.sessions import Sessions
from tests.support.reconciler.identitycase import Case, condition, secret
from tests.support.reconciler.memorycase import KEY, MemoryIdentities

pytestmark = pytest.mark.unit

IDENTITIES = resources.HARVESTER_CLUSTER_IDENTITIES
OWN = "caphv-system"
FORCED: Obj = {"metadata": {"annotations": {names.FORCE_DELETE_ANNOTATION: "true"}}}


class Shared(Case):
    """A cluster that names HarvesterClusterIdentity `shared`, whose Secret is in the provider's namespace."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: Obj | None, **spec: Any) -> None:
        super().__init__(monkeypatch, identityRef={"name": "shared"}, **spec)
        self.change(spec={name: value for name, value in self.obj["spec"].items() if name != "identitySecret"})
        self.management.put(secret(OWN, token="shared"))
        self.management.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        self.allow(allowed)

    @property
    def readable(self) -> MemoryIdentities:
        return cast("MemoryIdentities", self.context.cluster_identities)

    def allow(self, allowed: Obj | None, namespace: str = OWN) -> None:
        spec: Obj = {"secretRef": {"name": "identity", "namespace": namespace}}
        if allowed is not None:
            spec["allowedNamespaces"] = allowed
        self.management.put(
            {
                "apiVersion": IDENTITIES.api_version,
                "kind": IDENTITIES.kind,
                "metadata": {"name": "shared"},
                "spec": spec,
            }
        )

    def label(self, **labels: str) -> None:
        self.management.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}})

    async def refused(self) -> tuple[Blocked, ClusterScope]:
        scope = self.unconnected()
        with pytest.raises(Blocked) as caught:
            await ensure_session(scope, self.identities, cast("Any", self.protection))
        assert scope.session is None
        return caught.value, scope


async def test_a_shared_identity_opens_a_session_for_an_allowed_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    scope = await case.ensure()
    ((_, access, _, name, _),) = case.assignments.assigned
    assert (access.token, name) == ("shared", f"{OWN}/identity")
    assert case.protection.asked == [], "a Secret of the provider's namespace needs no finalizer"
    assert condition(scope, "ReferencesAllowed")[0] == "True"
    assert "Secret of HarvesterClusterIdentity shared" in condition(scope, "IdentityUpToDate")[2]


@pytest.mark.parametrize("allowed", [None, {"list": ["others"]}, {"selector": {"matchLabels": {"team": "b"}}}])
async def test_a_namespace_that_is_not_allowed_gets_a_condition_and_no_credentials(
    monkeypatch: pytest.MonkeyPatch, allowed: Obj | None
) -> None:
    case = Shared(monkeypatch, allowed)
    case.label(team="a")
    monkeypatch.setattr(case.management, "get", None)  # the Secret is not read
    blocked, scope = await case.refused()
    assert case.assignments.assigned == []
    for message in (blocked.message, condition(scope, "ReferencesAllowed")[2]):
        assert "does not allow namespace team; have its owner add the namespace" in message
    assert condition(scope, "ReferencesAllowed")[:2] == ("False", "ReferenceNotAllowed")


async def test_access_ends_with_each_way_of_withdrawal(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Shared(monkeypatch, {"selector": {"matchLabels": {"team": "a"}}})

    async def opened() -> None:
        case.allow({"selector": {"matchLabels": {"team": "a"}}})
        case.label(team="a")
        assert (await case.ensure()).session is case.session
        case.assignments.released.clear()

    async def ended() -> bool:
        await case.refused()
        return case.assignments.released == [KEY]

    await opened()
    case.label()
    assert await ended(), "the label"

    await opened()
    await case.management.delete(NAMESPACES, "team")
    assert await ended(), "the namespace"

    await opened()
    case.allow({"list": ["others"]})
    assert await ended(), "the list"

    await opened()
    await case.management.delete(IDENTITIES, "shared")
    assert await ended(), "the identity"

    await opened()
    case.allow({"list": ["team"]}, "team")
    case.management.put(secret("team"))
    blocked, _ = await case.refused()
    assert case.assignments.released == [KEY], "its Secret is elsewhere"
    assert f"its Secret is not in namespace {OWN} of the provider" in blocked.message

    await opened()
    case.readable.unread["Namespace"] = Forbidden(403, "", "forbidden")
    assert await ended(), "labels that cannot be read"


async def test_a_namespace_that_is_allowed_by_name_needs_no_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while the cache of namespaces fills, which starts with the first selector."""
    case = Shared(monkeypatch, {"list": ["team"], "selector": {"matchLabels": {"team": "b"}}})
    case.readable.unread["Namespace"] = Forbidden(403, "", "forbidden")
    assert (await case.ensure()).session is case.session
    case.allow({"list": ["others"], "selector": {"matchLabels": {"team": "b"}}})
    blocked, _ = await case.refused()
    assert "cannot be read: forbidden" in blocked.message


async def test_a_permission_withdrawn_while_the_secret_is_read_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    get = case.management.get

    async def get_and_withdraw(*where: Any, **options: Any) -> Any:
        obj = await get(*where, **options)
        case.allow({"list": ["others"]})
        return obj

    monkeypatch.setattr(case.management, "get", get_and_withdraw)
    await case.refused()
    assert case.assignments.assigned == []


async def test_a_cluster_that_names_an_absent_secret_loses_shared_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would keep them, and would not notice that their owner withdraws the permission."""
    for namespace in ("team", "elsewhere"):
        case = Shared(monkeypatch, {"list": ["team"]})
        await case.ensure()
        name_secret(case, "absent", namespace)
        await case.refused()
        assert case.assignments.released == [KEY]


def name_secret(case: Case, name: str, namespace: str) -> None:
    """Have the cluster name a Secret, and no HarvesterClusterIdentity."""
    spec = {name: value for name, value in case.obj["spec"].items() if name != "identityRef"}
    case.change(spec={**spec, "identitySecret": {"name": name, "namespace": namespace}})


async def test_a_cluster_that_names_a_secret_that_does_not_load_loses_shared_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Machines get no session after that, neither at once nor once the owner has withdrawn the permission."""
    # It parses: that its body is no certificate shows only when it is used.
    broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    case, sessions = Shared(monkeypatch, {"list": ["team"]}), Sessions()
    case.context.sessions = sessions
    try:
        case.management.put(secret(OWN, server="https://127.0.0.1:9"))
        session = (await case.ensure()).session
        assert session is not None
        assert sessions.of(KEY) is session

        case.management.put(secret("team", server="https://127.0.0.1:9", ca=broken))
        name_secret(case, "identity", "team")
        blocked, _ = await case.refused()
        assert "cannot be used" in blocked.message
        assert sessions.of(KEY) is None
        assert list(sessions) == []
        case.allow(None)
        await case.refused()
        assert sessions.of(KEY) is None
    finally:
        await sessions.close()


async def test_a_cluster_loses_shared_credentials_while_the_secret_that_it_names_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    await case.ensure()
    name_secret(case, "identity", "team")

    async def refuse(*_where: Any) -> None:
        raise ServerFault(500, "", "broken")

    monkeypatch.setattr(case.management, "get", refuse)
    with pytest.raises(ServerFault):
        await case.ensure()
    assert case.assignments.released == [KEY]


async def test_a_session_survives_requests_that_fail_while_its_secret_is_permitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    await case.ensure()
    case.management.put(secret(OWN, token="newer"))

    async def refuse(*_where: Any) -> None:
        raise ServerFault(500, "", "broken")

    monkeypatch.setattr(case.management, "get", refuse)
    with pytest.raises(ServerFault):
        await case.ensure()
    assert case.assignments.released == []


async def test_credentials_of_a_deleted_secret_end_when_the_cluster_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deletion alone ends nothing, because a Secret may be replaced; its owner's permission is known no more."""
    case = Case(monkeypatch, identitySecret={"namespace": "other", "name": "identity"})
    case.management.put(secret("other", allowed="team"))
    await case.ensure()
    await case.management.delete(SECRETS, "identity", "other")
    with pytest.raises(Blocked):
        await case.ensure()
    assert case.assignments.released == []
    name_secret(case, "absent", "team")
    with pytest.raises(Blocked, match="not found"):
        await case.ensure()
    assert case.assignments.released == [KEY]


async def test_another_secret_of_the_identity_is_used_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    await case.ensure()
    newer = secret(OWN, token="newer")
    newer["metadata"]["name"] = "second"
    case.management.put(newer)
    identity = case.management.find(IDENTITIES.kind, "shared")
    assert identity is not None
    case.management.put({**identity, "spec": {**identity["spec"], "secretRef": {"name": "second", "namespace": OWN}}})
    await case.ensure()
    assert [access.token for _, access, *_ in case.assignments.assigned] == ["shared", "newer"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, r"^reading HarvesterClusterIdentity shared$"),
        (Unreachable("no answer"), r"^HarvesterClusterIdentity shared cannot be read: no answer$"),
    ],
)
async def test_an_identity_that_was_not_read_is_unknown_and_gives_nothing(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, text: str
) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    case.readable.unread[IDENTITIES.kind] = error
    blocked, scope = await case.refused()
    assert re.search(text, blocked.message)
    assert blocked.is_unknown
    assert not may_force_delete(FORCED, blocked), "it may be read in a moment"
    assert condition(scope, "ReferencesAllowed")[0] == "Unknown"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (Forbidden(403, "", "may not list"), "shared cannot be read: may not list; apply CRDs"),
        (NotFound(404, "", "not an API server"), r"shared cannot be read: .* does not serve this kind .*; apply CRDs"),
    ],
)
async def test_without_the_crd_or_the_right_nothing_is_given_and_a_deletion_can_be_forced(
    monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    await case.ensure()
    case.readable.unread[IDENTITIES.kind] = error
    blocked, _ = await case.refused()
    assert case.assignments.released == [KEY]
    assert re.search(text, blocked.message)
    assert (blocked.is_outage, blocked.is_unknown) == (True, False), "what was ready stays ready, and machines hear why"
    assert blocked.requeue_after is not None
    assert may_force_delete(FORCED, blocked)
    assert names.FORCE_DELETE_ANNOTATION in advice({"metadata": {}}, blocked)


async def test_a_provider_of_one_namespace_uses_no_shared_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    case.context.namespace = "team"
    blocked, _ = await case.refused()
    assert "(--namespace); use spec.identitySecret" in blocked.message


def pause(case: Shared) -> None:
    case.management.put({**case.cluster, "spec": {"paused": True}})


def park(case: Shared) -> None:
    metadata = {**case.cluster["metadata"], "annotations": {names.PARK_ANNOTATION: "true"}}
    case.management.put({**case.cluster, "metadata": metadata})


def manage_externally(case: Shared) -> None:
    case.change(metadata={**case.obj["metadata"], "annotations": {names.MANAGED_BY_ANNOTATION: "another"}})


def delete(case: Shared) -> None:
    case.change(metadata={**case.obj["metadata"], "deletionTimestamp": "2026-11-22T12:00:00Z"})


@pytest.mark.parametrize("change", [pause, park, manage_externally, delete])
async def test_a_cluster_that_is_not_reconciled_as_usual_loses_access_with_the_permission(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Shared], None]
) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    monkeypatch.setattr(identity, "ensure_session", ensure_session)
    await case.reconcile()
    # Its deletion waits for this machine.
    case.add_machine("cp-0")
    change(case)
    await case.reconcile()
    assert (case.assignments.identity, case.assignments.released) == (f"{OWN}/identity", [])
    case.allow({"list": ["others"]})
    await case.reconcile()
    assert case.assignments.released == [KEY]
    await case.reconcile()
    assert case.assignments.identity == "", "nor does it get a session later"


@pytest.mark.parametrize(
    ("minutes", "status", "words"),
    [
        (0, "True", "the provider renews the token, see condition TokenRenewed"),
        (55, "False", "could not be renewed yet"),
    ],
)
async def test_a_renewed_token_is_used_and_reported_when_it_is_overdue(
    monkeypatch: pytest.MonkeyPatch, minutes: int, status: str, words: str
) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    renewing = case.management.find("HarvesterClusterIdentity", "shared")
    assert renewing is not None
    case.management.put({**renewing, "spec": {**renewing["spec"], "tokenRenewal": {}}})
    with pytest.raises(Blocked) as caught:
        await case.ensure()
    assert caught.value.is_unknown, "until the first attempt"

    key = case.readable.renewed.key_of("shared")
    issued = issued_at(datetime.now(UTC) - timedelta(minutes=minutes), 3600, "source", "scope")
    kept = secret(OWN, token="renewed")
    kept["metadata"] |= {"name": key.name, "annotations": issued.annotations()}
    case.management.put({**kept, "type": SECRET_TYPE})
    case.readable.renewed.use("shared", key)
    scope = await case.ensure()
    assert case.assignments.assigned[-1][1].token == "renewed"
    assert condition(scope, "IdentityUpToDate")[0] == status
    assert words in condition(scope, "IdentityUpToDate")[2]

    # Harvester rejects it.
    case.session.is_unauthorized = True
    with pytest.raises(Blocked):
        await ensure_connection(scope)
    assert case.readable.renewed.rejected == {"shared": "harvester"}
    assert len(case.context.queues.renewals) == 1

    case.readable.renewed.use("shared", None)
    await case.ensure()
    assert case.assignments.assigned[-1][1].token == "shared"


async def test_the_secret_of_a_user_does_not_claim_to_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its owner could silence the report that it expires."""
    case = Shared(monkeypatch, {"list": ["team"]})
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + 3600}).encode()).decode().rstrip("=")
    own = secret(OWN, token=f"e.{claims}.s")
    issued = issued_at(datetime.now(UTC), 30 * 24 * 3600, "source", "scope")
    own["metadata"] |= {"annotations": issued.annotations()}
    case.management.put({**own, "type": SECRET_TYPE})
    scope = await case.ensure()
    assert condition(scope, "IdentityUpToDate")[:2] == ("False", "IdentityExpiring")
