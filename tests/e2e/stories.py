"""The 18 stories that a Harvester with this provider has to tell, for the sandbox and for real ones.

They build on each other, in the order of `STORIES`: first what is refused, then one cluster's life.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from caphv.runtime.access import parse_kubeconfig
from caphv.runtime.errors import Forbidden, Invalid
from caphv.runtime.resource import NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, SECRETS, Obj, Resource
from sandbox import manifests
from sandbox.cluster import IDENTITY
from sandbox.harvester import kinds
from sandbox.story import HARVESTER_CLUSTERS, HARVESTER_MACHINES, Story
from tests.integration.reconciler.case import UNINITIALIZED


@dataclass
class Run:
    """One run of all stories; `later` is the version of Kubernetes to upgrade to."""

    story: Story
    later: str
    failed: str = ""
    notes: dict[str, Obj] = field(default_factory=dict)

    async def refused(self, resource: Resource, spec: Obj, field: str) -> None:
        """An object of this spec is not admitted, and the message names a field."""
        with pytest.raises((Forbidden, Invalid)) as caught:
            await self.admit(resource, spec)
        assert field in str(caught.value)

    async def admit(self, resource: Resource, spec: Obj) -> None:
        """Have an object judged, without making it."""
        await manifests.apply(self.story.management, [kinds.typed(NAMESPACES, {"metadata": {"name": self.namespace}})])
        obj = kinds.typed(resource, {"metadata": {"name": "judged", "namespace": self.namespace}, "spec": spec})
        await self.story.management.create(resource, obj, dry_run=True)

    @property
    def namespace(self) -> str:
        """Namespace of the cluster on the management cluster."""
        return self.story.spec.namespace

    def cluster_spec(self, **changes: object) -> Obj:
        """Spec of a HarvesterCluster that is right but for the changes."""
        right = {
            "targetNamespace": self.story.spec.target_namespace,
            "identitySecret": {"name": IDENTITY, "namespace": self.namespace},
            "loadBalancerConfig": {"ipamType": "dhcp"},
        }
        return {**right, **changes}

    def machine_spec(self, **changes: object) -> Obj:
        """Spec of a HarvesterMachine that is right but for the changes."""
        right = {
            "cpu": 2,
            "memory": "4Gi",
            "sshUser": "sles",
            "sshKeyPair": self.story.spec.ssh_key_pair,
            "networks": list(self.story.spec.networks),
            "volumes": [{"volumeType": "image", "imageName": self.story.spec.image, "volumeSize": "40Gi"}],
        }
        return {**right, **changes}

    async def allocated(self) -> dict[str, str]:
        """Addresses that machines of the cluster hold, with the pool of each."""
        found = {}
        for pool in self.story.spec.machines:
            status = (await self.story.harvester.get(kinds.IP_POOLS, pool)).get("status") or {}
            for address, holder in (status.get("allocated") or {}).items():
                if holder.startswith(f"{self.namespace}/"):
                    found[address] = pool
        return found

    async def nodes(self) -> list[Obj]:
        """Nodes of the workload cluster, asked for at its endpoint."""
        spec = self.story.spec
        secret = await self.story.management.get(SECRETS, f"{spec.name}-kubeconfig", spec.namespace)
        access = parse_kubeconfig(base64.b64decode(secret["data"]["value"]))
        assert access.server == self.story.endpoint()
        client = access.client(name="workload")
        try:
            return list((await client.list(NODES))["items"])
        finally:
            await client.close()


async def refuses_a_cluster_without_target_namespace(run: Run) -> None:
    await run.refused(HARVESTER_CLUSTERS, run.cluster_spec(targetNamespace=""), "targetNamespace")


async def refuses_an_unknown_ipam_type(run: Run) -> None:
    await run.refused(HARVESTER_CLUSTERS, run.cluster_spec(loadBalancerConfig={"ipamType": "magic"}), "ipamType")


async def refuses_a_machine_without_cpu(run: Run) -> None:
    await run.refused(HARVESTER_MACHINES, run.machine_spec(cpu=0), "cpu")


async def refuses_memory_that_is_no_quantity(run: Run) -> None:
    await run.refused(HARVESTER_MACHINES, run.machine_spec(memory="much"), "memory")


async def refuses_an_image_volume_without_image(run: Run) -> None:
    volumes = [{"volumeType": "image", "volumeSize": "40Gi"}]
    await run.refused(HARVESTER_MACHINES, run.machine_spec(volumes=volumes), "imageName")


async def refuses_a_machine_without_networks(run: Run) -> None:
    await run.refused(HARVESTER_MACHINES, run.machine_spec(networks=[]), "networks")


async def admits_what_is_right(run: Run) -> None:
    await run.admit(HARVESTER_CLUSTERS, run.cluster_spec())
    await run.admit(HARVESTER_MACHINES, run.machine_spec())


async def gives_the_control_plane_an_address_first(run: Run) -> None:
    await run.story.create()
    assert run.story.endpoint().endswith(":6443")


async def brings_up_all_machines(run: Run) -> None:
    await run.story.come_up()


async def gives_machines_several_disks(run: Run) -> None:
    for vm in (await run.story.harvester.list(kinds.VIRTUAL_MACHINES, run.story.spec.target_namespace))["items"]:
        devices = vm["spec"]["template"]["spec"]["domain"]["devices"]
        assert [disk["name"] for disk in devices["disks"]] == ["disk-0", "disk-1", "cloudinitdisk"]
        assert devices["disks"][0]["bootOrder"] == 1
        for index in range(2):
            own = [name for name in await claims(run) if name.startswith(f"{vm['metadata']['name']}-disk-{index}-")]
            assert len(own) == 1


async def claims(run: Run) -> list[str]:
    listed = await run.story.harvester.list(PERSISTENT_VOLUME_CLAIMS, run.story.spec.target_namespace)
    return [claim["metadata"]["name"] for claim in listed["items"]]


async def takes_addresses_from_pools_in_order(run: Run) -> None:
    """Guests report what was allocated, and a pool is used when those before it are exhausted."""
    held = await run.allocated()
    machines = list(run.story.view.harvester_machines.store)
    assert {obj["status"]["allocatedIPAddress"]: obj["status"]["allocatedPoolRef"] for obj in machines} == held
    for obj in machines:
        assert obj["status"]["allocatedIPAddress"] in {each["address"] for each in obj["status"]["addresses"]}
    *before, _ = sorted(set(held.values()), key=run.story.spec.machines.index)
    for name in before:
        assert (await run.story.harvester.get(kinds.IP_POOLS, name))["status"]["available"] == 0


async def initializes_nodes(run: Run) -> None:
    """They have the providerID of their machine and have lost the taint that waits for it."""
    nodes = {node["metadata"]["name"]: node for node in await run.nodes()}
    for machine in run.story.view.machines.store:
        node = nodes[machine["status"]["nodeRef"]["name"]]
        assert node["spec"]["providerID"] == machine["spec"]["providerID"]
        assert UNINITIALIZED["key"] not in {taint["key"] for taint in node["spec"].get("taints") or ()}


async def balances_the_control_plane(run: Run) -> None:
    listed = await run.story.harvester.list(kinds.LOAD_BALANCERS, run.story.spec.target_namespace)
    (balancer,) = listed["items"]
    assert run.story.endpoint() == f"https://{balancer['status']['address']}:6443"
    assert len(await run.nodes()) == len(run.story.running())


async def scales_workers_up(run: Run) -> None:
    spec = run.story.spec
    await run.story.scale(spec.control_planes, spec.workers + 1)
    assert len(await run.nodes()) == spec.control_planes + spec.workers + 1


async def scales_workers_down_and_leaves_nothing(run: Run) -> None:
    spec = run.story.spec
    await run.story.scale(spec.control_planes, spec.workers - 1)
    machines = spec.control_planes + spec.workers - 1
    assert len(await run.allocated()) == machines
    assert len(await claims(run)) == 2 * machines


async def replaces_a_worker_that_was_lost(run: Run) -> None:
    await run.story.replace_lost(run.story.workers()[0])


async def rolls_out_another_version(run: Run) -> None:
    await run.story.upgrade(run.later)
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in await run.nodes()} == {run.later}


async def deletes_everything(run: Run) -> None:
    await run.story.delete()
    assert await run.story.leftovers() == []


STORIES: list[Callable[[Run], Awaitable[None]]] = [
    refuses_a_cluster_without_target_namespace,
    refuses_an_unknown_ipam_type,
    refuses_a_machine_without_cpu,
    refuses_memory_that_is_no_quantity,
    refuses_an_image_volume_without_image,
    refuses_a_machine_without_networks,
    admits_what_is_right,
    gives_the_control_plane_an_address_first,
    brings_up_all_machines,
    gives_machines_several_disks,
    takes_addresses_from_pools_in_order,
    initializes_nodes,
    balances_the_control_plane,
    scales_workers_up,
    scales_workers_down_and_leaves_nothing,
    replaces_a_worker_that_was_lost,
    rolls_out_another_version,
    deletes_everything,
]


async def tell(run: Run, story: Callable[[Run], Awaitable[None]]) -> None:
    """Tell one story; after one that failed, the others would only wait for what never comes."""
    if run.failed:
        pytest.fail(f"not told, because {run.failed} failed")
    try:
        await story(run)
    except BaseException:
        run.failed = story.__name__
        raise
