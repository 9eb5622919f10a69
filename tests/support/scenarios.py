"""The scenarios that a Harvester with this provider has to pass, for the sandbox and for real ones.

Four groups are those of the Go provider's test script, 18 scenarios in all: webhook, scale, multidisk, remediation. The
others are about the cluster that these need. Scenarios of a group build on each other.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, SECRETS, Obj, Resource
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES
from caphv.runtime.errors import Forbidden, Invalid
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import manifests
from sandbox.cluster import IDENTITY
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario
from tests.support.e2e import seen
from tests.support.reconciler.case import UNINITIALIZED


@dataclass
class Run:
    """One run of all scenarios; `later` is the version of Kubernetes to upgrade to."""

    scenario: Scenario
    later: str
    failed: str = ""
    # What one scenario leaves for the next of its group: the machines there were, and the VM that was lost.
    machines: set[str] = field(default_factory=set)
    lost: Obj = field(default_factory=dict)

    async def refused(self, resource: Resource, spec: Obj, field: str) -> None:
        """An object of this spec is not admitted, and the message names a field."""
        with pytest.raises((Forbidden, Invalid)) as caught:
            await self.admit(resource, spec)
        assert field in str(caught.value)

    async def admit(self, resource: Resource, spec: Obj) -> None:
        """Have an object validated, without making it."""
        await manifests.apply(
            self.scenario.management, [kinds.typed(NAMESPACES, {"metadata": {"name": self.namespace}})]
        )
        obj = kinds.typed(resource, {"metadata": {"name": "checked", "namespace": self.namespace}, "spec": spec})
        await self.scenario.management.create(resource, obj, dry_run=True)

    @property
    def namespace(self) -> str:
        """Namespace of the cluster on the management cluster."""
        return self.scenario.spec.namespace

    def cluster_spec(self, **changes: object) -> Obj:
        """Spec of a HarvesterCluster that is right but for the changes."""
        right = {
            "targetNamespace": self.scenario.spec.target_namespace,
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
            "sshKeyPair": self.scenario.spec.ssh_key_pair,
            "networks": list(self.scenario.spec.networks),
            "volumes": [{"volumeType": "image", "imageName": self.scenario.spec.image, "volumeSize": "40Gi"}],
        }
        return {**right, **changes}

    async def worker_more(self) -> None:
        """Scale workers up by one, and remember which machines there were."""
        self.machines = {machine["metadata"]["name"] for machine in self.scenario.view.workers()}
        await self.scenario.scale(len(self.scenario.view.control_planes()), len(self.machines) + 1)

    async def worker_less(self) -> None:
        """Scale workers down by one."""
        await self.scenario.scale(len(self.scenario.view.control_planes()), len(self.scenario.view.workers()) - 1)

    def new_machine(self) -> str:
        """Name of the machine that `worker_more` brought."""
        (name,) = {machine["metadata"]["name"] for machine in self.scenario.view.workers()} - self.machines
        return str(name)

    async def claims(self, vm: str = "") -> list[Obj]:
        """Disks on Harvester: of a VM, or all."""
        listed = await self.scenario.harvester.list(PERSISTENT_VOLUME_CLAIMS, self.scenario.spec.target_namespace)
        return [obj for obj in listed["items"] if obj["metadata"]["name"].startswith(f"{vm}-disk-" if vm else "")]

    async def allocated(self) -> dict[str, str]:
        """Addresses that machines of the cluster hold, with the pool of each."""
        found = {}
        for pool in self.scenario.spec.machines:
            status = (await self.scenario.harvester.get(kinds.IP_POOLS, pool)).get("status") or {}
            for address, holder in (status.get("allocated") or {}).items():
                if holder.startswith(f"{self.namespace}/"):
                    found[address] = pool
        return found

    async def nodes(self) -> list[Obj]:
        """Nodes of the workload cluster, asked for at its endpoint."""
        spec = self.scenario.spec
        secret = await self.scenario.management.get(SECRETS, f"{spec.name}-kubeconfig", spec.namespace)
        access = parse_kubeconfig(base64.b64decode(secret["data"]["value"]))
        assert access.server == self.scenario.view.endpoint()
        client = access.client(name="workload")
        try:
            return list((await client.list(NODES))["items"])
        finally:
            await client.close()


# webhook


async def refuses_a_machine_without_cpu(run: Run) -> None:
    await run.refused(HARVESTER_MACHINES, run.machine_spec(cpu=0), "cpu")


async def refuses_a_machine_without_volumes(run: Run) -> None:
    await run.refused(HARVESTER_MACHINES, run.machine_spec(volumes=[]), "volumes")


async def refuses_a_machine_without_ssh_user(run: Run) -> None:
    await run.refused(HARVESTER_MACHINES, run.machine_spec(sshUser=""), "sshUser")


async def admits_what_is_right(run: Run) -> None:
    await run.admit(HARVESTER_CLUSTERS, run.cluster_spec())
    await run.admit(HARVESTER_MACHINES, run.machine_spec())


async def refuses_a_cluster_without_target_namespace(run: Run) -> None:
    await run.refused(HARVESTER_CLUSTERS, run.cluster_spec(targetNamespace=""), "targetNamespace")


# The cluster comes


async def gives_the_control_plane_an_address_first(run: Run) -> None:
    await run.scenario.create()
    assert run.scenario.view.endpoint().endswith(":6443")


async def brings_up_all_machines(run: Run) -> None:
    await run.scenario.bring_up()


async def takes_addresses_from_pools_in_order(run: Run) -> None:
    """Guests report what was allocated, and a pool is used when those before it are exhausted."""
    held = await run.allocated()
    machines = list(run.scenario.view.harvester_machines.store)
    assert {obj["status"]["allocatedIPAddress"]: obj["status"]["allocatedPoolRef"] for obj in machines} == held
    for obj in machines:
        assert obj["status"]["allocatedIPAddress"] in {each["address"] for each in obj["status"]["addresses"]}
    *before, _ = sorted(set(held.values()), key=run.scenario.spec.machines.index)
    for name in before:
        assert (await run.scenario.harvester.get(kinds.IP_POOLS, name))["status"]["available"] == 0


async def initializes_nodes(run: Run) -> None:
    """They have the providerID of their machine and have lost the taint that waits for it."""
    nodes = {node["metadata"]["name"]: node for node in await run.nodes()}
    for machine in run.scenario.view.machines.store:
        node = nodes[machine["status"]["nodeRef"]["name"]]
        assert node["spec"]["providerID"] == machine["spec"]["providerID"]
        assert UNINITIALIZED["key"] not in {taint["key"] for taint in node["spec"].get("taints") or ()}


async def balances_the_control_plane(run: Run) -> None:
    listed = await run.scenario.harvester.list(kinds.LOAD_BALANCERS, run.scenario.spec.target_namespace)
    (balancer,) = listed["items"]
    assert run.scenario.view.endpoint() == f"https://{balancer['status']['address']}:6443"
    assert len(await run.nodes()) == len(run.scenario.view.running())


# scale


async def makes_a_machine_more(run: Run) -> None:
    await run.worker_more()
    assert run.new_machine() in {obj["metadata"]["name"] for obj in run.scenario.view.vms.store}


async def runs_all_machines(run: Run) -> None:
    names = {node["metadata"]["name"] for node in await run.nodes()}
    assert names == {infrastructure_ref(machine)[1] for machine in run.scenario.view.running()}
    assert run.new_machine() in names


async def takes_a_machine_away(run: Run) -> None:
    await run.worker_less()
    assert len(run.scenario.view.workers()) == len(run.machines)
    assert len(run.scenario.view.running()) == len(run.machines) + len(run.scenario.view.control_planes())


async def leaves_no_disk_and_no_address(run: Run) -> None:
    machines = {obj["metadata"]["name"] for obj in run.scenario.view.harvester_machines.store}
    assert {claim["metadata"]["name"].rpartition("-disk-")[0] for claim in await run.claims()} == machines
    assert len(await run.allocated()) == len(machines)


# multidisk


async def brings_up_a_machine_with_two_disks(run: Run) -> None:
    await run.worker_more()


async def makes_a_claim_for_each_disk(run: Run) -> None:
    claims = await run.claims(run.new_machine())
    sizes = sorted(claim["spec"]["resources"]["requests"]["storage"] for claim in claims)
    assert sizes == ["10Gi", "40Gi"]
    assert run.scenario.spec.storage_class in {claim["spec"]["storageClassName"] for claim in claims}


async def gives_the_vm_both_disks(run: Run) -> None:
    devices = (await _vm(run))["spec"]["template"]["spec"]["domain"]["devices"]
    assert [disk["name"] for disk in devices["disks"]] == ["disk-0", "disk-1", "cloudinitdisk"]


async def boots_from_the_first_disk(run: Run) -> None:
    first, *others = (await _vm(run))["spec"]["template"]["spec"]["domain"]["devices"]["disks"]
    assert first["bootOrder"] == 1
    assert not any("bootOrder" in disk for disk in others)


async def shows_both_disks_to_the_guest(run: Run) -> None:
    instance = await run.scenario.harvester.get(kinds.INSTANCES, run.new_machine(), run.scenario.spec.target_namespace)
    targets = {each["name"]: each["target"] for each in instance["status"]["volumeStatus"]}
    # Boot disk, data and cloud-init's.
    assert (targets["disk-0"], targets["disk-1"], len(targets)) == ("vda", "vdb", 3)


async def deletes_disks_with_their_machine(run: Run) -> None:
    await run.worker_less()
    await leaves_no_disk_and_no_address(run)


async def _vm(run: Run) -> Obj:
    return await run.scenario.harvester.get(
        kinds.VIRTUAL_MACHINES, run.new_machine(), run.scenario.spec.target_namespace
    )


# remediation


async def notices_a_vm_that_is_lost(run: Run) -> None:
    name = run.scenario.view.workers()[0]["metadata"]["name"]
    run.lost = await run.scenario.destroy(name)

    def has_lost_its_vm(obj: Obj) -> bool:
        reasons = {each["reason"] for each in (obj.get("status") or {}).get("conditions") or ()}
        return obj["metadata"]["name"] == name and "MachineNotFound" in reasons

    await seen(
        run.scenario.management, run.namespace, HARVESTER_MACHINES, has_lost_its_vm, seconds=run.scenario.timeout
    )


async def runs_all_machines_again(run: Run) -> None:
    await run.scenario.wait_for_replacement(run.lost)
    assert len(await run.nodes()) == len(run.scenario.view.running())


async def replaces_the_machine_by_another(run: Run) -> None:
    assert run.lost["metadata"]["name"] not in {machine["metadata"]["name"] for machine in run.scenario.view.workers()}
    assert await run.claims(run.lost["metadata"]["name"]) == []


# The cluster is deleted


async def rolls_out_another_version(run: Run) -> None:
    await run.scenario.upgrade(run.later)
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in await run.nodes()} == {run.later}


async def deletes_everything(run: Run) -> None:
    await run.scenario.delete()
    assert await run.scenario.leftovers() == []


Step = Callable[[Run], Awaitable[None]]
# Those of `BEGIN` and `END` are reported whenever one of a group is that needs a cluster.
WEBHOOK = "webhook"
BEGIN: list[Step] = [gives_the_control_plane_an_address_first, brings_up_all_machines]
GROUPS: dict[str, list[Step]] = {
    WEBHOOK: [
        refuses_a_machine_without_cpu,
        refuses_a_machine_without_volumes,
        refuses_a_machine_without_ssh_user,
        admits_what_is_right,
        refuses_a_cluster_without_target_namespace,
    ],
    "cluster": [takes_addresses_from_pools_in_order, initializes_nodes, balances_the_control_plane],
    "scale": [makes_a_machine_more, runs_all_machines, takes_a_machine_away, leaves_no_disk_and_no_address],
    "multidisk": [
        brings_up_a_machine_with_two_disks,
        makes_a_claim_for_each_disk,
        gives_the_vm_both_disks,
        boots_from_the_first_disk,
        shows_both_disks_to_the_guest,
        deletes_disks_with_their_machine,
    ],
    "remediation": [notices_a_vm_that_is_lost, runs_all_machines_again, replaces_the_machine_by_another],
    "upgrade": [rolls_out_another_version],
}
END: list[Step] = [deletes_everything]
# The groups of the Go provider's test script.
SCRIPT = (WEBHOOK, "scale", "multidisk", "remediation")


def scenarios(groups: Sequence[str] = ()) -> list[Step]:
    """The scenarios of some groups in their order, by default of all. Raises ValueError for an unknown group."""
    if unknown := sorted(set(groups) - set(GROUPS)):
        raise ValueError(f"no scenarios {', '.join(unknown)}: there are {', '.join(GROUPS)}")
    wanted = [group for group in GROUPS if group in groups or not groups]
    first = GROUPS[WEBHOOK] if WEBHOOK in wanted else []
    others = [scenario for group in wanted if group != WEBHOOK for scenario in GROUPS[group]]
    return [*first, *(BEGIN + others + END if others else [])]


async def run_step(run: Run, scenario: Step) -> None:
    """Run one scenario; after one that failed, the others would only wait for what never comes."""
    if run.failed:
        pytest.fail(f"not run, because {run.failed} failed")
    try:
        await scenario(run)
    except BaseException:
        run.failed = scenario.__name__
        raise
