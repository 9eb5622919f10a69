"""The load balancer that a cluster should have, and which differences are repaired."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType
from caphv.api.object import Obj
from caphv.runtime.errors import ApiError, Forbidden, Unauthorized, Unreachable
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.cluster import loadbalancer
from reconciler.cluster.addresssource import Source
from reconciler.cluster.loadbalancer import address_failure, drift, load_balancer_spec
from reconciler.memory.cluster import ClusterMemory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Watched
from tests.support.ippools import pool
from tests.support.reconciler.memorycase import MemoryCase

pytestmark = pytest.mark.unit

SELECTOR = {"harvestercluster/machinetype": ["controlplane-demo"], "caphv.io/cluster": ["clusters.demo"]}
LISTENER = {"name": "rke2", "port": 9345, "protocol": "TCP", "backendPort": 9345}


def cluster_spec(**config: Any) -> Obj:
    return {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "balancers", **config}}


def wanted(**config: Any) -> Obj:
    return load_balancer_spec(cluster_spec(**config), SELECTOR)


def test_health_check_has_short_defaults_that_the_spec_replaces() -> None:
    defaults = {"port": 6443, "successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 5}
    assert wanted()["healthCheck"] == defaults
    assert wanted(healthCheck={"periodSeconds": 2})["healthCheck"] == {**defaults, "periodSeconds": 2}


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, as the API server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


FIELDS = {
    "workloadType": st.sampled_from(["vm", "cluster"]),
    "ipam": st.sampled_from(["pool", "dhcp"]),
    "ipPool": st.sampled_from(["balancers", "others"]),
    "description": st.text(max_size=5),
    "listeners": st.lists(st.fixed_dictionaries({"name": st.text(max_size=3), "port": st.integers(1, 9)}), max_size=3),
    "healthCheck": st.dictionaries(st.sampled_from(["port", "periodSeconds", "extra"]), st.integers(0, 9)),
    "backendServerSelector": st.dictionaries(
        st.sampled_from(["harvestercluster/machinetype", "caphv.io/cluster", "other"]), st.lists(st.text(max_size=3))
    ),
}


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_repair_is_complete_in_one_patch(found: Obj) -> None:
    want = wanted(listeners=[LISTENER])
    after = merged(found, drift(want, found))
    assert drift(want, after) == {}
    assert after["backendServerSelector"] == SELECTOR
    assert after["listeners"] == want["listeners"]
    assert "description" not in after or not after["description"]


def test_what_is_as_wanted_is_no_drift() -> None:
    assert drift(wanted(description="x"), wanted(description="x")) == {}


def test_what_harvester_adds_is_no_drift() -> None:
    found = copy.deepcopy(wanted(listeners=[LISTENER]))
    found["healthCheck"]["addedByTheWebhook"] = 5
    found["listeners"][0]["addedByTheWebhook"] = "x"
    found["somethingElse"] = {"x": 1}
    found["description"] = ""
    assert drift(wanted(listeners=[LISTENER]), found) == {}


def test_key_too_many_in_the_selector_is_taken_out() -> None:
    found = {**wanted(), "backendServerSelector": {**SELECTOR, "tier": ["gold"]}}
    assert drift(wanted(), found) == {"backendServerSelector": {**SELECTOR, "tier": None}}


def test_description_that_the_spec_gave_up_is_deleted() -> None:
    assert drift(wanted(), wanted(description="old")) == {"description": None}


def test_listener_of_the_spec_comes_before_that_of_the_api() -> None:
    assert [entry["port"] for entry in wanted(listeners=[LISTENER])["listeners"]] == [9345, 6443]


def test_pool_is_that_of_the_machines_when_there_is_no_other() -> None:
    spec = {
        "loadBalancerConfig": {"ipamType": "pool"},
        "vmNetworkConfig": {"ipPoolRefs": ["first", "second"], "gateway": "10.0.0.1", "subnetMask": "255.0.0.0"},
    }
    assert load_balancer_spec(spec, SELECTOR)["ipPool"] == "first"


def test_dhcp_has_no_pool() -> None:
    assert "ipPool" not in wanted(ipamType="dhcp")


FAILED = [{"type": "Ready", "status": "False", "message": "10.0.0.5 has been allocated to ns/lb"}]
ADDRESS = {"ip": "10.0.0.5", "ipPool": "balancers"}


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        ({}, None),
        ({"conditions": []}, None),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, None),
        ({"conditions": FAILED}, "10.0.0.5 has been allocated to ns/lb"),
        ({"conditions": FAILED, "allocatedAddress": {}}, "10.0.0.5 has been allocated to ns/lb"),
        ({"conditions": FAILED, "allocatedAddress": ADDRESS}, None),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, "no reason given"),
    ],
)
def test_only_a_load_balancer_without_an_address_fails(status: Obj, failure: str | None) -> None:
    """One with an address is not ready while no VM passes its health check, as before the control plane starts."""
    assert address_failure({"status": status}) == failure


class Scope:
    """A cluster with a control plane VM; `reserved` are the addresses that its LoadBalancer could have taken over."""

    def __init__(self, load_balancer: Obj, *pools: Obj, error: Exception | None = None) -> None:
        self.obj = {"spec": {**cluster_spec(), "controlPlaneEndpoint": {"host": "10.0.0.5", "port": 6443}}}
        self.target_namespace, self.load_balancer_name = "ns", "lb"
        self.cluster: Obj = {}
        self.draft = StatusDraft({"metadata": {}})
        self.memory = ClusterMemory("u")
        self.reserved: list[tuple[str, str]] = []
        self.events: list[tuple[str, str]] = []
        self.subscribed: list[object] = []
        self.requeued: list[float] = []
        self.load_balancer, self.error = load_balancer, error
        self.pools = {obj["metadata"]["name"]: obj for obj in pools}

    def namespace(self) -> Any:
        return SimpleNamespace(load_balancers=SimpleNamespace(get=lambda *_: self.load_balancer))

    def require_session(self) -> Any:
        pools = SimpleNamespace(get=lambda _namespace, name: self.pools.get(name))
        return SimpleNamespace(client=None, pools=pools, fingerprint="harvester")

    def reservation(self, name: str) -> str:
        return f"ns/{name}"

    def subscribe(self, *topics: object) -> None:
        self.subscribed += topics

    def requeue_within(self, delay: float) -> None:
        self.requeued.append(delay)

    def event(self, reason: str, _message: str) -> None:
        self.events.append(("Normal", reason))

    def warning_event(self, reason: str, _message: str) -> None:
        self.events.append(("Warning", reason))


@pytest.fixture
def ensure(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scope], None]:
    """Ensure a LoadBalancer that belongs to the cluster and has the right spec."""

    async def found(_scope: object, _informer: object, obj: Obj, *_: object) -> Obj:
        return obj

    async def reserve(scope: Scope, pool: str, known: str) -> str:
        scope.reserved.append((pool, known))
        if scope.error:
            raise scope.error
        return known

    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(loadbalancer.adoption, "adopt_or_refuse", found)
    monkeypatch.setattr(loadbalancer, "reserve_address", reserve)
    monkeypatch.setattr(loadbalancer, "_repair", nothing)
    monkeypatch.setattr(loadbalancer, "control_plane_vms", lambda _scope: [])
    monkeypatch.setattr(loadbalancer, "used_source", lambda _scope: Source("pool", "balancers"))
    return lambda scope: asyncio.run(loadbalancer.ensure_load_balancer(scope))  # type: ignore[arg-type]


def test_failure_is_reported_as_long_as_the_load_balancer_has_no_address(ensure: Callable[[Scope], None]) -> None:
    scope = Scope({"metadata": {"namespace": "ns", "name": "lb"}, "status": {"conditions": FAILED}})
    with pytest.raises(Blocked, match=r"gives LoadBalancer ns/lb no address: 10\.0\.0\.5 has been allocated") as it:
        ensure(scope)
    assert (it.value.condition, it.value.warn) == (ConditionType.LOAD_BALANCER_READY, True)
    assert scope.reserved == [("balancers", "10.0.0.5")]
    assert not scope.draft.is_true(ConditionType.LOAD_BALANCER_READY)


WITH_ADDRESS = {
    "metadata": {"namespace": "ns", "name": "lb"},
    "status": {"conditions": FAILED, "allocatedAddress": ADDRESS},
}
RANGES = {"subnet": "10.0.0.0/24"}


@pytest.mark.parametrize(
    "pools",
    [
        pytest.param([pool("balancers", RANGES, allocated={"10.0.0.5": "ns/lb"})], id="reserved"),
        pytest.param([pool("balancers", {"subnet": "10.9.0.0/24"})], id="in no range"),
        pytest.param([], id="no pool"),
    ],
)
def test_nothing_is_reserved_for_a_load_balancer_with_an_address(
    ensure: Callable[[Scope], None], pools: list[Obj]
) -> None:
    scope = Scope(WITH_ADDRESS, *pools)
    ensure(scope)
    assert (scope.reserved, scope.events) == ([], [])
    assert scope.subscribed == ([] if pools else [triggers.pool("harvester", "balancers")])
    assert scope.draft.is_true(ConditionType.LOAD_BALANCER_READY)


INITIALIZED = [
    {"status": {"initialization": {"controlPlaneInitialized": True}}},
    {"status": {"conditions": [{"type": "ControlPlaneInitialized", "status": "True"}]}},
]


@pytest.mark.parametrize("cluster", INITIALIZED)
def test_control_plane_that_does_not_answer_is_reported(ensure: Callable[[Scope], None], cluster: Obj) -> None:
    message = "running backend servers are not probed as healthy total:1, healthy:0"
    unhealthy = [{"type": "Ready", "status": "False", "message": message}]
    scope = Scope({**WITH_ADDRESS, "status": {"conditions": unhealthy, "allocatedAddress": ADDRESS}})
    ensure(scope)
    assert scope.draft.is_true(ConditionType.LOAD_BALANCER_READY), "before, machines are still being created"
    scope.cluster = cluster
    ensure(scope)
    ready = get_condition(scope.draft.fields["conditions"], "LoadBalancerReady") or {}
    assert (ready["status"], ready["reason"]) == ("False", "ControlPlaneUnreachable")
    assert ready["message"].startswith("no control plane machine answers at 10.0.0.5:6443; ")
    assert ready["message"].endswith(message)


TAKEN = Blocked(ConditionType.LOAD_BALANCER_READY, "Any", "held by ns/other", Watched.SELF, warn=True)


@pytest.mark.parametrize(
    ("error", "event", "why"),
    [
        (None, ("Normal", "AddressReservedAgain"), ""),
        (TAKEN, ("Warning", "AddressNotReserved"), "held by ns/other"),
        (Unreachable("does not answer in time"), ("Warning", "AddressNotReserved"), ": no answer; "),
        (Forbidden(403, "Forbidden", "cannot patch ippools"), ("Warning", "AddressNotReserved"), ": HTTP 403; "),
    ],
)
def test_address_that_its_pool_has_lost_is_reserved_again(
    ensure: Callable[[Scope], None], error: Exception | None, event: tuple[str, str], why: str
) -> None:
    scope = Scope(WITH_ADDRESS, pool("balancers", RANGES, allocated={"10.0.0.5": "ns/other"}), error=error)
    ensure(scope)
    assert scope.reserved == [("balancers", "10.0.0.5")]
    assert scope.events == [event]
    assert bool(scope.requeued) == isinstance(error, (ApiError, Unreachable))
    assert scope.draft.is_true(ConditionType.LOAD_BALANCER_READY), "the control plane has its address anyway"
    ready = get_condition(scope.draft.fields["conditions"], "LoadBalancerReady") or {}
    assert why in ready.get("message", "")
    scope.draft = StatusDraft({"metadata": {}, "status": scope.draft.fields})
    scope.events.clear()
    if error:
        ensure(scope)
        assert scope.events == [], "each message has one Event"


def test_rejected_credentials_are_no_failure_of_the_pool(ensure: Callable[[Scope], None]) -> None:
    error = Unauthorized(401, "Unauthorized", "expired")
    with pytest.raises(Unauthorized):
        ensure(Scope(WITH_ADDRESS, pool("balancers", RANGES), error=error))


async def test_machines_that_rancher_gives_the_role_etcd_alone_are_no_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there on the port of the API."""
    case = MemoryCase(monkeypatch)
    roles = {"etcd": ["etcd"], "server": ["control-plane"], "all": ["control-plane", "etcd", "worker"], "w": ["worker"]}
    for name, names in roles.items():
        case.add_machine(name, control_plane=False)
        labels = {f"rke.cattle.io/{role}-role": "true" for role in names}
        case.machines[-1]["metadata"]["labels"] = labels
    assert not loadbalancer.control_plane_vms(case.scope()), "labels of Rancher count in its clusters only"

    reference = {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "demo"}
    case.management.put({**case.cluster, "spec": {"controlPlaneRef": reference}})
    vms = loadbalancer.control_plane_vms(case.scope())
    assert [vm["metadata"]["name"] for vm in vms] == ["server", "all"]
