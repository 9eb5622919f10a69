"""Objects of others in the way of the guests' account: what a user has to delete is read again; nothing watches it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.names import SERVICE_ACCOUNT_ANNOTATION, SERVICE_ACCOUNT_TOKEN_TYPE, ConditionType
from caphv.api.object import CLUSTER_ROLE_BINDINGS, SECRETS, SERVICE_ACCOUNTS, Key, Obj, Resource
from caphv.api.ownership import Owner, record
from caphv.runtime.errors import NotFound
from reconciler.blocked import Blocked
from reconciler.cluster import cloudaccount
from reconciler.cluster.cloudconfig import ensure_cloud_config, renew_cloud_config
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.guestaccount import grant
from reconciler.memory.cluster import ClusterMemory
from reconciler.statusdraft import StatusDraft

pytestmark = pytest.mark.unit

OURS = Owner("HarvesterCluster", "team", "demo", "uid", "management")
ANOTHER = Owner("HarvesterCluster", "other", "demo", "uid-2", "another")


class Harvester:
    """Objects by kind and name, for reading only."""

    def __init__(self, *objects: tuple[Resource, Obj]) -> None:
        self.objects = {(resource, obj["metadata"]["name"]): obj for resource, obj in objects}

    async def get(self, resource: Resource, name: str, _namespace: str = "") -> Obj:
        try:
            return self.objects[resource, name]
        except KeyError:
            raise NotFound(404, "NotFound", name) from None


class Writable(Harvester):
    """Objects by kind and name, which can be patched and deleted."""

    async def patch(self, resource: Resource, name: str, _namespace: str, patch: Obj) -> Obj:
        assert patch.pop("metadata") == {"resourceVersion": "1"}
        self.objects[resource, name] |= patch
        return self.objects[resource, name]

    async def delete(self, resource: Resource, name: str, _namespace: str, *, uid: str) -> None:
        assert self.objects.pop((resource, name))["metadata"]["uid"] == uid


class Requeued(SimpleNamespace):
    """A scope that notes when it is to be reconciled again."""

    def requeue_within(self, delay: float | None) -> None:
        self.delay = min((each for each in (self.delay, delay) if each), default=None)


def scope(harvester: Harvester) -> Any:
    metadata = {"namespace": "team", "name": "demo", "uid": "uid", "annotations": {}}
    session = SimpleNamespace(client=harvester, error=None, fingerprint="harvester")
    notified: list[object] = []
    return Requeued(
        obj={"metadata": metadata, "spec": {"server": "https://harvester", "cloudConfig": {"delivery": "File"}}},
        key=Key("team", "demo"),
        draft=SimpleNamespace(is_true=lambda _: True),
        memory=ClusterMemory("uid"),
        context=SimpleNamespace(
            sessions=SimpleNamespace(of=lambda _: session),
            topics=SimpleNamespace(notify=notified.append),
            object_watches=SimpleNamespace(known=lambda *_: None),
        ),
        session=session,
        notified=notified,
        delay=None,
        owner=OURS,
        target_namespace="vms",
        cluster_key=SimpleNamespace(name="demo"),
        require_session=lambda: session,
    )


def test_taken_names_of_the_account_are_read_again_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudaccount, "may_adopt", lambda *_: False)
    names = cloudaccount.account_names(scope(Harvester()))
    foreign = [(SERVICE_ACCOUNTS, {"metadata": {"name": name, "annotations": record(ANOTHER)}}) for name in names]
    with pytest.raises(Blocked, match="belongs to another owner") as blocked:
        asyncio.run(cloudaccount.ensure_account(scope(Harvester(*foreign))))
    assert blocked.value.warn
    assert blocked.value.requeue_after is not None
    assert blocked.value.requeue_after <= 60


def test_token_of_another_account_is_read_again_within_a_minute() -> None:
    secret = {
        "metadata": {"name": "demo-token", "namespace": "vms", "annotations": {SERVICE_ACCOUNT_ANNOTATION: "another"}}
    }
    with pytest.raises(Blocked, match="is not the token of ServiceAccount demo; delete it") as blocked:
        asyncio.run(cloudaccount.lasting_credentials(scope(Harvester((SECRETS, secret))), "demo"))
    assert blocked.value.requeue_after is not None
    assert blocked.value.requeue_after <= 60


def account_of_go(**data: str) -> list[tuple[Resource, Obj]]:
    """An account as the Go provider left it: its objects have no record, which `ensure_account` would write."""
    secret = {"name": "demo-token", "namespace": "vms", "annotations": {SERVICE_ACCOUNT_ANNOTATION: "demo"}}
    return [
        (SERVICE_ACCOUNTS, {"metadata": {"name": "demo", "namespace": "vms"}}),
        (CLUSTER_ROLE_BINDINGS, {"metadata": {"name": "demo"}, **grant(Key("vms", "demo"))}),
        (SECRETS, {"metadata": secret, "data": {name.replace("_", "."): value for name, value in data.items()}}),
    ]


def restored(*objects: tuple[Resource, Obj]) -> Any:
    """The scope of a paused cluster, after a restart, whose credentials were read; a write fails."""
    found = scope(Harvester(*objects))
    asyncio.run(renew_cloud_config(found, "the cluster is paused"))
    return found


def test_file_of_a_paused_cluster_is_restored_without_a_write() -> None:
    found = restored(*account_of_go(token="dG9rZW4=", ca_crt="Y2E="))
    assert "token: token" in found.memory.guest.kubeconfig
    assert found.notified
    assert found.delay is None


@pytest.mark.parametrize("data", [{}, {"token": "dG9rZW4="}, {"ca_crt": "Y2E="}])
def test_token_that_is_never_filled_is_read_once_a_minute(data: dict[str, str]) -> None:
    found = restored(*account_of_go(**data))
    assert (found.memory.guest.kubeconfig, found.delay) == (None, 60.0)


@pytest.mark.parametrize("missing", [SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS, SECRETS])
def test_missing_account_is_not_created_for_a_paused_cluster(missing: Resource) -> None:
    objects = [each for each in account_of_go(token="dG9rZW4=", ca_crt="Y2E=") if each[0] is not missing]
    assert restored(*objects).memory.guest.kubeconfig is None


def token(account: str) -> tuple[Resource, Obj]:
    """Secret `demo-token` of an account."""
    annotations = {SERVICE_ACCOUNT_ANNOTATION: account}
    metadata = {"name": "demo-token", "namespace": "vms", "uid": "3", "annotations": annotations}
    return SECRETS, {"metadata": metadata, "type": SERVICE_ACCOUNT_TOKEN_TYPE}


@pytest.mark.parametrize(("account", "left"), [("demo", []), ("another", [SECRETS])])
def test_token_of_another_account_is_not_deleted(account: str, left: list[Resource]) -> None:
    ours = {"namespace": "vms", "name": "demo", "annotations": record(OURS)}
    harvester = Writable(
        (SERVICE_ACCOUNTS, {"metadata": {**ours, "uid": "1"}}),
        (CLUSTER_ROLE_BINDINGS, {"metadata": {**ours, "uid": "2"}, **grant(Key("vms", "demo"))}),
        token(account),
    )
    asyncio.run(cloudaccount.delete_account(scope(harvester)))
    assert [resource for resource, _ in harvester.objects] == left


def test_account_that_was_deleted_leaves_the_binding_of_its_namespace() -> None:
    others = {"kind": "ServiceAccount", "name": "another", "namespace": "vms"}
    shared = {"metadata": {"name": "caphv-guests:vms", "resourceVersion": "1"}, **grant(Key("vms", "demo"))}
    shared["subjects"].append(others)
    # Without the account, nothing says whose the Secret is.
    harvester = Writable((CLUSTER_ROLE_BINDINGS, shared), token("demo"))
    asyncio.run(cloudaccount.delete_account(scope(harvester)))
    assert harvester.objects[CLUSTER_ROLE_BINDINGS, "caphv-guests:vms"]["subjects"] == [others]
    assert (SECRETS, "demo-token") in harvester.objects


def pair(owner: Owner) -> list[tuple[Resource, Obj]]:
    """Account and binding `demo` of an owner."""
    metadata = {"namespace": "vms", "name": "demo", "annotations": record(owner)}
    binding = {"metadata": {**metadata, "uid": "2"}, **grant(Key("vms", "demo"))}
    return [(SERVICE_ACCOUNTS, {"metadata": {**metadata, "uid": "1"}}), (CLUSTER_ROLE_BINDINGS, binding)]


@pytest.mark.parametrize("half", [0, 1], ids=["account", "binding"])
def test_half_an_account_is_deleted_with_its_token(half: int) -> None:
    harvester = Writable(pair(OURS)[half], token("demo"))
    asyncio.run(cloudaccount.delete_account(scope(harvester)))
    assert harvester.objects == {}


def test_binding_is_deleted_before_token_and_account() -> None:
    deleted: list[Resource] = []

    class Noting(Writable):
        async def delete(self, resource: Resource, name: str, namespace: str, *, uid: str) -> None:
            deleted.append(resource)
            await super().delete(resource, name, namespace, uid=uid)

    asyncio.run(cloudaccount.delete_account(scope(Noting(*pair(OURS), token("demo")))))
    assert deleted == [CLUSTER_ROLE_BINDINGS, SECRETS, SERVICE_ACCOUNTS]


def test_account_that_is_deleted_meanwhile_is_not_an_error() -> None:
    class Late(Writable):
        async def delete(self, resource: Resource, name: str, namespace: str, *, uid: str) -> None:
            await super().delete(resource, name, namespace, uid=uid)
            raise NotFound(404, "NotFound", name)

    harvester = Late(*pair(OURS), token("demo"))
    asyncio.run(cloudaccount.delete_account(scope(harvester)))
    assert harvester.objects == {}


def test_account_of_another_cluster_keeps_all_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudaccount, "may_adopt", lambda *_: False)
    shared = {"metadata": {"name": "caphv-guests:vms", "resourceVersion": "1"}, **grant(Key("vms", "demo"))}
    harvester = Writable(*pair(ANOTHER), token("demo"), (CLUSTER_ROLE_BINDINGS, shared))
    before = dict(harvester.objects)
    asyncio.run(cloudaccount.delete_account(scope(harvester)))
    assert harvester.objects == before
    assert shared["subjects"] == grant(Key("vms", "demo"))["subjects"]


@pytest.mark.parametrize("is_requested", [True, False])
def test_account_without_a_record_is_deleted_only_for_what_the_go_provider_was_asked_for(is_requested: bool) -> None:
    """Harvester's script for cloud providers creates the same objects, under a name that a user chose."""
    harvester = Writable(*pair(OURS), token("demo"))
    for resource in (SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS):
        del harvester.objects[resource, "demo"]["metadata"]["annotations"]
    before = dict(harvester.objects)
    found = scope(harvester)
    del found.obj["spec"]["cloudConfig"]
    if is_requested:
        found.obj["spec"]["updateCloudProviderConfig"] = {"manifestsConfigMapName": "manifests"}
    asyncio.run(cloudaccount.delete_account(found))
    assert harvester.objects == ({} if is_requested else before)


# Renewal and checks


class Renewed(Requeued):
    """The scope of a cluster whose guests have a Secret with credentials, which cannot be renewed now."""

    def __init__(self, *, harvester: Harvester | None = None, workload: bool = True) -> None:
        found = vars(scope(harvester or Harvester(*account_of_go(token="dG9rZW4=", ca_crt="Y2E="))))
        super().__init__(**found)
        self.obj["spec"]["cloudConfig"] = {"delivery": "Secret"}
        self.connected_to: list[Key] = []
        self.watched: list[Key] = []
        self.warnings: list[str] = []
        self.warning_event = lambda reason, _message: self.warnings.append(reason)
        self.draft = StatusDraft(self.obj)
        self.cluster_key = Key("team", "demo")
        self.context.workloads = SimpleNamespace(
            ensure=self._ensure, client=self._client, has_answered=lambda _: True, workload=workload
        )
        self.context.object_watches = SimpleNamespace(ensure=self._watch, known=lambda *_: None)

    async def _ensure(self, cluster: Key) -> None:
        self.connected_to.append(cluster)

    def _client(self, cluster: Key) -> object:
        return object() if cluster in self.connected_to and self.context.workloads.workload else None

    async def _watch(self, key: Key, *_: object) -> None:
        self.watched.append(key)


@pytest.mark.parametrize("why", ["the cluster is paused", "Harvester does not answer"])
async def test_token_of_guests_is_watched_after_a_restart(why: str) -> None:
    """Nothing else connects to the workload cluster of a paused or blocked cluster, and its token expires."""
    renewed = Renewed()
    await renew_cloud_config(cast("ClusterScope", renewed), why)
    assert renewed.connected_to == [Key("team", "demo")]
    assert renewed.watched
    silent = Renewed(workload=False)
    await renew_cloud_config(cast("ClusterScope", silent), why)
    assert silent.watched == []
    deleted = Renewed()
    deleted.obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await renew_cloud_config(cast("ClusterScope", deleted), why)
    assert deleted.connected_to == []


@pytest.mark.parametrize("missing", [None, SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS, SECRETS])
async def test_account_that_exists_is_not_taken_for_lost(missing: Resource | None) -> None:
    objects = [each for each in account_of_go(token="dG9rZW4=", ca_crt="Y2E=") if each[0] is not missing]
    found = scope(Harvester(*objects))
    assert await cloudaccount.exists(found, token=True) is (missing is None)
    assert await cloudaccount.exists(found, token=False) is (missing in (None, SECRETS))


async def test_lost_account_is_recreated_within_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("reconciler.cluster.cloudconfig.time.monotonic", lambda: clock[0])
    harvester = Recreating(*(ours(each) for each in account_of_go(token="dG9rZW4=", ca_crt="Y2E=")))
    found = scope(harvester)
    found.draft = StatusDraft(found.obj)
    published = []
    for _ in range(3):
        harvester.reads = 0
        await ensure_cloud_config(cast("ClusterScope", found))
        published.append((harvester.reads > 0, found.memory.guest.kubeconfig is not None))
        found.memory.guest.kubeconfig = None
        assert found.delay <= 600
        clock[0] += 400
    # Written at first; then nothing is read for ten minutes; then the account is read, and exists.
    assert published == [(True, True), (False, False), (True, False)]
    assert harvester.created == []
    del harvester.objects[SERVICE_ACCOUNTS, "demo"]
    clock[0] += 600
    await ensure_cloud_config(cast("ClusterScope", found))
    assert harvester.created == [SERVICE_ACCOUNTS]
    assert found.memory.guest.kubeconfig is not None
    assert found.draft.is_true(ConditionType.CLOUD_PROVIDER_CONFIG_READY)


async def test_account_that_never_existed_is_not_lost() -> None:
    harvester = Recreating()
    found = scope(harvester)
    found.draft = StatusDraft(found.obj)
    await ensure_cloud_config(cast("ClusterScope", found))
    assert not found.memory.guest.account_lost
    assert harvester.created == [SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS, SECRETS]


class Recreating(Harvester):
    """Objects by kind and name, which are counted when they are read and created."""

    def __init__(self, *objects: tuple[Resource, Obj]) -> None:
        super().__init__(*objects)
        self.reads, self.created = 0, list[Resource]()

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        self.reads += 1
        return await super().get(resource, name, namespace)

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        self.created.append(resource)
        self.objects[resource, obj["metadata"]["name"]] = obj
        return obj


def ours(found: tuple[Resource, Obj]) -> tuple[Resource, Obj]:
    """An object of the account with our record."""
    resource, obj = found
    annotations = {**obj["metadata"].get("annotations", {}), **record(OURS)}
    return resource, {**obj, "metadata": {**obj["metadata"], "annotations": annotations}}
