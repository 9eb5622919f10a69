"""Settings of interfaces that exclude each other."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import interfaces
from caphv.api.interfaceaddresses import is_host, route_problems

pytestmark = pytest.mark.unit

POOL = {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "a"}
KEYS = ["network", "addressesFromPools", "networkConfig", "addresses", "address", "gateway", "routes", "to", "via"]
TEXTS = ["a", "b", "10.0.0.5", "10.0.0.5/24", "fd00::5/64", "fe80::1", "10.1.0.0/16", "::/0", "1/1", "fe80::1%a/64"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=12,
)


def found(*listed: Any, **fields: Any) -> list[tuple[str, tuple[str | int, ...]]]:
    spec = {"networks": ["a", "b"], **fields, interfaces.FIELD: list(listed)}
    return [(conflict.kind, conflict.path) for conflict in interfaces.conflicts(spec)]


def test_all_conflicts_at_once() -> None:
    first = {"network": "a", "addressesFromPools": [POOL, POOL]}
    assert found(first, {"network": "c"}, first, vmNetworkConfig={"gateway": "10.0.0.1"}) == [
        (interfaces.ADDRESSES_EXCLUSIVE, (0, "addressesFromPools")),
        (interfaces.UNIQUE, (0, "addressesFromPools", 1)),
        (interfaces.NETWORK, (1, "network")),
        (interfaces.UNIQUE, (2, "network")),
        (interfaces.ADDRESSES_EXCLUSIVE, (2, "addressesFromPools")),
        (interfaces.UNIQUE, (2, "addressesFromPools", 1)),
    ]


def test_static_address_of_the_first_interface_does_not_concern_the_others() -> None:
    assert found({"network": "b", "addressesFromPools": [POOL]}, networkConfig={"address": "10.0.0.5"}) == []


@given(ANYTHING, ANYTHING, ANYTHING)
def test_values_of_any_type_are_read(networks: Any, listed: Any, config: Any) -> None:
    spec = {"networks": networks, interfaces.FIELD: listed, "vmNetworkConfig": config}
    list(interfaces.conflicts(spec))
    list(interfaces.template_conflicts(spec))


def test_interfaces_with_settings_are_numbered_like_the_networks() -> None:
    spec = {
        "networks": ["a", "b", "c"],
        interfaces.FIELD: [
            {"network": "c", "addresses": [{"address": "10.0.0.5/24"}]},
            {"network": "x", "mtu": 9000},
            {"network": "b", "mtu": 9000},
        ],
    }
    assert interfaces.numbers(spec) == (1, 2)
    assert interfaces.addressed_numbers(spec) == (2,)
    assert interfaces.numbers({"networks": ["a"]}) == ()


def test_settings_without_addresses_exclude_no_other_source() -> None:
    assert found({"network": "a", "mtu": 9000, "dnsServers": ["9.9.9.9"]}, networkConfig={"address": "10.0.0.5"}) == []


def test_routes_and_addresses_are_unique_in_the_whole_machine() -> None:
    route = {"to": "10.1.0.0/16", "via": "10.0.0.254"}
    address = {"address": "10.0.0.5/24"}
    first = {"network": "a", "addresses": [address], "routes": [route]}
    second = {"network": "b", "addresses": [{"address": "10.0.0.5/16"}], "routes": [{**route, "metric": 5}, route]}
    assert found(first, second) == [
        (interfaces.UNIQUE, (1, "addresses", 0, "address")),
        (interfaces.UNIQUE, (1, "routes", 1, "to")),
    ]


@given(st.ip_addresses(), st.integers(1, 126), st.ip_addresses())
def test_router_is_accepted_if_it_is_in_the_network_or_link_local(host: Any, length: int, router: Any) -> None:
    length = min(length, host.max_prefixlen)
    network = ipaddress.ip_network((host, length), strict=False)
    to = "10.9.0.0/16" if router.version == 4 else "fd09::/48"
    problems = list(route_problems([{"to": to, "via": str(router)}], [network]))
    is_reached = network.version == router.version and (
        router in network or (router.version == 6 and router.is_link_local)
    )
    ends = (network.network_address, network.broadcast_address)
    is_end = router.version == 4 and length <= 30 and router in ends
    assert (not problems) == (is_reached and is_host(router) and not is_end)


@given(st.ip_addresses(), st.integers(1, 128))
def test_destination_is_accepted_if_it_is_a_network(host: Any, length: int) -> None:
    length = min(length, host.max_prefixlen)
    via = "10.0.0.1" if host.version == 4 else "fd00::1"
    text = f"{host}/{length}"
    network = ipaddress.ip_network(text, strict=False)
    problems = list(route_problems([{"to": text, "via": via}], None))
    is_loopback = text == "::1/128" or (length >= 16 and text.startswith("127.0."))
    is_usable = not network.is_multicast and not is_loopback
    assert (not problems) == (host == network.network_address and is_usable)
    assert (not list(route_problems([{"to": str(network), "via": via}], None))) == is_usable


@pytest.mark.parametrize(
    ("entry", "detail"),
    [
        ({"address": "127.0.0.5/8"}, "is no address of a host"),
        ({"address": "224.0.0.5/8"}, "is no address of a host"),
        ({"address": "::ffff:10.0.0.5/120"}, "is no address of a host"),
        ({"address": "10.0.0.5/0"}, "has no prefix length that a network can have"),
        ({"address": "10.0.0.255/24"}, "is the network or broadcast address of 10.0.0.0/24"),
        ({"address": "fd00::/64"}, "is the network or broadcast address of fd00::/64"),
        ({"address": "10.0.0.5/24", "gateway": "10.0.1.1"}, "is not in 10.0.0.0/24, the network of the interface"),
        ({"address": "10.0.0.5/24", "gateway": "10.0.0.5"}, "is the address of the machine"),
        ({"address": "10.0.0.5/24", "gateway": "10.0.0.0"}, "is the network or broadcast address of 10.0.0.0/24"),
        ({"address": "10.0.0.5/24", "gateway": "10.0.0.255"}, "is the network or broadcast address of 10.0.0.0/24"),
    ],
)
def test_static_address_that_no_guest_can_use(entry: Any, detail: str) -> None:
    (conflict,) = interfaces.conflicts({"networks": ["a"], interfaces.FIELD: [{"network": "a", "addresses": [entry]}]})
    assert conflict.kind == interfaces.ADDRESS
    assert detail in conflict.detail


@pytest.mark.parametrize(
    ("to", "via", "field", "detail"),
    [
        ("10.9.0.0/16", "10.0.0.5", "via", "is the address of the machine"),
        ("10.9.0.0/16", "10.0.0.255", "via", "is the network or broadcast address of 10.0.0.0/24"),
        ("10.0.0.0/24", "10.0.0.254", "to", "is the network of the interface"),
        ("224.0.0.0/8", "10.0.0.254", "to", "is no network of hosts"),
        ("127.0.0.0/24", "10.0.0.254", "to", "is no network of hosts"),
        ("ff05::/16", "fe80::1", "to", "is no network of hosts"),
    ],
)
def test_route_that_no_guest_can_use(to: str, via: str, field: str, detail: str) -> None:
    static = [{"address": "10.0.0.5/24"}, {"address": "fd00::5/64"}]
    interface = {"network": "a", "addresses": static, "routes": [{"to": to, "via": via}]}
    (conflict,) = interfaces.conflicts({"networks": ["a"], interfaces.FIELD: [interface]})
    assert (conflict.kind, conflict.path) == (interfaces.ROUTE, (0, "routes", 0, field))
    assert detail in conflict.detail


def test_routes_that_guests_can_use() -> None:
    static = [{"address": "10.0.0.5/24"}, {"address": "fd00::5/64"}, {"address": "10.8.0.4/31"}]
    routes = [
        # Half of the network of the interface, an address of all routers, and a point-to-point link.
        *({"to": "10.0.0.128/25", "via": "10.0.0.1"}, {"to": "fd01::/64", "via": "fd00::"}),
        *({"to": "10.9.0.0/16", "via": "10.8.0.5"}, {"to": "169.254.169.254/32", "via": "10.0.0.1"}),
    ]
    assert found({"network": "a", "addresses": static, "routes": routes}) == []


def test_address_of_the_machine_is_no_address_of_another_interface() -> None:
    second = {"network": "b", "addresses": [{"address": "10.0.0.5/24"}]}
    expected = [(interfaces.UNIQUE, (0, "addresses", 0, "address"))]
    assert found(second, networkConfig={"address": "10.0.0.5"}) == expected
    assert found(second, networkConfig={"address": "10.0.0.6"}) == []


@pytest.mark.parametrize("text", ["10.0.0.5/24", "10.0.0.4/31", "127.13.1.5/17", "fd00::1/64", "fd00::/127"])
def test_static_address_that_guests_can_use(text: str) -> None:
    assert found({"network": "a", "addresses": [{"address": text}]}) == []


def test_static_addresses_of_templates_are_named() -> None:
    spec = {"networks": ["a"], interfaces.FIELD: [{"network": "a", "addresses": [{"address": "10.0.0.5/24"}]}]}
    (conflict,) = interfaces.template_conflicts(spec)
    assert (conflict.kind, conflict.path) == (interfaces.TEMPLATE, (0, "addresses"))
    assert list(interfaces.template_conflicts({interfaces.FIELD: [{"network": "a", "mtu": 1500}]})) == []


def test_ippools_on_harvester_are_numbered_by_interface_and_entry() -> None:
    pool = {"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool"}
    spec = {
        "networks": ["a", "b"],
        interfaces.FIELD: [
            {"network": "b", "addressesFromPools": [POOL, {**pool, "name": "p"}]},
            {"network": "x", "addressesFromPools": [{**pool, "name": "q"}]},
            {"network": "a", "addressesFromPools": [{**pool, "name": "p"}, {**pool, "apiGroup": "ipam.metal3.io"}]},
        ],
    }
    assert interfaces.harvester_pools(spec) == [(0, 0, "p"), (1, 1, "p")]


@given(ANYTHING, ANYTHING)
def test_pools_of_any_type_are_read(networks: Any, listed: Any) -> None:
    interfaces.harvester_pools({"networks": networks, interfaces.FIELD: listed})
