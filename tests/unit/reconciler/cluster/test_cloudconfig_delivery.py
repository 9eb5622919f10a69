"""The cloud config of a cluster: delivered in each way, renewed in time, repaired, and taken away with the cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from caphv.api import names
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    SECRETS,
    SERVICE_ACCOUNTS,
    Obj,
    annotations_of,
    key_of,
)
from caphv.runtime.errors import Forbidden, ServerFault, Unauthorized, Unreachable
from reconciler.memory.periods import GRACE_SECONDS
from tests.support.reconciler.guests import DAY, PLACE, READY, Guests, delivered, tokens
from tests.support.reconciler.tokenissuer import encoded

pytestmark = pytest.mark.unit


async def test_secret_is_written_with_a_token_that_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await delivered(monkeypatch)
    assert tokens(case.secret) == {"expiring-1"}
    assert set(case.secret["data"]) == {"cloud-config", "cloud-provider-config"}
    assert case.harvester.issued[0][0].endswith("/vms/serviceaccounts/demo/token")
    account = case.harvester.find("ServiceAccount", "demo", "vms")
    assert account is not None
    assert account["metadata"]["annotations"]["caphv.io/owner-uid"] == "demo-uid"
    renew_at = datetime.fromisoformat(case.secret["metadata"]["annotations"][names.RENEW_AT_ANNOTATION])
    assert (renew_at - datetime.now(UTC)).total_seconds() == pytest.approx(2 * DAY, abs=60)
    assert case.events.count(("Normal", "CloudConfigWritten")) == 1
    # Nothing is written or issued again, nor after a restart.
    before = len(case.workload.requests), len(case.harvester.requests)
    for _ in range(2):
        await case.reconcile()
        assert (len(case.workload.requests), len(case.harvester.requests)) == before
        case.restart()
    assert len(case.harvester.issued) == 1
    # What was verified is not read again.
    await case.reconcile()
    case.workload.errors["get Secret"] = Unreachable("read again")
    await case.reconcile()
    assert case.condition(READY)[0] == "True"


@pytest.mark.parametrize("skew", [-10, 10])
async def test_token_is_renewed_in_time_whatever_the_clock_of_harvester_says(
    monkeypatch: pytest.MonkeyPatch, skew: int
) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    start = datetime.now(UTC) + timedelta(days=skew)
    ends = start + timedelta(days=3)
    claims = {"sub": "system:serviceaccount:vms:demo", "iat": int(start.timestamp()), "exp": int(ends.timestamp())}
    requested: list[str] = []

    async def request(_method: str, path: str, **_: object) -> Obj:
        requested.append(path)
        return {"status": {"token": encoded(claims), "expirationTimestamp": ends.isoformat()}}

    monkeypatch.setattr(case.harvester, "request", request)
    await case.reconcile()
    annotations = case.secret["metadata"]["annotations"]
    for name, days in ((names.RENEW_AT_ANNOTATION, 2), (names.EXPIRES_AT_ANNOTATION, 3)):
        remaining = datetime.fromisoformat(annotations[name]) - datetime.now(UTC)
        assert remaining.total_seconds() == pytest.approx(days * DAY, abs=60), name
    case.clock[0] += 1000
    await case.reconcile()
    assert len(requested) == 1


async def test_secret_waits_for_the_workload_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    case.guests_answer = False
    await case.reconcile()
    assert case.condition(READY)[0] != "True"
    assert case.condition("Ready")[0] == "True"
    assert case.harvester.issued == []


@pytest.mark.parametrize(
    "change",
    [names.RENEW_AT_ANNOTATION, names.INPUTS_ANNOTATION, names.CONTENT_ANNOTATION],
    ids=["late", "inputs", "edited"],
)
async def test_secret_is_written_again_when_it_is_due_or_was_edited(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    case = await delivered(monkeypatch)
    case.clock[0] += 1000
    past = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    case.note(change, past if change == names.RENEW_AT_ANNOTATION else "other")
    await case.reconcile()
    assert tokens(case.secret) == {"expiring-2"}


async def test_client_that_keeps_changing_the_secret_costs_no_token_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await delivered(monkeypatch)
    case.clock[0] += 1
    case.note(names.CONTENT_ANNOTATION, "other")
    await case.reconcile()
    assert len(case.harvester.issued) == 1
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationInProgress")
    case.clock[0] += 1000
    await case.reconcile()
    assert len(case.harvester.issued) == 2
    assert case.condition(READY)[0] == "True"


async def test_secret_of_another_is_neither_replaced_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    foreign = {"name": PLACE[1], "namespace": PLACE[2]}
    case.workload.put({"apiVersion": "v1", "kind": "Secret", "metadata": foreign, "data": {"cloud-config": "eA=="}})
    for _ in range(2):
        await case.reconcile()
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")
    assert case.events.count(("Warning", "CloudProviderConfigGenerationFailed")) == 1
    assert case.secret["data"] == {"cloud-config": "eA=="}
    assert case.harvester.issued == []


async def test_deleted_secret_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await delivered(monkeypatch)
    case.clock[0] += 1000
    await case.workload.delete(SECRETS, PLACE[1], PLACE[2])
    await case.reconcile()
    assert tokens(case.secret) == {"expiring-2"}


async def test_a_first_delivery_reports_at_once_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    case.guests_answer = False
    await case.reconcile()
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationInProgress")


async def test_delivered_config_stays_known_while_the_workload_cluster_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await delivered(monkeypatch)
    case.guests_answer = False
    requeue_after = await case.reconcile()
    assert case.condition(READY)[0] == "True"
    assert requeue_after is not None
    assert 0 < requeue_after <= GRACE_SECONDS
    case.clock[0] += GRACE_SECONDS + 1
    await case.reconcile()
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationInProgress")
    case.guests_answer = True
    await case.reconcile()
    assert case.condition(READY)[0] == "True"
    # A token that cannot be renewed meanwhile is reported.
    now = datetime.now(UTC)
    case.note(names.RENEW_AT_ANNOTATION, (now - timedelta(days=2)).isoformat())
    case.note(names.EXPIRES_AT_ANNOTATION, (now + timedelta(days=1)).isoformat())
    case.guests_answer = False
    await case.reconcile()
    assert case.condition(READY)[0] == "True"
    case.clock[0] += GRACE_SECONDS + 1
    await case.reconcile()
    assert case.condition(READY) == ("False", names.Reason.CLOUD_PROVIDER_CONFIG_EXPIRING)


@pytest.mark.parametrize("error", [Unreachable("no answer"), Unauthorized(401, "Unauthorized", "")])
async def test_silent_workload_cluster_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, error: Unreachable | Unauthorized
) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    case.workload.errors["create Secret"] = error
    requeue_after = await case.reconcile()
    assert case.condition(READY)[0] == "False"
    assert requeue_after is not None
    assert requeue_after <= 10.0
    assert ("", "probed") not in case.events, "Harvester has rejected nothing"


async def test_refused_account_is_reported_and_gates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    refused = Forbidden(403, "Forbidden", "cannot create serviceaccounts")
    refused.server = "harvester"
    case.harvester.errors["create ServiceAccount"] = refused
    for _ in range(2):
        requeue_after = await case.reconcile()
        assert requeue_after == 60.0
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationFailed")
    assert case.condition("Ready")[0] == "True"
    assert case.events.count(("Warning", "CloudProviderConfigGenerationFailed")) == 1


async def test_token_that_cannot_be_renewed_is_reported_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await delivered(monkeypatch)
    case.clock[0] += 1000
    case.harvester.errors["get ServiceAccount"] = Forbidden(403, "Forbidden", "no")
    case.session.is_unauthorized = True
    now = datetime.now(UTC)
    requeue_after = await case.reconcile()
    assert requeue_after is not None
    assert requeue_after <= 2.5 * DAY
    assert ("Warning", names.Reason.CLOUD_PROVIDER_CONFIG_EXPIRING) not in case.events
    case.note(names.RENEW_AT_ANNOTATION, (now - timedelta(days=2)).isoformat())
    case.note(names.EXPIRES_AT_ANNOTATION, (now + timedelta(days=1)).isoformat())
    for _ in range(2):
        await case.reconcile()
        assert case.condition(READY) == ("False", names.Reason.CLOUD_PROVIDER_CONFIG_EXPIRING)
    assert case.events.count(("Warning", names.Reason.CLOUD_PROVIDER_CONFIG_EXPIRING)) == 1
    # Another reason is no further news.
    case.harvester.errors["get ServiceAccount"] = Forbidden(403, "Forbidden", "still no")
    case.session.is_unauthorized = False
    case.session.error = Forbidden(403, "Forbidden", "may not even ask")
    await case.reconcile()
    assert case.condition(READY) == ("False", names.Reason.CLOUD_PROVIDER_CONFIG_EXPIRING)
    assert case.events.count(("Warning", names.Reason.CLOUD_PROVIDER_CONFIG_EXPIRING)) == 1
    # It is reported a second time once it has expired.
    case.note(names.EXPIRES_AT_ANNOTATION, (now - timedelta(hours=1)).isoformat())
    for _ in range(2):
        await case.reconcile()
    assert case.events.count(("Warning", names.Reason.CLOUD_PROVIDER_CONFIG_EXPIRING)) == 2


async def test_paused_cluster_renews_the_token_of_its_guests(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await delivered(monkeypatch)
    case.clock[0] += 1000
    case.management.put({**case.cluster, "spec": {"paused": True}})
    case.note(names.RENEW_AT_ANNOTATION, (datetime.now(UTC) - timedelta(minutes=1)).isoformat())
    requeue_after = await case.reconcile()
    assert tokens(case.secret) == {"expiring-2"}
    assert requeue_after is not None
    # But it creates no Secret that does not exist.
    await case.workload.delete(SECRETS, PLACE[1], PLACE[2])
    await case.reconcile()
    assert case.workload.find(*PLACE) is None


@pytest.mark.parametrize(
    ("renew_at", "expires_at"), [(-1, 3), (-3, 1)], ids=["until it is warned of", "until it expires"]
)
async def test_paused_cluster_is_back_when_the_state_of_its_token_changes(
    monkeypatch: pytest.MonkeyPatch, renew_at: int, expires_at: int
) -> None:
    case = await delivered(monkeypatch)
    case.management.put({**case.cluster, "spec": {"paused": True}})
    case.session.error = Unreachable("no answer")
    now = datetime.now(UTC)
    case.note(names.RENEW_AT_ANNOTATION, (now + timedelta(hours=renew_at)).isoformat())
    case.note(names.EXPIRES_AT_ANNOTATION, (now + timedelta(hours=expires_at)).isoformat())
    assert await case.reconcile() == pytest.approx(3600, abs=5)


async def test_paused_cluster_is_back_after_a_renewal_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await delivered(monkeypatch)
    case.management.put({**case.cluster, "spec": {"paused": True}})
    case.note(names.RENEW_AT_ANNOTATION, (datetime.now(UTC) - timedelta(minutes=1)).isoformat())
    assert await case.reconcile() == 5, "the token was written right before"
    case.clock[0] += 1000
    case.harvester.errors["get ServiceAccount"] = ServerFault(500, "InternalError", "no leader")
    assert await case.reconcile() == 60
    case.harvester.errors.clear()
    await case.reconcile()
    assert tokens(case.secret) == {"expiring-2"}


async def test_the_account_of_guests_is_checked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await delivered(monkeypatch)
    case.clock[0] += 500
    assert 0 < (await case.reconcile() or 0) <= 40
    (account,) = case.harvester.stored(SERVICE_ACCOUNTS)
    case.harvester.remove(SERVICE_ACCOUNTS, *reversed(key_of(account)))
    case.clock[0] += 41
    assert 0 < (await case.reconcile() or 0) <= 540
    assert len(case.harvester.stored(SERVICE_ACCOUNTS)) == 1


# Other ways


async def test_files_of_guests_have_a_token_that_does_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "File"})
    await case.reconcile()
    assert case.condition(READY)[0] == "True"
    memory = case.context.memory.cluster(case.obj)
    assert memory.guest.kubeconfig is not None
    assert "token of demo-token" in memory.guest.kubeconfig
    assert case.workload.requests == []
    before = list(case.harvester.requests)
    case.restart()
    await case.reconcile()
    assert case.context.memory.cluster(case.obj).guest.kubeconfig is not None
    assert case.harvester.requests == before


async def test_token_that_harvester_does_not_fill_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "File"})
    case.harvester.fills = False
    assert await case.reconcile() == 0.5
    assert case.condition(READY) == ("False", "CloudProviderConfigGenerationInProgress")


async def test_account_of_the_go_provider_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    place = {"name": "demo", "namespace": "vms", "annotations": {"example.com/keep": "x"}}
    case.harvester.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place})
    case.harvester.put({**shared_binding(OWN), "metadata": {"name": "demo"}})
    await case.reconcile()
    (account,), (binding,) = case.harvester.stored(SERVICE_ACCOUNTS), case.harvester.stored(CLUSTER_ROLE_BINDINGS)
    for obj in (account, binding):
        assert obj["metadata"]["name"] == "demo"
        assert obj["metadata"]["annotations"]["caphv.io/owner-uid"] == "demo-uid"
    assert account["metadata"]["annotations"]["example.com/keep"] == "x"
    assert binding["subjects"] == [OWN]


async def test_binding_that_may_not_be_changed_is_replaced_by_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    case.harvester.put(shared_binding(OTHER))
    case.harvester.errors["patch ClusterRoleBinding"] = Forbidden(403, "Forbidden", "cannot patch")
    await case.reconcile()
    assert case.condition(READY)[0] == "True"
    own = case.harvester.find("ClusterRoleBinding", "demo")
    assert own is not None
    assert own["subjects"] == [OWN]


async def test_binding_of_another_role_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    case.harvester.put({**shared_binding(OTHER), "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"}})
    await case.reconcile()
    shared = case.harvester.find("ClusterRoleBinding", "caphv-guests:vms")
    assert shared is not None
    assert shared["subjects"] == [OTHER]
    assert case.harvester.find("ClusterRoleBinding", "demo") is not None


async def test_taken_name_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    taken = {"name": "demo", "namespace": "vms"}
    case.harvester.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": taken})
    await case.reconcile()
    assert case.condition(READY)[0] == "True"
    found = [obj["metadata"]["name"] for obj in case.harvester.stored(SERVICE_ACCOUNTS)]
    assert found[0] == "demo"
    assert found[1].startswith("demo-")
    assert [obj["metadata"]["name"] for obj in case.harvester.stored(CLUSTER_ROLE_BINDINGS)] == [found[1]]


def move(case: Guests, *, by_caphv: bool = True) -> None:
    """Have another management cluster with another uid of the HarvesterCluster, and a process that starts there."""
    former = f"{case.context.management_cluster}/{case.obj['metadata']['uid']}"
    annotations = {names.FORMER_OWNER_ANNOTATION: former} if by_caphv else {}
    obj = {name: value for name, value in case.obj.items() if name != "status"}
    case.management.put({**obj, "metadata": {**obj["metadata"], "uid": "new-uid", "annotations": annotations}})
    case.context.management_cluster = "target-uid"
    case.restart()


def owners(case: Guests) -> dict[str, str]:
    """Return the uid of the owner of each account and binding, by kind and name."""
    return {
        f"{obj['kind']} {obj['metadata']['name']}": annotations_of(obj).get(names.OWNER_UID_ANNOTATION, "")
        for resource in (SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS)
        for obj in case.harvester.stored(resource)
    }


async def remove(case: Guests) -> None:
    await case.management.delete(case.context.caches.harvester_clusters.resource, "demo", "team")
    for _ in range(6):
        if case.management.find("HarvesterCluster", "demo", "team"):
            await case.reconcile()
    assert case.management.find("HarvesterCluster", "demo", "team") is None


async def test_account_with_a_hash_in_its_name_outlives_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of guests have its token, which never expires."""
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "File"})
    taken = {"name": "demo", "namespace": "vms"}
    case.harvester.put({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": taken})
    await case.reconcile()
    before = owners(case)
    assert sorted(before.values()) == ["", "demo-uid", "demo-uid"]

    move(case)
    for _ in range(2):
        await case.reconcile()
    assert case.condition(READY)[0] == "True"
    assert owners(case) == {name: uid and "new-uid" for name, uid in before.items()}
    await remove(case)
    assert owners(case) == {"ServiceAccount demo": ""}
    assert case.harvester.stored(SECRETS) == []


async def test_account_of_a_moved_cluster_is_adopted_before_its_token_is_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await delivered(monkeypatch)
    move(case)
    await case.reconcile()
    assert owners(case) == {"ServiceAccount demo": "new-uid", "ClusterRoleBinding demo": "new-uid"}
    assert len(case.harvester.issued) == 1
    before = list(case.harvester.requests)
    case.restart()
    await case.reconcile()
    assert case.harvester.requests == before, "once is enough"
    await remove(case)
    assert owners(case) == {}
    assert ("Warning", "CloudConfigAccountKept") not in case.events


async def test_account_that_nothing_proves_is_kept_with_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await delivered(monkeypatch)
    before = owners(case)
    move(case, by_caphv=False)
    await remove(case)
    assert owners(case) == before
    assert ("Warning", "CloudConfigAccountKept") in case.events


def shared_binding(*subjects: Obj) -> Obj:
    reference = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "harvesterhci.io:cloudprovider",
    }
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
    return {**head, "metadata": {"name": "caphv-guests:vms"}, "roleRef": reference, "subjects": list(subjects)}


OTHER = {"kind": "ServiceAccount", "name": "other", "namespace": "vms"}
OWN = {"kind": "ServiceAccount", "name": "demo", "namespace": "vms"}


async def test_account_joins_the_binding_of_its_namespace_and_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": "Secret"})
    case.harvester.put(shared_binding(OTHER))
    for _ in range(2):
        await case.reconcile()
    (binding,) = case.harvester.stored(CLUSTER_ROLE_BINDINGS)
    assert binding["subjects"] == [OTHER, OWN]
    # Nor does a later check take the account for lost.
    case.clock[0] += 1000
    before = list(case.harvester.requests)
    await case.reconcile()
    assert case.harvester.requests == before
    await case.management.delete(case.context.caches.harvester_clusters.resource, "demo", "team")
    for _ in range(4):
        if case.management.find("HarvesterCluster", "demo", "team"):
            await case.reconcile()
    (binding,) = case.harvester.stored(CLUSTER_ROLE_BINDINGS)
    assert binding["subjects"] == [OTHER]
    assert case.harvester.stored(SERVICE_ACCOUNTS) == []


@pytest.mark.parametrize("delivery", ["Secret", "File"])
async def test_account_is_deleted_when_no_cloud_config_is_wanted_any_more(
    monkeypatch: pytest.MonkeyPatch, delivery: str
) -> None:
    case = await Guests.ready(monkeypatch, cloudConfig={"delivery": delivery})
    await case.reconcile()
    assert case.harvester.stored(SERVICE_ACCOUNTS)
    spec = {name: value for name, value in case.obj["spec"].items() if name != "cloudConfig"}
    case.management.put({**case.obj, "spec": spec})
    await case.reconcile()
    for resource in (SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS, SECRETS):
        assert case.harvester.stored(resource) == [], resource
    assert case.condition(READY) == ("", "")
