"""The lifecycle of a cluster in a sandbox, for `caphv sandbox demo` and the e2e tests.

Each step makes a change like a user, and waits on watches for the outcome. After a timeout, it
fails with the last observed state. Nothing here depends on the internals of the provider.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.object import (
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICES,
    Obj,
    Resource,
    at,
    dict_at,
    labels_of,
    uid_of,
)
from caphv.api.resources import clusters
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import cluster, manifests
from sandbox.background import background
from sandbox.capi import v1beta1
from sandbox.capi.resources import condition
from sandbox.harvester import kinds
from sandbox.processes.children import log_file
from sandbox.scenario.gitops import GitOps, SyncError
from sandbox.scenario.view import Step, View
from sandbox.state import State


class ScenarioError(AssertionError):
    """A step failed. The message has the expected and the observed state."""


class Scenario:
    """The lifecycle of one cluster in a running sandbox.

    `timeout` limits each wait of a step, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        spec: cluster.ClusterSpec,
        *,
        timeout: float = 120.0,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.timeout = timeout
        self._control_planes = spec.control_planes
        self._workers = spec.workers
        self.on_change: Callable[[], None] = lambda: None
        """Called when the view changes."""
        self._gitops = GitOps(folder)
        self._notified = asyncio.Event()

        # Bypass the fault proxy, because faults must not affect the observations of the scenario.
        direct = folder / "harvester-direct.kubeconfig"
        harvester = direct if direct.exists() else folder / "harvester.kubeconfig"
        self.harvester = _client(harvester, "harvester")
        self.management = _client(folder / "management.kubeconfig", "management")
        self._identity = (folder / "identity.kubeconfig").read_bytes()

        state = State.load(folder)
        core = state.core if state else "v1beta2"
        self._clusters = clusters(core)
        self.view = View(self.management, self.harvester, spec, core)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Scenario]:
        """Run the view's informers inside the block."""
        for informer in self.view.informers:
            informer.add_handler(lambda _change: self._wake())

        informers = self.view.informers
        try:
            async with background(*(informer.run() for informer in informers)):
                await asyncio.gather(*(informer.wait_synced() for informer in informers))
                yield self
        finally:
            await self.management.close()
            await self.harvester.close()

    async def run(self) -> None:
        """Run all steps, which need several control plane machines.

        Raises `ScenarioError` if a step fails.
        """
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
        """Create the Cluster and wait for its endpoint, which exists before any machine."""
        manifest = cluster.manifest(self.spec)
        if self._clusters.version == v1beta1.VERSION:
            manifest = v1beta1.to_v1beta1(manifest)
        title = "Create a cluster from the ClusterClass: control plane endpoint"
        await self._apply(title, [manifest])

    async def apply(self, objects: Sequence[Obj]) -> None:
        """Apply a user's manifests of the machines in the spec, and wait for the endpoint."""
        await self._apply("Apply manifests: control plane endpoint", objects)

    async def define(self, mtu: int = 1450) -> None:
        """Push a definition, and apply the manifests of the commit that also has its bundles."""
        async with self._step(
            "Push a cluster definition to Git: manifests, bundles, control plane endpoint"
        ) as step:
            await manifests.apply(self.management, cluster.identity(self.spec, self._identity))
            self._gitops.create()
            changes = await self._push(mtu, "Add a cluster")
            await self._wait_for_endpoint()

            # clusters/<namespace>/<name>/<bundle>/fleet.yaml
            bundles = [
                path.split("/")[3]
                for path in changes
                if path.startswith("clusters/") and path.endswith("/fleet.yaml")
            ]
            step.outcome = (
                f"one commit with bundles {', '.join(sorted(bundles))}; endpoint "
                f"{self.view.endpoint()}"
            )

    async def change_mtu(self, mtu: int) -> None:
        """Change one setting of a definition with one small commit, which replaces no machine."""
        async with self._step(
            f"Change the Pod MTU to {mtu} in the definition: one small commit"
        ) as step:
            machines = {uid_of(machine) for machine in self.view.machines.store}
            before = self._gitops.count()

            changes = await self._push(mtu, "Reduce the MTU")
            commits = self._gitops.count() - before
            if commits != 1 or not any("/cni/" in path for path in changes):
                raise ScenarioError(f"{commits} commits, the last one changes {', '.join(changes)}")

            await self._settle()
            if machines != {uid_of(machine) for machine in self.view.machines.store}:
                raise ScenarioError("machines were replaced")
            step.outcome = f"{sum(changes.values())} lines in {len(changes)} files"

    async def bring_up(self) -> None:
        """Wait until all machines are running and their Nodes are initialized."""
        async with self._step(
            f"Bring up {self._control_planes} control planes and {self._workers} workers"
        ) as step:
            await self._settle()
            disks = await self._object_names(PERSISTENT_VOLUME_CLAIMS)
            source = ", ".join(sorted(self.view.used_pools())) or "DHCP"
            step.outcome = (
                f"{self._control_planes + self._workers} nodes in {len(self.view.zones())} zones, "
                f"{len(disks)} disks, addresses from {source}"
            )

    async def replace_lost(self, lost: Obj) -> None:
        """Delete the VM of a machine and wait until the MachineHealthCheck replaces it."""
        kind = "control plane" if cluster.CONTROL_PLANE_LABEL in labels_of(lost) else "worker"
        name = lost["metadata"]["name"]
        async with self._step(f"Delete the VM of {kind} {name}: its machine is replaced") as step:
            vm = await self.destroy(infrastructure_ref(lost)[1])
            await self.wait_for_replacement(vm)
            step.outcome = "reported and replaced"

    async def destroy(self, name: str) -> Obj:
        """Delete the VM of a HarvesterMachine directly on Harvester, and return the VM."""
        vm = self.view.vms.get(self.spec.target_namespace, name)
        if vm is None:
            raise ScenarioError(f"there is no VM {name}")
        await self.harvester.delete(kinds.VIRTUAL_MACHINES, name, self.spec.target_namespace)
        return vm

    async def wait_for_replacement(self, vm: Obj) -> None:
        """Wait until the machine of a deleted VM has been replaced."""
        name = vm["metadata"]["name"]
        # Wait for the deletion first, because `_settle` would accept the state before the loss.
        await self._wait_until(
            f"the machine of VM {name} is deleted", lambda: self._machine_of(name) is None
        )
        await self._settle()
        if uid_of(vm) in {uid_of(new) for new in self.view.vms.store}:
            raise ScenarioError(f"VM {name} still exists with its old uid")

    async def scale(self, control_planes: int, workers: int) -> None:
        """Scale both in the topology. The control plane scales by one machine at a time."""
        plural = "s" if workers != 1 else ""
        title = f"Scale to {control_planes} control planes and {workers} worker{plural}"
        async with self._step(title) as step:
            self._control_planes = control_planes
            self._workers = workers
            await self._change("/spec/topology/controlPlane/replicas", control_planes)
            await self._change("/spec/topology/workers/machineDeployments/0/replicas", workers)
            await self._settle()
            step.outcome = f"{len(self.view.running())} nodes"

    async def upgrade(self, version: str) -> None:
        """Roll out another Kubernetes version, first to the control plane, then to the workers."""
        async with self._step(f"Roll out {version}, control plane first") as step:
            await self._replace_all("/spec/topology/version", version)
            machines = self.view.machines.store
            if any(machine["spec"].get("version") != version for machine in machines):
                raise ScenarioError(f"some machines do not have version {version}")
            step.outcome = f"{len(self.view.running())} new machines"

    async def set_variable(self, name: str, value: object, **others: object) -> None:
        """Set class variables that change the templates of all machines."""
        async with self._step(f"Set {name} to {value}: machines are replaced") as step:
            live = await self.management.get(self._clusters, self.spec.name, self.spec.namespace)
            changes = {name: value, **others}
            rows = live["spec"]["topology"]["variables"]
            # The patch replaces the whole list.
            variables = [row for row in rows if row["name"] not in changes]
            variables += [{"name": key, "value": changes[key]} for key in changes]
            await self._replace_all("/spec/topology/variables", variables)
            step.outcome = f"{len(self.view.running())} new machines"

    async def rebase(self, name: str, namespace: str = "", *more: Obj) -> None:
        """Rebase to a ClusterClass with other machine templates, by default in its namespace.

        :param more: further JSON patch operations on the Cluster, in the same request
        """
        async with self._step(f"Rebase to ClusterClass {name}: machines are replaced") as step:
            reference = {"name": name, "namespace": namespace or self.spec.class_namespace}
            await self._replace_all("/spec/topology/classRef", reference, *more)
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
            await self._wait_until(
                "all its objects are deleted",
                lambda: not any(len(cache.store) for cache in caches),
            )

            leftovers = await self.leftovers()
            if leftovers:
                raise ScenarioError(f"left on Harvester: {', '.join(leftovers)}")
            step.outcome = (
                "no VM, disk, Secret, Service, load balancer or address left on Harvester"
            )

    async def leftovers(self) -> list[str]:
        """Return the objects and addresses that the cluster still has on Harvester."""
        leftovers = [
            f"{resource.kind} {name}"
            for resource in (
                kinds.VIRTUAL_MACHINES,
                kinds.INSTANCES,
                PERSISTENT_VOLUME_CLAIMS,
                SECRETS,
                SERVICES,
                kinds.LOAD_BALANCERS,
                kinds.VM_BACKUPS,
            )
            for name in await self._object_names(resource)
        ]

        # A holder of an address is `<namespace>/<name>`.
        namespaces = (self.spec.namespace, self.spec.target_namespace)
        pools = await self.harvester.list(kinds.IP_POOLS)
        for pool in pools["items"]:
            leftovers += [
                f"address {ip} of IPPool {pool['metadata']['name']} ({holder})"
                for ip, holder in dict_at(pool, "status", "allocated").items()
                if holder.partition("/")[0] in namespaces
            ]
        return leftovers

    # Helpers

    async def _apply(self, title: str, objects: Sequence[Obj]) -> None:
        async with self._step(title) as step:
            # One batch is applied in no order, and a cluster without its identity gets a warning.
            await manifests.apply(self.management, cluster.identity(self.spec, self._identity))
            await manifests.apply(self.management, objects)
            await self._wait_for_endpoint()
            step.outcome = f"endpoint {self.view.endpoint()}"

    async def _wait_for_endpoint(self) -> None:
        await self._wait_until(
            "HarvesterCluster is ready",
            lambda: bool(at(self.view.harvester_cluster(), "status", "ready")),
        )

    async def _push(self, mtu: int, message: str) -> dict[str, int]:
        """Push the definition and sync it; return the number of changed lines by file."""
        self._gitops.push(cluster.definition(self.spec, mtu), message)
        try:
            answer = await self._gitops.sync()
        except SyncError as error:
            raise ScenarioError(f"the definition was rejected: {error}") from None
        return self._gitops.changes(answer["commit"])

    async def _change(self, path: str, value: object, *more: Obj) -> None:
        # A merge patch would replace the whole list of MachineDeployments.
        patch = [{"op": "replace", "path": path, "value": value}, *more]
        await self.management.patch(
            self._clusters, self.spec.name, self.spec.namespace, patch, patch_type="json"
        )

    async def _replace_all(self, path: str, value: object, *more: Obj) -> None:
        """Make a change that replaces all machines, and wait until each is replaced."""
        before = {uid_of(machine) for machine in self.view.machines.store}
        await self._change(path, value, *more)
        await self._wait_until(
            "all machines are new",
            lambda: not before & {uid_of(machine) for machine in self.view.machines.store},
        )
        await self._settle()

    async def _settle(self) -> None:
        """Wait until exactly the desired machines run and the core reports convergence."""
        count = self._control_planes + self._workers
        await self._wait_until(f"exactly {count} machines are running", self._has_converged)

    def _has_converged(self) -> bool:
        view = self.view
        count = self._control_planes + self._workers
        machines = view.machines.store
        has_counts = len(view.running()) == count == len(view.vms.store) == len(machines)
        if not has_counts or len(view.workers()) != self._workers:
            return False

        # A missing condition is fine, because K3s's provider does not report it.
        if any(condition(machine, "UpToDate") == "False" for machine in machines):
            return False
        return all(
            condition(obj, "TopologyReconciled") == "True"
            for obj in view.clusters.store
            if "topology" in obj["spec"]
        )

    def _machine_of(self, vm: str) -> Obj | None:
        machines = self.view.machines.store
        return next((item for item in machines if infrastructure_ref(item)[1] == vm), None)

    async def _object_names(self, resource: Resource) -> list[str]:
        try:
            objects = await self.harvester.list(resource, self.spec.target_namespace)
        except NotFound:
            return []
        return [obj["metadata"]["name"] for obj in objects["items"]]

    def _wake(self) -> None:
        self.on_change()
        self._notified.set()

    async def _wait_until(self, expectation: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.timeout
        while not condition():
            # No change is lost, because nothing runs between the check and this line.
            self._notified.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self._notified.wait()
            except TimeoutError:
                causes = [self.view.problems(), *self._guest_failures()]
                raise ScenarioError(
                    f"not within {self.timeout:.0f} s: {expectation}; {'; '.join(causes)}"
                ) from None

    def _guest_failures(self) -> list[str]:
        """Return the last failures of this cluster's guests, which no API reports at once."""
        log = log_file(self.folder, "simulator")
        if not log.exists():
            return []
        guest = f"WARNING sandbox.guest.agent guest {self.spec.target_namespace}/"
        lines = log.read_text(errors="replace").splitlines()
        return [line for line in lines if guest in line][-3:]

    @asynccontextmanager
    async def _step(self, title: str) -> AsyncIterator[Step]:
        step = Step(title)
        self.view.steps.append(step)
        self.on_change()

        try:
            yield step
        except BaseException as error:
            step.failed = True
            step.outcome = str(error) or type(error).__name__
            raise
        finally:
            step.seconds = time.monotonic() - step.started
            self.on_change()


def in_network(spec: cluster.ClusterSpec, network: str) -> cluster.ClusterSpec:
    """Return the spec with the gateway of a sandbox's network, `127.<n>.0.0/16`."""
    return replace(spec, gateway=f"{network.removesuffix('.0.0/16')}.0.1")


def _client(file: Path, name: str) -> ApiClient:
    kubeconfig = parse_kubeconfig(file.read_bytes())
    return kubeconfig.client(name=name, user_agent="caphv-sandbox")
