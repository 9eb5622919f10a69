"""The session of a cluster: which identity opens it, what is refused, and what happens to `spec.server`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.object import Key
from caphv.runtime.errors import (
    AddressRefused,
    ServerFault,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError
from reconciler.blocked import Blocked
from reconciler.cluster.connection import ensure_connection
from reconciler.cluster.pools import used_pools
from reconciler.cluster.scope import ClusterScope
from tests.support.reconciler.identitycase import SERVER, Case, condition, secret
from tests.support.reconciler.memorycase import KEY, TARGET

pytestmark = pytest.mark.unit


async def test_the_session_of_the_identity_is_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.change(status={"harvester": {"uid": "uid-1"}})
    scope = await case.ensure()
    ((cluster, access, namespace, name, uid),) = case.assignments.assigned
    assert (cluster, access.server, namespace, name, uid) == (KEY, SERVER, TARGET, "team/identity", "uid-1")
    assert scope.session is case.session
    assert case.protection.asked == [Key("team", "identity")]
    assert condition(scope, "IdentityUpToDate")[0] == "True"
    assert case.management.requests == [], "spec.server is right"


async def test_the_server_in_the_spec_follows_the_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, server="https://former")
    paused = await case.ensure(read_only=True)
    assert paused.session is case.session
    case.change(metadata={**case.obj["metadata"], "finalizers": ["x"], "deletionTimestamp": "2026-11-22T12:00:00Z"})
    await case.ensure()
    assert case.obj["spec"]["server"] == "https://former"
    assert case.protection.asked == [], "nor is a Secret protected for a cluster that is paused or deleted"
    case.change(metadata={name: value for name, value in case.obj["metadata"].items() if name != "deletionTimestamp"})
    scope = await case.ensure()
    assert case.obj["spec"]["server"] == scope.obj["spec"]["server"] == SERVER


async def test_a_secret_that_cannot_be_protected_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.protection.may = False
    scope = await case.ensure()
    status, _, message = condition(scope, "IdentityUpToDate")
    assert (status, scope.requeue_after is not None) == ("True", True)
    assert len(message) > len("identity Secret team/identity: the credentials do not state an expiry date")
    case.protection.may = True
    scope = await case.ensure()
    assert condition(scope, "IdentityUpToDate")[2].endswith("do not state an expiry date")
    assert scope.requeue_after is None


@pytest.mark.parametrize(("days", "status", "warned"), [(30, "True", False), (3, "False", True), (-1, "False", True)])
async def test_credentials_that_end_are_reported_once(
    monkeypatch: pytest.MonkeyPatch, days: int, status: str, warned: bool
) -> None:
    case = Case(monkeypatch)
    ends = datetime.now(UTC) + timedelta(days=days)
    monkeypatch.setattr(Kubeconfig, "expires", lambda _: ends)
    scope = await case.ensure()
    assert condition(scope, "IdentityUpToDate")[0] == status
    assert (scope.requeue_after is not None) is (days > 0)
    case.written(scope.draft)
    await case.ensure()
    assert [kind for kind, _ in case.events] == ["Warning"] * warned


async def test_an_identity_of_another_namespace_needs_its_owners_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, identitySecret={"namespace": "other", "name": "identity"})
    with pytest.raises(Blocked) as refused:
        await case.ensure()
    assert "may not be used from namespace team" in refused.value.message
    assert case.assignments.released == [], "the Secret may not be seen yet"
    case.management.put(secret("other"))
    with pytest.raises(Blocked):
        await case.ensure()
    assert (case.assignments.released, case.assignments.assigned) == ([KEY], [])
    case.management.put(secret("other", allowed="team"))
    scope = await case.ensure()
    assert scope.session is case.session
    assert case.assignments.assigned[0][3] == "other/identity"


async def test_a_kubeconfig_that_cannot_be_used_names_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.assignments.error = KubeconfigError("certificate data cannot be used")
    with pytest.raises(Blocked, match="identity Secret team/identity: certificate data cannot be used"):
        await case.ensure()


REFUSED = AddressRefused("https://harvester: its address is not allowed")


# The connection


async def connected(case: Case) -> ClusterScope:
    scope = case.scope()
    await ensure_connection(scope)
    return scope


@pytest.mark.parametrize(
    ("error", "reason", "unknown", "outage"),
    [
        (Unreachable("no answer"), "HarvesterUnreachable", True, True),
        (REFUSED, "HarvesterConnectionFailed", False, False),
        (ServerFault(500, "", "broken"), "HarvesterConnectionFailed", False, True),
        (TooManyRequests(429, "", "slow down"), "HarvesterConnectionFailed", False, True),
        (ValueError("odd"), "HarvesterConnectionFailed", False, False),
    ],
)
async def test_why_harvester_cannot_be_used_has_a_reason_of_its_own(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str, unknown: bool, outage: bool
) -> None:
    case = Case(monkeypatch)
    case.session.error = error
    with pytest.raises(Blocked) as blocked:
        await connected(case)
    found = blocked.value
    assert (str(found.reason), found.is_unknown, found.is_outage, found.warn) == (reason, unknown, outage, True)


async def test_rejected_credentials_are_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.session.error, case.session.is_unauthorized = Unauthorized(401, "", "no"), True
    scope = case.scope()
    with pytest.raises(Blocked) as blocked:
        await ensure_connection(scope)
    assert str(blocked.value.reason) == "HarvesterAuthenticationFailed"
    assert condition(scope, "IdentityUpToDate")[:2] == ("False", "HarvesterAuthenticationFailed")


async def test_an_outage_counts_what_was_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.session.error = Unreachable("no answer")
    with pytest.raises(Blocked, match=r"Harvester is unreachable: no answer$"):
        await connected(case)
    for name, control_plane, ready in (("cp-0", True, True), ("w-0", False, True), ("w-1", False, False)):
        case.add_machine(name, control_plane=control_plane)
        case.machines[-1]["status"] = {"ready": ready}
    with pytest.raises(Blocked, match=r"last known to be ready: 1 of 1 control plane machines, 1 of 2 workers$"):
        await connected(case)


@pytest.mark.parametrize(
    ("state", "text", "unknown"),
    [
        ({"is_settled": False}, "connecting to", True),
        ({"synced": False, "missing_kind": "ippools"}, "is not a Harvester", False),
        ({"synced": False, "sync_error": "cannot list"}, "cannot be read: cannot list", False),
        ({"available": False}, "is not available", False),
        ({"available": False, "deployment_object": None}, "does not exist on", False),
    ],
)
async def test_what_is_missing_of_a_harvester_is_named(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], text: str, unknown: bool
) -> None:
    case = Case(monkeypatch)
    for name, value in state.items():
        setattr(case.session, name, value)
    with pytest.raises(Blocked, match=text) as blocked:
        await connected(case)
    assert blocked.value.is_unknown is unknown


async def test_another_harvester_is_refused_while_machines_would_seem_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.change(status={"harvester": {"uid": "former"}})
    case.add_machine("cp-0")
    with pytest.raises(Blocked) as blocked:
        await connected(case)
    assert str(blocked.value.reason) == "AnotherHarvester"
    case.machines.clear()
    scope = await connected(case)
    assert scope.draft.fields["harvester"] == {"uid": "harvester-uid"}
    assert ("Warning", "HarvesterChanged") in case.events
    case.change(status={"harvester": {"uid": "former"}}, metadata={**case.obj["metadata"], "deletionTimestamp": "x"})
    with pytest.raises(Blocked):
        await connected(case)


async def test_a_uid_that_may_not_be_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch)
    case.change(status={"harvester": {"uid": "former"}})
    case.session.uid = ""
    scope = await connected(case)
    assert scope.draft.fields["harvester"]["uid"] == "former"


# Pools whose free addresses are counted


async def test_pools_of_clusters_and_machines_are_those_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(monkeypatch, vmNetworkConfig={"ipPoolRefs": ["machines"]})
    case.add_machine("cp-0")
    case.machines[-1]["spec"] = {"vmNetworkConfig": {"ipPoolRefs": ["own"]}}
    case.add_machine("w-0")
    case.context.sessions = cast("Any", SimpleNamespace(of=lambda _: case.session))
    ((session, found),) = used_pools(case.context)
    assert session is case.session
    assert found == ["machines", "own"]
    case.context.sessions = cast("Any", SimpleNamespace(of=lambda _: None))
    assert list(used_pools(case.context)) == []


@pytest.mark.parametrize("used_by_another", [False, True])
async def test_identity_that_a_cluster_no_longer_uses_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, used_by_another: bool
) -> None:
    case = Case(monkeypatch)
    second = secret(token="another")
    case.management.put({**second, "metadata": {**second["metadata"], "name": "second"}})
    first = case.unconnected()
    before = await case.identities.read(first)
    if used_by_another:
        other = case.unconnected()
        other.obj = {**case.obj, "metadata": {**case.obj["metadata"], "name": "other"}}
        assert await case.identities.read(other) is before
    case.change(spec={**case.obj["spec"], "identitySecret": {"namespace": "team", "name": "second"}})
    assert (await case.identities.read(case.unconnected())).access.token == "another"
    # One that was forgotten is read again.
    newcomer = ClusterScope(
        case.context, {**first.obj, "metadata": {**first.obj["metadata"], "name": "third"}}, {}, first.draft
    )
    assert (await case.identities.read(newcomer) is before) is used_by_another
