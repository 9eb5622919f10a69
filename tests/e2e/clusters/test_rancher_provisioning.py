"""Rancher provisions RKE2 with us in place of its node driver: created, scaled, upgraded and deleted by its objects."""

from __future__ import annotations

import asyncio
import base64
import copy
from collections import Counter
from dataclasses import replace

import pytest
from click.testing import CliRunner

from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION, ETCD_LABEL
from caphv.api.object import NAMESPACES, NODES, SECRETS, Obj, at, key_of, labels_of, uid_of
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINE_TEMPLATES, RANCHER_CLUSTERS
from caphv.runtime.etcd import find_pods, list_members
from commands.main import cli
from sandbox import manifests
from sandbox.capi.resources import condition
from sandbox.cluster import EARLIER_VERSION, LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support import provisioner
from tests.support.provisioner import Provisioner, has_etcd, serves_api
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

GLOBAL_DATA, CREDENTIAL = "cattle-global-data", "cc-x7k2p"
SPLIT = {"etcd": ["etcdRole"], "servers": ["controlPlaneRole"], "workers": ["workerRole"]}
TOGETHER = {"all": ["etcdRole", "controlPlaneRole", "workerRole"], "workers": ["workerRole"]}
SECONDS = 150.0
POOL_LABEL = "rke.cattle.io/rke-machine-pool-name"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "pools", "label", "parks"),
    [
        pytest.param("by-rancher", SPLIT, "control-plane", False, id="short"),
        pytest.param("by-rancher-parked", SPLIT, "control-plane", True, id="whole", marks=pytest.mark.long),
        pytest.param("by-rancher-2-8", TOGETHER, "control-plane-name", False, id="whole-2.8", marks=pytest.mark.long),
    ],
)
async def test_rancher_creates_scales_upgrades_and_deletes_a_cluster(
    box: Sandbox, name: str, pools: dict[str, list[str]], label: str, parks: bool
) -> None:
    spec = replace(in_network(ClusterSpec(), box.status()["network"]), name=name, namespace=name, target_namespace=name)
    scenario = Scenario(box.folder, spec, timeout=SECONDS)
    rancher = Provisioner(scenario.management, name, name, label=label)
    await provisioner.install(scenario.management)
    async with scenario.watching(), rancher.running():
        lifecycle = Lifecycle(scenario, rancher, pools)
        await lifecycle.create()
        await lifecycle.show(box)
        if parks:
            await lifecycle.park(box)
        await lifecycle.scale()
        await lifecycle.upgrade()
        await lifecycle.roll()
        await lifecycle.delete(box)


async def caphv(box: Sandbox, *words: str, exit_code: int = 0) -> str:
    """Run a command, which must end with this status; return its output."""
    arguments = [*words, "--kubeconfig", str(box.kubeconfig("management"))]
    result = await asyncio.to_thread(CliRunner().invoke, cli, arguments)
    assert result.exit_code == exit_code, result.output
    return result.output


class Lifecycle:
    """The steps, with what holds after each."""

    def __init__(self, scenario: Scenario, rancher: Provisioner, pools: dict[str, list[str]]) -> None:
        self.scenario, self.rancher, self.name = scenario, rancher, scenario.spec.name
        self.client = scenario.management
        sizes = {"etcd": 3, "all": 3, "servers": 2, "workers": 1}
        self.spec: Obj = {
            "kubernetesVersion": EARLIER_VERSION,
            "rkeConfig": {
                "infrastructureRef": self._reference("HarvesterCluster", self.name),
                "machinePools": [
                    {
                        "name": pool,
                        "quantity": sizes[pool],
                        **dict.fromkeys(roles, True),
                        "machineConfigRef": self._reference("HarvesterMachineTemplate", f"{self.name}-{pool}-1"),
                        "userdata": {"inlineUserdata": "#cloud-config\nruncmd: [echo joined]\n"},
                    }
                    for pool, roles in pools.items()
                ],
            },
        }

    def _reference(self, kind: str, name: str) -> Obj:
        version = HARVESTER_CLUSTERS.api_version
        return {"apiVersion": version, "kind": kind, "name": name, "namespace": self.name}

    def pool(self, name: str) -> Obj:
        pools: list[Obj] = self.spec["rkeConfig"]["machinePools"]
        return next(pool for pool in pools if pool["name"] == name)

    async def create(self) -> None:
        kubeconfig = base64.b64encode((self.scenario.folder / "identity.kubeconfig").read_bytes()).decode()
        spaces = [kinds.typed(NAMESPACES, {"metadata": {"name": name}}) for name in (GLOBAL_DATA, self.name)]
        metadata = {
            "name": CREDENTIAL,
            "namespace": GLOBAL_DATA,
            "annotations": {ALLOWED_NAMESPACES_ANNOTATION: self.name},
        }
        data = {"harvestercredentialConfig-kubeconfigContent": kubeconfig}
        secret = kinds.typed(SECRETS, {"metadata": metadata, "data": data})
        harvester_cluster = {
            "metadata": {"name": self.name, "namespace": self.name},
            "spec": {
                "targetNamespace": self.name,
                "identitySecret": {"name": CREDENTIAL, "namespace": GLOBAL_DATA},
                "loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "load-balancers"},
            },
        }
        objects = [*spaces, secret, kinds.typed(HARVESTER_CLUSTERS, harvester_cluster)]
        objects += [self._template(pool["name"], 1) for pool in self.spec["rkeConfig"]["machinePools"]]
        await manifests.apply(self.client, objects)
        await self.rancher.apply(self.spec)
        await self.settle()
        await self.check_roles()
        # Later ones are new next to old ones, and the scheduler weighs more than our preference.
        names = {key_of(obj).name for obj in self.scenario.view.harvester_machines.store if has_etcd(obj)}
        hosts = [
            at(vmi, "status", "nodeName") for vmi in self.scenario.view.instances.store if key_of(vmi).name in names
        ]
        assert len(set(hosts)) == 3
        assert len(hosts) == 3

    def _template(self, pool: str, generation: int) -> Obj:
        spec = {
            "cpu": 2,
            "memory": "4Gi",
            "sshUser": "sles",
            "sshKeyPair": "default/caphv",
            "networks": ["default/production"],
            "volumes": [
                {
                    "volumeType": "image",
                    "imageName": "default/sles-15",
                    "volumeSize": f"{39 + generation}Gi",
                    "bootOrder": 1,
                }
            ],
        }
        metadata = {"name": f"{self.name}-{pool}-{generation}", "namespace": self.name}
        return kinds.typed(HARVESTER_MACHINE_TEMPLATES, {"metadata": metadata, "spec": {"template": {"spec": spec}}})

    async def show(self, box: Sandbox) -> None:
        """Commands for an operator understand the pools."""
        ref = f"{self.name}/{self.name}"
        sizes = [sum(pool["quantity"] for pool in self.servers(is_server)) for is_server in (True, False)]
        counts = [f"{size}/{size}" for size in sizes]
        await until(self.is_available, "the Cluster is available", SECONDS)
        row = " ".join([self.name, "Available", *counts, EARLIER_VERSION])
        assert row in " ".join((await caphv(box, "status", "-n", self.name)).split())
        assert "✗" not in await caphv(box, "tree", ref)
        assert (await caphv(box, "etcd", "members", ref)).count(" healthy ") == 3

    async def park(self, box: Sandbox) -> None:
        """Machines with etcd stop last, and all come back."""
        before = {uid_of(vm) for vm in self.scenario.view.vms.store}
        ref = f"{self.name}/{self.name}"
        await caphv(box, "park", ref, "--yes", "--wait", "--timeout", "3m")
        assert not (await self.scenario.harvester.list(kinds.INSTANCES, self.name))["items"]
        await caphv(box, "resume", ref, "--yes", "--wait", "--timeout", "3m")
        await self.settle()
        await until(self.is_available, "the Cluster is available", SECONDS)
        assert {uid_of(vm) for vm in self.scenario.view.vms.store} == before

    def is_available(self) -> bool:
        (cluster,) = self.scenario.view.clusters.store
        return condition(cluster, "Available") == "True"

    def servers(self, is_server: bool) -> list[Obj]:
        pools: list[Obj] = self.spec["rkeConfig"]["machinePools"]
        return [pool for pool in pools if bool(pool.get("etcdRole") or pool.get("controlPlaneRole")) is is_server]

    async def scale(self) -> None:
        servers = next(pool for pool in self.spec["rkeConfig"]["machinePools"] if pool.get("controlPlaneRole"))
        servers["quantity"] -= 1
        self.pool("workers")["quantity"] += 1
        await self.rancher.apply(self.spec)
        await self.settle()
        await self.check_roles()

    async def upgrade(self) -> None:
        """A plan upgrades RKE2 in the guests: no VM is replaced, restarted or changed."""
        before = {key_of(vm): (uid_of(vm), vm["spec"]) for vm in self.scenario.view.vms.store}
        instances = {uid_of(vmi) for vmi in self.scenario.view.instances.store}
        self.spec["kubernetesVersion"] = LATER_VERSION
        await self.rancher.apply(self.spec)
        await until(self.has_version, "all Nodes have the later version", SECONDS)
        await self.settle()
        assert {key_of(vm): (uid_of(vm), vm["spec"]) for vm in self.scenario.view.vms.store} == before
        assert {uid_of(vmi) for vmi in self.scenario.view.instances.store} == instances

    async def has_version(self) -> bool:
        # The core leaves Nodes of deleted machines while no machine has the label of the control plane.
        names = {at(machine, "status", "nodeRef", "name") for machine in self.machines()}
        nodes = [node for node in await self.nodes() if key_of(node).name in names]
        return {at(node, "status", "nodeInfo", "kubeletVersion") for node in nodes} == {LATER_VERSION}

    async def roll(self) -> None:
        """Another template replaces the machines with etcd; Rancher removes each member before its VM is deleted."""
        pool = next(pool for pool in self.spec["rkeConfig"]["machinePools"] if pool.get("etcdRole"))
        former = {obj["metadata"]["name"] for obj in self.machines() if has_etcd(obj)}
        await manifests.apply(self.client, [self._template(pool["name"], 2)])
        pool["machineConfigRef"]["name"] = f"{self.name}-{pool['name']}-2"
        held = len(self.rancher.held)
        await self.rancher.apply(self.spec)
        await until(
            lambda: not former & {obj["metadata"]["name"] for obj in self.machines()}, "all machines are new", SECONDS
        )
        await self.settle()
        assert set(self.rancher.held[held:]) == former
        await self.check_roles()

    async def delete(self, box: Sandbox) -> None:
        """By the object of Rancher, since Rancher makes the Cluster again while that exists."""
        secret = await self.client.get(SECRETS, CREDENTIAL, GLOBAL_DATA)
        ref = f"{self.name}/{self.name}"
        refusal = await caphv(box, "delete", ref, "--force", "--yes", exit_code=2)
        assert f"kubectl delete clusters.provisioning.cattle.io {self.name} -n {self.name}" in refusal
        await self.client.delete(RANCHER_CLUSTERS, self.name, self.name)
        view = self.scenario.view
        caches = (view.clusters, view.harvester_clusters, view.machines, view.harvester_machines)
        await until(lambda: not any(len(cache.store) for cache in caches), "all objects are deleted", SECONDS)
        assert await self.scenario.leftovers() == []
        await until(self.is_deleted, "Rancher has forgotten the cluster", SECONDS)
        assert not (await self.client.list(provisioner.CONTROL_PLANES, self.name))["items"]
        assert (await self.client.get(SECRETS, CREDENTIAL, GLOBAL_DATA))["data"] == secret["data"]

    async def is_deleted(self) -> bool:
        return not (await self.client.list(RANCHER_CLUSTERS, self.name))["items"]

    def machines(self) -> list[Obj]:
        return list(self.scenario.view.machines.store)

    async def nodes(self) -> list[Obj]:
        client = await self.rancher.workload()
        try:
            return list((await client.list(NODES))["items"])
        finally:
            await client.close()

    async def settle(self) -> None:
        """Wait until exactly the machines of all pools run, with their VMs."""
        sizes = Counter({pool["name"]: pool["quantity"] for pool in self.spec["rkeConfig"]["machinePools"]})
        view = self.scenario.view

        def is_settled() -> bool:
            running = Counter(labels_of(machine)[POOL_LABEL] for machine in view.running())
            return running == sizes and sizes.total() == len(view.machines.store) == len(view.vms.store)

        await until(is_settled, lambda: f"machines {sizes}: {view.problems()}", SECONDS)

    async def check_roles(self) -> None:
        """The endpoint leads to machines that serve the API; all with etcd have one member, and keep apart."""
        machines = copy.deepcopy(list(self.scenario.view.harvester_machines.store))
        servers, stores = (list(filter(role, machines)) for role in (serves_api, has_etcd))
        addresses = {entry["address"] for obj in servers for entry in obj["status"]["addresses"]}

        async def has_backends() -> bool:
            (balancer,) = (await self.scenario.harvester.list(kinds.LOAD_BALANCERS, self.name))["items"]
            backends = set(at(balancer, "status", "backendServers") or ())
            return bool(backends) and backends <= addresses and len(backends) == len(servers)

        await until(has_backends, f"the endpoint leads to {addresses}", SECONDS)
        names = {key_of(obj).name for obj in stores}
        vms = {key_of(vm).name: vm for vm in self.scenario.view.vms.store}
        assert {name for name, vm in vms.items() if labels_of(vm).get(ETCD_LABEL) == "true"} == names

        client = await self.rancher.workload()
        try:
            pods = await find_pods(client)
            assert {pod["spec"]["nodeName"] for pod in pods} == names
            members = {member.name.rpartition("-")[0] for member in await list_members(client, pods[0])}
        finally:
            await client.close()
        assert members == names
