"""The control plane's address stays where it comes from: what a changed spec asks for is reported, not applied."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.object import Obj
from reconciler.cluster.addresssource import Source, requested_source, used_source, why_unused
from reconciler.cluster.loadbalancer import drift, load_balancer_spec

pytestmark = pytest.mark.unit

HOST, HOLDER = "192.0.2.7", "vms/team-demo-lb"
MACHINES = {"ipPoolRefs": ["new", "lb-a"], "gateway": "192.0.2.1", "subnetMask": "255.255.255.0"}
DESCRIBED = {"subnet": "192.0.2.0/24", "gateway": "192.0.2.1", "vmNetwork": "default/production"}
SELECTOR = {"harvestercluster/machinetype": ["controlplane-demo"]}


def spec(config: Obj, **more: Any) -> Obj:
    return {"loadBalancerConfig": config, "controlPlaneEndpoint": {"host": HOST, "port": 6443}, **more}


def pool(name: str, **status: Obj) -> Obj:
    return {"metadata": {"name": name}, "status": status}


def used(*, allocated: Obj | None = None, pools: tuple[Obj, ...] = (), service: str = "") -> Source | None:
    """Source in use with a LoadBalancer that has allocated this, these pools, and a Service with this address."""
    load_balancer = {"status": {"allocatedAddress": allocated}} if allocated is not None else None
    found = {"spec": {"loadBalancerIP": service}} if service else None
    services = SimpleNamespace(get=lambda *_: found)
    scope = SimpleNamespace(
        target_namespace="vms",
        load_balancer_name="team-demo-lb",
        obj={"spec": spec({"ipamType": "pool", "ipPoolRef": "lb-b"})},
        namespace=lambda: SimpleNamespace(load_balancers=SimpleNamespace(get=lambda *_: load_balancer)),
        require_session=lambda: SimpleNamespace(pools=SimpleNamespace(store=pools), services=services),
        reservation=lambda name: f"vms/{name}",
    )
    return used_source(scope)  # type: ignore[arg-type]


def test_load_balancer_knows_its_pool_best() -> None:
    other = pool("lb-b", allocatedHistory={HOST: HOLDER})
    assert used(allocated={"ip": HOST, "ipPool": "lb-a"}, pools=(other,), service=HOST) == Source("pool", "lb-a")


def test_load_balancer_by_dhcp() -> None:
    assert used(allocated={"ip": "0.0.0.0"}) == Source("dhcp")


def test_without_a_load_balancer_the_pool_that_has_the_address_counts() -> None:
    pools = (pool("old", allocatedHistory={HOST: HOLDER}), pool("lb-a", allocated={HOST: HOLDER}))
    assert used(pools=pools, service=HOST) == Source("pool", "lb-a")


def test_pool_that_had_the_address_before_the_load_balancer_was_deleted() -> None:
    assert used(pools=(pool("lb-a", allocatedHistory={HOST: HOLDER}),)) == Source("pool", "lb-a")


def test_address_of_another_holder_does_not_count() -> None:
    pools = (pool("lb-a", allocated={HOST: "vms/other"}), pool("lb-c", allocated={"192.0.2.8": HOLDER}))
    assert used(allocated={}, pools=pools, service=HOST) is None


def test_placeholder_by_dhcp() -> None:
    assert used(service="0.0.0.0") == Source("dhcp")


@pytest.mark.parametrize(
    ("wanted", "now", "field", "remedy"),
    [
        pytest.param(
            spec({"ipamType": "pool", "ipPoolRef": "lb-b"}),
            Source("pool", "lb-a"),
            "loadBalancerConfig.ipPoolRef: lb-b",
            "ipamType: pool and ipPoolRef: lb-a",
            id="another pool",
        ),
        pytest.param(
            spec({"ipamType": "pool"}, vmNetworkConfig=MACHINES),
            Source("pool", "lb-a"),
            "IPPool new of vmNetworkConfig",
            "ipamType: pool and ipPoolRef: lb-a",
            id="new first pool of the machines",
        ),
        pytest.param(
            spec({"ipamType": "dhcp"}),
            Source("pool", "lb-a"),
            "loadBalancerConfig.ipamType: dhcp",
            "ipamType: pool and ipPoolRef: lb-a",
            id="DHCP instead of a pool",
        ),
        pytest.param(
            spec({"ipamType": "pool", "ipPool": DESCRIBED}),
            Source("dhcp"),
            "loadBalancerConfig.ipamType: pool",
            "ipamType: dhcp without a pool",
            id="pool instead of DHCP",
        ),
    ],
)
def test_changed_source_is_reported_and_not_applied(wanted: Obj, now: Source, field: str, remedy: str) -> None:
    message = why_unused(wanted, now)
    used = "IPPool lb-a" if now.pool else "DHCP"
    assert message.startswith(f"{field} is not applied: control plane address {HOST} is from {used} and cannot change")
    assert f"set {remedy} in loadBalancerConfig" in message
    found = load_balancer_spec(wanted, SELECTOR, now)
    assert Source(found["ipam"], found.get("ipPool", "")) == now
    assert drift(load_balancer_spec(wanted, SELECTOR, now), found) == {}


@pytest.mark.parametrize(
    ("wanted", "now"),
    [
        (spec({"ipamType": "pool", "ipPoolRef": "default/lb-a"}), Source("pool", "lb-a")),
        (spec({"ipamType": "pool", "ipPool": DESCRIBED}), Source("pool", "team-demo-ippool")),
        (spec({"ipamType": "dhcp"}), Source("dhcp")),
        (spec({"ipamType": "pool", "ipPoolRef": "lb-b"}), None),
    ],
)
def test_spec_that_is_applied_is_not_reported(wanted: Obj, now: Source | None) -> None:
    assert why_unused(wanted, now) == ""


def test_without_an_address_the_spec_decides() -> None:
    assert requested_source(spec({"ipamType": "pool"}, vmNetworkConfig=MACHINES)) == Source("pool", "new")
    assert load_balancer_spec(spec({"ipamType": "pool", "ipPoolRef": "lb-b"}), SELECTOR)["ipPool"] == "lb-b"
