"""Harvester's LoadBalancer of the control plane.

It is created with the first VM of the control plane, and kept in sync with the spec.
"""

from __future__ import annotations

import logging
from typing import Any

from caphv.api import clusterapi, ippool, names, resources
from caphv.api.conditions import get_condition
from caphv.api.labels import cluster_label
from caphv.api.names import ConditionType, Reason
from caphv.api.object import (
    Obj,
    at,
    being_deleted,
    dict_at,
    key_of,
    labels_of,
    list_at,
    owner_reference,
)
from caphv.api.ownership import Ownership, names_vm, ownership_of, record
from caphv.api.plaintext import LONGEST_EVENT, plain
from caphv.runtime.errors import AlreadyExists, RequestError, Unauthorized, kind_of
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.cluster import adoption, refusals
from reconciler.cluster.addresssource import Source, requested_source, used_source, why_unused
from reconciler.cluster.endpoint import API_PORT, reserve_address
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.balancerprobe import probe_settings
from reconciler.machine.placement import CLUSTER_LABEL, control_plane_selector
from reconciler.triggers import Watched

log = logging.getLogger(__name__)

_READY = ConditionType.LOAD_BALANCER_READY
_FIELDS = (
    "workloadType",
    "ipam",
    "ipPool",
    "listeners",
    "healthCheck",
    "backendServerSelector",
    "description",
)


async def ensure_load_balancer(scope: ClusterScope) -> None:
    """Ensure the LoadBalancer of the control plane as soon as one of its VMs exists.

    Raises `Blocked` if another owner has it, or if Harvester gives it no address.
    """
    vms = control_plane_vms(scope)
    report_first_vm(scope, vms)

    # Reserve the address before Harvester's controller takes one from the pool.
    load_balancers = scope.namespace().load_balancers
    balancer = load_balancers.get(scope.target_namespace, scope.load_balancer_name)
    lacks_address = balancer and not _has_address(balancer) and not being_deleted(balancer)
    if (balancer is None and vms) or lacks_address:
        await _ensure_reservation(scope)

    # Create the LoadBalancer only with a VM, because Harvester's controller requires a backend.
    if balancer is None and vms:
        balancer = await _create(scope, vms)
        load_balancers.observe(balancer)
    if balancer is not None:
        reason = Reason.INFRASTRUCTURE_PROVISIONING_FAILED
        balancer = await adoption.adopt_or_refuse(scope, load_balancers, balancer, _READY, reason)
        await _repair(scope, balancer, vms)
        _require_address(balancer)

    # Do not reserve the address while Harvester deletes the LoadBalancer and releases the address.
    reservation_error = ""
    if balancer is None or not being_deleted(balancer):
        reservation_error = await _keep_reservation(scope)
    warnings = {
        "LoadBalancerAddressKept": why_unused(scope.obj["spec"], used_source(scope)),
        "AddressNotReserved": reservation_error,
    }
    _report(scope, warnings, _unreachable(scope, balancer))


def report_first_vm(scope: ClusterScope, vms: list[Obj]) -> None:
    """Report whether the control plane has a VM, or has ever had one."""
    if vms:
        scope.draft.set_true(ConditionType.INIT_MACHINE_CREATED)
    elif not scope.draft.is_true(ConditionType.INIT_MACHINE_CREATED):
        scope.draft.set_false(
            ConditionType.INIT_MACHINE_CREATED,
            Reason.MACHINE_NOT_FOUND,
            "waiting for the first control plane VM",
        )


async def _create(scope: ClusterScope, vms: list[Obj]) -> Obj:
    """Create the LoadBalancer, or return an existing one that the cache lacks."""
    client = scope.require_session().client
    obj = _load_balancer(scope, vms)
    try:
        with refusals.block_on_refusal(f"create LoadBalancer {key_of(obj)}"):
            balancer = await client.create(resources.LOAD_BALANCERS, obj)
    except AlreadyExists:
        return await client.get(
            resources.LOAD_BALANCERS, scope.load_balancer_name, scope.target_namespace
        )
    scope.event("LoadBalancerCreated", f"created LoadBalancer {key_of(balancer)} on Harvester")
    return balancer


async def delete_load_balancer(scope: ClusterScope) -> None:
    """Delete the LoadBalancer. Raises `Blocked` while it exists."""
    load_balancers = scope.namespace().load_balancers
    await adoption.delete(scope, load_balancers, scope.load_balancer_name)


def control_plane_vms(scope: ClusterScope) -> list[Obj]:
    """Return the VMs of the cluster's control plane machines, without VMs of other owners."""
    # The Go provider's label cannot select them, because two clusters with the same name share it.
    cache = scope.namespace().vms
    vms = []
    for machine in scope.context.caches.machines_of(scope.cluster):
        vm = cache.get(scope.target_namespace, machine["metadata"]["name"])
        if vm is None or not _is_control_plane(scope, machine):
            continue
        owner = scope.context.owner(resources.HARVESTER_MACHINES.kind, machine)
        if names_vm(machine, vm, owner) or ownership_of(vm, owner) is not Ownership.FOREIGN:
            vms.append(vm)
    return vms


def load_balancer_spec(
    cluster_spec: Obj, selector: dict[str, list[str]], used: Source | None = None
) -> Obj:
    """Return the spec of the LoadBalancer for the spec of a HarvesterCluster.

    :param cluster_spec: spec of the HarvesterCluster
    :param selector: labels of the backends
    :param used: source of the cluster's present address, which takes precedence over the spec
    """
    config: dict[str, Any] = cluster_spec["loadBalancerConfig"]
    source = used or requested_source(cluster_spec)

    # The listeners of the user come first, because `drift` compares lists by position.
    listeners = []
    for listener in config.get("listeners") or ():
        fields = ("name", "port", "protocol", "backendPort")
        listeners.append({name: listener[name] for name in fields})
    listeners.append(
        {"name": "api-server", "port": API_PORT, "protocol": "TCP", "backendPort": API_PORT}
    )

    spec: dict[str, Any] = {
        "workloadType": "vm",
        "ipam": source.ipam,
        "listeners": listeners,
        "healthCheck": {"port": API_PORT, **probe_settings(cluster_spec)},
        "backendServerSelector": selector,
    }
    if config.get("description"):
        spec["description"] = config["description"]
    if source.pool:
        spec["ipPool"] = source.pool
    return spec


def drift(intended: Obj, actual: Obj) -> Obj:
    """Return the merge patch from the spec on Harvester to the intended one, empty if equal."""
    # Harvester's webhook adds defaults to a health check and to listeners, which are no drift.
    patch = {
        name: intended.get(name)
        for name in _FIELDS
        if _differs(intended.get(name), actual.get(name))
    }
    selector = intended["backendServerSelector"]
    actual_selector = actual.get("backendServerSelector") or {}
    if selector != actual_selector:
        # Remove additional keys, which would exclude backends. A merge patch keeps other keys.
        patch["backendServerSelector"] = {**dict.fromkeys(actual_selector), **selector}
    return patch


def _differs(intended: Any, actual: Any) -> bool:
    """Return whether a value lacks parts of the intended one. Empty and absent values are equal."""
    if isinstance(intended, dict) and isinstance(actual, dict):
        return any(_differs(value, actual.get(name)) for name, value in intended.items())
    if isinstance(intended, list) and isinstance(actual, list):
        return len(intended) != len(actual) or any(map(_differs, intended, actual))
    return bool(intended or actual) and intended != actual


def backend_selector(scope: ClusterScope, vms: list[Obj]) -> dict[str, list[str]]:
    """Return the labels of the VMIs that are backends.

    The selector has the Go provider's label, and ours as soon as all control plane VMs have it.
    """
    label = cluster_label(scope.cluster_key)
    instances = scope.namespace().instances
    labels = []
    for vm in vms:
        labels.append(dict_at(vm, "spec", "template", "metadata", "labels"))
        vmi = instances.get(*key_of(vm))
        if vmi:
            labels.append(labels_of(vmi))

    selector = {names.MACHINE_TYPE_LABEL: [control_plane_selector(scope.cluster_key.name)]}
    # The Go provider's label lacks the namespace, so that two clusters with the same name would
    # share their traffic.
    if all(present.get(CLUSTER_LABEL) == label for present in labels):
        selector[CLUSTER_LABEL] = [label]
    return selector


def _load_balancer(scope: ClusterScope, vms: list[Obj]) -> Obj:
    """Return the LoadBalancer to create."""
    return {
        "apiVersion": resources.LOAD_BALANCERS.api_version,
        "kind": resources.LOAD_BALANCERS.kind,
        "metadata": {
            "name": scope.load_balancer_name,
            "namespace": scope.target_namespace,
            "annotations": record(scope.owner),
        },
        "spec": load_balancer_spec(
            scope.obj["spec"], backend_selector(scope, vms), used_source(scope)
        ),
    }


async def _repair(scope: ClusterScope, balancer: Obj, vms: list[Obj]) -> None:
    """Patch the fields of the LoadBalancer that differ from the spec of the HarvesterCluster."""
    selector = backend_selector(scope, vms)
    intended = load_balancer_spec(scope.obj["spec"], selector, used_source(scope))
    patch = drift(intended, balancer["spec"])
    if not patch:
        return

    metadata = balancer["metadata"]
    fields = ", ".join(patch)
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": patch}
    with refusals.block_on_refusal(f"update {fields} of LoadBalancer {key_of(balancer)}"):
        repaired = await scope.require_session().client.patch(
            resources.LOAD_BALANCERS, metadata["name"], metadata["namespace"], body
        )
    scope.namespace().load_balancers.observe(repaired)

    if repaired["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
        scope.event(
            "LoadBalancerUpdated",
            f"updated {fields} of LoadBalancer {key_of(balancer)} to match the spec",
        )


async def _ensure_reservation(scope: ClusterScope) -> None:
    """Ensure that Harvester can only give the address of the endpoint to the LoadBalancer.

    Raises `Blocked` if the pool cannot reserve the address.
    """
    source = used_source(scope) or requested_source(scope.obj["spec"])
    if source.pool:
        await reserve_address(scope, source.pool, scope.obj["spec"]["controlPlaneEndpoint"]["host"])


async def _keep_reservation(scope: ClusterScope) -> str:
    """Reserve the address of the endpoint again if its pool has lost it.

    Otherwise another Service would get it. Returns an error message instead of raising the error,
    because the control plane has the address anyway. The message is empty without an error.
    """
    source = used_source(scope) or requested_source(scope.obj["spec"])
    session = scope.require_session()
    host = scope.obj["spec"]["controlPlaneEndpoint"]["host"]
    if not source.pool:
        return ""
    pool = session.pools.get("", source.pool)
    if pool is None:
        # The subscription outlives this reconcile. The cluster does not need the pool now, but a
        # user may recreate it.
        scope.subscribe(triggers.pool(session.fingerprint, source.pool))
        return ""

    retries = scope.memory.reservation
    holder = scope.reservation(scope.load_balancer_name)
    is_reserved = ippool.allocated(pool).get(host) == holder
    # A pool whose ranges no longer contain the address cannot give it to anybody.
    if is_reserved or not ippool.contains(pool, host):
        retries.reset()
        return ""

    try:
        await reserve_address(scope, source.pool, host)
    except Blocked as blocked:
        retries.reset()
        return blocked.message  # a change of the pool requeues the cluster
    except Unauthorized:
        raise  # no other request would succeed either
    except RequestError as error:
        log.info("cannot reserve control plane address %s again: %s", host, error)
        kind = kind_of(error)
        # Retry after a time, because the failure may end without a change of the pool.
        scope.requeue_within(retries.retry_after(kind))
        return (
            f"cannot reserve control plane address {host} again in {source}: {kind}; the log of "
            "the provider says more"
        )
    retries.reset()
    scope.event(
        "AddressReservedAgain",
        f"{source} no longer had control plane address {host}; reserved it again",
    )
    return ""


def _has_address(load_balancer: Obj) -> bool:
    """Return whether Harvester's controller has given a LoadBalancer an address."""
    return bool(at(load_balancer, "status", "allocatedAddress", "ip"))


def _failed_condition(load_balancer: Obj) -> Obj | None:
    """Return condition `Ready` of a LoadBalancer if its status is False, None otherwise.

    Harvester's controller sets the condition to False while it has no address for the LoadBalancer,
    and later while no backend passes the health check.
    """
    ready = get_condition(list_at(load_balancer, "status", "conditions"), "Ready")
    return ready if ready and ready.get("status") == "False" else None


def _message_of(condition: Obj) -> str:
    """Return the message of a condition of Harvester in a form that fits into an Event."""
    return plain(str(condition.get("message") or "no reason given"), LONGEST_EVENT)


def address_failure(load_balancer: Obj) -> str | None:
    """Return why Harvester's controller assigns no address to a LoadBalancer.

    Returns None if it has an address, or if the controller has not tried yet.
    """
    failed = _failed_condition(load_balancer)
    return _message_of(failed) if failed and not _has_address(load_balancer) else None


def _require_address(load_balancer: Obj) -> None:
    """Raise `Blocked` if the LoadBalancer gets no address, because it then forwards nothing."""
    failure = address_failure(load_balancer)
    if failure is not None:
        message = f"Harvester gives LoadBalancer {key_of(load_balancer)} no address: {failure}"
        reason = Reason.INFRASTRUCTURE_PROVISIONING_FAILED
        raise Blocked(_READY, reason, message, Watched.LOAD_BALANCER, warn=True)


def _report(scope: ClusterScope, warnings: dict[str, str], unreachable: str | None) -> None:
    """Set the condition, and emit an Event for each warning when the message changes.

    :param scope: the cluster
    :param warnings: messages by the reason of their Event, empty for none
    :param unreachable: why the control plane does not answer, None if it does; machines can be
        created in either case
    """
    message = "; ".join(filter(None, (unreachable, *warnings.values())))
    if not scope.draft.has_message(_READY, message):
        for reason, warning in warnings.items():
            if warning:
                scope.warning_event(reason, warning)

    if unreachable is None:
        scope.draft.set_true(_READY, message)
    else:
        scope.draft.set_false(_READY, Reason.CONTROL_PLANE_UNREACHABLE, message)


def _unreachable(scope: ClusterScope, load_balancer: Obj | None) -> str | None:
    """Return why no machine answers at the endpoint of the control plane, None if one answers.

    Before the control plane is initialized, no machine is expected to answer.
    """
    if load_balancer is None or not clusterapi.control_plane_initialized(scope.cluster):
        return None
    failed = _failed_condition(load_balancer)
    if failed is None:
        return None

    host = scope.obj["spec"]["controlPlaneEndpoint"]["host"]
    return (
        f"no control plane machine answers at {host}:{API_PORT}; Harvester's load balancer "
        f"reports: {_message_of(failed)}"
    )


def _is_control_plane(scope: ClusterScope, machine: Obj) -> bool:
    """Return whether a HarvesterMachine, or its Machine, has the label of control planes."""
    if clusterapi.is_control_plane(machine, scope.cluster):
        return True
    reference = owner_reference(machine, "Machine", resources.CLUSTER_API_GROUP)
    if not reference:
        return False
    machines = scope.context.caches.machines
    owner = machines.get(machine["metadata"]["namespace"], reference["name"])
    return bool(owner and clusterapi.is_control_plane(owner, scope.cluster))
