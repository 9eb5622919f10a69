from typing import Any

import pytest

from caphv.api import ippool
from reconciler.machine.network import (
    Dhcp,
    PoolNetwork,
    StaticAddress,
    dhcp_interfaces,
    effective_network,
    serving_pools,
    with_address,
)

pytestmark = pytest.mark.unit

STATIC = {"address": "10.0.0.9", "gateway": "10.0.0.1"}


def pooled(mask: str = "255.255.255.0", **fields: Any) -> dict[str, Any]:
    return {"vmNetworkConfig": {"gateway": "10.0.0.1", "subnetMask": mask, **fields}}


def pool(name: str, network: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"ranges": []}
    if network:
        spec["selector"] = {"network": network}
    return {"metadata": {"name": name}, "spec": spec}


def test_nothing_configured_is_dhcp() -> None:
    assert effective_network({}, {}) == Dhcp()


def test_static_address_wins_over_all_pools() -> None:
    machine = {"networkConfig": STATIC, **pooled(ipPoolRef="own")}
    network = effective_network(machine, pooled(ipPoolRef="theirs"))
    assert isinstance(network, StaticAddress)
    assert network.address == "10.0.0.9"


@pytest.mark.parametrize(
    ("own", "machine", "cluster", "mask"),
    [
        ({}, {}, {}, "255.255.0.0"),
        ({}, {}, pooled("255.0.0.0"), "255.0.0.0"),
        ({}, pooled("255.255.255.0"), pooled("255.0.0.0"), "255.255.255.0"),
        ({"subnetMask": "255.255.255.128"}, pooled("255.255.255.0"), pooled("255.0.0.0"), "255.255.255.128"),
    ],
)
def test_mask_of_a_static_address(own: Any, machine: Any, cluster: Any, mask: str) -> None:
    network = effective_network({"networkConfig": {**STATIC, **own}, **machine}, cluster)
    assert isinstance(network, StaticAddress)
    assert network.mask == mask


def test_static_address_takes_name_servers_from_its_own_config_alone() -> None:
    machine = {"networkConfig": {**STATIC, "dnsServers": ["1.1.1.1"], "dnsSearch": ["a.b"]}}
    network = effective_network(machine, pooled(dnsServers=["9.9.9.9"]))
    assert network == StaticAddress("10.0.0.9", "255.255.255.0", "10.0.0.1", ("1.1.1.1",), ("a.b",))


def test_config_of_the_machine_replaces_the_clusters_as_a_whole() -> None:
    cluster = pooled("255.0.0.0", ipPoolRefs=["a", "b"], dnsServers=["9.9.9.9"])
    assert effective_network(pooled(ipPoolRef="own"), cluster) == PoolNetwork(("own",), "255.255.255.0", "10.0.0.1")
    assert effective_network({}, cluster) == PoolNetwork(("a", "b"), "255.0.0.0", "10.0.0.1", ("9.9.9.9",))


@pytest.mark.parametrize(
    ("fields", "pools"),
    [
        ({"ipPoolRef": "default/p"}, ("p",)),
        ({"ipPoolRefs": ["x/b", "a", "b"]}, ("b", "a")),
        ({"ipPoolRefs": ["b"], "ipPoolRef": "a"}, ("b",)),
        ({"ipPool": {"subnet": "10.0.0.0/24"}}, ()),
        ({"ipPool": {"subnet": "10.0.0.0/24"}, "ipPoolRef": "written"}, ("written",)),
        ({}, ()),
    ],
)
def test_pool_names(fields: Any, pools: tuple[str, ...]) -> None:
    network = effective_network({}, pooled(**fields))
    assert isinstance(network, PoolNetwork)
    assert network.pools == pools


def test_address_of_a_pool_becomes_static() -> None:
    network = PoolNetwork(("p",), "255.0.0.0", "10.0.0.1", ("9.9.9.9",), ("a.b",))
    assert with_address(network, "10.0.0.7") == StaticAddress(
        "10.0.0.7", "255.0.0.0", "10.0.0.1", ("9.9.9.9",), ("a.b",)
    )


@pytest.mark.parametrize(
    ("selector", "networks", "serves"),
    [
        ("", [], True),
        ("", ["default/a"], True),
        ("default/a", ["default/a"], True),
        ("default/a", ["other/a"], False),
        ("default/a", ["a"], True),
        ("a", ["other/b", "other/a"], True),
        ("a", ["default/ba"], False),
        ("default/a", [], False),
    ],
)
def test_pool_serves_its_network(selector: str, networks: list[str], serves: bool) -> None:
    assert ippool.serves(pool("p", selector), networks) is serves


def test_serving_pools_keep_order_and_unknown_names() -> None:
    network = PoolNetwork(("b", "gone", "a", "c"), "255.0.0.0", "10.0.0.1")
    known = [pool("a", "default/x"), pool("b"), pool("c", "default/y")]
    assert serving_pools(network, known, ["default/x"]) == ("b", "gone", "a")


def test_interfaces_that_need_dhcp() -> None:
    assert dhcp_interfaces(Dhcp(), 2) == ("eth0", "eth1")
    assert dhcp_interfaces(StaticAddress("10.0.0.9", "255.0.0.0", "10.0.0.1"), 3) == ("eth1", "eth2")
    assert dhcp_interfaces(StaticAddress("10.0.0.9", "255.0.0.0", "10.0.0.1"), 1) == ()
