"""The lifecycle of a cluster in a sandbox, step by step: shown by `caphv sandbox demo`, checked by the e2e tests.

Each step makes a change like a user and waits on watches for the outcome; on timeout it fails with the last observed
state. Nothing here depends on how the provider works.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, Obj, Resource, labels_of, uid_of
from caphv.api.resources import clusters
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import cluster, manifests
from sandbox.capi import v1beta1
from sandbox.capi.resources import condition
from sandbox.harvester import kinds
from sandbox.scenario.gitops import GitOps, SyncError
from sandbox.scenario.view import Step, View
from sandbox.state import State


class ScenarioError(AssertionError):
    """A step failed; the message has the expected and the observed state."""


class Scenario:
    """The lifecycle of one cluster in a running sandbox; `on_change` is called when the view changes."""

    def __init__(
        self,
        folder: Path,
        spec: cluster.ClusterSpec,
        *,
        on_change: Callable[[], None] = lambda: None,
        timeout: float = 120.0,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.timeout = timeout
        self._control_planes, self._workers = spec.control_planes, spec.workers
        self.on_change = on_change
        self._gitops = GitOps(folder)
        self._notified = asyncio.Event()
        files = {name: folder / f"{name}.kubeconfig" for name in ("management", "harvester", "identity")}
        # Faults must not affect what the scenario observes.
        direct = folder / "harvester-direct.kubeconfig"
        files["harvester"] = direct if direct.exists() else files["harvester"]
        self._kubeconfig = {name: file.read_bytes() for name, file in files.items()}
        self.management = self._client("management")
        self.harvester = self._client("harvester")
        state = State.load(folder)
        core = state.core if state else "v1beta2"
        self._clusters = clusters(core)
        self.view = View(self.management, self.harvester, spec, core)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Scenario]:
        """Run the view's informers inside the block."""
        for informer in self.view.informers:
            informer.add_handler(lambda _change: self._wake())
        tasks = [asyncio.create_task(informer.run()) for informer in self.view.informers]
        try:
            await asyncio.gather(*(informer.wait_synced() for informer in self.view.informers))
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.management.close()
            await self.harvester.close()

    async def run(self) -> None:
        """Run all steps in order, which need several control plane machines. Raises ScenarioError."""
        await self.define()
        await self.bring_up()
        await self.change_mtu(1400)
        await self.replace_lost(self.view.workers()[0])
        await self.replace_lost(self.view.control_planes()[0])
        await self.scale(self.spec.control_planes + 2, self.spec.workers + 1)
        await self.scale(self.spec.control_planes, 1)
        await self.upgrade(cluster.LATER_VERSION)
        await self.delete()

    # Steps

    async def create(self) -> None:
        """Create the Cluster; its HarvesterCluster gets a control plane endpoint before any machine exists."""
        own = cluster.manifest(self.spec)
        own = v1beta1.written(own) if self._clusters.version == v1beta1.VERSION else own
        await self._apply("Create a cluster from the ClusterClass: control plane endpoint", [own])

    async def apply(self, objects: Sequence[Obj]) -> None:
        """Apply a user's manifests and wait for the control plane endpoint; the spec has the number of machines."""
        await self._apply("Apply manifests: control plane endpoint", objects)

    async def define(self, mtu: int = 1450) -> None:
        """Push a definition: it becomes manifests and bundles in one commit, and the manifests are applied."""
        async with self._step("Push a cluster definition to Git: manifests, bundles, control plane endpoint") as step:
            await manifests.apply(self.management, cluster.identity(self.spec, self._kubeconfig["identity"]))
            self._gitops.create()
            changes = await self._push(mtu, "Add a cluster")
            await self._until("HarvesterCluster is ready", lambda: _ready(self.view.harvester_cluster()))
            bundles = [
                path.split("/")[3] for path in changes if path.startswith("clusters/") and path.endswith("/fleet.yaml")
            ]
            step.outcome = f"one commit with bundles {', '.join(sorted(bundles))}; endpoint {self.view.endpoint()}"

    async def change_mtu(self, mtu: int) -> None:
        """Change one setting of a definition: one small commit, no machine replaced."""
        async with self._step(f"Change the Pod MTU to {mtu} in the definition: one small commit") as step:
            machines = {uid_of(machine) for machine in self.view.machines.store}
            before = self._gitops.count()
            changes = await self._push(mtu, "Reduce the MTU")
            if self._gitops.count() != before + 1 or not any("/cni/" in path for path in changes):
                raise ScenarioError(
                    f"{self._gitops.count() - before} commits, the last one changes {', '.join(changes)}"
                )
            await self._settle()
            if machines != {uid_of(machine) for machine in self.view.machines.store}:
                raise ScenarioError("machines were replaced")
            step.outcome = f"{sum(changes.values())} lines in {len(changes)} files"

    async def bring_up(self) -> None:
        """Wait until all machines are running and their Nodes are initialized."""
        wanted = self._control_planes + self._workers
        async with self._step(f"Bring up {self._control_planes} control planes and {self._workers} workers") as step:
            await self._settle()
            disks = await self._names(PERSISTENT_VOLUME_CLAIMS)
            source = ", ".join(sorted(self.view.pools_used())) or "DHCP"
            step.outcome = (
                f"{wanted} nodes in {len(self.view.zones())} zones, {len(disks)} disks, addresses from {source}"
            )

    async def replace_lost(self, lost: Obj) -> None:
        """Delete the VM of a machine; the MachineHealthCheck has the machine replaced."""
        kind = "control plane" if cluster.CONTROL_PLANE_LABEL in labels_of(lost) else "worker"
        name = lost["metadata"]["name"]
        async with self._step(f"Delete the VM of {kind} {name}: its machine is replaced") as step:
            await self.wait_replaced(await self.destroy(infrastructure_ref(lost)[1]))
            step.outcome = "reported and replaced"

    async def destroy(self, name: str) -> Obj:
        """Delete a VM, which has the name of its HarvesterMachine, directly on Harvester; returns the VM."""
        vm = self.view.vms.get(self.spec.target_namespace, name)
        if vm is None:
            raise ScenarioError(f"there is no VM {name}")
        await self.harvester.delete(kinds.VIRTUAL_MACHINES, name, self.spec.target_namespace)
        return vm

    async def wait_replaced(self, vm: Obj) -> None:
        """Wait until the machine of a deleted VM has been replaced."""
        name = vm["metadata"]["name"]
        await self._until(f"the machine of VM {name} is deleted", lambda: self._machine(name) is None)
        await self._settle()
        if uid_of(vm) in {uid_of(new) for new in self.view.vms.store}:
            raise ScenarioError(f"VM {name} still exists with its old uid")

    async def scale(self, control_planes: int, workers: int) -> None:
        """Scale both in the topology; the control plane scales by one machine at a time."""
        wanted = f"{control_planes} control planes and {workers} worker{'s' if workers != 1 else ''}"
        async with self._step(f"Scale to {wanted}") as step:
            self._control_planes, self._workers = control_planes, workers
            await self._change("/spec/topology/controlPlane/replicas", control_planes)
            await self._change("/spec/topology/workers/machineDeployments/0/replicas", workers)
            await self._settle()
            step.outcome = f"{len(self.view.running())} nodes"

    async def upgrade(self, version: str) -> None:
        """Roll out another Kubernetes version: first the control plane, then the workers."""
        async with self._step(f"Roll out {version}, control plane first") as step:
            await self._replace_all("/spec/topology/version", version)
            if any(machine["spec"].get("version") != version for machine in self.view.machines.store):
                raise ScenarioError(f"some machines do not have version {version}")
            step.outcome = f"{len(self.view.running())} new machines"

    async def set_variable(self, name: str, value: object, **others: object) -> None:
        """Set class variables that change the templates of all machines."""
        async with self._step(f"Set {name} to {value}: machines are replaced") as step:
            live = await self.management.get(self._clusters, self.spec.name, self.spec.namespace)
            wanted = {name: value, **others}
            kept = [row for row in live["spec"]["topology"]["variables"] if row["name"] not in wanted]
            rows = [{"name": each, "value": wanted[each]} for each in wanted]
            await self._replace_all("/spec/topology/variables", [*kept, *rows])
            step.outcome = f"{len(self.view.running())} new machines"

    async def rebase(self, name: str, namespace: str = "") -> None:
        """Rebase to another ClusterClass with different machine templates, by default in the same namespace."""
        async with self._step(f"Rebase to ClusterClass {name}: machines are replaced") as step:
            reference = {"name": name, "namespace": namespace or self.spec.class_namespace}
            await self._replace_all("/spec/topology/classRef", reference)
            step.outcome = f"{len(self.view.running())} new machines"

    async def delete(self) -> None:
        """Delete the Cluster and check that nothing remains on Harvester."""
        async with self._step("Delete the cluster") as step:
            await self.management.delete(self._clusters, self.spec.name, self.spec.namespace)
            caches = (
                self.view.clusters,
                self.view.harvester_clusters,
                self.view.machines,
                self.view.harvester_machines,
            )
            await self._until("all its objects are deleted", lambda: not any(len(cache.store) for cache in caches))
            left = await self.leftovers()
            if left:
                raise ScenarioError(f"left on Harvester: {', '.join(left)}")
            step.outcome = "no VM, disk, Secret, Service, load balancer or address left on Harvester"

    async def leftovers(self) -> list[str]:
        """Objects in the target namespace on Harvester, and the cluster's addresses in pools, as `Kind name`."""
        found: list[str] = []
        for resource in (
            kinds.VIRTUAL_MACHINES,
            kinds.INSTANCES,
            PERSISTENT_VOLUME_CLAIMS,
            SECRETS,
            SERVICES,
            kinds.LOAD_BALANCERS,
        ):
            found += [f"{resource.kind} {name}" for name in await self._names(resource)]
        pools = await self.harvester.list(kinds.IP_POOLS)
        for pool in pools["items"]:
            allocated = (pool.get("status") or {}).get("allocated") or {}
            found += [
                f"address {ip} of IPPool {pool['metadata']['name']} ({holder})"
                for ip, holder in allocated.items()
                if holder.partition("/")[0] in (self.spec.namespace, self.spec.target_namespace)
            ]
        return found

    # Helpers

    async def _apply(self, title: str, objects: Sequence[Obj]) -> None:
        async with self._step(title) as step:
            identity = cluster.identity(self.spec, self._kubeconfig["identity"])
            await manifests.apply(self.management, [*identity, *objects])
            await self._until("HarvesterCluster is ready", lambda: _ready(self.view.harvester_cluster()))
            step.outcome = f"endpoint {self.view.endpoint()}"

    async def _push(self, mtu: int, why: str) -> dict[str, int]:
        """Push the definition and sync it; returns the number of changed lines by file."""
        self._gitops.push(cluster.definition(self.spec, mtu), why)
        try:
            answer = await self._gitops.sync()
        except SyncError as error:
            raise ScenarioError(f"the definition was rejected: {error}") from None
        return self._gitops.changes(answer["commit"])

    async def _change(self, path: str, value: object) -> None:
        patch = [{"op": "replace", "path": path, "value": value}]
        await self.management.patch(self._clusters, self.spec.name, self.spec.namespace, patch, patch_type="json")

    async def _replace_all(self, path: str, value: object) -> None:
        """Make a change that replaces all machines, and wait until each is replaced."""
        before = {uid_of(machine) for machine in self.view.machines.store}
        await self._change(path, value)
        await self._until(
            "all machines are new", lambda: not before & {uid_of(machine) for machine in self.view.machines.store}
        )
        await self._settle()

    async def _settle(self) -> None:
        """Wait until exactly the desired machines are running and the core reports the cluster converged."""
        wanted = self._control_planes + self._workers
        await self._until(
            f"exactly {wanted} machines are running",
            lambda: (
                len(self.view.running()) == wanted == len(self.view.vms.store) == len(self.view.machines.store)
                and len(self.view.workers()) == self._workers
                # K3s's provider does not report it.
                and not any(condition(machine, "UpToDate") == "False" for machine in self.view.machines.store)
                and all(
                    _holds(obj, "TopologyReconciled") for obj in self.view.clusters.store if "topology" in obj["spec"]
                )
            ),
        )

    def _client(self, name: str) -> ApiClient:
        return parse_kubeconfig(self._kubeconfig[name]).client(name=name, user_agent="caphv-sandbox")

    def _machine(self, vm: str) -> Obj | None:
        return next((machine for machine in self.view.machines.store if infrastructure_ref(machine)[1] == vm), None)

    async def _names(self, resource: Resource) -> list[str]:
        try:
            listed = await self.harvester.list(resource, self.spec.target_namespace)
        except NotFound:
            return []
        return [obj["metadata"]["name"] for obj in listed["items"]]

    def _wake(self) -> None:
        self.on_change()
        self._notified.set()

    async def _until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.timeout
        while not condition():
            self._notified.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._notified.wait()
            except TimeoutError:
                raise ScenarioError(f"not within {self.timeout:.0f} s: {what}; {self.view.problems()}") from None

    @asynccontextmanager
    async def _step(self, title: str) -> AsyncIterator[Step]:
        step = Step(title)
        self.view.steps.append(step)
        self.on_change()
        try:
            yield step
        except BaseException as error:
            step.failed, step.outcome = True, str(error) or type(error).__name__
            raise
        finally:
            step.seconds = time.monotonic() - step.started
            self.on_change()


def in_network(spec: cluster.ClusterSpec, network: str) -> cluster.ClusterSpec:
    """The spec with the gateway of a sandbox's network, `127.<n>.0.0/16`."""
    return replace(spec, gateway=f"{network.removesuffix('.0.0/16')}.0.1")


def _holds(obj: Obj, kind: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)


def _ready(obj: Obj | None) -> bool:
    return bool(obj and (obj.get("status") or {}).get("ready"))
