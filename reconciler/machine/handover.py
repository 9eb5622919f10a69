"""The handover of the control plane's address, where one machine replaces the only one.

Cluster API deletes the former Machine as soon as the Node of the new one is healthy, and Harvester's load balancer may
not have probed that yet: nothing would answer at the endpoint. Therefore the former Machine has a hook that Cluster API
awaits before it drains the Node. It is there only as long as there are exactly two control plane machines, and it is
removed once the load balancer must have probed the newer one, or after a minute more in any case.
"""

from __future__ import annotations

import logging
import time

from caphv.api import clusterapi, resources
from caphv.api.conditions import get_condition
from caphv.api.names import ENDPOINT_HOOK, LOAD_BALANCER_SUFFIX, generated_names
from caphv.api.object import Obj, annotations_of, being_deleted, key_of, owner_reference
from caphv.runtime.errors import Forbidden, NotFound
from reconciler.harvester.healthcheck import seconds_to_serve
from reconciler.machine.scope import MachineScope
from reconciler.status import Blocked

log = logging.getLogger(__name__)

LONGEST_WAIT = 60.0
"""Seconds beyond those of the health check that a deletion waits for the load balancer."""
# Seconds between two checks of a load balancer that does not serve the newer machine yet.
_RECHECK = 1.0
# For the request that ends the health check, and the write of its outcome.
_MARGIN = 1.0


async def keep_until_replaced(scope: MachineScope) -> None:
    """Set the hook on the Machine of the older of two control plane machines, and remove it when it may leave.

    Raises `ApiError`, `Unreachable`. Without the right to patch Machines, there is no hook.
    """
    machine = scope.machine
    if machine is None or not scope.control_plane:
        return
    held, leaving = ENDPOINT_HOOK in annotations_of(machine), being_deleted(machine)
    if leaving and not held:
        return  # Cluster API may be draining the Node already

    newer = _replacement(scope, machine)
    keeps = newer is not None and not (leaving and _may_leave(scope, newer))
    if keeps == held:
        return

    metadata = {"annotations": {ENDPOINT_HOOK: "caphv" if keeps else None}}
    informer, key = scope.context.caches.machines, key_of(machine)
    try:
        informer.observe(await scope.context.client.patch(informer.resource, *key[::-1], {"metadata": metadata}))
    except NotFound:
        return
    except Forbidden as error:
        if ENDPOINT_HOOK not in scope.memory.logged:
            log.info("the address of the control plane may be lost for seconds during an upgrade: %s", error)
        scope.memory.logged.add(ENDPOINT_HOOK)


def _replacement(scope: MachineScope, machine: Obj) -> Obj | None:
    """The HarvesterMachine of the newer of two control plane machines, if this is the older one; otherwise None."""
    if scope.cluster is None or being_deleted(scope.cluster) or being_deleted(scope.obj):
        return None
    staying = []
    for obj in scope.context.caches.machines_of(scope.cluster):
        reference = owner_reference(obj, "Machine", resources.CLUSTER_API_GROUP)
        if (
            not clusterapi.is_control_plane(obj)
            or reference is None
            or reference["name"] == machine["metadata"]["name"]
        ):
            continue
        other = scope.context.caches.machines.get(scope.key.namespace, reference["name"])
        if other and not being_deleted(other) and not being_deleted(obj):
            staying.append((_age(other), obj))

    # Of several others, the load balancer has probed all but one long ago.
    if len(staying) != 1 or staying[0][0] < _age(machine):
        return None
    return staying[0][1]


def _age(machine: Obj) -> tuple[str, str]:
    return str(machine["metadata"].get("creationTimestamp") or ""), str(machine["metadata"]["name"])


def _may_leave(scope: MachineScope, newer: Obj) -> bool:
    """Whether the load balancer has probed the newer machine, or the older one has waited for that long enough."""
    now, probed = time.monotonic(), seconds_to_serve(scope.cluster_spec) + _MARGIN
    if scope.memory.handover_since is None:
        scope.memory.handover_since = now
        name = newer["metadata"]["name"]
        scope.event("EndpointHandover", f"leaves once the control plane's load balancer serves machine {name}")
    waited = now - scope.memory.handover_since
    if waited < probed:
        scope.requeue_in(probed - waited)
        return False

    problem = _not_served(scope, newer)
    if problem and waited < probed + LONGEST_WAIT:
        scope.requeue_in(_RECHECK)
        return False
    if problem:
        scope.warning_event("EndpointHandoverTimedOut", f"leaves although the endpoint may be lost: {problem}")
    return True


def _not_served(scope: MachineScope, newer: Obj) -> str:
    """Why the load balancer does not serve a machine; empty if it does."""
    try:
        namespace = scope.namespace()
    except Blocked as blocked:
        return blocked.message
    candidates = generated_names(scope.harvester_cluster or {}, LOAD_BALANCER_SUFFIX)
    balancers = (namespace.load_balancers.get(scope.target_namespace, name) for name in candidates)
    balancer = next(filter(None, balancers), None)
    if balancer is None:
        return "the LoadBalancer does not exist on Harvester"
    status = balancer.get("status") or {}
    addresses = {entry.get("address") for entry in (newer.get("status") or {}).get("addresses") or ()}
    if not addresses & set(status.get("backendServers") or ()):
        return f"machine {newer['metadata']['name']} is no backend of LoadBalancer {key_of(balancer)}"
    ready = get_condition(status.get("conditions") or [], "Ready") or {}
    return "" if ready.get("status") == "True" else f"LoadBalancer {key_of(balancer)} is not ready"
