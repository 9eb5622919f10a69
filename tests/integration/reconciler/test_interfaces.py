"""Machines with MTU, routes and static addresses of single interfaces."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from tests.support.reconciler.case import HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import is_false, is_true

pytestmark = pytest.mark.integration

NETWORKS = ["default/production", "default/storage"]


async def nics(case: Case, name: str) -> list[Obj]:
    _, network_data = await case.user_data(name)
    return [entry for entry in network_data["config"] if entry["type"] == "physical"]


async def test_guest_has_static_addresses_mtu_and_routes_of_its_interfaces(case: Case) -> None:
    await case.ready_cluster()
    v4, v6 = f"{case.subnet}.30", f"fd00::{case.number}:30"
    first = {
        "network": "default/production",
        "addresses": [{"address": f"{v4}/17", "gateway": case.gateway}, {"address": f"{v6}/64"}],
        "routes": [
            {"to": "10.20.0.0/16", "via": f"{case.subnet}.254", "metric": 50},
            {"to": "fd01::/48", "via": "fe80::1"},
        ],
    }
    settings = [{"network": "default/storage", "mtu": 9000}, first]
    machine = await case.ready_machine("one", networks=NETWORKS, networkInterfaces=settings)
    await case.until(HARVESTER_MACHINES, "one", is_true("VMIPAllocated"))
    await case.until(HARVESTER_MACHINES, "one", is_true("VMUpToDate"))
    reported = [entry["address"] for entry in machine["status"]["addresses"] if entry["type"] == "InternalIP"]
    assert reported[:2] == [v4, v6]

    vm = await case.vm("one")
    macs = [nic["macAddress"] for nic in vm["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"]]
    assert await nics(case, "one") == [
        {
            "type": "physical",
            "name": "eth0",
            "mac_address": macs[0],
            "subnets": [
                {
                    "type": "static",
                    "address": f"{v4}/17",
                    "gateway": case.gateway,
                    "routes": [{"destination": "10.20.0.0/16", "gateway": f"{case.subnet}.254", "metric": 50}],
                },
                {
                    "type": "static6",
                    "address": f"{v6}/64",
                    "routes": [{"destination": "fd01::/48", "gateway": "fe80::1"}],
                },
            ],
        },
        {"type": "physical", "name": "eth1", "mac_address": macs[1], "mtu": 9000, "subnets": [{"type": "dhcp"}]},
    ]
    await case.delete_machine("one")


async def test_route_that_the_guest_could_not_have_stops_its_creation(case: Case) -> None:
    await case.ready_cluster()
    route = {"to": "10.20.0.0/16", "via": f"{case.subnet}.254"}
    settings = [{"network": "default/production", "routes": [route]}]
    await case.create_machine("one", networkInterfaces=settings)
    text = (
        "cannot create cloud-init data: the interface on network 1 of networks: its route to 10.20.0.0/16 via "
        f"{case.subnet}.254 needs an IPv4 address of this interface"
    )
    await case.until(HARVESTER_MACHINES, "one", is_false("InfrastructureReady", "VMProvisioningFailed", text))
    await case.delete_machine("one")
