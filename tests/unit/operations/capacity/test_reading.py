"""The capacity of a Harvester is read by all accounts that lead to it."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api import resources
from caphv.api.object import NODES, RESOURCE_QUOTAS, Obj, Resource
from caphv.runtime.errors import Forbidden, RequestError, Unauthorized
from operations.capacity.reading import read_by_accounts
from operations.read.harvesterclient import HarvesterClient
from tests.support.ippools import pool
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit

INSTANCES, POOLS = resources.VIRTUAL_MACHINE_INSTANCES, resources.IP_POOLS


class Account(MemoryServer):
    """A Harvester as an account with some rights sees it: a kind, or a kind in one namespace."""

    def __init__(self, *rights: str) -> None:
        served = [(kind.api_version, kind.kind) for kind in (INSTANCES, POOLS, resources.VIRTUAL_MACHINES)]
        super().__init__(served=served)
        self._rights = rights
        self.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host", "uid": "host"}})
        self.put({"apiVersion": POOLS.api_version, "kind": POOLS.kind, **pool("p")})
        for namespace in ("a", "b"):
            metadata = {"namespace": namespace, "name": "x", "uid": namespace}
            self.put({"apiVersion": INSTANCES.api_version, "kind": INSTANCES.kind, "metadata": metadata})
            self.put({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata})

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> Obj:
        right = f"{resource.kind} {namespace}".strip()
        if right not in self._rights:
            raise Forbidden(403, "Forbidden", f"may not list {right}")
        return await super().list(resource, namespace, **options)


def harvester(first: Account, second: Account) -> HarvesterClient:
    clients: Any = {"a": first, "b": second}
    return HarvesterClient(clients["a"], frozenset({"a", "b"}), clients, (clients["b"],))


QUOTA, VMI = RESOURCE_QUOTAS.kind, INSTANCES.kind


async def test_what_either_account_sees_counts_once() -> None:
    first = Account(f"{QUOTA} a", f"{VMI} a", NODES.kind)
    second = Account(f"{QUOTA} b", f"{VMI} b", VMI, NODES.kind, POOLS.kind)
    objects = await read_by_accounts(harvester(first, second))
    assert [host["metadata"]["name"] for host in objects.harvester.hosts] == ["host"]
    assert [item["metadata"]["name"] for item in objects.harvester.pools] == ["p"]
    assert sorted(item["metadata"]["namespace"] for item in objects.quotas) == ["a", "b"]
    assert sorted(item["metadata"]["namespace"] for item in objects.harvester.instances) == ["a", "b"]
    assert objects.all_vms
    hidden = {item.what for item in objects.harvester.unseen}
    assert not hidden & {str(NODES), str(POOLS), "VMs of other namespaces"}
    assert "storage of Longhorn" in hidden, "neither may read it"


async def test_an_account_that_is_refused_is_named_and_hides_nothing_of_others() -> None:
    first, second = Account(), Account(NODES.kind, f"{QUOTA} b")
    first.errors["discover /version"] = Unauthorized(401, "Unauthorized", "expired")
    objects = await read_by_accounts(harvester(first, second))
    assert len(objects.harvester.hosts) == len(objects.quotas) == 1
    assert "Harvester https://memory:6443 by an identity for namespaces a" in {
        item.what for item in objects.harvester.unseen
    }


async def test_without_any_answer_the_error_is_raised() -> None:
    first, second = Account(), Account()
    for account in (first, second):
        account.errors["discover /version"] = Unauthorized(401, "Unauthorized", "expired")
    with pytest.raises(RequestError, match="expired"):
        await read_by_accounts(harvester(first, second))
