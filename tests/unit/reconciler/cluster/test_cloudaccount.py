"""Objects of others in the way of the guests' account: what a user has to delete is read again; nothing watches it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.names import SERVICE_ACCOUNT_ANNOTATION
from caphv.api.object import SECRETS, SERVICE_ACCOUNTS, Obj, Resource
from caphv.runtime.errors import NotFound
from reconciler.cluster import cloudaccount
from reconciler.harvester.ownership import Owner, record
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


def scope(harvester: Harvester) -> Any:
    obj = {"metadata": {"namespace": "team", "name": "demo", "uid": "uid", "annotations": {}}, "spec": {}}
    return SimpleNamespace(
        obj=obj,
        owner=OURS,
        target_namespace="vms",
        cluster_key=SimpleNamespace(name="demo"),
        connected=lambda: SimpleNamespace(client=harvester),
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
    secret = {"metadata": {"name": "demo-token", "annotations": {SERVICE_ACCOUNT_ANNOTATION: "another"}}}
    with pytest.raises(Blocked, match="is not the token of ServiceAccount demo; delete it") as blocked:
        asyncio.run(cloudaccount.lasting_credentials(scope(Harvester((SECRETS, secret))), "demo"))
    assert blocked.value.requeue_after is not None
    assert blocked.value.requeue_after <= 60
