"""Changes to a cluster that are planned with `caphv plan` and then applied: predictions and results."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from click.testing import Result

from caphv.api.object import Obj, Resource, being_deleted, key_of, labels_of, uid_of
from caphv.api.resources import HARVESTER_CLUSTERS, machine_deployments
from caphv.runtime.cache import Change, Informer
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import ApiError, NotFound
from sandbox.capi.distribution import RKE2
from sandbox.capi.resources import CLUSTERS, MACHINES
from sandbox.cluster import CONTROL_PLANE_LABEL
from sandbox.harvester.kinds import VIRTUAL_MACHINES
from sandbox.scenario.lifecycle import Scenario
from tests.support.waiting import until

_TOPOLOGY_NAME = "topology.cluster.x-k8s.io/deployment-name"
_DEPLOYMENTS = machine_deployments("v1beta2")
_MACHINE_SETS = Resource(_DEPLOYMENTS.group, "v1beta2", "machinesets", "MachineSet")
_DEPLOYMENT_NAME = "cluster.x-k8s.io/deployment-name"
_SECONDS = 150.0

Machines = dict[str, tuple[int, int, int]]


@dataclass(frozen=True)
class Effect:
    """What a change does: to objects by name, to machines by pool (created, replaced, deleted), and to VMs."""

    objects: dict[str, str] = field(default_factory=dict)
    machines: Machines = field(default_factory=dict)
    vms: tuple[int, int] = (0, 0)
    infrastructure: bool = False
    """Whether the spec of the HarvesterCluster changes."""


class Tally:
    """Counts the objects of one kind that come and go, by pool, also those that come and go between two looks."""

    def __init__(self, informer: Informer) -> None:
        self.created, self.deleted = Counter[str](), Counter[str]()
        informer.add_handler(self._count)

    def reset(self) -> None:
        """Begin again."""
        self.created.clear()
        self.deleted.clear()

    def machines(self) -> Machines:
        """Created, replaced and deleted, by pool."""
        found = {}
        for pool in self.created.keys() | self.deleted.keys():
            new, old = self.created[pool], self.deleted[pool]
            replaced = min(new, old)
            found[pool] = (new - replaced, replaced, old - replaced)
        return found

    def _count(self, change: Change) -> None:
        if change.old is None:
            self.created[_pool_of(change.obj)] += 1
        elif change.new is None:
            self.deleted[_pool_of(change.obj)] += 1


class PlannedCluster:
    """A cluster of a running sandbox that a person changes; `caphv` runs a command against its management cluster."""

    def __init__(self, scenario: Scenario, caphv: Callable[..., Awaitable[Result]], folder: Path) -> None:
        self._scenario, self._caphv = scenario, caphv
        self._client, self._space = scenario.management, scenario.spec.namespace
        self._file = folder / "manifests.yaml"
        self._machines, self._vms = Tally(scenario.view.machines), Tally(scenario.view.vms)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[PlannedCluster]:
        """Watch machines and VMs inside the block."""
        async with self._scenario.watching():
            yield self

    async def planned(self, manifests: Sequence[Obj]) -> Effect:
        """What `caphv plan` predicts."""
        await asyncio.to_thread(self._file.write_text, yaml.safe_dump_all(manifests))
        result = await self._caphv("plan", "-f", str(self._file), "-o", "json")
        assert result.exit_code in (0, 1, 3), result.output
        plan = json.loads(result.stdout)
        clusters = plan["items"]
        assert [each["unknown"] for each in clusters if each["unknown"]] == [], result.output
        return Effect(
            {each["object"]: each["action"] for each in plan["objects"]},
            {pool["pool"]: _numbers(pool) for each in clusters for pool in each["pools"]},
            (sum(each["vmsCreated"] for each in clusters), sum(each["vmsDeleted"] for each in clusters)),
            any(each["infrastructure"] for each in clusters),
        )

    async def applied(self, manifests: Sequence[Obj]) -> Effect:
        """Apply manifests as a person does, wait until the cluster is as they want it, and say what has changed."""
        self._machines.reset()
        self._vms.reset()
        infrastructure = await self._infrastructure()
        discovery = Discovery(self._client)
        actions = {f"{obj['kind']} {key_of(obj)}": await self._apply(discovery, obj) for obj in manifests}
        waiting = "nothing"

        async def settled() -> bool:
            nonlocal waiting
            waiting = await self._unsettled()
            return not waiting

        await until(settled, lambda: f"{waiting}; {self._scenario.view.problems()}", _SECONDS)
        return Effect(
            {name: action for name, action in actions.items() if action},
            self._machines.machines(),
            (self._vms.created.total(), self._vms.deleted.total()),
            infrastructure not in ({}, await self._infrastructure()),
        )

    async def _apply(self, discovery: Discovery, obj: Obj) -> str:
        resource, key = await discovery.resource(obj), key_of(obj)
        try:
            before: Obj | None = await self._client.get(resource, key.name, key.namespace)
        except NotFound:
            before = None
        try:
            after = await self._client.apply(resource, obj, manager="kubectl")
        except ApiError:
            return "refused"
        if before is None:
            return "create"
        return "change in place" if _content(before) != _content(after) else ""

    async def _infrastructure(self) -> Obj:
        objs = await self._list(HARVESTER_CLUSTERS)
        found = objs[0].get("spec") or {} if objs else {}
        return {name: value for name, value in found.items() if name != "controlPlaneEndpoint"}

    async def _unsettled(self) -> str:
        """What the controllers have still to do, empty for nothing: each says which generation it has seen."""
        view = self._scenario.view
        if not len(view.running()) == len(view.machines.store) == len(view.vms.store):
            # What is watched costs no requests, and most looks end here.
            return f"{len(view.machines.store)} machines and {len(view.vms.store)} VMs, {len(view.running())} running"
        wanted = 0
        for obj in await self._list(CLUSTERS):
            conditions = (obj.get("status") or {}).get("conditions") or ()
            if not any(
                each["type"] == "TopologyReconciled"
                and (each["status"], each.get("observedGeneration")) == ("True", _generation(obj))
                for each in conditions
            ):
                return "the topology"
        for kind in (_DEPLOYMENTS, RKE2.control_planes):
            for obj in await self._list(kind):
                spec, status = obj["spec"], obj.get("status") or {}
                names = ("replicas", "upToDateReplicas", "availableReplicas")
                counts = {int(status.get(name) or 0) for name in names}
                if being_deleted(obj):
                    return f"the deletion of {kind.kind} {obj['metadata']['name']}"
                if status.get("observedGeneration") != _generation(obj) or counts != {spec["replicas"]}:
                    return f"{kind.kind} {obj['metadata']['name']}: {counts} of {spec['replicas']}"
                wanted += spec["replicas"]
                if kind is _DEPLOYMENTS and not _same_template(obj, await self._list(_MACHINE_SETS)):
                    return f"MachineSets of {obj['metadata']['name']}"
        machines = await self._list(MACHINES)
        vms = (await self._scenario.harvester.list(VIRTUAL_MACHINES, self._scenario.spec.target_namespace))["items"]
        if not wanted == len(view.running()) == len(machines) == len(vms):
            return f"{len(machines)} machines and {len(vms)} VMs, {len(view.running())} running, of {wanted}"
        seen = _uids(view.machines.store) == _uids(machines) and _uids(view.vms.store) == _uids(vms)
        return "" if seen else "a watch"

    async def _list(self, kind: Resource) -> list[Obj]:
        found: list[Obj] = (await self._client.list(kind, self._space))["items"]
        return found


def _pool_of(obj: Obj) -> str:
    labels = labels_of(obj)
    return "control plane" if CONTROL_PLANE_LABEL in labels else labels.get(_TOPOLOGY_NAME, "")


def _numbers(pool: dict[str, Any]) -> tuple[int, int, int]:
    before, after, replaced = pool["before"], pool["after"], pool["replaced"]
    return max(0, after - before), replaced, max(0, before - after)


def _content(obj: Obj) -> Obj:
    """All that a person wrote of an object, and what others made of it."""
    metadata = {name: obj["metadata"].get(name) for name in ("labels", "annotations")}
    return {**{name: value for name, value in obj.items() if name != "status"}, "metadata": metadata}


def _generation(obj: Obj) -> int:
    return int(obj["metadata"]["generation"])


def _same_template(deployment: Obj, machine_sets: Iterable[Obj]) -> bool:
    """Whether all machines of a MachineDeployment are of its template: its own counts lag behind a change."""

    def made_of(obj: Obj) -> Obj:
        spec = obj["spec"]["template"]["spec"]
        return {name: spec.get(name) for name in ("version", "failureDomain", "infrastructureRef", "bootstrap")}

    own = [obj for obj in machine_sets if labels_of(obj).get(_DEPLOYMENT_NAME) == deployment["metadata"]["name"]]
    return all(made_of(obj) == made_of(deployment) for obj in own if obj["spec"]["replicas"])


def _uids(objs: Iterable[Obj]) -> set[str]:
    return {uid_of(obj) for obj in objs}
