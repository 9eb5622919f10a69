"""The main job from beginning to end, told step by step: what `caphv sandbox demo` shows and the e2e tests check.

Each step changes something as a user would and waits, on watches, until the outcome is there; a step that does not get
there fails with what it last saw. Nothing here knows how the provider works.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, Obj, Resource, labels_of, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import cluster, manifests
from sandbox.harvester import kinds
from sandbox.scenario.gitops import GitOps, SyncError
from sandbox.scenario.view import CLUSTERS, Step, View


class ScenarioError(AssertionError):
    """A step did not come to its end; the message says what was awaited and what was there instead."""


class Scenario:
    """One cluster's life in a running sandbox; `on_change` is called whenever there is something new to show."""

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
        names = ("management", "harvester", "identity")
        self._kubeconfig = {name: (folder / f"{name}.kubeconfig").read_bytes() for name in names}
        self.management = self._client("management")
        self.harvester = self._client("harvester")
        self.view = View(self.management, self.harvester, spec)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Scenario]:
        """Keep the caches running inside the block."""
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
        """All steps in order, for a cluster that can lose a control plane machine. Raises `ScenarioError`."""
        await self.define()
        await self.come_up()
        await self.change_mtu(1400)
        await self.replace_lost(self.view.workers()[0])
        await self.replace_lost(self.view.control_planes()[0])
        await self.scale(self.spec.control_planes + 2, self.spec.workers + 1)
        await self.scale(self.spec.control_planes, 1)
        await self.upgrade(cluster.LATER_VERSION)
        await self.delete()

    # Steps

    async def create(self) -> None:
        """The topology makes a HarvesterCluster, which gives the control plane an address before there is a machine."""
        await self._apply(
            "Create a cluster from the ClusterClass: control plane endpoint", [cluster.manifest(self.spec)]
        )

    async def apply(self, objects: Sequence[Obj]) -> None:
        """Objects that somebody has written give the control plane an address; the spec says how many machines."""
        await self._apply("Apply manifests: control plane endpoint", objects)

    async def define(self, mtu: int = 1450) -> None:
        """A definition that is pushed becomes manifests and bundles, in one commit, and the manifests are applied."""
        async with self._step(
            "Push the definition of a cluster to Git: manifests, bundles, control plane endpoint"
        ) as step:
            await manifests.apply(self.management, cluster.identity(self.spec, self._kubeconfig["identity"]))
            self._gitops.make()
            changes = await self._push(mtu, "A cluster")
            await self._until("HarvesterCluster is ready", lambda: _ready(self.view.harvester_cluster()))
            bundles = [
                path.split("/")[3] for path in changes if path.startswith("clusters/") and path.endswith("/fleet.yaml")
            ]
            step.outcome = f"one commit with bundles {', '.join(sorted(bundles))}; endpoint {self.view.endpoint()}"

    async def change_mtu(self, mtu: int) -> None:
        """One setting of a definition becomes one small commit, and no machine is replaced."""
        async with self._step(f"Change the MTU of Pods to {mtu} in the definition: one small commit") as step:
            machines = {uid_of(machine) for machine in self.view.machines.store}
            before = self._gitops.count()
            changes = await self._push(mtu, "Smaller packets")
            if self._gitops.count() != before + 1 or not any("/cni/" in path for path in changes):
                raise ScenarioError(
                    f"{self._gitops.count() - before} commits, the last one changes {', '.join(changes)}"
                )
            await self._settle()
            if machines != {uid_of(machine) for machine in self.view.machines.store}:
                raise ScenarioError("machines were replaced")
            step.outcome = f"{sum(changes.values())} lines in {len(changes)} files"

    async def come_up(self) -> None:
        """Machines of control plane and workers become Nodes that are initialized."""
        wanted = self._control_planes + self._workers
        async with self._step(f"Bring up {self._control_planes} control planes and {self._workers} workers") as step:
            await self._settle()
            disks = await self._names(PERSISTENT_VOLUME_CLAIMS)
            source = ", ".join(sorted(self.view.pools_used())) or "DHCP"
            step.outcome = (
                f"{wanted} nodes in {len(self.view.zones())} zones, {len(disks)} disks, addresses from {source}"
            )

    async def replace_lost(self, lost: Obj) -> None:
        """Somebody destroys the VM of a machine; a MachineHealthCheck has its owner replace it."""
        kind = "control plane" if cluster.CONTROL_PLANE_LABEL in labels_of(lost) else "worker"
        name = lost["metadata"]["name"]
        async with self._step(f"Destroy the VM of {kind} {name}: its machine is replaced") as step:
            await self.see_replaced(await self.destroy(name))
            step.outcome = "reported and replaced"

    async def destroy(self, name: str) -> Obj:
        """Delete the VM of a machine behind everybody's back; answers what it was."""
        vm = self.view.vms.get(self.spec.target_namespace, name)
        if vm is None:
            raise ScenarioError(f"machine {name} has no VM")
        await self.harvester.delete(kinds.VIRTUAL_MACHINES, name, self.spec.target_namespace)
        return vm

    async def see_replaced(self, vm: Obj) -> None:
        """Wait until the machine of a VM that was destroyed is gone, and another one there in its place."""
        name = vm["metadata"]["name"]
        await self._until(f"machine {name} is gone", lambda: self._machine(name) is None)
        await self._settle()
        if uid_of(vm) in {uid_of(new) for new in self.view.vms.store}:
            raise ScenarioError(f"VM {name} with its old uid is still there")

    async def scale(self, control_planes: int, workers: int) -> None:
        """Scale both in the topology; the control plane changes by one machine at a time."""
        wanted = f"{control_planes} control planes and {workers} worker{'s' if workers != 1 else ''}"
        async with self._step(f"Scale to {wanted}") as step:
            self._control_planes, self._workers = control_planes, workers
            await self._change("/spec/topology/controlPlane/replicas", control_planes)
            await self._change("/spec/topology/workers/machineDeployments/0/replicas", workers)
            await self._settle()
            step.outcome = f"{len(self.view.running())} nodes"

    async def upgrade(self, version: str) -> None:
        """Another version of Kubernetes: first the control plane, then the workers."""
        async with self._step(f"Roll out {version}, control plane first") as step:
            await self._replace_all("/spec/topology/version", version)
            if any(machine["spec"].get("version") != version for machine in self.view.machines.store):
                raise ScenarioError(f"machines of another version than {version} are there")
            step.outcome = f"{len(self.view.running())} new machines"

    async def set_variable(self, name: str, value: object) -> None:
        """Set a variable of the class that changes the templates of all machines."""
        async with self._step(f"Set {name} to {value}: machines are replaced") as step:
            live = await self.management.get(CLUSTERS, self.spec.name, self.spec.namespace)
            names = [variable["name"] for variable in live["spec"]["topology"]["variables"]]
            await self._replace_all(f"/spec/topology/variables/{names.index(name)}/value", value)
            step.outcome = f"{len(self.view.running())} new machines"

    async def rebase(self, name: str, namespace: str = "") -> None:
        """Take another ClusterClass whose templates make other machines; by default of the same namespace."""
        async with self._step(f"Rebase to ClusterClass {name}: machines are replaced") as step:
            reference = {"name": name, "namespace": namespace or self.spec.class_namespace}
            await self._replace_all("/spec/topology/classRef", reference)
            step.outcome = f"{len(self.view.running())} new machines"

    async def delete(self) -> None:
        """Delete the Cluster; nothing of it stays on Harvester."""
        async with self._step("Delete the cluster") as step:
            await self.management.delete(CLUSTERS, self.spec.name, self.spec.namespace)
            caches = (
                self.view.clusters,
                self.view.harvester_clusters,
                self.view.machines,
                self.view.harvester_machines,
            )
            await self._until("all its objects are gone", lambda: not any(len(cache.store) for cache in caches))
            left = await self.leftovers()
            if left:
                raise ScenarioError(f"left on Harvester: {', '.join(left)}")
            step.outcome = "no VM, disk, Secret, Service, load balancer or address left on Harvester"

    async def leftovers(self) -> list[str]:
        """What is on Harvester below the target namespace, and what pools still hold of the cluster, as `Kind name`."""
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

    # Inside

    async def _apply(self, title: str, objects: Sequence[Obj]) -> None:
        async with self._step(title) as step:
            identity = cluster.identity(self.spec, self._kubeconfig["identity"])
            await manifests.apply(self.management, [*identity, *objects])
            await self._until("HarvesterCluster is ready", lambda: _ready(self.view.harvester_cluster()))
            step.outcome = f"endpoint {self.view.endpoint()}"

    async def _push(self, mtu: int, why: str) -> dict[str, int]:
        """Push the definition and have it turned into a commit; answers the files of that with their changed lines."""
        self._gitops.push(cluster.definition(self.spec, mtu), why)
        try:
            answer = await self._gitops.sync()
        except SyncError as error:
            raise ScenarioError(f"the definition was not taken: {error}") from None
        return self._gitops.changes(answer["commit"])

    async def _change(self, path: str, value: object) -> None:
        patch = [{"op": "replace", "path": path, "value": value}]
        await self.management.patch(CLUSTERS, self.spec.name, self.spec.namespace, patch, patch_type="json")

    async def _replace_all(self, path: str, value: object) -> None:
        """Change what all machines are made of, and wait until each is another one."""
        before = {uid_of(machine) for machine in self.view.machines.store}
        await self._change(path, value)
        await self._until(
            "all machines are new", lambda: not before & {uid_of(machine) for machine in self.view.machines.store}
        )
        await self._settle()

    async def _settle(self) -> None:
        """Wait until as many machines as wanted run, no more are there, and the core says that all is as wanted."""
        wanted = self._control_planes + self._workers
        await self._until(
            f"{wanted} machines run, and no others are there",
            lambda: (
                len(self.view.running()) == wanted == len(self.view.vms.store) == len(self.view.machines.store)
                and len(self.view.workers()) == self._workers
                and all(_holds(machine, "UpToDate") for machine in self.view.machines.store)
                and all(
                    _holds(obj, "TopologyReconciled") for obj in self.view.clusters.store if "topology" in obj["spec"]
                )
            ),
        )

    def _client(self, name: str) -> ApiClient:
        return parse_kubeconfig(self._kubeconfig[name]).client(name=name, user_agent="caphv-sandbox")

    def _machine(self, name: str) -> Obj | None:
        return self.view.machines.get(self.spec.namespace, name)

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
                await asyncio.wait_for(self._notified.wait(), deadline - time.monotonic())
            except TimeoutError:
                raise ScenarioError(f"not within {self.timeout:.0f} s: {what}; {self.view.trouble()}") from None

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
