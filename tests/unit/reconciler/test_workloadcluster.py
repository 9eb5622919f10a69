"""The connection to a workload cluster lives as long as its Cluster, and no longer."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.object import NODES, Key, Obj
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Unreachable
from reconciler.remote.workloadcluster import WorkloadClusters
from sandbox.processes import pki

pytestmark = pytest.mark.unit

CLUSTER = Key("team", "demo")


class Management:
    """Cluster and kubeconfig Secret of a workload cluster, and the caches of both."""

    def __init__(self) -> None:
        self.cluster: Obj | None = {"metadata": {"namespace": "team", "name": "demo", "uid": "first"}}
        self.owner = "first"
        self.reads = 0
        self.version, self.token = "1", "t"
        self.leads = True

    async def get(self, *_where: object) -> Obj:
        self.reads += 1
        config = pki.kubeconfig("https://127.0.0.1:1", b"", name="w", user="u", credentials={"token": self.token})
        config["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1"}
        reference = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "demo", "uid": self.owner}
        value = base64.b64encode(pki.to_yaml(config)).decode()
        return {"metadata": {"ownerReferences": [reference]}, "data": {"value": value}}

    def workloads(self) -> WorkloadClusters:
        clusters = SimpleNamespace(get=lambda *_: self.cluster)
        secrets = SimpleNamespace(get=lambda *_: {"metadata": {"resourceVersion": self.version}})
        return WorkloadClusters(
            cast(ApiClient, self), cast(Informer, clusters), cast(Informer, secrets), fence=self._fence
        )

    def _fence(self) -> None:
        if not self.leads:
            raise RuntimeError("lost the lease")


async def test_deleted_cluster_leaves_no_connection() -> None:
    management = Management()
    workloads = management.workloads()
    await workloads.ensure(CLUSTER)
    client: Any = workloads.client(CLUSTER)
    assert client is not None
    workloads.forget(CLUSTER)
    assert workloads.client(CLUSTER) is None
    assert workloads.node(CLUSTER, "one") is None
    await workloads.close()
    with pytest.raises(Unreachable):
        await client.get(NODES, "one")
    management.cluster = None
    await workloads.ensure(CLUSTER)
    assert workloads.client(CLUSTER) is None


async def test_kubeconfig_of_a_deleted_cluster_is_not_used_for_one_of_the_same_name() -> None:
    management = Management()
    management.cluster = {"metadata": {"namespace": "team", "name": "demo", "uid": "second"}}
    workloads = management.workloads()
    await workloads.ensure(CLUSTER)
    assert (workloads.client(CLUSTER), management.reads) == (None, 1)
    management.owner = "second"
    await workloads.ensure(CLUSTER)
    assert workloads.client(CLUSTER) is not None
    await workloads.close()


async def test_new_credentials_do_not_wait_until_the_connection_with_the_old_ones_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reconcile that is cancelled meanwhile, or a deleted Cluster, would leave a connection that no one needs."""
    management = Management()
    workloads = management.workloads()
    await workloads.ensure(CLUSTER)
    first, closed = workloads.client(CLUSTER), asyncio.Event()
    monkeypatch.setattr(first, "close", closed.wait)
    management.version, management.token = "2", "new"
    async with asyncio.timeout(5):
        await workloads.ensure(CLUSTER)
    assert workloads.client(CLUSTER) not in (None, first)
    workloads.forget(CLUSTER)
    assert workloads.client(CLUSTER) is None
    closed.set()
    await workloads.close()


async def test_process_that_has_lost_its_lease_writes_to_no_workload_cluster() -> None:
    """Nor does it run a program there, which may remove an etcd member."""
    management = Management()
    workloads = management.workloads()
    await workloads.ensure(CLUSTER)
    client = workloads.client(CLUSTER)
    assert client is not None
    with pytest.raises(Unreachable):
        await client.patch(NODES, "one", "", {})
    management.leads = False
    with pytest.raises(RuntimeError, match="lost the lease"):
        await client.patch(NODES, "one", "", {})
    with pytest.raises(RuntimeError, match="lost the lease"):
        async with client.websocket("/exec", (), protocol="v5"):
            pass
    await workloads.close()


async def test_outage_of_a_workload_api_is_known_from_its_first_failure_until_it_answers() -> None:
    management = Management()
    workloads, changes = management.workloads(), list[Key]()
    workloads.connect(lambda *_: None, lambda _: None, changes.append)
    await workloads.ensure(CLUSTER)
    nodes: Any = workloads._workloads[CLUSTER].nodes

    assert (workloads.outage(CLUSTER), changes) == (None, [])
    nodes.retries.report_failure(Unreachable("first"), 1, has_answered=False)
    nodes.retries.report_failure(Unreachable("second"), 2, has_answered=False)
    assert (str(workloads.outage(CLUSTER)), changes) == ("first", [CLUSTER])

    nodes._reflector._note_contact()
    assert (workloads.outage(CLUSTER), changes) == (None, [CLUSTER, CLUSTER])
    await workloads.close()
