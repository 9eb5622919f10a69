"""kube-vip holds the address of a control plane on one of its machines: that is destroyed, and another one answers."""

from __future__ import annotations

import pytest

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import SERVICES, Obj, at, list_at
from caphv.runtime.errors import Invalid
from sandbox import clusterclass
from sandbox.capi.resources import CLUSTERS
from sandbox.cluster import RELEASES, ClusterSpec, manifest
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.endpointwatch import watched
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# The lease lasts 5 seconds from its last renewal, and others try to take it each second.
_LONGEST_SECONDS = 10.0


@pytest.mark.parametrize(
    ("balancer", "message"),
    [
        ({"ipamType": "none", "kubeVip": {}}, "endpoint must be set when ipamType is none"),
        ({"ipamType": "dhcp", "kubeVip": {}}, "kubeVip must not be set unless ipamType is none"),
        ({"ipamType": "none", "endpoint": {"host": "api.example.com"}, "kubeVip": {}}, "must be an IPv4 address"),
        ({"ipamType": "none", "endpoint": {"host": "172.16.0.5", "port": 443}, "kubeVip": {}}, "and its port 6443"),
        ({"ipamType": "none", "endpoint": {"host": "999.1.1.1"}, "kubeVip": {}}, "must be an IPv4 address"),
        ({"ipamType": "none", "endpoint": {"host": "172.16.05.5"}, "kubeVip": {}}, "must be an IPv4 address"),
    ],
)
async def test_settings_that_do_not_fit_are_refused(box: Sandbox, balancer: Obj, message: str) -> None:
    spec = in_network(ClusterSpec(namespace="default", variables={"loadBalancer": balancer}), box.status()["network"])
    scenario = Scenario(box.folder, spec)
    async with scenario.watching():
        with pytest.raises(Invalid, match=message):
            await scenario.management.create(CLUSTERS, manifest(spec), dry_run=True)


async def test_it_is_neither_added_to_a_cluster_nor_removed(box: Sandbox) -> None:
    external: Obj = {"ipamType": "none", "endpoint": {"host": "172.16.0.5"}}
    held: Obj = {**external, "kubeVip": {}}
    changed: Obj = {**external, "kubeVip": {"interface": "eth1"}}
    for name, old, refused, accepted in (
        ("vip-added", external, held, {**external, "healthCheck": {"periodSeconds": 2}}),
        ("vip-removed", held, external, changed),
        ("vip-balancer", {"ipamType": "dhcp"}, held, external),
    ):
        spec = ClusterSpec(name=name, namespace="default", variables={"loadBalancer": old})
        scenario = Scenario(box.folder, in_network(spec, box.status()["network"]))
        async with scenario.watching():
            # Nothing is created for a paused Cluster.
            cluster = manifest(scenario.spec)
            cluster["spec"]["paused"] = True
            await scenario.management.create(CLUSTERS, cluster)
            try:
                await set_balancer(scenario, accepted)
                with pytest.raises(Invalid, match="kubeVip must not be added or removed later"):
                    await set_balancer(scenario, refused)
            finally:
                await scenario.management.delete(CLUSTERS, name, "default")


async def set_balancer(scenario: Scenario, balancer: Obj) -> None:
    """Ask the API server whether a Cluster may have another value of the variable."""
    spec = scenario.spec
    live = await scenario.management.get(CLUSTERS, spec.name, spec.namespace)
    rows = [row for row in live["spec"]["topology"]["variables"] if row["name"] != "loadBalancer"]
    rows.append({"name": "loadBalancer", "value": balancer})
    patch = {"spec": {"topology": {"variables": rows}}}
    await scenario.management.patch(CLUSTERS, spec.name, spec.namespace, patch, dry_run=True)


@pytest.mark.parametrize(
    "cluster_class",
    [
        clusterclass.HARVESTER_RKE2,
        pytest.param(clusterclass.HARVESTER_K3S, marks=pytest.mark.long),
        pytest.param(clusterclass.HARVESTER_KUBEADM, marks=pytest.mark.long),
    ],
)
async def test_holder_of_the_address_is_destroyed_and_another_machine_answers(box: Sandbox, cluster_class: str) -> None:
    name = cluster_class.replace("harvester", "vip")
    network = box.status()["network"]
    # The pool of the machines offers it first, and must not give it to one of them.
    address = f"{network.removesuffix('.0.0/16')}.9.1"
    spec = ClusterSpec(
        name=name,
        namespace=name,
        target_namespace=f"{name}-vms",
        control_planes=3,
        workers=1,
        version=f"v1.36.2{RELEASES[cluster_class]}",
        cluster_class=cluster_class,
        machines=("machines-b",),
        variables={"loadBalancer": {"ipamType": "none", "endpoint": {"host": address}, "kubeVip": {}}},
    )
    scenario = Scenario(box.folder, in_network(spec, network), timeout=300)
    async with scenario.watching():
        await scenario.create()
        assert scenario.view.endpoint() == f"https://{address}:6443"
        await scenario.bring_up()
        for resource in (SERVICES, kinds.LOAD_BALANCERS):
            assert (await scenario.harvester.list(resource, spec.target_namespace))["items"] == []
        assert address not in held_addresses(scenario)

        holder = the_holder(scenario, address)
        async with watched(scenario.view.endpoint()) as watch:
            await until(lambda: watch.answers > 0, "the endpoint answers")
            watch.restart()
            vm = await scenario.destroy(holder)
            asked = watch.answers
            await until(lambda: watch.longest > 0 and watch.answers > asked, "the endpoint answers again", 60)
            await until(
                lambda: the_holder(scenario, address) not in ("", holder), "another machine has the address", 60
            )
            await scenario.wait_for_replacement(vm)
            assert watch.longest < _LONGEST_SECONDS

        # No machine reports it as its own, not even its holder.
        for machine in scenario.view.harvester_machines.store:
            assert address not in {entry["address"] for entry in machine["status"]["addresses"]}
        await scenario.delete()
        assert await scenario.leftovers() == []


def held_addresses(scenario: Scenario) -> set[str]:
    """Return the addresses that the pools have given out."""
    return {address for pool in scenario.view.pools.store for address in at(pool, "status", "allocated") or ()}


def the_holder(scenario: Scenario, address: str) -> str:
    """Return the name of the VM with an interface that has the address, empty for none."""
    control_plane = {infrastructure_ref(machine)[1] for machine in scenario.view.control_planes()}
    holders = [
        vmi["metadata"]["name"]
        for vmi in scenario.view.instances.store
        if any(address in list_at(interface, "ipAddresses") for interface in list_at(vmi, "status", "interfaces"))
    ]
    assert len(holders) <= 1
    assert not holders or holders[0] in control_plane or len(control_plane) < 3
    return holders[0] if holders else ""
