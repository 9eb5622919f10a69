"""Objects of others in the way of the guests' account: what a user has to delete is read again; nothing watches it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.names import SERVICE_ACCOUNT_ANNOTATION, SERVICE_ACCOUNT_TOKEN_TYPE
from caphv.api.object import CLUSTER_ROLE_BINDINGS, SECRETS, SERVICE_ACCOUNTS, Key, Obj, Resource
from caphv.runtime.errors import NotFound
from reconciler.cluster import cloudaccount
from reconciler.cluster.cloudconfig import renew_cloud_config
from reconciler.harvester.guestaccount import grant
from reconciler.harvester.ownership import Owner, record
from reconciler.memory import ClusterMemory
from reconciler.status import Blocked

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
        self.delay = delay


def scope(harvester: Harvester) -> Any:
    metadata = {"namespace": "team", "name": "demo", "uid": "uid", "annotations": {}}
    session = SimpleNamespace(client=harvester, error=None)
    notified: list[object] = []
    return Requeued(
        obj={"metadata": metadata, "spec": {"server": "https://harvester", "cloudConfig": {"delivery": "File"}}},
        key=Key("team", "demo"),
        draft=SimpleNamespace(is_true=lambda _: True),
        memory=ClusterMemory("uid"),
        context=SimpleNamespace(
            sessions=SimpleNamespace(of=lambda _: session), topics=SimpleNamespace(notify=notified.append)
        ),
        session=session,
        notified=notified,
        delay=None,
        owner=OURS,
        target_namespace="vms",
        cluster_key=SimpleNamespace(name="demo"),
        connected=lambda: session,
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
    assert "token: token" in found.memory.guest_kubeconfig
    assert found.notified
    assert found.delay is None


def test_token_that_is_never_filled_is_read_once_a_minute() -> None:
    found = restored(*account_of_go())
    assert (found.memory.guest_kubeconfig, found.delay) == (None, 60.0)


@pytest.mark.parametrize("missing", [SERVICE_ACCOUNTS, CLUSTER_ROLE_BINDINGS, SECRETS])
def test_missing_account_is_not_created_for_a_paused_cluster(missing: Resource) -> None:
    objects = [each for each in account_of_go(token="dG9rZW4=", ca_crt="Y2E=") if each[0] is not missing]
    assert restored(*objects).memory.guest_kubeconfig is None


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
