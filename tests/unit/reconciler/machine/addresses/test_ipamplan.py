"""Which claims a machine has, and what its guest configures with the answers."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from reconciler.machine.addresses.ipamplan import (
    WantedClaim,
    claim_object,
    claimed_address,
    is_owned,
    machine_of,
    names_pool,
    pending_reason,
    wanted_claims,
)
from reconciler.machine.guestinterfaces import (
    GuestAddress,
    GuestInterface,
    WantedAddress,
    guest_interfaces,
    mac_addresses,
    wanted_addresses,
)
from reconciler.machine.network import (
    Dhcp,
    InterfaceNetwork,
    PoolNetwork,
    StaticAddress,
    dhcp_interfaces,
    effective_network,
)
from reconciler.machine.networkdata import networkdata

pytestmark = pytest.mark.unit

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
ADDRESSES = st.one_of(
    st.builds(GuestAddress, st.ip_addresses(v=4).map(str), st.integers(1, 32), st.just("10.0.0.1") | st.just("")),
    st.builds(GuestAddress, st.ip_addresses(v=6).map(str), st.integers(1, 128), st.just("fd00::1") | st.just("")),
)


def pool(name: str) -> dict[str, str]:
    return {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": name}


def spec(*networks: str, **pools: list[str]) -> Obj:
    """A spec whose interfaces have these pools."""
    listed = [{"network": network, "addressesFromPools": [pool(name) for name in pools[network]]} for network in pools]
    return {"networks": list(networks), "networkInterfaces": listed}


def machine(name: str = "one", uid: str = "uid-1", **fields: Any) -> Obj:
    return {"metadata": {"name": name, "namespace": "team", "uid": uid}, "spec": fields}


def test_machine_without_the_field_claims_nothing() -> None:
    for fields in ({}, {"networks": ["a"]}, {"networks": ["a"], "networkInterfaces": []}):
        assert wanted_claims("one", fields) == ()
        assert mac_addresses(machine(**fields)) == ()
        assert effective_network(fields, {}) == Dhcp()


def test_claims_are_numbered_by_interface_and_pool() -> None:
    fields = spec("a", "b", "c", c=["v4"], a=["v4", "v6"])
    assert [(claim.name, claim.interface, claim.pool["name"]) for claim in wanted_claims("one", fields)] == [
        ("one-0-0", 0, "v4"),
        ("one-0-1", 0, "v6"),
        ("one-2-0", 2, "v4"),
    ]


def test_interface_of_a_network_that_the_machine_lacks_is_ignored() -> None:
    assert wanted_claims("one", spec("a", b=["v4"])) == ()


@given(st.sets(NAMES, min_size=2, max_size=4), st.integers(1, 12), st.integers(1, 12))
def test_no_two_machines_have_a_claim_in_common(machines: set[str], networks: int, pools: int) -> None:
    names = [f"n{number}" for number in range(networks)]
    fields = spec(*names, **{name: [f"p{number}" for number in range(pools)] for name in names})
    claims = {name: wanted_claims(name, fields) for name in machines}
    listed = [claim.name for wanted in claims.values() for claim in wanted]
    assert len(listed) == len(set(listed)) == len(machines) * networks * pools
    assert all(machine_of(claim.name) == name for name, wanted in claims.items() for claim in wanted)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_claim_belongs_to_machine_and_cluster(version: str) -> None:
    wanted = WantedClaim("one-0-0", 0, pool("v4"))
    claim = claim_object(wanted, machine(), "shop", version)
    assert claim["apiVersion"] == f"ipam.cluster.x-k8s.io/{version}"
    assert claim["metadata"]["labels"] == {"cluster.x-k8s.io/cluster-name": "shop"}
    assert claim["spec"] == {"clusterName": "shop", "poolRef": pool("v4")}
    # The finalizer of the machine waits for its claims, so that the garbage collector need not. With or without
    # blockOwnerDeletion, a deletion in the foreground deletes them at once.
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("HarvesterMachine", "uid-1", True)
    assert "blockOwnerDeletion" not in owner
    assert is_owned(claim, machine())
    assert names_pool(claim, wanted)
    assert not is_owned(claim, machine(uid="uid-2"))
    assert not names_pool(claim, WantedClaim("one-0-0", 0, pool("v6")))
    assert not is_owned({"metadata": {"ownerReferences": [{"kind": "HarvesterMachine"}]}}, machine(uid=""))


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"address": "10.0.0.5", "prefix": 24, "gateway": "10.0.0.1"}, GuestAddress("10.0.0.5", 24, "10.0.0.1")),
        ({"address": "FD00::0005", "prefix": 64}, GuestAddress("fd00::5", 64)),
        ({"address": "10.0.0.5", "prefix": 32, "gateway": ""}, GuestAddress("10.0.0.5", 32)),
        # As routers announce themselves.
        ({"address": "fd00::5", "prefix": 64, "gateway": "FE80::0001"}, GuestAddress("fd00::5", 64, "fe80::1")),
        # A guest of the sandbox.
        ({"address": "127.13.49.1", "prefix": 17}, GuestAddress("127.13.49.1", 17)),
        # Its pool may say that all addresses of its network are free.
        ({"address": "10.0.0.255", "prefix": 24}, GuestAddress("10.0.0.255", 24)),
    ],
)
def test_answer_of_a_pool(fields: Obj, address: GuestAddress) -> None:
    assert claimed_address({"spec": fields}) == address


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "''"),
        ({"address": "10.0.0", "prefix": 24}, "'10.0.0'"),
        ({"address": "10.0.0.5"}, "prefix is None"),
        ({"address": "10.0.0.5", "prefix": 0}, "prefix is 0"),
        ({"address": "10.0.0.5", "prefix": 33}, "prefix is 33"),
        ({"address": "10.0.0.5", "prefix": "24"}, "prefix is '24'"),
        ({"address": "10.0.0.5", "prefix": 24, "gateway": "router"}, "'router'"),
        ({"address": "10.0.0.5", "prefix": 24, "gateway": "fd00::1"}, "another family"),
        ({"address": "10.0.0.5", "prefix": True}, "prefix is True"),
        ({"address": "10.0.0.5", "prefix": 24, "gateway": "10.0.0.5"}, "gateway is 10.0.0.5, too"),
        ({"address": "fe80::5", "prefix": 64}, "link-local"),
        ({"address": "169.254.0.5", "prefix": 16}, "link-local"),
        ({"address": "fd00::5%eth0", "prefix": 64}, "has a scope"),
        ({"address": "fd00::5", "prefix": 64, "gateway": "fe80::1%eth0"}, "gateway 'fe80::1%eth0' has a scope"),
    ],
)
def test_answer_that_no_guest_can_use(fields: Obj, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        claimed_address({"spec": fields})


@pytest.mark.parametrize(
    "text", ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "ff02::1", "::ffff:10.0.0.9"]
)
def test_no_guest_has_an_address_of_many_or_of_none(text: str) -> None:
    other = "10.0.0.5" if "." in text and ":" not in text else "fd00::5"
    with pytest.raises(ValueError, match=f"address '{text}' is not the address of one host"):
        claimed_address({"spec": {"address": text, "prefix": 32}})
    with pytest.raises(ValueError, match=f"gateway '{text}' is not the address of one host"):
        claimed_address({"spec": {"address": other, "prefix": 32, "gateway": text}})


WORDS = st.text("\n\t :%x10af\x1b/", max_size=12) | st.text(max_size=200)


@given(
    st.builds(str.__add__, st.sampled_from(["", "10.0.0.5", "fd00::5", "fd00::5%"]), WORDS) | st.integers() | st.none(),
    st.integers(-1, 129) | st.booleans() | st.text(max_size=200),
    st.builds(str.__add__, st.sampled_from(["", "10.0.0.1", "fe80::1", "fe80::1%"]), WORDS),
)
def test_text_of_an_address_reaches_neither_guest_nor_terminal(address: Any, prefix: Any, gateway: str) -> None:
    try:
        result = claimed_address({"spec": {"address": address, "prefix": prefix, "gateway": gateway}})
    except ValueError as error:
        message = str(error)
    else:
        message = ""
        for text in filter(None, (result.address, result.gateway)):
            assert set(text) <= set("0123456789abcdef.:")
        assert type(result.prefix) is int
    assert message.isprintable()
    assert len(message) < 200


def test_lines_in_the_scope_of_an_address_are_refused() -> None:
    with pytest.raises(ValueError, match="has a scope"):
        claimed_address({"spec": {"address": "fd00::5%x\n    post-up reboot", "prefix": 64}})
    with pytest.raises(ValueError, match="has a scope"):
        claimed_address({"spec": {"address": "fd00::5", "prefix": 64, "gateway": "fe80::1%eth0\n    post-up reboot"}})


def test_provider_says_why_it_has_no_address() -> None:
    condition = {"type": "Ready", "status": "False", "reason": "PoolExhausted", "message": "no \x1b[31mfree one"}
    assert pending_reason({"status": {"conditions": [condition]}}) == ("PoolExhausted", "no free one")
    assert pending_reason({"status": {"conditions": [{**condition, "status": "True"}]}}) == ("", "")
    assert pending_reason({}) == ("", "")


# The guest


@given(st.integers(1, 16), st.text("0123456789abcdef-", min_size=1, max_size=36))
def test_mac_addresses_are_unicast_local_and_stable(count: int, uid: str) -> None:
    networks = [f"n{number}" for number in range(count)]
    macs = mac_addresses(machine(uid=uid, **spec(*networks, n0=["v4"])))
    assert len(set(macs)) == count
    assert all(mac.startswith("02:") and len(bytes.fromhex(mac.replace(":", ""))) == 6 for mac in macs)
    assert macs == mac_addresses(machine(uid=uid, **spec(*networks, n0=["v4"])))
    assert not set(macs) & set(mac_addresses(machine(uid=f"{uid}x", **spec(*networks, n0=["v4"]))))


def test_claims_of_the_first_interface_go_before_all_other_sources() -> None:
    config = {"vmNetworkConfig": {"gateway": "10.0.0.1", "subnetMask": "255.255.255.0", "ipPoolRef": "p"}}
    assert effective_network(spec("a", "b", a=["v4"]), config) == InterfaceNetwork()
    assert isinstance(effective_network(spec("a", "b", b=["v4"]), config), PoolNetwork)


def test_interfaces_with_claims_need_no_dhcp() -> None:
    assert dhcp_interfaces(InterfaceNetwork(), 3, {0}) == ("eth1", "eth2")
    assert dhcp_interfaces(Dhcp(), 3, {1}) == ("eth0", "eth2")
    assert dhcp_interfaces(StaticAddress("10.0.0.9", "255.0.0.0", "10.0.0.1"), 3, {2}) == ("eth1",)


def test_network_data_of_a_second_interface_keeps_the_default_route_of_the_first() -> None:
    static = StaticAddress("10.0.0.5", "255.255.0.0", "10.0.0.1", ("9.9.9.9",), ("example.com",))
    second = (GuestAddress("10.1.0.5", 24, "10.1.0.1"), GuestAddress("fd00::5", 64, "fd00::1"))
    claimed = {1: GuestInterface(second, ("9.9.9.9", "1.1.1.1"), ("b.example.com",))}
    assert yaml.safe_load(networkdata(static, 3, claimed, ("02:a", "02:b", "02:c")))["config"] == [
        {
            "type": "physical",
            "name": "eth0",
            "mac_address": "02:a",
            "subnets": [{"type": "static", "address": "10.0.0.5", "netmask": "255.255.0.0", "gateway": "10.0.0.1"}],
        },
        {
            "type": "physical",
            "name": "eth1",
            "mac_address": "02:b",
            "subnets": [
                {"type": "static", "address": "10.1.0.5/24"},
                {"type": "static6", "address": "fd00::5/64", "gateway": "fd00::1"},
            ],
        },
        {"type": "physical", "name": "eth2", "mac_address": "02:c", "subnets": [{"type": "dhcp"}]},
        {"type": "nameserver", "address": ["9.9.9.9", "1.1.1.1"], "search": ["example.com", "b.example.com"]},
    ]


def test_network_data_of_a_static_address_keeps_its_list_of_resolvers() -> None:
    """As before there were claims, so that no Secret of a machine changes."""
    twice = StaticAddress("10.0.0.5", "255.0.0.0", "10.0.0.1", ("9.9.9.9", "9.9.9.9"), ("a.example", "a.example"))
    nameserver = yaml.safe_load(networkdata(twice, 1))["config"][-1]
    assert nameserver == {"type": "nameserver", "address": ["9.9.9.9"] * 2, "search": ["a.example"] * 2}


@given(st.dictionaries(st.integers(0, 4), st.lists(ADDRESSES, min_size=1, max_size=3), min_size=1, max_size=4))
def test_guest_configures_each_claimed_address_once_and_no_two_default_routes(
    answers: dict[int, list[GuestAddress]],
) -> None:
    fields = spec(*(f"n{number}" for number in range(5)), **{f"n{number}": ["p"] for number in sorted(answers)})
    flat = [(number, address) for number, listed in answers.items() for address in listed]
    claimed = guest_interfaces(fields, flat)
    text = networkdata(None, 5, claimed, mac_addresses(machine(**fields)))
    nics = [entry for entry in yaml.safe_load(text)["config"] if entry["type"] == "physical"]
    assert [nic["mac_address"] for nic in nics] == list(mac_addresses(machine(**fields)))

    gateways: list[int] = []
    for number, nic in enumerate(nics):
        subnets = nic["subnets"]
        if number not in answers:
            assert subnets == [{"type": "dhcp"}]
            continue
        assert [subnet["address"] for subnet in subnets] == [
            f"{each.address}/{each.prefix}" for each in answers[number]
        ]
        for subnet, each in zip(subnets, answers[number], strict=True):
            assert subnet["type"] == ("static6" if each.version == 6 else "static")
            gateways += [ipaddress.ip_address(subnet["gateway"]).version] if "gateway" in subnet else []
    assert len(gateways) == len(set(gateways))
    # With DHCP on the first interface, IPv4 leads out there.
    leads_out = {each.version for listed in answers.values() for each in listed if each.gateway}
    assert set(gateways) == (leads_out if 0 in answers else leads_out - {4})


def test_ippools_on_harvester_are_not_claimed_and_keep_the_numbers_of_the_others() -> None:
    harvester = {"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool", "name": "p"}
    other = {"apiGroup": "ipam.metal3.io", "kind": "IPPool", "name": "p"}
    settings = [{"network": "b", "addressesFromPools": [harvester, other]}]
    fields = {"networks": ["a", "b"], "networkInterfaces": settings}
    assert [(claim.name, claim.pool) for claim in wanted_claims("one", fields)] == [("one-1-1", other)]
    (address,) = wanted_addresses("team/one", fields)
    assert address == WantedAddress("team/one.1-0", 1, "b", "p")
