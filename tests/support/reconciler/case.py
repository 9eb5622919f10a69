"""One cluster on the simulated Harvester; the test plays the Cluster API core and the user."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import yaml

from caphv.api.names import PAUSED_ANNOTATION
from caphv.api.object import (
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICES,
    Obj,
    Resource,
    labels_of,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from sandbox.harvester import kinds
from sandbox.processes import pki
from tests.support.reconciler.conditions import is_ready
from tests.support.reconciler.environment import Environment
from tests.support.reconciler.machines import machine_spec
from tests.support.waiting import PATIENCE, until

CORE, INFRASTRUCTURE = "cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io"
CLUSTERS = Resource(CORE, "v1beta2", "clusters", "Cluster")
MACHINES = Resource(CORE, "v1beta2", "machines", "Machine")
HARVESTER_CLUSTERS = Resource(INFRASTRUCTURE, "v1beta1", "harvesterclusters", "HarvesterCluster")
HARVESTER_MACHINES = Resource(INFRASTRUCTURE, "v1beta1", "harvestermachines", "HarvesterMachine")
HARVESTER_MACHINE_TEMPLATES = Resource(
    INFRASTRUCTURE, "v1beta1", "harvestermachinetemplates", "HarvesterMachineTemplate"
)
CLUSTER_LABEL, CONTROL_PLANE_LABEL = f"{CORE}/cluster-name", f"{CORE}/control-plane"
UNINITIALIZED = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}
BOOTSTRAP = "#cloud-config\nruncmd: [echo]\n"
MASK = "255.255.128.0"

# What an event brings about; the shortest poll or retry of the provider without one is far longer.
AT_ONCE = 3.0

_IN_NAMESPACE = (
    kinds.VIRTUAL_MACHINES,
    kinds.INSTANCES,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICES,
    kinds.LOAD_BALANCERS,
    kinds.VM_BACKUPS,
)


class Case:
    """A Cluster `name` in namespace `name`, with VMs in namespace `target` on Harvester."""

    def __init__(self, environment: Environment, number: int, prefix: str = "case") -> None:
        self.environment = environment
        self.number, self.prefix = number, prefix
        self.name = f"{prefix}-{number}"
        self.target = f"{self.name}-vms"
        self.balancer = f"{self.name}-{self.name}-lb"
        # Addresses of the production network for the pools of this test alone.
        self.subnet = f"{environment.prefix}.{48 + number % 79}"
        self.gateway = f"{environment.prefix}.0.1"
        self._stack = contextlib.AsyncExitStack()
        self.pools: list[str] = []

    def on(self, environment: Environment) -> Case:
        """The same cluster on another management cluster for the same Harvester."""
        found = Case(environment, self.number, self.prefix)
        found.pools = self.pools
        return found

    async def open(self, *, create_namespace: bool = True) -> None:
        """Connect, and make the namespace on the management cluster."""
        lend = self._stack.enter_async_context
        self.management: ApiClient = await lend(self.environment.management.client())
        self.harvester: ApiClient = await lend(self.environment.harvester.client())
        self.workload: ApiClient = await lend(self.environment.workload.client())
        if create_namespace:
            await self.management.create(NAMESPACES, {"metadata": {"name": self.name}})

    async def close(self) -> None:
        """Forget the providers of this test alone, and disconnect."""
        # To later tests on the same servers, each would be a provider that fell silent. The servers
        # of some tests are lost by now.
        with contextlib.suppress(RequestError):
            for lease in (await self.management.list(LEASES, self.name))["items"]:
                await self.management.delete(LEASES, lease["metadata"]["name"], self.name)
        await self._stack.aclose()

    # Cluster

    async def identity(
        self, kubeconfig: Obj | str | None = None, *, key: str = "kubeconfig", name: str = "identity"
    ) -> None:
        """Write the identity Secret, by default with a kubeconfig that works."""
        content = kubeconfig if isinstance(kubeconfig, str) else _yaml(kubeconfig or self.environment.identity())
        await self.write_secret(name, {key: content})

    async def cluster(self, **options: Any) -> None:
        """Create identity, bootstrap data, Cluster and HarvesterCluster; `options` are those of `create_cluster`."""
        await self.identity()
        await self.write_secret("bootstrap", {"value": BOOTSTRAP})
        await self.create_cluster(**options)

    async def ready_cluster(self, **options: Any) -> Obj:
        """Create a cluster and wait until machines can come; answers the HarvesterCluster."""
        await self.cluster(**options)
        return await self.ready()

    async def create_cluster(
        self,
        *,
        labels: Obj | None = None,
        annotations: Obj | None = None,
        finalizers: list[str] | None = None,
        paused: bool = False,
        **spec: Any,
    ) -> None:
        """Create Cluster and HarvesterCluster as a user does, linked as the core does; `spec` is of the latter."""
        reference = {"apiGroup": INFRASTRUCTURE, "kind": "HarvesterCluster", "name": self.name}
        wanted = {"infrastructureRef": reference, "paused": paused}
        cluster = await self.create(CLUSTERS, self.name, wanted, finalizers=[f"{CORE}/core"])
        full = {
            "targetNamespace": self.target,
            "identitySecret": {"name": "identity", "namespace": self.name},
            "loadBalancerConfig": {"ipamType": "dhcp"},
            **spec,
        }
        full = {name: value for name, value in full.items() if value is not None}
        await self.create(
            HARVESTER_CLUSTERS,
            self.name,
            full,
            owner=cluster,
            labels={CLUSTER_LABEL: self.name, **(labels or {})},
            annotations=annotations or {},
            finalizers=finalizers or [],
        )

    async def ready(self) -> Obj:
        """Wait for the infrastructure and tell the Cluster, as the core does; answers the HarvesterCluster."""
        found = await self.until(
            HARVESTER_CLUSTERS,
            self.name,
            lambda obj: ((obj.get("status") or {}).get("initialization") or {}).get("provisioned"),
        )
        status = {"status": {"initialization": {"infrastructureProvisioned": True}}}
        await self.management.patch(CLUSTERS, self.name, self.name, status, subresource="status")
        return found

    # Machines

    async def create_machine(
        self,
        name: str,
        *,
        control_plane: bool = False,
        bootstrap: str | None = "bootstrap",
        failure_domain: str = "",
        labels: Obj | None = None,
        finalizers: list[str] | None = None,
        machine_name: str = "",
        version: str = "",
        **spec: Any,
    ) -> None:
        """Create a Machine and its HarvesterMachine, linked as the core does; `spec` is of the latter.

        Control plane providers give the Machine another name, `machine_name`.
        """
        labels = {CLUSTER_LABEL: self.name, **({CONTROL_PLANE_LABEL: ""} if control_plane else {}), **(labels or {})}
        wanted: Obj = {
            "clusterName": self.name,
            "bootstrap": {"dataSecretName": bootstrap} if bootstrap else {},
            "infrastructureRef": {"apiGroup": INFRASTRUCTURE, "kind": "HarvesterMachine", "name": name},
        }
        if failure_domain:
            wanted["failureDomain"] = failure_domain
        if version:
            wanted["version"] = version
        finalizer = f"{CORE}/core"
        machine = await self.create(MACHINES, machine_name or name, wanted, labels=labels, finalizers=[finalizer])
        await self.create(
            HARVESTER_MACHINES,
            name,
            {**machine_spec(), **spec},
            labels=labels,
            finalizers=finalizers or [],
            owner=machine,
        )

    async def ready_machine(self, name: str, **options: Any) -> Obj:
        """Create a machine and wait until it is ready; answers the HarvesterMachine."""
        await self.create_machine(name, **options)
        return await self.until(HARVESTER_MACHINES, name, is_ready)

    async def delete_machine(self, name: str, machine_name: str = "") -> None:
        """Delete a machine as the core does, and wait until nothing of it is left on the management cluster."""
        await self.ask_deletion(HARVESTER_MACHINES, name)
        await self.until_gone(HARVESTER_MACHINES, name)
        await self._drop(MACHINES, machine_name or name)

    async def vm(self, name: str, condition: Callable[[Obj], Any] = lambda _vm: True, timeout: float = PATIENCE) -> Obj:
        """The VM on Harvester, as soon as it fulfils a condition."""
        return await self.until(kinds.VIRTUAL_MACHINES, name, condition, timeout=timeout)

    async def user_data(self, name: str) -> tuple[Obj, Obj]:
        """The cloud-init data of a VM: user data and network data."""
        secret = await self.harvester.get(SECRETS, f"{name}-cloud-init", self.target)
        texts = {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        return yaml.safe_load(texts["userdata"]), yaml.safe_load(texts.get("networkdata", "{}"))

    # Nodes

    async def connect_workload(self) -> None:
        """Write the kubeconfig of the workload cluster, as a control plane provider does."""
        await self.write_secret(f"{self.name}-kubeconfig", {"value": _yaml(self.environment.workload.kubeconfig())})

    async def register_node(self, name: str, **spec: Any) -> None:
        """Register a Node as a kubelet does that waits for a cloud provider."""
        obj = {"metadata": {"name": name}, "spec": {"taints": [UNINITIALIZED], **spec}}
        await self.workload.create(NODES, obj)
        self._stack.push_async_callback(_quietly, lambda: self.workload.delete(NODES, name))

    # Addresses

    @property
    def storage_subnet(self) -> str:
        """The first three parts of the test's addresses on network default/storage."""
        prefix, _, third = self.subnet.rpartition(".")
        return f"{prefix}.{int(third) + 128}"

    async def storage_pool(self, suffix: str, first: int, last: int) -> str:
        """As `pool`, with addresses of network default/storage and without a gateway."""
        bounds = {"rangeStart": f"{self.storage_subnet}.{first}", "rangeEnd": f"{self.storage_subnet}.{last}"}
        ranges = {"subnet": f"{self.environment.prefix}.128.0/17", **bounds}
        return await self._pool(suffix, ranges, last - first + 1, "default/storage")

    async def pool(self, suffix: str, first: int, last: int, network: str = "") -> str:
        """Create an IPPool with the addresses from `first` to `last` of the test's subnet; answers its name."""
        bounds = {"rangeStart": f"{self.subnet}.{first}", "rangeEnd": f"{self.subnet}.{last}", "gateway": self.gateway}
        ranges = {"subnet": f"{self.environment.prefix}.0.0/17", **bounds}
        return await self._pool(suffix, ranges, last - first + 1, network)

    async def _pool(self, suffix: str, ranges: Obj, total: int, network: str) -> str:
        name = f"{self.name}-{suffix}"
        spec: Obj = {"ranges": [ranges]}
        if network:
            spec["selector"] = {"network": network}
        status = {"total": total, "available": total, "lastAllocated": ""}
        await self.harvester.create(
            kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, {"metadata": {"name": name}, "spec": spec, "status": status})
        )
        self.pools.append(name)
        return name

    def vm_network(self, *pools: str, **more: Any) -> Obj:
        """A `vmNetworkConfig` over these pools."""
        return {"ipPoolRefs": list(pools), "gateway": self.gateway, "subnetMask": MASK, **more}

    async def allocated(self, pool: str) -> dict[str, str]:
        """Who holds which address of a pool."""
        found = await self.harvester.get(kinds.IP_POOLS, pool)
        return (found.get("status") or {}).get("allocated") or {}

    async def reserve(self, pool: str, address: str, holder: str | None) -> None:
        """Put another client's reservation into a pool, or take it out with None."""
        found = await self.harvester.get(kinds.IP_POOLS, pool)
        before = (found.get("status") or {}).get("available") or 0
        status = {"allocated": {address: holder}, "available": before + (1 if holder is None else -1)}
        await self.harvester.patch(kinds.IP_POOLS, pool, "", {"status": status})

    # Any object

    async def create(
        self, resource: Resource, name: str, spec: Obj, *, owner: Obj | None = None, **metadata: Any
    ) -> Obj:
        """Create an object in the case's namespace on the management cluster."""
        metadata |= {"name": name, "namespace": self.name}
        if owner:
            reference = {name: owner[name] for name in ("apiVersion", "kind")}
            reference |= {name: owner["metadata"][name] for name in ("name", "uid")}
            metadata["ownerReferences"] = [reference]
        return await self.management.create(resource, kinds.typed(resource, {"metadata": metadata, "spec": spec}))

    async def write_secret(self, name: str, texts: dict[str, str]) -> None:
        """Create or replace a Secret in the case's namespace on the management cluster."""
        data = {key: base64.b64encode(value.encode()).decode() for key, value in texts.items()}
        obj: Obj = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self.name},
            "data": data,
        }
        try:
            old = await self.management.get(SECRETS, name, self.name)
        except NotFound:
            await self.management.create(SECRETS, obj)
        else:
            # The provider writes its finalizer into the same object.
            await self.management.patch(SECRETS, name, self.name, {"data": dict.fromkeys(old.get("data") or {}) | data})

    async def patch(self, resource: Resource, name: str, patch: Obj) -> Obj:
        """Merge into an object of the case, wherever it lives."""
        client, namespace = self._place(resource)
        return await client.patch(resource, name, namespace, patch)

    async def get(self, resource: Resource, name: str) -> Obj:
        """An object of the case, wherever it lives."""
        client, namespace = self._place(resource)
        return await client.get(resource, name, namespace)

    async def pause(self, paused: bool) -> None:
        """Pause the Cluster, or let it continue."""
        await self.patch(CLUSTERS, self.name, {"spec": {"paused": paused}})

    async def pause_object(self, resource: Resource, name: str, *, paused: bool) -> None:
        """Pause one object by annotation, or let it continue."""
        await self.patch(resource, name, {"metadata": {"annotations": {PAUSED_ANNOTATION: "" if paused else None}}})

    async def ask_deletion(self, resource: Resource, name: str) -> None:
        """Delete an object without waiting for it; fine when it no longer exists."""
        client, namespace = self._place(resource)
        with contextlib.suppress(NotFound):
            await client.delete(resource, name, namespace)

    async def until(
        self,
        resource: Resource,
        name: str,
        condition: Callable[[Obj], Any],
        *,
        client: ApiClient | None = None,
        timeout: float = PATIENCE,
    ) -> Obj:
        """The object as soon as it fulfils a condition."""
        place, namespace = self._place(resource)
        obj: Obj | None = None

        async def fulfilled() -> bool:
            nonlocal obj
            with contextlib.suppress(NotFound):
                obj = await (client or place).get(resource, name, "" if client else namespace)
                return bool(condition(obj))
            return False

        await until(fulfilled, lambda: f"{resource.kind} {name} is not as expected: {_brief(obj)}", timeout)
        assert obj is not None
        return obj

    async def until_gone(self, resource: Resource, name: str, timeout: float = PATIENCE) -> None:
        """Wait until an object is deleted."""
        client, namespace = self._place(resource)
        obj: Obj | None = None

        async def gone() -> bool:
            nonlocal obj
            try:
                obj = await client.get(resource, name, namespace)
            except NotFound:
                return True
            return False

        await until(gone, lambda: f"{resource.kind} {name} is still there: {_brief(obj)}", timeout)

    async def names(self, resource: Resource) -> list[str]:
        """Names of all objects of a kind in the case's namespace, wherever that lives."""
        client, namespace = self._place(resource)
        listed = await client.list(resource, namespace)
        return [item["metadata"]["name"] for item in listed["items"]]

    async def events(self, name: str) -> set[tuple[str, str]]:
        """Type and reason of all Events about an object of the case."""
        listed = await self.management.list(EVENTS, self.name)
        return {(item["type"], item["reason"]) for item in listed["items"] if item["involvedObject"]["name"] == name}

    async def until_event(self, name: str, kind: str, reason: str) -> None:
        """Wait for an Event about an object of the case."""

        async def there() -> bool:
            return (kind, reason) in await self.events(name)

        await until(there, lambda: f"no Event {kind} {reason} of {name}")

    async def quota(self, resource: str, hard: str) -> None:
        """Limit a resource of the target namespace on Harvester by ResourceQuota `tight`."""
        quota = {"metadata": {"name": "tight", "namespace": self.target}, "spec": {"hard": {resource: hard}}}
        await self.harvester.create(kinds.RESOURCE_QUOTAS, quota)

    async def raise_quota(self) -> None:
        """Remove the limit."""
        await self.harvester.delete(kinds.RESOURCE_QUOTAS, "tight", self.target)

    async def writes(self, since: int) -> list[str]:
        """What the provider wrote to the target namespace on Harvester since an audit position."""
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in self.environment.requests(self.environment.harvester, since)
            if event["verb"] not in ("get", "list", "watch") and self.target in event["requestURI"]
        ]

    # The end

    async def delete(self) -> None:
        """Delete the cluster with its machines as the core does, and wait until it no longer exists."""
        with contextlib.suppress(NotFound):
            await self.pause(False)
        await self.ask_deletion(CLUSTERS, self.name)
        machines = await self.names(HARVESTER_MACHINES)
        await asyncio.gather(*(self.ask_deletion(HARVESTER_MACHINES, name) for name in machines))
        await asyncio.gather(*(self.until_gone(HARVESTER_MACHINES, name) for name in machines))
        for name in await self.names(MACHINES):
            await self._drop(MACHINES, name)
        await self.ask_deletion(HARVESTER_CLUSTERS, self.name)
        await self.until_gone(HARVESTER_CLUSTERS, self.name)
        await self._drop(CLUSTERS, self.name)

    async def remove(self) -> list[str]:
        """Delete everything; answers what of the cluster was left on Harvester."""
        await self.delete()
        left = await self.leftovers()
        for pool in self.pools:
            await self.harvester.delete(kinds.IP_POOLS, pool)
        await _quietly(lambda: self.harvester.delete(NAMESPACES, self.target))
        await _quietly(lambda: self.management.delete(NAMESPACES, self.name))
        return left

    async def leftovers(self) -> list[str]:
        """What is on Harvester of the case: objects in its namespace, created pools and reserved addresses."""
        found = [f"{resource.kind} {name}" for resource in _IN_NAMESPACE for name in await self.names(resource)]
        for pool in (await self.harvester.list(kinds.IP_POOLS))["items"]:
            name = pool["metadata"]["name"]
            if name.startswith(f"{self.name}-") and name not in self.pools:
                found.append(f"IPPool {name}")
            for address, holder in ((pool.get("status") or {}).get("allocated") or {}).items():
                if holder.partition("/")[0] in (self.name, self.target):
                    found.append(f"address {address} of IPPool {name} ({holder})")
        return found

    async def _drop(self, resource: Resource, name: str) -> None:
        """Delete an object of Cluster API's core; only the test's finalizer holds it."""
        await self.ask_deletion(resource, name)
        with contextlib.suppress(NotFound):
            await self.patch(resource, name, {"metadata": {"finalizers": None}})

    def _place(self, resource: Resource) -> tuple[ApiClient, str]:
        """Where objects of a kind live: those that exist on both API servers are looked for on Harvester."""
        if resource.group in (CORE, INFRASTRUCTURE):
            return self.management, self.name
        return self.harvester, self.target if resource.namespaced else ""


def _brief(obj: Obj | None) -> Any:
    if obj is None:
        return "it is not there"
    return {name: obj.get(name) for name in ("metadata", "spec", "status") if name != "metadata"} | {
        "labels": labels_of(obj),
        "deletionTimestamp": obj["metadata"].get("deletionTimestamp"),
    }


async def _quietly(call: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(NotFound):
        await call()


def _yaml(obj: Obj) -> str:
    return pki.to_yaml(obj).decode()
