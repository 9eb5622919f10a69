"""Write the steps of parking and resuming. Each change and its record are one patch."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from caphv.api import parking, resources
from caphv.api.conditions import rfc3339
from caphv.api.names import (
    CORDONED_BY_PARK_ANNOTATION,
    EVACUATION_STARTED_ANNOTATION,
    PARKED_BOOT_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    PARKED_STRATEGY_ANNOTATION,
    RUN_STRATEGY_ANNOTATION,
    STOPS_LAST_ANNOTATION,
)
from caphv.api.object import NODES, Obj, annotations_of, at, dict_at, key_of
from caphv.api.plaintext import plain
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, Unreachable
from caphv.runtime.etcd import find_leader, find_pods, members_of
from caphv.runtime.exec import ExecError
from reconciler.cluster.parking.plan import HALTED, Action, Step
from reconciler.cluster.parking.reading import Observation, boot_id, run_strategy, saved_strategy
from reconciler.cluster.scope import ClusterScope
from reconciler.machine.placement import avoidance_patch, avoided_hosts
from reconciler.machine.vm import RUN_STRATEGY

# Run strategies with which a VM starts by itself.
STARTING = ("Always", "RerunOnFailure")
# Run strategies of a VM that is not halted.
RUNNING = (*STARTING, "Manual", "Once")
_MAX_REFUSAL = 512
Annotations = dict[str, str | None]


async def perform(scope: ClusterScope, observed: Observation, step: Step) -> None:
    """Write a step. Raises `ApiError`, `Unreachable`; `Conflict` if an object has changed."""
    match step.action:
        case Action.MARK:
            await _write_nodes(scope, observed, step)
        case Action.STOP:
            await _write_vms(scope, observed, step, _stop)
        case Action.START:
            await _write_vms(scope, observed, step, _start)
        case Action.SETTLE:
            await _write_vms(scope, observed, step, _settle)
        case Action.RELEASE:
            await _write_nodes(scope, observed, step)
        case _:
            await _patch_cluster(scope, await _record(scope, observed, step))


async def _record(scope: ClusterScope, observed: Observation, step: Step) -> Obj:
    """Return the patch of the Cluster for a step that changes only the Cluster."""
    match step.action:
        case Action.BEGIN:
            return parking.begin(scope.cluster, rfc3339(datetime.now(UTC)))
        case Action.PAUSE:
            since = annotations_of(scope.cluster)[PARKED_SINCE_ANNOTATION]
            return parking.begin(scope.cluster, since)
        case Action.CHOOSE_LAST:
            last = await _find_leader(observed.client, step.names) or max(step.names)
            return {"metadata": {"annotations": {STOPS_LAST_ANNOTATION: last}}}
        case _:
            return parking.finish(scope.cluster)


async def _patch_cluster(scope: ClusterScope, patch: Obj) -> None:
    """Patch the Cluster unless it has changed, and continue with the patched object."""
    informer = scope.context.caches.clusters
    metadata = scope.cluster["metadata"]
    patch["metadata"]["resourceVersion"] = metadata["resourceVersion"]
    scope.cluster = await scope.context.client.patch(
        informer.resource, metadata["name"], metadata["namespace"], patch
    )
    informer.observe(scope.cluster)


async def _write_vms(
    scope: ClusterScope,
    observed: Observation,
    step: Step,
    write: Callable[[ClusterScope, Obj], Awaitable[None]],
) -> None:
    """Write to the VMs of a step. One that Harvester refuses to change keeps no other.

    Raises the first refusal after the last VM.
    """
    refusals: list[ApiError] = []
    for name in step.names:
        try:
            await write(scope, observed.vms[name])
        except (Forbidden, Invalid) as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]


async def _stop(scope: ClusterScope, vm: Obj) -> None:
    """Stop a VM, and record the run strategy that it gets back."""
    # A VM that did not start again after it was parked before has a record already.
    recorded = annotations_of(vm).get(PARKED_STRATEGY_ANNOTATION)
    annotations: Annotations = {PARKED_STRATEGY_ANNOTATION: recorded or run_strategy(vm)}
    await patch_vm(scope, vm, annotations, strategy=HALTED)


async def _start(scope: ClusterScope, vm: Obj) -> None:
    """Start a VM, and keep the record until it runs, because Harvester may stop it again.

    Remembers a refusal, so that the next step is one of other VMs.
    """
    saved = saved_strategy(vm, is_resuming=True)
    strategy = saved if saved in STARTING else RUN_STRATEGY
    # Harvester starts a VM with the strategy of its own annotation, even if the spec has another.
    annotations: Annotations = {RUN_STRATEGY_ANNOTATION: strategy}
    if PARKED_STRATEGY_ANNOTATION not in annotations_of(vm):
        annotations[EVACUATION_STARTED_ANNOTATION] = "true"  # as if the evacuation had started it
    # A host that it avoids may no longer be evacuated, and nothing else updates this while the
    # cluster is being resumed. If a host is still evacuated, the VM may start there.
    avoidance = avoidance_patch(vm, []) if avoided_hosts(vm) else None
    name = key_of(vm).name
    memory = scope.memory.parking
    memory.refused_starts.pop(name, None)
    try:
        await patch_vm(scope, vm, annotations, strategy=strategy, avoidance=avoidance)
    except (Forbidden, Invalid) as error:
        memory.refused_starts[name] = plain(str(error), _MAX_REFUSAL)
    memory.started_at[name] = time.monotonic()


async def _settle(scope: ClusterScope, vm: Obj) -> None:
    """Restore the run strategy of a VM that runs again."""
    saved = annotations_of(vm)[PARKED_STRATEGY_ANNOTATION]
    # Harvester refuses other values, so one that a user has written there would block the resume.
    strategy = saved if saved in RUNNING else RUN_STRATEGY
    annotations: Annotations = {PARKED_STRATEGY_ANNOTATION: None, RUN_STRATEGY_ANNOTATION: strategy}
    await patch_vm(scope, vm, annotations, strategy=strategy)


async def patch_vm(
    scope: ClusterScope,
    vm: Obj,
    annotations: Annotations,
    *,
    strategy: str | None = None,
    avoidance: Obj | None = None,
) -> None:
    """Change annotations, run strategy and affinity of a VM in one patch.

    Raises `ApiError`, `Unreachable`; `Conflict` if the VM has changed since it was cached.

    :param strategy: the new run strategy; None to leave it as it is
    :param avoidance: a patch of `avoidance_patch`; None to leave the affinity as it is
    """
    metadata = vm["metadata"]
    # KubeVirt rejects a VM that has both fields.
    spec: Obj = {} if strategy is None else {"runStrategy": strategy, "running": None}
    patch = {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "annotations": {**annotations, **dict_at(avoidance, "metadata", "annotations")},
        },
        "spec": {**spec, **dict_at(avoidance, "spec")},
    }
    patched = await scope.require_session().client.patch(
        resources.VIRTUAL_MACHINES, metadata["name"], metadata["namespace"], patch
    )
    scope.namespace().vms.observe(patched)


async def _write_nodes(scope: ClusterScope, observed: Observation, step: Step) -> None:
    """Mark or release Nodes, and remember those that the workload API refuses to change.

    A webhook in the workload cluster may do so.
    """
    for name in step.names:
        scope.memory.parking.refused_nodes.pop(name, None)
        try:
            if step.action is Action.MARK:
                await _mark(scope, observed, name)
            else:
                records = (PARKED_BOOT_ANNOTATION, CORDONED_BY_PARK_ANNOTATION)
                await release_node(observed.client, observed.nodes, name, *records)
        except (ApiError, Unreachable) as error:
            scope.memory.parking.refused_nodes[name] = str(error)


async def _mark(scope: ClusterScope, observed: Observation, name: str) -> None:
    """Record the instance of a Node's VM and its boot, and cordon it unless a user has done so."""
    node = observed.nodes[name]
    since = annotations_of(scope.cluster)[PARKED_SINCE_ANNOTATION]
    annotations: Annotations = {
        PARKED_BOOT_ANNOTATION: f"{observed.instances[name]}/{boot_id(node)}"
    }
    patch: Obj = {"metadata": {"annotations": annotations}}
    if not at(node, "spec", "unschedulable"):
        annotations[CORDONED_BY_PARK_ANNOTATION] = since
        patch["spec"] = {"unschedulable": True}
    elif annotations_of(node).get(CORDONED_BY_PARK_ANNOTATION) != since:
        # The record is from an earlier parking, so a user has cordoned the Node since.
        annotations[CORDONED_BY_PARK_ANNOTATION] = None
    await patch_node(observed.client, observed.nodes, name, patch)


async def release_node(
    client: ApiClient | None, nodes: dict[str, Obj], name: str, boot_record: str, cordon_record: str
) -> None:
    """Uncordon a Node unless a user has cordoned it, and remove both records from it.

    :param nodes: the Nodes that were read with the client, by name
    :param boot_record: the annotation with the boot in which the Node was cordoned
    :param cordon_record: the annotation that the provider sets on a Node that it cordons
    """
    patch: Obj = {"metadata": {"annotations": dict.fromkeys((boot_record, cordon_record))}}
    if cordon_record in annotations_of(nodes[name]):
        patch["spec"] = {"unschedulable": None}
    await patch_node(client, nodes, name, patch)


async def patch_node(
    client: ApiClient | None, nodes: dict[str, Obj], name: str, patch: Obj
) -> None:
    """Write to a Node of the workload cluster. Raises `ApiError`, `Unreachable`.

    :param nodes: the Nodes that were read with the client, by name. A deleted Node is removed.
    """
    assert client is not None  # noqa: S101 - Nodes were read with it
    try:
        await client.patch(NODES, name, "", patch)
    except NotFound:
        nodes.pop(name)  # deleted meanwhile, as the next read shows


async def _find_leader(client: ApiClient | None, machines: tuple[str, ...]) -> str:
    """Return the machine whose member leads etcd; empty if that cannot be read.

    K3s has no Pod of etcd, and an external etcd has none on these machines.
    """
    if client is None:
        return ""

    try:
        for pod in await find_pods(client):
            try:
                leader = await find_leader(client, pod)
            except ExecError:
                continue
            for name in machines:
                if members_of(name, [leader], set(machines) - {name}):
                    return name
    except (ApiError, Unreachable):
        return ""
    return ""
