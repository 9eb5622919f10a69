"""A Harvester is read with all accounts that lead to it: each may see other namespaces."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest
import yaml

from caphv.api import resources
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS, Obj, Resource
from caphv.runtime.errors import Forbidden, Unreachable
from commands.access.harvesters import harvester_clients
from commands.options.harvesters import HarvesterOptions
from operations.read.harvesterclient import HarvesterClient, list_everywhere
from operations.read.objects import Unseen
from tests.support import kubeconfigs
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit


class Limited(MemoryServer):
    """A Harvester as an account with rights in these namespaces sees it."""

    def __init__(self, *namespaces: str) -> None:
        pools = resources.IP_POOLS
        objs = [
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": namespace, "name": "disk"}}
            for namespace in ("a", "b", "c")
        ]
        super().__init__(*objs, served=[(pools.api_version, pools.kind)])
        self._namespaces = namespaces

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> Obj:
        if namespace not in self._namespaces:
            raise Forbidden(403, "Forbidden", f"may not list {resource} in namespace {namespace!r}")
        return await super().list(resource, namespace, **options)


def reader(*accounts: Limited, **namespaces: Limited) -> HarvesterClient:
    first, *others = accounts
    by_namespace: dict[str, Any] = namespaces
    everyone: Any = (*others, *namespaces.values())
    return HarvesterClient(cast(Any, first), frozenset({"a", "b", "c"}), by_namespace, everyone)


async def test_each_account_reads_its_namespaces_and_what_none_reads_is_named() -> None:
    hidden: list[Unseen] = []
    harvester = reader(Limited("a"), b=Limited("b"), c=Limited())
    objs, namespaces = await list_everywhere(harvester, PERSISTENT_VOLUME_CLAIMS, hidden)
    assert [obj["metadata"]["namespace"] for obj in objs] == ["a", "b"]
    assert namespaces == {"a", "b"}
    assert [item.what for item in hidden] == [
        "persistentvolumeclaims of all namespaces on Harvester",
        "persistentvolumeclaims of namespace c on Harvester",
    ]


async def test_an_account_for_all_namespaces_is_asked_once() -> None:
    hidden: list[Unseen] = []
    objs, namespaces = await list_everywhere(reader(Limited("")), PERSISTENT_VOLUME_CLAIMS, hidden)
    assert (len(objs), namespaces, hidden) == (3, None, [])


async def test_any_account_that_may_reads_all_namespaces_and_what_is_in_none() -> None:
    hidden: list[Unseen] = []
    harvester = reader(Limited("a"), Limited(), Limited(""))
    objs, namespaces = await list_everywhere(harvester, PERSISTENT_VOLUME_CLAIMS, hidden)
    assert (len(objs), namespaces, hidden) == (3, None, [])
    assert await list_everywhere(harvester, resources.IP_POOLS, hidden) == ([], None)


async def test_a_harvester_that_does_not_answer_is_not_asked_by_each_account() -> None:
    first, second = Limited(""), Limited("")
    first.errors["list PersistentVolumeClaim"] = Unreachable("no route")
    hidden: list[Unseen] = []
    assert await list_everywhere(reader(first, second), PERSISTENT_VOLUME_CLAIMS, hidden) == ([], frozenset())


async def test_what_has_no_namespace_is_not_asked_for_by_namespace() -> None:
    hidden: list[Unseen] = []
    assert await list_everywhere(reader(Limited("a")), resources.IP_POOLS, hidden) == ([], frozenset())
    assert [item.what for item in hidden] == ["ippools.loadbalancer.harvesterhci.io on Harvester"]


def identity(name: str) -> Obj:
    config = kubeconfigs.valid()
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": name}}]
    data = {"kubeconfig": base64.b64encode(yaml.safe_dump(config).encode()).decode()}
    return {"apiVersion": "v1", "kind": SECRETS.kind, "metadata": {"namespace": "team", "name": name}, "data": data}


def cluster(name: str, secret: str, target: str) -> Obj:
    kind = resources.HARVESTER_CLUSTERS
    spec = {"targetNamespace": target, "identitySecret": {"namespace": "team", "name": secret}}
    metadata = {"namespace": "team", "name": name}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}


async def test_identities_of_one_harvester_are_one_with_an_account_for_each_namespace() -> None:
    clusters = [cluster("one", "first", "a"), cluster("two", "second", "b"), cluster("three", "second", "c")]
    management: Any = MemoryServer(identity("first"), identity("second"), *clusters)
    async with harvester_clients(management, HarvesterOptions(harvester_kubeconfig="")) as (harvesters, hidden):
        (harvester,) = harvesters
        assert hidden == []
        assert harvester.namespaces == {"a", "b", "c"}
        assert harvester.of("a") is harvester.client
        assert harvester.of("b") is harvester.of("c") is not harvester.client
        assert harvester.of("") is harvester.of("of-no-cluster") is harvester.client
        assert [namespaces for _, namespaces in harvester.shares()] == [{"a"}, {"b", "c"}]


async def test_two_identities_of_one_namespace_are_both_asked() -> None:
    clusters = [cluster("one", "first", "a"), cluster("two", "second", "a")]
    management: Any = MemoryServer(identity("first"), identity("second"), *clusters)
    async with harvester_clients(management, HarvesterOptions(harvester_kubeconfig="")) as (harvesters, _):
        (harvester,) = harvesters
        assert [namespaces for _, namespaces in harvester.shares()] == [{"a"}, set()]
