"""Network data of guests with settings of interfaces, as the guests of the sandbox read it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import interfaces
from caphv.api.object import Obj
from reconciler.machine.cloudinityaml import CloudInitError
from reconciler.machine.guestinterfaces import GuestAddress, guest_interfaces, mac_addresses, static_addresses
from reconciler.machine.network import InterfaceNetwork, StaticAddress, effective_network
from reconciler.machine.networkdata import networkdata
from reconciler.machine.validation import spec_errors
from sandbox.guest.cloudinit import parse_network_data

pytestmark = pytest.mark.unit

STATIC = StaticAddress("10.0.0.5", "255.255.0.0", "10.0.0.1")
ROUTE = {"to": "10.9.0.0/16", "via": "10.0.3.254"}


def spec(*settings: Obj, networks: tuple[str, ...] = ("a", "b")) -> Obj:
    return {"networks": list(networks), interfaces.FIELD: list(settings)}


def nics(fields: Obj, address: StaticAddress | None = None, claimed: Any = ()) -> list[Obj]:
    text = networkdata(address, len(fields["networks"]), guest_interfaces(fields, claimed))
    parse_network_data(text)
    return [entry for entry in yaml.safe_load(text)["config"] if entry["type"] == "physical"]


def test_mtu_of_interfaces_by_dhcp_and_with_a_static_address() -> None:
    fields = spec({"network": "a", "mtu": 1400}, {"network": "b", "mtu": 9000})
    first, second = nics(fields)
    assert (first["mtu"], first["subnets"]) == (1400, [{"type": "dhcp"}])
    assert (second["mtu"], second["subnets"]) == (9000, [{"type": "dhcp"}])
    (first, _) = nics(fields, STATIC)
    assert (first["mtu"], first["subnets"][0]["gateway"]) == (1400, "10.0.0.1")


def test_routes_are_in_the_subnet_of_their_family() -> None:
    routes = [{**ROUTE, "metric": 50}, {"to": "FD09::/48", "via": "FE80::0001"}]
    claimed = [(1, GuestAddress("10.0.3.5", 24)), (1, GuestAddress("10.0.4.5", 24)), (1, GuestAddress("fd00::5", 64))]
    _, second = nics(spec({"network": "b", "addressesFromPools": [{}], "routes": routes}), None, claimed)
    assert second["subnets"] == [
        {
            "type": "static",
            "address": "10.0.3.5/24",
            "routes": [{"destination": "10.9.0.0/16", "gateway": "10.0.3.254", "metric": 50}],
        },
        {"type": "static", "address": "10.0.4.5/24"},
        {
            "type": "static6",
            "address": "fd00::5/64",
            "routes": [{"destination": "fd09::/48", "gateway": "fe80::1"}],
        },
    ]


def test_route_of_the_first_interface_with_the_address_of_the_machine() -> None:
    first, _ = nics(spec({"network": "a", "routes": [ROUTE]}), STATIC)
    assert first["subnets"][0]["routes"] == [{"destination": "10.9.0.0/16", "gateway": "10.0.3.254"}]


@pytest.mark.parametrize(
    ("claimed", "problem"),
    [
        ([(0, GuestAddress("10.0.4.5", 24))], "via 10.0.3.254 is not in 10.0.4.0/24, the network of the interface"),
        ([(0, GuestAddress("fd00::5", 64))], "via 10.0.3.254 needs an IPv4 address of this interface"),
        ([], "via 10.0.3.254 needs an IPv4 address of this interface"),
    ],
)
def test_route_by_a_router_that_the_guest_cannot_reach_is_named(claimed: Any, problem: str) -> None:
    settings = guest_interfaces(spec({"network": "a", "routes": [ROUTE]}), claimed)
    with pytest.raises(CloudInitError, match=r"network 1 of networks: its route to 10\.9\.0\.0/16") as error:
        networkdata(None, 2, settings)
    assert problem in str(error.value)


def test_static_addresses_of_interfaces_take_the_default_route_once_for_each_family() -> None:
    fields = spec(
        {"network": "a", "addresses": [{"address": "10.0.0.5/24", "gateway": "10.0.0.1"}, {"address": "FD00::05/64"}]},
        {"network": "b", "addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, V6]},
    )
    first, second = nics(fields)
    assert first["subnets"] == [
        {"type": "static", "address": "10.0.0.5/24", "gateway": "10.0.0.1"},
        {"type": "static6", "address": "fd00::5/64"},
    ]
    assert second["subnets"] == [
        {"type": "static", "address": "10.1.0.5/24"},
        {"type": "static6", "address": "fd01::5/64", "gateway": "fe80::1"},
    ]
    assert effective_network(fields, {"vmNetworkConfig": {"gateway": "10.0.0.1"}}) == InterfaceNetwork()


V6 = {"address": "fd01::5/64", "gateway": "fe80::1"}
POOL = {"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool", "name": "p"}
CLAIM = {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "p"}


def test_machine_without_settings_has_neither_mac_addresses_nor_more_network_data() -> None:
    """VMs of earlier releases keep their network data byte for byte."""
    assert mac_addresses({"metadata": {"uid": "u"}, "spec": {"networks": ["a"]}}) == ()
    assert networkdata(STATIC, 2, guest_interfaces({"networks": ["a", "b"]})) == (
        "version: 1\nconfig:\n- type: physical\n  name: eth0\n  subnets:\n  - type: static\n    address: 10.0.0.5\n"
        "    netmask: 255.255.0.0\n    gateway: 10.0.0.1\n- type: physical\n  name: eth1\n  subnets:\n  - type: dhcp\n"
    )


def test_mac_addresses_of_a_machine_with_an_mtu_only() -> None:
    assert len(mac_addresses({"metadata": {"uid": "u"}, "spec": spec({"network": "b", "mtu": 9000})})) == 2


def test_spec_that_no_webhook_has_checked_names_field_and_remedy() -> None:
    fields = spec({"network": "a", "addresses": [{"address": "10.0.0.300/24"}], "routes": [{"to": "x", "via": "y"}]})
    machine = {"metadata": {"name": "one"}, "spec": fields}
    messages = "; ".join(str(error) for error in spec_errors(machine, ()))
    assert "spec.networkInterfaces[0].addresses[0].address is '10.0.0.300/24': must be an IP address" in messages
    assert "spec.networkInterfaces[0].routes[0].to is 'x': must be a network" in messages
    assert static_addresses(fields) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            [{"network": "a", "addressesFromPools": [POOL, POOL]}],
            "addressesFromPools[1] is 'p': is in the list already",
        ),
        ([{"network": "a", "addressesFromPools": [POOL]}, {"network": "a"}], "has an entry already"),
        ([{"network": "a", "addresses": [V6, V6]}], "addresses[1].address is 'fd01::5/64': is an address of the"),
        # Machines with older fields only are as they were.
        ([{"network": "a", "addressesFromPools": [CLAIM, CLAIM]}, {"network": "a"}], ""),
    ],
)
def test_entries_of_which_two_get_one_address_allow_no_vm(settings: list[Obj], text: str) -> None:
    machine = {"metadata": {"name": "one"}, "spec": spec(*settings)}
    messages = "; ".join(str(error) for error in spec_errors(machine, ()) if "networkInterfaces" in error.field)
    assert text in messages if text else not messages


NETWORKS = ("a", "b", "c")
HOSTS = st.ip_addresses(network="10.0.0.0/8").map(lambda host: {"address": f"{host}/9"}) | st.ip_addresses(
    network="fd00::/8"
).map(lambda host: {"address": f"{host}/64", "gateway": "fe80::1"})
ROUTES = st.builds(
    lambda to, via: {"to": f"{to}/32", "via": str(via)},
    st.ip_addresses(network="172.16.0.0/12"),
    st.ip_addresses(network="10.0.0.0/8"),
) | st.builds(lambda to: {"to": f"{to}/128", "via": "fe80::2"}, st.ip_addresses(network="fc00::/8"))
SETTINGS = st.fixed_dictionaries(
    {"network": st.sampled_from(NETWORKS)},
    optional={
        "mtu": st.integers(1280, 9000),
        "addresses": st.lists(HOSTS, min_size=1, max_size=3),
        "routes": st.lists(ROUTES, min_size=1, max_size=3),
    },
)


@given(st.lists(SETTINGS, max_size=3))
def test_guests_accept_what_the_rules_accept(settings: list[Obj]) -> None:
    fields = spec(*settings, networks=NETWORKS)
    if list(interfaces.conflicts(fields)):
        return
    try:
        listed = nics(fields)
    except CloudInitError:
        # What the first interface has is known to its cluster only.
        first = dict(interfaces.settings_by_number(fields))[0]
        assert "routes" in first
        assert "addresses" not in first
        return
    for number, wanted in interfaces.settings_by_number(fields):
        routes = [route for subnet in listed[number]["subnets"] for route in subnet.get("routes", ())]
        assert {(route["destination"], route["gateway"]) for route in routes} == {
            (route["to"], route["via"]) for route in wanted.get("routes", ())
        }
        assert listed[number].get("mtu") == wanted.get("mtu")
