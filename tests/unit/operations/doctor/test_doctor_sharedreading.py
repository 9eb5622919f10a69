"""Settings and storage of a Harvester that many identities lead to."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from caphv.api.object import Key, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from operations.doctor import settings, sharedreading
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.read.objects import HarvesterObjects, Unseen
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit

PROXY: Obj = {"apiVersion": "harvesterhci.io/v1beta1", "kind": "Setting", "metadata": {"name": "http-proxy"}}
STORAGE_CLASS: Obj = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"}}


class Harvester(MemoryServer):
    """A Harvester that counts what it is asked, by verb and kind."""

    def __init__(self) -> None:
        super().__init__(PROXY, STORAGE_CLASS)
        self.asked: Counter[str] = Counter()

    async def get(self, resource: Any, *arguments: Any, **options: Any) -> Any:
        self.asked[f"get {resource.kind}"] += 1
        return await super().get(resource, *arguments, **options)

    async def list(self, resource: Any, *arguments: Any, **options: Any) -> Any:
        self.asked[f"list {resource.kind}"] += 1
        return await super().list(resource, *arguments, **options)


class Harvesters:
    """Lend the clients of accounts, by their tokens; all others get the last server."""

    def __init__(self, *servers: Harvester) -> None:
        self.servers = list(servers)

    @asynccontextmanager
    async def client(self, kubeconfig: Kubeconfig, *_: Any, **__: Any) -> AsyncIterator[ApiClient]:
        number = int(kubeconfig.token or 0)
        yield cast("ApiClient", self.servers[min(number, len(self.servers) - 1)])


@pytest.fixture
def harvester(monkeypatch: pytest.MonkeyPatch) -> Harvester:
    server = Harvester()
    monkeypatch.setattr(sharedreading, "answering_client", Harvesters(server).client)
    return server


def identities(count: int, ca: str = "") -> list[HarvesterFacts]:
    hidden = Unseen("settings.harvesterhci.io", "forbidden")
    return [
        HarvesterFacts(
            Key("team", f"identity-{number}"),
            Kubeconfig("https://harvester", ca=ca, token=str(number)),
            objects=HarvesterObjects(unseen=[hidden]),
        )
        for number in range(count)
    ]


async def test_one_identity_reads_for_all(harvester: Harvester) -> None:
    harvesters = identities(300)
    await sharedreading.read_shared(harvesters)
    assert harvester.asked == {"get Setting": len(settings.READ), "list StorageClass": 1}
    for facts in harvesters:
        assert facts.objects
        assert [obj["metadata"]["name"] for obj in facts.objects.settings] == ["http-proxy"]
        assert [obj["metadata"]["name"] for obj in facts.storage.classes] == ["fast"]
        assert facts.unread == []


async def test_few_accounts_are_asked_for_what_none_may_read(harvester: Harvester) -> None:
    forbidden = Forbidden(403, "Forbidden", "cannot")
    harvester.errors |= {"get Setting": forbidden, "list StorageClass": forbidden}
    harvesters = identities(300)
    await sharedreading.read_shared(harvesters)
    assert harvester.asked == {"get Setting": 3 * len(settings.READ), "list StorageClass": 3}
    unread = [f"get settings {', '.join(settings.READ)}", "list storageclasses.storage.k8s.io"]
    assert all(facts.unread == unread for facts in harvesters)


async def test_another_account_reads_what_the_first_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Harvester(), Harvester()
    first.errors |= {"get Setting": Forbidden(403, "Forbidden", "cannot get")}
    second.errors |= {"list StorageClass": Unreachable("no answer")}
    monkeypatch.setattr(sharedreading, "answering_client", Harvesters(first, second).client)
    harvesters = identities(2)
    await sharedreading.read_shared(harvesters)
    for facts in harvesters:
        assert facts.objects
        assert len(facts.objects.settings) == len(facts.storage.classes) == 1
        assert facts.unread == []


async def test_another_ca_is_another_harvester(harvester: Harvester) -> None:
    await sharedreading.read_shared([*identities(1), *identities(1, ca="other")])
    assert harvester.asked["list StorageClass"] == 2


async def test_a_harvester_that_answers_no_more_is_not_read(harvester: Harvester) -> None:
    harvester.errors |= {"get Setting": Unreachable("no route"), "list StorageClass": Unreachable("no route")}
    (facts,) = harvesters = identities(1)
    await sharedreading.read_shared([*harvesters, HarvesterFacts(Key("team", "unreachable"))])
    assert facts.unread
    assert facts.storage.classes == []


async def test_settings_that_an_identity_may_list_are_those_of_all(harvester: Harvester) -> None:
    harvesters = identities(2)
    harvesters[1].objects = HarvesterObjects(settings=[PROXY])
    await sharedreading.read_shared(harvesters)
    assert harvester.asked["get Setting"] == 0
    assert harvesters[0].objects
    assert harvesters[0].objects.settings == [PROXY]
