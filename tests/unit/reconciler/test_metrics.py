"""Metrics that are more than a counter next to the thing it counts."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from caphv.api.object import Key, Obj
from reconciler import metrics
from reconciler.cluster.identity import Identities
from reconciler.cluster.pools import used_pools
from reconciler.harvester import poolmetrics
from reconciler.remote.clusteridentities import RenewedTokens
from sandbox.processes import pki
from tests.support.metrics import label_names

pytestmark = pytest.mark.unit

# As the operations guide and the contract have them: dashboards and alerts of users rely on names, labels and buckets.
GUIDE: dict[str, tuple[type, list[str]]] = {
    "caphv_machine_create_total": (Counter, []),
    "caphv_machine_create_errors_total": (Counter, []),
    "caphv_machine_creation_duration_seconds": (Histogram, []),
    "caphv_machine_delete_total": (Counter, []),
    "caphv_machine_delete_errors_total": (Counter, []),
    "caphv_machine_status": (Gauge, ["cluster", "machine"]),
    "caphv_machine_reconcile_duration_seconds": (Histogram, ["operation"]),
    "caphv_ippool_allocations_total": (Counter, []),
    "caphv_ippool_allocation_errors_total": (Counter, []),
    "caphv_ippool_releases_total": (Counter, []),
    "caphv_cluster_reconcile_duration_seconds": (Histogram, ["operation"]),
    "caphv_cluster_ready": (Gauge, ["cluster"]),
    "caphv_etcd_member_remove_total": (Counter, []),
    "caphv_etcd_member_remove_errors_total": (Counter, []),
    "caphv_node_init_total": (Counter, []),
    "caphv_node_init_errors_total": (Counter, []),
    "caphv_node_init_duration_seconds": (Histogram, []),
}
HARVESTER = "https://harvester.example.com"
# Metrics are those of the process: no other test uses this name.
NAME = "team/of-test-metrics"


@pytest.mark.parametrize("name", GUIDE)
def test_metrics_of_the_operations_guide_are_as_they_were(name: str) -> None:
    kind, labels = GUIDE[name]
    (metric,) = (
        value
        for value in vars(metrics).values()
        if isinstance(value, kind) and value.describe()[0].name == name.removesuffix("_total")
    )
    assert label_names(metric) == labels


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("caphv_machine_creation_duration_seconds", [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0]),
        ("caphv_node_init_duration_seconds", [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    ],
)
def test_buckets_of_the_operations_guide_are_as_they_were(name: str, bounds: list[float]) -> None:
    found = [
        float(sample.labels["le"])
        for family in REGISTRY.collect()
        if family.name == name
        for sample in family.samples
        if sample.name == f"{name}_bucket"
    ]
    assert found == [*bounds, float("inf")]


def errors(code: str, identity: str = NAME) -> float | None:
    return REGISTRY.get_sample_value("caphv_harvester_request_errors_total", {"identity": identity, "code": code})


def answers(identity: str = NAME) -> float | None:
    return REGISTRY.get_sample_value("caphv_harvester_request_duration_seconds_count", {"identity": identity})


def test_failures_and_refusals_of_harvester_count_and_what_the_work_expects_does_not() -> None:
    reported = metrics.IdentityRequests(NAME).count
    for code in (200, 201, 404, 409, 410, 422):
        reported(code, 0.2)
    for code in (401, 403, 429, 500, 503):
        reported(code, 0.2)
    reported(0, None)
    reported(503, None)
    assert answers() == 11
    assert [errors(code) for code in ("401", "403", "429", "500", "503", "none")] == [1, 1, 1, 1, 2, 1]
    assert [errors(code) for code in ("200", "404", "409", "410", "422")] == [None] * 5
    metrics.IdentityRequests("team/other").count(500, 0.1)
    metrics.forget_identity(NAME)
    assert (answers(), errors("503"), errors("500", "team/other")) == (None, None, 1)
    metrics.forget_identity("team/other")


def pool(last: int, **allocated: str) -> Obj:
    bounds = {"rangeStart": "10.0.0.1", "rangeEnd": f"10.0.0.{last}", "gateway": "10.0.0.254"}
    held = {f"10.0.0.{number.strip('_')}": holder for number, holder in allocated.items()}
    return {
        "metadata": {"name": "pool"},
        "spec": {"ranges": [{"subnet": "10.0.0.0/24", **bounds}]},
        "status": {"allocated": held},
    }


def context(pools: dict[str, Obj], clusters: dict[str, Obj], machines: dict[str, list[Obj]]) -> Any:
    """A provider's context with HarvesterClusters of these specs, all of them on one Harvester but `away`."""
    session = SimpleNamespace(server=HARVESTER, pools=SimpleNamespace(get=lambda _, name: pools.get(name)))
    store = [{"metadata": {"namespace": "team", "name": name}, "spec": spec} for name, spec in clusters.items()]
    caches = SimpleNamespace(
        harvester_clusters=SimpleNamespace(store=store),
        cluster_of=lambda obj: obj,
        machines_of=lambda obj: [{"spec": spec} for spec in machines.get(obj["metadata"]["name"], [])],
    )
    sessions = SimpleNamespace(of=lambda key: None if key.name == "away" else session)
    return SimpleNamespace(caches=caches, sessions=sessions)


def test_free_addresses_are_those_of_pools_for_machines() -> None:
    pools = {
        "a": pool(10, _1="team/one", _2="team/two"),
        "b": pool(4),
        "own": pool(2, _1="team/x", _2="team/y"),
        "storage": pool(3, _1="team/x.1-0"),
        "balancers": pool(9),
        "broken": {"metadata": {"name": "broken"}, "spec": {"ranges": [{"subnet": "nonsense"}]}},
        "hostile": {"metadata": {"name": "hostile"}, "spec": {"ranges": ["x"]}, "status": {"allocated": 5}},
    }
    clusters: dict[str, Obj] = {
        "first": {"vmNetworkConfig": {"ipPoolRefs": ["a", "b"]}, "loadBalancerConfig": {"ipPoolRef": "balancers"}},
        "second": {"vmNetworkConfig": {"ipPoolRef": "default/a"}},
        "third": {"vmNetworkConfig": {"ipPoolRefs": ["missing", "broken", "hostile"]}},
        "dhcp": {},
        "away": {"vmNetworkConfig": {"ipPoolRef": "elsewhere"}},
    }
    reference = {"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool", "name": "storage"}
    storage = {"networks": ["n"], "networkInterfaces": [{"network": "n", "addressesFromPools": [reference]}]}
    machines: dict[str, list[Obj]] = {"dhcp": [{"vmNetworkConfig": {"ipPoolRef": "own"}}, storage]}
    found = poolmetrics.free_addresses(used_pools(context(pools, clusters, machines)))
    assert found == {(HARVESTER, "a"): 8, (HARVESTER, "b"): 4, (HARVESTER, "own"): 0, (HARVESTER, "storage"): 2}


def free(name: str) -> float | None:
    labels = {"harvester": HARVESTER, "pool": name}
    return REGISTRY.get_sample_value("caphv_ippool_free_addresses", labels)


def test_pools_that_no_one_names_any_more_have_no_series() -> None:
    clusters: dict[str, Obj] = {"first": {"vmNetworkConfig": {"ipPoolRef": "a"}}}
    poolmetrics.report(used_pools(context({"a": pool(3)}, clusters, {})))
    assert free("a") == 3
    poolmetrics.report(used_pools(context({"a": pool(3)}, {}, {})))
    assert free("a") is None


def test_expiry_counts_down_and_is_deleted_when_another_identity_does_not_say() -> None:
    secret: Obj = {"metadata": {}, "data": {}}

    async def get(*_where: object) -> Obj:
        return secret

    def scope(name: str) -> Any:
        obj = {
            "metadata": {"namespace": "team"},
            "spec": {"identitySecret": {"namespace": "team", "name": "of-test-metrics"}},
        }
        caches = SimpleNamespace(secrets=SimpleNamespace(get=lambda *_: secret))
        identities = SimpleNamespace(renewed=RenewedTokens("caphv-system"))
        context = SimpleNamespace(client=SimpleNamespace(get=get), caches=caches, cluster_identities=identities)
        return SimpleNamespace(key=Key("team", name), obj=obj, context=context)

    def left() -> float | None:
        return REGISTRY.get_sample_value("caphv_identity_expiry_seconds", {"identity": NAME})

    def holds(claims: str, version: str) -> None:
        config = pki.kubeconfig(HARVESTER, b"", name="h", user="u", credentials={"token": claims})
        secret["data"] = {"kubeconfig": base64.b64encode(pki.to_yaml(config)).decode()}
        secret["metadata"] = {"namespace": "team", "name": "of-test-metrics", "resourceVersion": version}

    identities = Identities(allow_insecure=False)
    past = base64.urlsafe_b64encode(b'{"exp": 1000000000}').decode().strip("=")
    holds(f"e30.{past}.x", "1")
    for name in ("one", "two"):
        asyncio.run(identities.read(scope(name)))
    first = left()
    assert first is not None
    assert first < -365 * 86400
    second = left()
    assert second is not None
    assert second < first
    holds("opaque", "2")
    asyncio.run(identities.read(scope("one")))
    assert left() is None
