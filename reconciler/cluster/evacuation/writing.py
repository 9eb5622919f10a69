"""Write the steps of an evacuation. Each change and its record are one patch."""

from __future__ import annotations

from caphv.api.names import (
    CORDONED_BY_EVACUATION_ANNOTATION,
    EVACUATED_BOOT_ANNOTATION,
    EVACUATED_FROM_ANNOTATION,
    EVACUATED_STRATEGY_ANNOTATION,
    EVACUATION_STARTED_ANNOTATION,
    RUN_STRATEGY_ANNOTATION,
    SKIP_REMEDIATION_ANNOTATION,
    SKIPPED_BY_US,
)
from caphv.api.object import Obj, annotations_of, at, key_of
from caphv.runtime.cache import Informer
from reconciler.cluster.evacuation.plan import Action, Step
from reconciler.cluster.evacuation.reading import Observation
from reconciler.cluster.parking.plan import HALTED
from reconciler.cluster.parking.reading import boot_id, run_strategy
from reconciler.cluster.parking.writing import (
    RUNNING,
    STARTING,
    Annotations,
    patch_node,
    patch_vm,
    release_node,
)
from reconciler.cluster.scope import ClusterScope
from reconciler.machine.placement import avoidance_patch
from reconciler.machine.vm import RUN_STRATEGY

_NO_RECORD: Annotations = {EVACUATED_STRATEGY_ANNOTATION: None, EVACUATION_STARTED_ANNOTATION: None}


async def perform(scope: ClusterScope, observed: Observation, step: Step) -> None:
    """Write a step. Raises `ApiError`, `Unreachable`; `Conflict` if an object has changed."""
    name = step.name
    caches = scope.context.caches
    match step.action:
        case Action.BEGIN:
            host = next(vm.host for vm in observed.state.vms if vm.name == name)
            record: Annotations = {EVACUATED_FROM_ANNOTATION: host}
            await _annotate(scope, caches.harvester_machines, observed.machines[name], record)
        case Action.HOLD | Action.RELEASE:
            value = SKIPPED_BY_US if step.action is Action.HOLD else None
            hold: Annotations = {SKIP_REMEDIATION_ANNOTATION: value}
            await _annotate(scope, caches.machines, observed.owners[name], hold)
        case Action.CORDON:
            await _cordon(observed, name)
        case Action.ADOPT:
            await _adopt(scope, observed.vms[name])
        case Action.STOP:
            await _stop(scope, observed, name)
        case Action.START:
            await _start(scope, observed, name)
        case Action.UNCORDON:
            records = (EVACUATED_BOOT_ANNOTATION, CORDONED_BY_EVACUATION_ANNOTATION)
            await release_node(observed.workload.client, observed.workload.nodes, name, *records)
        case Action.SETTLE:
            await _settle(scope, observed.vms[name])
        case Action.YIELD:
            await patch_vm(scope, observed.vms[name], _NO_RECORD)
        case Action.FINISH:
            finished: Annotations = {EVACUATED_FROM_ANNOTATION: None}
            await _annotate(scope, caches.harvester_machines, observed.machines[name], finished)
        case Action.ALLOW:
            vm = observed.vms[name]
            await patch_vm(scope, vm, {}, avoidance=avoidance_patch(vm, observed.avoided_hosts))


async def _annotate(
    scope: ClusterScope, informer: Informer, obj: Obj, annotations: Annotations
) -> None:
    """Write annotations of an object of the management cluster, unless it has changed."""
    # Without the version, an annotation that a user has just set would be overwritten, and removed
    # at the end of the move.
    version = obj["metadata"]["resourceVersion"]
    patch = {"metadata": {"resourceVersion": version, "annotations": annotations}}
    key = key_of(obj)
    informer.observe(
        await scope.context.client.patch(informer.resource, key.name, key.namespace, patch)
    )


async def _stop(scope: ClusterScope, observed: Observation, name: str) -> None:
    """Stop a VM, record its run strategy, and exclude evacuated hosts from its affinity."""
    vm = observed.vms[name]
    # A VM whose start found no host has a record already.
    recorded = annotations_of(vm).get(EVACUATED_STRATEGY_ANNOTATION)
    annotations: Annotations = {
        EVACUATED_STRATEGY_ANNOTATION: recorded or run_strategy(vm),
        EVACUATION_STARTED_ANNOTATION: None,
    }
    avoidance = avoidance_patch(vm, observed.avoided_hosts)
    await patch_vm(scope, vm, annotations, strategy=HALTED, avoidance=avoidance)


async def _adopt(scope: ClusterScope, vm: Obj) -> None:
    """Record the run strategy with which Harvester itself would start a VM that it has halted."""
    saved_strategy = annotations_of(vm).get(RUN_STRATEGY_ANNOTATION, HALTED)
    strategy = RUN_STRATEGY if saved_strategy == HALTED else saved_strategy
    await patch_vm(scope, vm, {EVACUATED_STRATEGY_ANNOTATION: strategy})


async def _start(scope: ClusterScope, observed: Observation, name: str) -> None:
    """Start a VM, and keep the record of its run strategy until its Node is back."""
    vm = observed.vms[name]
    saved_strategy = annotations_of(vm)[EVACUATED_STRATEGY_ANNOTATION]
    strategy = saved_strategy if saved_strategy in STARTING else RUN_STRATEGY
    # Harvester starts a VM with the strategy of its own annotation, even if the spec has another.
    annotations: Annotations = {
        RUN_STRATEGY_ANNOTATION: strategy,
        EVACUATION_STARTED_ANNOTATION: "true",
    }
    avoidance = avoidance_patch(vm, observed.avoided_hosts)
    await patch_vm(scope, vm, annotations, strategy=strategy, avoidance=avoidance)


async def _settle(scope: ClusterScope, vm: Obj) -> None:
    """Give a VM its run strategy back, and remove the record."""
    saved_strategy = annotations_of(vm)[EVACUATED_STRATEGY_ANNOTATION]
    # Harvester refuses other values, so one that a user has written there would block the move.
    strategy = saved_strategy if saved_strategy in RUNNING else RUN_STRATEGY
    annotations: Annotations = {**_NO_RECORD, RUN_STRATEGY_ANNOTATION: strategy}
    await patch_vm(scope, vm, annotations, strategy=strategy)


async def _cordon(observed: Observation, name: str) -> None:
    """Record the boot of a Node, and cordon it unless a user has done so."""
    node = observed.workload.nodes[name]
    annotations: Annotations = {EVACUATED_BOOT_ANNOTATION: boot_id(node)}
    patch: Obj = {"metadata": {"annotations": annotations}}
    if not at(node, "spec", "unschedulable"):
        annotations[CORDONED_BY_EVACUATION_ANNOTATION] = "true"
        patch["spec"] = {"unschedulable": True}
    await patch_node(observed.workload.client, observed.workload.nodes, name, patch)
