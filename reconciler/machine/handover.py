"""Hand over the control plane's address when a new machine replaces the only one.

Cluster API deletes the former Machine as soon as the Node of the new one is healthy. Harvester's
load balancer may not have probed the new machine yet, so that nothing would answer at the endpoint.
Therefore the former Machine has a hook that Cluster API awaits before it drains the Node. The hook
exists only while there are exactly two control plane machines. It is removed once the load balancer
must have probed the newer machine, or a minute later in any case. An external load balancer cannot
be asked: it gets the time of the health check in the spec.
"""

from __future__ import annotations

import logging
import time

from caphv.api import clusterapi, resources
from caphv.api.conditions import get_condition
from caphv.api.names import ENDPOINT_HOOK, LOAD_BALANCER_SUFFIX, generated_names
from caphv.api.object import (
    Obj,
    annotations_of,
    at,
    being_deleted,
    key_of,
    list_at,
    owner_reference,
)
from caphv.runtime.errors import Forbidden, NotFound
from reconciler.blocked import Blocked
from reconciler.harvester.balancerprobe import seconds_to_serve
from reconciler.machine.scope import MachineScope

log = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 60.0
"""A deletion waits so many seconds for the load balancer after the health check is due."""
# Seconds between two checks of a load balancer that does not serve the newer machine yet.
_RECHECK_SECONDS = 1.0
# Time for the last request of the health check, and for the write of its outcome.
_MARGIN_SECONDS = 1.0


async def ensure_handover(scope: MachineScope) -> None:
    """Set the hook on the older of two control plane Machines, and remove it when it may leave.

    Raises `ApiError`, `Unreachable`. Without the right to patch Machines, there is no hook.
    """
    machine = scope.machine
    if machine is None or not scope.control_plane:
        return
    has_hook = ENDPOINT_HOOK in annotations_of(machine)
    is_leaving = being_deleted(machine)
    if is_leaving and not has_hook:
        return  # Cluster API may be draining the Node already

    newer = _replacement(scope, machine)
    needs_hook = newer is not None
    if newer is not None and is_leaving:
        needs_hook = not _may_leave(scope, newer)
    if needs_hook == has_hook:
        return

    metadata = {"annotations": {ENDPOINT_HOOK: "caphv" if needs_hook else None}}
    informer = scope.context.caches.machines
    key = key_of(machine)
    try:
        patched = await scope.context.client.patch(
            informer.resource, key.name, key.namespace, {"metadata": metadata}
        )
        informer.observe(patched)
    except NotFound:
        return
    except Forbidden as error:
        if ENDPOINT_HOOK not in scope.memory.logged:
            log.info(
                "the address of the control plane may be lost for seconds during an upgrade: %s",
                error,
            )
        scope.memory.logged.add(ENDPOINT_HOOK)


def _replacement(scope: MachineScope, machine: Obj) -> Obj | None:
    """Return the HarvesterMachine of the newer of two control plane machines.

    Returns None if this machine is the newer one, or if there are not exactly two.
    """
    if scope.cluster is None or being_deleted(scope.cluster) or being_deleted(scope.obj):
        return None

    staying = []
    for obj in scope.context.caches.machines_of(scope.cluster):
        reference = owner_reference(obj, "Machine", resources.CLUSTER_API_GROUP)
        if not clusterapi.is_control_plane(obj, scope.cluster) or reference is None:
            continue
        if reference["name"] == machine["metadata"]["name"]:
            continue
        other = scope.context.caches.machines.get(scope.key.namespace, reference["name"])
        if other and not being_deleted(other) and not being_deleted(obj):
            staying.append((_creation_order(other), obj))

    # With several others, no hook is needed, because the load balancer has probed all but one of
    # them long ago.
    if len(staying) != 1:
        return None
    order, obj = staying[0]
    return obj if order >= _creation_order(machine) else None


def _creation_order(machine: Obj) -> tuple[str, str]:
    """Return the key to sort Machines by creation. Names decide within the same second."""
    return str(machine["metadata"].get("creationTimestamp") or ""), str(machine["metadata"]["name"])


def _may_leave(scope: MachineScope, newer: Obj) -> bool:
    """Return whether the load balancer serves the newer machine, or the wait was long enough.

    Otherwise requeues the machine. Reports the begin of the wait, and a wait that timed out.
    """
    current_time = time.monotonic()
    seconds_to_probe = seconds_to_serve(scope.cluster_spec) + _MARGIN_SECONDS
    if scope.memory.deletion.handover_since is None:
        scope.memory.deletion.handover_since = current_time
        name = newer["metadata"]["name"]
        scope.event(
            "EndpointHandover",
            f"leaves once the control plane's load balancer serves machine {name}",
        )
    waited = current_time - scope.memory.deletion.handover_since
    if waited < seconds_to_probe:
        scope.requeue_in(seconds_to_probe - waited)
        return False

    problem = _problem(scope, newer)
    if not problem:
        return True
    if waited < seconds_to_probe + MAX_WAIT_SECONDS:
        scope.requeue_in(_RECHECK_SECONDS)
        return False
    message = f"leaves although the endpoint may be lost: {problem}"
    scope.warning_event("EndpointHandoverTimedOut", message)
    return True


def _problem(scope: MachineScope, newer: Obj) -> str:
    """Return why the load balancer does not serve a machine; empty if it does, or if unknown."""
    if at(scope.cluster_spec, "loadBalancerConfig", "ipamType") == "none":
        return ""  # the provider cannot ask an external load balancer
    try:
        balancer = _load_balancer(scope)
    except Blocked as blocked:
        return blocked.message
    if balancer is None:
        return "the LoadBalancer does not exist on Harvester"

    status = balancer.get("status") or {}
    addresses = {entry.get("address") for entry in list_at(newer, "status", "addresses")}
    if not addresses & set(status.get("backendServers") or ()):
        name = newer["metadata"]["name"]
        return f"machine {name} is no backend of LoadBalancer {key_of(balancer)}"
    ready = get_condition(status.get("conditions") or [], "Ready") or {}
    return "" if ready.get("status") == "True" else f"LoadBalancer {key_of(balancer)} is not ready"


def _load_balancer(scope: MachineScope) -> Obj | None:
    """Return the LoadBalancer of the cluster. Raises `Blocked` while caches are not filled."""
    namespace = scope.namespace()
    for name in generated_names(scope.harvester_cluster or {}, LOAD_BALANCER_SUFFIX):
        balancer = namespace.load_balancers.get(scope.target_namespace, name)
        if balancer:
            return balancer
    return None
