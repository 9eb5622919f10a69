"""Write the steps of an evacuation: each write has its record in the same patch."""

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
from reconciler.cluster.evacuation.reading import Surroundings
from reconciler.cluster.parking.plan import HALTED
from reconciler.cluster.parking.reading import boot_id, run_strategy
from reconciler.cluster.parking.writing import (
    STARTING,
    Annotations,
    patch_node,
    patch_vm,
    release_node,
)
from reconciler.cluster.scope import ClusterScope
from reconciler.machine.placement import avoidance_patch
from reconciler.machine.vm import RUN_STRATEGY

# Run strategies of a VM that is not to be halted.
_RUNNING = (*STARTING, "Manual", "Once")
_NO_RECORD: Annotations = {EVACUATED_STRATEGY_ANNOTATION: None, EVACUATION_STARTED_ANNOTATION: None}


async def perform(scope: ClusterScope, around: Surroundings, step: Step) -> None:
    """Write what a step says. Raises `ApiError`, `Unreachable`; `Conflict` for an old cache."""
    name, caches = step.name, scope.context.caches
    match step.action:
        case Action.BEGIN:
            host = next(vm.host for vm in around.seen.vms if vm.name == name)
            record: Annotations = {EVACUATED_FROM_ANNOTATION: host}
            await _annotate(scope, caches.harvester_machines, around.machines[name], record)
        case Action.HOLD | Action.RELEASE:
            value = SKIPPED_BY_US if step.action is Action.HOLD else None
            held: Annotations = {SKIP_REMEDIATION_ANNOTATION: value}
            await _annotate(scope, caches.machines, around.owners[name], held)
        case Action.CORDON:
            await _cordon(around, name)
        case Action.ADOPT:
            await _adopt(scope, around.vms[name])
        case Action.STOP:
            await _stop(scope, around, name)
        case Action.START:
            await _start(scope, around, name)
        case Action.UNCORDON:
            records = (EVACUATED_BOOT_ANNOTATION, CORDONED_BY_EVACUATION_ANNOTATION)
            await release_node(around.client, around.nodes, name, *records)
        case Action.SETTLE:
            await _settle(scope, around.vms[name])
        case Action.YIELD:
            await patch_vm(scope, around.vms[name], _NO_RECORD)
        case Action.FINISH:
            finished: Annotations = {EVACUATED_FROM_ANNOTATION: None}
            await _annotate(scope, caches.harvester_machines, around.machines[name], finished)
        case Action.ALLOW:
            vm = around.vms[name]
            await patch_vm(scope, vm, {}, avoidance=avoidance_patch(vm, around.hosts))


async def _annotate(
    scope: ClusterScope, informer: Informer, obj: Obj, annotations: Annotations
) -> None:
    """Write annotations of an object of the management cluster, unless it has changed."""
    # Otherwise an annotation that a user has set meanwhile would be overwritten, and removed later.
    version = obj["metadata"]["resourceVersion"]
    key, patch = key_of(obj), {"metadata": {"resourceVersion": version, "annotations": annotations}}
    informer.observe(
        await scope.context.client.patch(informer.resource, key.name, key.namespace, patch)
    )


async def _stop(scope: ClusterScope, around: Surroundings, name: str) -> None:
    vm = around.vms[name]
    # One that has not started again since has a record already.
    recorded = annotations_of(vm).get(EVACUATED_STRATEGY_ANNOTATION)
    annotations: Annotations = {
        EVACUATED_STRATEGY_ANNOTATION: recorded or run_strategy(vm),
        EVACUATION_STARTED_ANNOTATION: None,
    }
    avoidance = avoidance_patch(vm, around.hosts)
    await patch_vm(scope, vm, annotations, strategy=HALTED, avoidance=avoidance)


async def _adopt(scope: ClusterScope, vm: Obj) -> None:
    """Record how a VM is to run that Harvester has halted: as Harvester itself would start it."""
    former = annotations_of(vm).get(RUN_STRATEGY_ANNOTATION, HALTED)
    strategy = RUN_STRATEGY if former == HALTED else former
    await patch_vm(scope, vm, {EVACUATED_STRATEGY_ANNOTATION: strategy})


async def _start(scope: ClusterScope, around: Surroundings, name: str) -> None:
    """Start a VM. The record of its run strategy stays until its Node is back."""
    vm = around.vms[name]
    former = annotations_of(vm)[EVACUATED_STRATEGY_ANNOTATION]
    strategy = former if former in STARTING else RUN_STRATEGY
    # Harvester starts a VM with the strategy of its own annotation, whatever the spec says.
    annotations: Annotations = {
        RUN_STRATEGY_ANNOTATION: strategy,
        EVACUATION_STARTED_ANNOTATION: "true",
    }
    avoidance = avoidance_patch(vm, around.hosts)
    await patch_vm(scope, vm, annotations, strategy=strategy, avoidance=avoidance)


async def _settle(scope: ClusterScope, vm: Obj) -> None:
    recorded = annotations_of(vm)[EVACUATED_STRATEGY_ANNOTATION]
    # Harvester would refuse any other value that a user has written there, each time.
    former = recorded if recorded in _RUNNING else RUN_STRATEGY
    annotations: Annotations = {**_NO_RECORD, RUN_STRATEGY_ANNOTATION: former}
    await patch_vm(scope, vm, annotations, strategy=former)


async def _cordon(around: Surroundings, name: str) -> None:
    """Record the boot of a Node, and cordon it unless a user has."""
    node = around.nodes[name]
    annotations: Annotations = {EVACUATED_BOOT_ANNOTATION: boot_id(node)}
    patch: Obj = {"metadata": {"annotations": annotations}}
    if not at(node, "spec", "unschedulable"):
        annotations[CORDONED_BY_EVACUATION_ANNOTATION] = "true"
        patch["spec"] = {"unschedulable": True}
    await patch_node(around.client, around.nodes, name, patch)
