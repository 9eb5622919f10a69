"""A stand-in for the Go provider: to others it works as that one does, polling included.

So clusters can be handed over from it to ours, and back.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator

import yaml

from caphv.api.names import SERVICE_ACCOUNT_ANNOTATION, SERVICE_ACCOUNT_TOKEN_TYPE
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Obj,
    Resource,
    annotations_of,
    being_deleted,
    labels_of,
    owner_reference,
    uid_of,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound, TooManyRequests, Unreachable
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.harvester import kinds
from sandbox.harvester.kubevip import ingress_of
from tests.support.predecessor.crds import CORE, GROUP
from tests.support.predecessor.objects import (
    CLUSTER_LABEL,
    addresses,
    balancer_of,
    classes_of,
    condition,
    listener,
    network_data,
    placeholder,
    user_data,
    virtual_machine,
)

MACHINES = Resource(CORE, "v1beta2", "machines", "Machine")
HARVESTER_CLUSTERS = Resource(GROUP, "v1beta1", "harvesterclusters", "HarvesterCluster")
HARVESTER_MACHINES = Resource(GROUP, "v1beta1", "harvestermachines", "HarvesterMachine")
UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized"
ZONE = "topology.kubernetes.io/zone"
PERIOD = 0.2


class Predecessor:
    """The Go provider at work: reads all its objects again and again, and does what is missing.

    `legacy` makes it write the finalizers of its early releases.
    """

    def __init__(self, management: ApiClient, harvester: ApiClient, *, legacy: bool = False) -> None:
        self.management, self.harvester = management, harvester
        suffix = "" if legacy else "/finalizer"
        self._finalizers = {
            resource: f"{name}.{GROUP}{suffix}"
            for resource, name in ((HARVESTER_CLUSTERS, "harvester"), (HARVESTER_MACHINES, "harvestermachine"))
        }
        self._workloads: dict[str, ApiClient] = {}

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work for as long as the block lasts."""
        try:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(self._run())
                yield
                task.cancel()
        finally:
            for client in self._workloads.values():
                await client.close()

    async def _run(self) -> None:
        while True:
            for resource, reconcile in ((HARVESTER_CLUSTERS, self._cluster), (HARVESTER_MACHINES, self._machine)):
                for obj in await self._all(resource):
                    # As in the original: a conflict or a missing object is retried at the next poll.
                    with contextlib.suppress(Conflict, NotFound, AlreadyExists, TooManyRequests):
                        await reconcile(obj)
            await asyncio.sleep(PERIOD)

    async def _all(self, resource: Resource) -> list[Obj]:
        """All objects, or none while the API server takes up other CRDs."""
        with contextlib.suppress(TooManyRequests):
            listed = await self.management.list(resource)
            return list(listed["items"])
        return []

    # HarvesterCluster

    async def _cluster(self, obj: Obj) -> None:
        spec, metadata = obj["spec"], obj["metadata"]
        target, name = spec["targetNamespace"], balancer_of(obj)
        if being_deleted(obj):
            await self._delete_cluster(obj)
            return
        if (obj.get("status") or {}).get("ready"):
            await self._balance(obj)
            return
        if not metadata.get("ownerReferences"):
            return
        finalizers = [self._finalizers[HARVESTER_CLUSTERS]]
        await self._patch(HARVESTER_CLUSTERS, obj, {"metadata": {"finalizers": finalizers}})
        with contextlib.suppress(AlreadyExists):
            await self.harvester.create(NAMESPACES, {"metadata": {"name": target}})
        address = await self._endpoint(target, name, spec["loadBalancerConfig"].get("ipPoolRef"))
        if not address:
            return
        hosts = (await self.harvester.list(NODES))["items"]
        zones = sorted({labels_of(host)[ZONE] for host in hosts})
        secret = spec["identitySecret"]
        identity = await self.management.get(SECRETS, secret["name"], secret["namespace"])
        kubeconfig = yaml.safe_load(base64.b64decode(identity["data"]["kubeconfig"]))
        endpoint = {"host": address, "port": 6443}
        server = kubeconfig["clusters"][0]["cluster"]["server"]
        await self._patch(HARVESTER_CLUSTERS, obj, {"spec": {"controlPlaneEndpoint": endpoint, "server": server}})
        attributes = {"topologyKey": ZONE}
        kinds_true = ("HarvesterConnectionReady", "TargetNamespaceReady", "LoadBalancerReady", "InfrastructureReady")
        conditions = [condition(each) for each in kinds_true]
        conditions.append(condition("InitMachineCreated", "False", "MachineNotFound"))
        status = {
            "ready": True,
            "initialization": {"provisioned": True},
            "failureDomains": [{"name": zone, "controlPlane": True, "attributes": attributes} for zone in zones],
            "conditions": conditions,
        }
        await self._patch(HARVESTER_CLUSTERS, obj, {"status": status}, subresource="status")

    async def _endpoint(self, target: str, name: str, pool: str | None) -> str:
        """Address of the placeholder Service, from the pool or, without one, by DHCP; empty until it has answered."""
        address = "0.0.0.0"
        if pool:
            address, _ = await self._allocate([pool], f"{target}/{name}")
        with contextlib.suppress(AlreadyExists):
            await self.harvester.create(SERVICES, placeholder(target, name, address))
        return address if pool else ingress_of(await self.harvester.get(SERVICES, name, target))

    async def _balance(self, obj: Obj) -> None:
        """The LoadBalancer, as soon as there is a control plane VM."""
        target, name = obj["spec"]["targetNamespace"], balancer_of(obj)
        cluster = labels_of(obj)[CLUSTER_LABEL]
        vms = (await self.harvester.list(kinds.VIRTUAL_MACHINES, target))["items"]
        if not any(labels_of(vm).get("harvestercluster/machinetype") == f"controlplane-{cluster}" for vm in vms):
            return
        config = obj["spec"]["loadBalancerConfig"]
        listeners = [*(config.get("listeners") or ()), listener("api-server", 6443)]
        times = {"successThreshold": 1, "failureThreshold": 3, "periodSeconds": 30, "timeoutSeconds": 60}
        wanted = {
            "metadata": {"name": name, "namespace": target},
            "spec": {
                "description": f"Load Balancer for cluster {cluster}",
                "workloadType": "vm",
                "ipam": config["ipamType"],
                **({"ipPool": config["ipPoolRef"]} if "ipPoolRef" in config else {}),
                "listeners": listeners,
                "healthCheck": {"port": 6443, **times},
                "backendServerSelector": {"harvestercluster/machinetype": [f"controlplane-{cluster}"]},
            },
        }
        try:
            await self.harvester.get(kinds.LOAD_BALANCERS, name, target)
        except NotFound:
            await self.harvester.create(kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, wanted))
            if obj["spec"].get("updateCloudProviderConfig"):
                await self._create_account(target, cluster)
            others = [each for each in obj["status"]["conditions"] if each["type"] != "InitMachineCreated"]
            # The latter also without a cloud config that was requested.
            reached = [condition(each) for each in ("InitMachineCreated", "CloudProviderConfigReady")]
            await self._patch(
                HARVESTER_CLUSTERS, obj, {"status": {"conditions": [*others, *reached]}}, subresource="status"
            )

    async def _create_account(self, target: str, name: str) -> None:
        """The account of the cloud provider, with the names and the role of Harvester's script."""
        metadata = {"name": name, "namespace": target}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "harvesterhci.io:cloudprovider"}
        binding = {
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", **metadata}],
        }
        token = {"name": f"{name}-token", "namespace": target, "annotations": {SERVICE_ACCOUNT_ANNOTATION: name}}
        await self.harvester.create(SERVICE_ACCOUNTS, {"metadata": metadata})
        await self.harvester.create(CLUSTER_ROLE_BINDINGS, binding)
        await self.harvester.create(SECRETS, {"metadata": token, "type": SERVICE_ACCOUNT_TOKEN_TYPE})

    async def _delete_cluster(self, obj: Obj) -> None:
        target, name = obj["spec"]["targetNamespace"], balancer_of(obj)
        for resource in (kinds.LOAD_BALANCERS, SERVICES):
            with contextlib.suppress(NotFound):
                await self.harvester.delete(resource, name, target)
        await self._patch(HARVESTER_CLUSTERS, obj, {"metadata": {"finalizers": None}})

    # HarvesterMachine

    async def _machine(self, obj: Obj) -> None:
        cluster = await self._cluster_of(obj)
        if cluster is None:
            return
        target, name = cluster["spec"]["targetNamespace"], obj["metadata"]["name"]
        if being_deleted(obj):
            await self._delete_machine(obj, target)
            return
        owner = owner_reference(obj, MACHINES.kind, CORE)
        if owner is None:
            return
        machine = await self.management.get(MACHINES, owner["name"], obj["metadata"]["namespace"])
        data = (machine["spec"].get("bootstrap") or {}).get("dataSecretName")
        if not data or not (cluster.get("status") or {}).get("ready"):
            return
        try:
            vm = await self.harvester.get(kinds.VIRTUAL_MACHINES, name, target)
        except NotFound:
            await self._create(obj, cluster, machine, data)
            return
        if not (obj.get("status") or {}).get("ready"):
            await self._report(obj, vm)
        else:
            await self._initialize(obj, cluster)

    async def _create(self, obj: Obj, cluster: Obj, machine: Obj, data: str) -> None:
        target = cluster["spec"]["targetNamespace"]
        name, namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
        if self._finalizers[HARVESTER_MACHINES] not in (obj["metadata"].get("finalizers") or ()):
            finalizers = [self._finalizers[HARVESTER_MACHINES]]
            obj = await self._patch(HARVESTER_MACHINES, obj, {"metadata": {"finalizers": finalizers}})
        network = cluster["spec"]["vmNetworkConfig"]
        address, pool = await self._allocate(network.get("ipPoolRefs") or [network["ipPoolRef"]], f"{namespace}/{name}")
        status: Obj = {
            "allocatedIPAddress": address,
            "allocatedPoolRef": pool,
            "failureDomain": machine["spec"].get("failureDomain"),
            "conditions": [condition("VMIPAllocated")],
        }
        await self._patch(HARVESTER_MACHINES, obj, {"status": status}, subresource="status")
        bootstrap = (await self.management.get(SECRETS, data, namespace))["data"]["value"]
        texts = {
            "userdata": user_data(base64.b64decode(bootstrap).decode()),
            "networkdata": network_data(address, network),
        }
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        metadata = {"name": f"{name}-cloud-init", "namespace": target}
        with contextlib.suppress(AlreadyExists):
            await self.harvester.create(SECRETS, {"metadata": metadata, "data": encoded})
        classes = classes_of((await self.harvester.list(kinds.IMAGES))["items"])
        await self.harvester.create(kinds.VIRTUAL_MACHINES, virtual_machine(obj, target, machine, classes))

    async def _report(self, obj: Obj, vm: Obj) -> None:
        target, name = vm["metadata"]["namespace"], vm["metadata"]["name"]
        vmi = await self.harvester.get(kinds.INSTANCES, name, target)
        found = [each["ipAddress"] for each in vmi["status"].get("interfaces") or () if each.get("ipAddress")]
        if not found:
            return
        await self._patch(HARVESTER_MACHINES, obj, {"spec": {"providerID": f"harvester://{uid_of(vm)}"}})
        true = ("VMIPAllocated", "MachineCreated", "VMProvisioningReady", "InfrastructureReady")
        status = {
            "ready": True,
            "initialization": {"provisioned": True},
            "addresses": [{"type": "ExternalIP", "address": address} for address in found],
            "conditions": [condition(each) for each in true],
        }
        await self._patch(HARVESTER_MACHINES, obj, {"status": status}, subresource="status")

    async def _initialize(self, obj: Obj, cluster: Obj) -> None:
        """Give the Node its providerID and take the taint away."""
        workload = await self._workload(obj["metadata"]["namespace"], labels_of(cluster)[CLUSTER_LABEL])
        try:
            node = await workload.get(NODES, obj["metadata"]["name"])
        except (ApiError, Unreachable):
            return
        taints = node["spec"].get("taints") or []
        left = [taint for taint in taints if taint["key"] != UNINITIALIZED]
        if node["spec"].get("providerID") and left == taints:
            return
        patch = {"spec": {"providerID": obj["spec"]["providerID"], "taints": left}}
        await workload.patch(NODES, obj["metadata"]["name"], "", patch)

    async def _delete_machine(self, obj: Obj, target: str) -> None:
        name = obj["metadata"]["name"]
        with contextlib.suppress(NotFound):
            vm = await self.harvester.get(kinds.VIRTUAL_MACHINES, name, target)
            claims = [claim["metadata"]["name"] for claim in json.loads(annotations_of(vm)[kinds.CLAIM_TEMPLATES])]
            await self.harvester.delete(kinds.VIRTUAL_MACHINES, name, target)
            for claim in claims:
                await self._delete_claim(claim, target)
            with contextlib.suppress(NotFound):
                await self.harvester.delete(SECRETS, f"{name}-cloud-init", target)
        status = obj.get("status") or {}
        if status.get("allocatedPoolRef"):
            await self._release(status["allocatedPoolRef"], status["allocatedIPAddress"])
        await self._patch(HARVESTER_MACHINES, obj, {"metadata": {"finalizers": None}})

    async def _delete_claim(self, name: str, target: str) -> None:
        while True:
            try:
                await self.harvester.delete(PERSISTENT_VOLUME_CLAIMS, name, target)
            except NotFound:
                return
            except Invalid:
                # Harvester's webhook refuses while the VM has not gone: the original tries again.
                await asyncio.sleep(PERIOD)
            else:
                return

    # Both

    async def _cluster_of(self, obj: Obj) -> Obj | None:
        name, namespace = labels_of(obj)[CLUSTER_LABEL], obj["metadata"]["namespace"]
        listed = (await self.management.list(HARVESTER_CLUSTERS, namespace))["items"]
        return next((each for each in listed if labels_of(each).get(CLUSTER_LABEL) == name), None)

    async def _workload(self, namespace: str, cluster: str) -> ApiClient:
        if cluster not in self._workloads:
            secret = await self.management.get(SECRETS, f"{cluster}-kubeconfig", namespace)
            self._workloads[cluster] = parse_kubeconfig(base64.b64decode(secret["data"]["value"])).client(name=cluster)
        return self._workloads[cluster]

    async def _allocate(self, pools: list[str], holder: str) -> tuple[str, str]:
        """Address and pool of a holder, from the first pool with a free one."""
        for name in pools:
            pool = await self.harvester.get(kinds.IP_POOLS, name)
            allocated = pool["status"].get("allocated") or {}
            held = [address for address, each in allocated.items() if each == holder]
            free = [address for address in addresses(pool) if address not in allocated]
            if held or free:
                address = (held or free)[0]
                taken = {} if held else {"available": pool["status"]["available"] - 1}
                status = {"allocated": {address: holder}, "lastAllocated": address, **taken}
                await self.harvester.patch(kinds.IP_POOLS, name, "", {"status": status})
                return address, name
        raise AssertionError(f"no address for {holder}")

    async def _release(self, pool: str, address: str) -> None:
        found = await self.harvester.get(kinds.IP_POOLS, pool)
        if address in (found["status"].get("allocated") or {}):
            status = {"allocated": {address: None}, "available": found["status"]["available"] + 1}
            await self.harvester.patch(kinds.IP_POOLS, pool, "", {"status": status})

    async def _patch(self, resource: Resource, obj: Obj, patch: Obj, subresource: str = "") -> Obj:
        metadata = obj["metadata"]
        return await self.management.patch(
            resource, metadata["name"], metadata["namespace"], patch, subresource=subresource
        )
