"""The session of a cluster: which identity opens it, what is refused, and what happens to `spec.server`."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from caphv.api import names, resources
from caphv.api.object import NAMESPACES, SECRETS, Key, Obj
from caphv.runtime.errors import (
    AddressRefused,
    Forbidden,
    NotFound,
    ServerFault,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError
from reconciler.cluster import identity
from reconciler.cluster.connection import ensure_connection
from reconciler.cluster.deletion import advice, may_force_delete
from reconciler.cluster.identity import Identities, ensure_session
from reconciler.cluster.pools import used_pools
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.sessions import Sessions
from reconciler.status import Blocked, StatusDraft
from tests.support import kubeconfigs
from tests.support.reconciler.memorycase import KEY, TARGET, MemoryCase, MemoryIdentities

pytestmark = pytest.mark.unit

SERVER = "https://harvester"


def secret(
    namespace: str = "team", *, server: str = SERVER, allowed: str = "", token: str = "t", ca: bytes = b""
) -> Obj:
    authority = {"certificate-authority-data": base64.b64encode(ca).decode()} if ca else {}
    config = kubeconfigs.with_cluster(server=server, **authority)
    config["users"][0]["user"] = {"token": token}
    metadata: Obj = {"name": "identity", "namespace": namespace}
    if allowed:
        metadata["annotations"] = {names.ALLOWED_NAMESPACES_ANNOTATION: allowed}
    data = {"kubeconfig": base64.b64encode(yaml.safe_dump(config).encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


class Assignments:
    """Stands for `Sessions`: remembers what was assigned and released."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.assigned: list[tuple[Key, Kubeconfig, str, str, str]] = []
        self.released: list[Key] = []
        self.identity = ""
        self.error: KubeconfigError | None = None

    async def assign(
        self, cluster: Key, access: Kubeconfig, namespace: str, *, identity: str, harvester_uid: str
    ) -> Any:
        if self.error:
            raise self.error
        self.assigned.append((cluster, access, namespace, identity, harvester_uid))
        self.identity = identity
        return self.session

    def identity_of(self, _cluster: Key) -> str:
        return self.identity

    async def release(self, cluster: Key) -> None:
        self.released.append(cluster)
        self.identity = ""

    def accept(self, _cluster: Key) -> bool:
        return True


class Protection:
    """Whether Secrets can be protected by finalizers."""

    def __init__(self) -> None:
        self.may = True
        self.asked: list[Key] = []

    async def ensure(self, where: Key) -> bool:
        self.asked.append(where)
        return self.may


class Case(MemoryCase):
    def __init__(self, monkeypatch: pytest.MonkeyPatch, **spec: Any) -> None:
        super().__init__(monkeypatch, **spec)
        self.assignments = Assignments(self.session)
        self.context.sessions = cast("Any", self.assignments)
        self.identities = Identities(allow_insecure=False)
        self.protection = Protection()
        self.management.put(secret())

    def unconnected(self, *, read_only: bool = False) -> ClusterScope:
        return ClusterScope(self.context, self.obj, self.cluster, StatusDraft(self.obj), read_only=read_only)

    async def ensure(self, *, read_only: bool = False) -> ClusterScope:
        scope = self.unconnected(read_only=read_only)
        await ensure_session(scope, self.identities, cast("Any", self.protection))
        return scope

    def change(self, **fields: Any) -> None:
        self.management.put({**self.obj, **fields})


def condition(scope: ClusterScope, name: str) -> tuple[str, str, str]:
    found = next((each for each in scope.draft.fields.get("conditions") or () if each["type"] == name), {})
    return str(found.get("status")), str(found.get("reason")), str(found.get("message"))


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
    assert (str(found.reason), found.unknown, found.outage, found.warn) == (reason, unknown, outage, True)


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
    assert blocked.value.unknown is unknown


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
    assert blocked.unknown
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
    assert (blocked.outage, blocked.unknown) == (True, False), "what was ready stays ready, and machines hear why"
    assert blocked.requeue_after is not None
    assert may_force_delete(FORCED, blocked)
    assert names.FORCE_DELETE_ANNOTATION in advice(blocked)


async def test_a_provider_of_one_namespace_uses_no_shared_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    case.context.namespace = "team"
    blocked, _ = await case.refused()
    assert "(--namespace); use spec.identitySecret" in blocked.message


def pause(case: Shared) -> None:
    case.cluster = case.management.put({**case.cluster, "spec": {"paused": True}})


def park(case: Shared) -> None:
    metadata = {**case.cluster["metadata"], "annotations": {names.PARK_ANNOTATION: "true"}}
    case.cluster = case.management.put({**case.cluster, "metadata": metadata})


def manage_externally(case: Shared) -> None:
    case.change(metadata={**case.obj["metadata"], "annotations": {names.MANAGED_BY_ANNOTATION: "another"}})


def delete(case: Shared) -> None:
    case.change(metadata={**case.obj["metadata"], "deletionTimestamp": "2026-11-22T12:00:00Z"})


async def reconcile(case: Shared) -> None:
    await case.reconcile()
    # A parked cluster is written.
    case.cluster = case.management.find("Cluster", "demo", "team") or case.cluster


@pytest.mark.parametrize("change", [pause, park, manage_externally, delete])
async def test_a_cluster_that_is_not_reconciled_as_usual_loses_access_with_the_permission(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[Shared], None]
) -> None:
    case = Shared(monkeypatch, {"list": ["team"]})
    monkeypatch.setattr(identity, "ensure_session", ensure_session)
    await reconcile(case)
    # Its deletion waits for this machine.
    case.add_machine("cp-0")
    change(case)
    await reconcile(case)
    assert (case.assignments.identity, case.assignments.released) == (f"{OWN}/identity", [])
    case.allow({"list": ["others"]})
    await reconcile(case)
    assert case.assignments.released == [KEY]
    await reconcile(case)
    assert case.assignments.identity == "", "nor does it get a session later"
