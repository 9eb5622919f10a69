"""Harvester's LoadBalancer of the control plane: created with its first VM, and kept in sync with the spec."""

from __future__ import annotations

import logging
from typing import Any

from caphv.api import clusterapi, ippool, names, resources
from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, being_deleted, key_of, labels_of, owner_reference
from caphv.api.plaintext import LONGEST_EVENT, plain
from caphv.runtime.errors import AlreadyExists, ApiError, Unauthorized, Unreachable, kind_of
from reconciler import triggers
from reconciler.cluster import adoption, refusals
from reconciler.cluster.addresssource import Source, unused, used_source, wanted_source
from reconciler.cluster.endpoint import API_PORT, reserve_address
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.healthcheck import health_check
from reconciler.harvester.ownership import Ownership, names_vm, ownership_of, record
from reconciler.machine.placement import CLUSTER_LABEL, cluster_label, control_plane_selector
from reconciler.status import Blocked
from reconciler.triggers import Watched

log = logging.getLogger(__name__)

_READY = ConditionType.LOAD_BALANCER_READY
_FIELDS = ("workloadType", "ipam", "ipPool", "listeners", "healthCheck", "backendServerSelector", "description")


async def ensure_load_balancer(scope: ClusterScope) -> None:
    """Ensure the LoadBalancer of the control plane as soon as one of its VMs exists."""
    vms = control_plane_vms(scope)
    if vms:
        scope.draft.set_true(ConditionType.INIT_MACHINE_CREATED)
    elif not scope.draft.is_true(ConditionType.INIT_MACHINE_CREATED):
        scope.draft.set_false(
            ConditionType.INIT_MACHINE_CREATED, Reason.MACHINE_NOT_FOUND, "waiting for the first control plane VM"
        )
    load_balancers, client = scope.namespace().load_balancers, scope.connected().client
    found = load_balancers.get(scope.target_namespace, scope.load_balancer_name)
    if (found is None and vms) or (found and not _allocated(found) and not being_deleted(found)):
        await _ensure_reservation(scope)
    if found is None and vms:
        obj = _load_balancer(scope, vms)
        try:
            with refusals.reported(_READY, f"create LoadBalancer {key_of(obj)}"):
                found = await client.create(resources.LOAD_BALANCERS, obj)
            scope.event("LoadBalancerCreated", f"created LoadBalancer {key_of(found)} on Harvester")
        except AlreadyExists:
            found = await client.get(resources.LOAD_BALANCERS, scope.load_balancer_name, scope.target_namespace)
        load_balancers.observe(found)
    if found is not None:
        reason = Reason.INFRASTRUCTURE_PROVISIONING_FAILED
        found = await adoption.adopt_or_refuse(scope, load_balancers, found, _READY, reason)
        await _repair(scope, found, vms)
        _require_address(found)
    lost = "" if found and being_deleted(found) else await _keep_reservation(scope)
    warnings = {"LoadBalancerAddressKept": unused(scope.obj["spec"], used_source(scope)), "AddressNotReserved": lost}
    _report(scope, warnings, _unreachable(scope, found))


async def delete_load_balancer(scope: ClusterScope) -> None:
    """Delete the LoadBalancer. Raises `Blocked` while it exists."""
    load_balancers = scope.namespace().load_balancers
    await adoption.delete(scope, load_balancers, load_balancers.get(scope.target_namespace, scope.load_balancer_name))


def control_plane_vms(scope: ClusterScope) -> list[Obj]:
    """VMs of the cluster's control plane machines, without those of other owners.

    The Go provider's label is not used to find them: two clusters with the same name share it.
    """
    vms = scope.namespace().vms
    found = []
    for machine in scope.context.caches.machines_of(scope.cluster):
        vm = vms.get(scope.target_namespace, machine["metadata"]["name"])
        if vm is None or not _is_control_plane(scope, machine):
            continue
        owner = scope.context.owner(resources.HARVESTER_MACHINES.kind, machine)
        if names_vm(machine, vm, owner) or ownership_of(vm, owner) is not Ownership.FOREIGN:
            found.append(vm)
    return found


def load_balancer_spec(cluster_spec: Obj, selector: dict[str, list[str]], used: Source | None = None) -> Obj:
    """Spec of the LoadBalancer from that of the HarvesterCluster: its listeners first, then the API server's.

    `used` is the source of the address that the cluster has: the address stays, whatever the HarvesterCluster says.
    """
    config: dict[str, Any] = cluster_spec["loadBalancerConfig"]
    source = used or wanted_source(cluster_spec)
    listeners = [
        {name: listener[name] for name in ("name", "port", "protocol", "backendPort")}
        for listener in config.get("listeners") or ()
    ]
    listeners.append({"name": "api-server", "port": API_PORT, "protocol": "TCP", "backendPort": API_PORT})
    spec: dict[str, Any] = {
        "workloadType": "vm",
        "ipam": source.ipam,
        "listeners": listeners,
        "healthCheck": {"port": API_PORT, **health_check(cluster_spec)},
        "backendServerSelector": selector,
    }
    if config.get("description"):
        spec["description"] = config["description"]
    if source.pool:
        spec["ipPool"] = source.pool
    return spec


def drift(wanted: Obj, found: Obj) -> Obj:
    """Merge patch from the spec `found` on Harvester to the one that is `wanted`, empty if they match.

    Defaults that Harvester's webhook adds to our fields (of a health check, of a listener) are not drift.
    """
    patch = {name: wanted.get(name) for name in _FIELDS if _differs(wanted.get(name), found.get(name))}
    selector, selected = wanted["backendServerSelector"], found.get("backendServerSelector") or {}
    if selector != selected:
        # An additional key excludes backends, and a merge patch keeps keys that it does not name.
        patch["backendServerSelector"] = {**dict.fromkeys(selected), **selector}
    return patch


def _differs(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, dict) and isinstance(found, dict):
        return any(_differs(value, found.get(name)) for name, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) != len(found) or any(map(_differs, wanted, found))
    return bool(wanted or found) and wanted != found


def backend_selector(scope: ClusterScope, vms: list[Obj]) -> dict[str, list[str]]:
    """Labels of the VMIs that are backends: the Go provider's, and ours as soon as all control plane VMs have it.

    The Go provider's label lacks the namespace, so two clusters with the same name would share their traffic.
    """
    selector = {names.MACHINE_TYPE_LABEL: [control_plane_selector(scope.cluster_key.name)]}
    label, instances = cluster_label(scope.cluster_key), scope.namespace().instances
    vmis = [instances.get(*key_of(vm)) for vm in vms]
    templates = [(vm["spec"].get("template") or {}).get("metadata") or {} for vm in vms]
    labels = [template.get("labels") or {} for template in templates] + [labels_of(vmi) for vmi in vmis if vmi]
    if all(each.get(CLUSTER_LABEL) == label for each in labels):
        selector[CLUSTER_LABEL] = [label]
    return selector


def _load_balancer(scope: ClusterScope, vms: list[Obj]) -> Obj:
    return {
        "apiVersion": resources.LOAD_BALANCERS.api_version,
        "kind": resources.LOAD_BALANCERS.kind,
        "metadata": {
            "name": scope.load_balancer_name,
            "namespace": scope.target_namespace,
            "annotations": record(scope.owner),
        },
        "spec": load_balancer_spec(scope.obj["spec"], backend_selector(scope, vms), used_source(scope)),
    }


async def _repair(scope: ClusterScope, found: Obj, vms: list[Obj]) -> None:
    wanted = load_balancer_spec(scope.obj["spec"], backend_selector(scope, vms), used_source(scope))
    patch = drift(wanted, found["spec"])
    if not patch:
        return
    metadata, fields = found["metadata"], ", ".join(patch)
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "spec": patch}
    with refusals.reported(_READY, f"update {fields} of LoadBalancer {key_of(found)}"):
        repaired = await scope.connected().client.patch(
            resources.LOAD_BALANCERS, metadata["name"], metadata["namespace"], body
        )
    scope.namespace().load_balancers.observe(repaired)
    if repaired["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
        scope.event("LoadBalancerUpdated", f"updated {fields} of LoadBalancer {key_of(found)} to match the spec")


async def _ensure_reservation(scope: ClusterScope) -> None:
    """Ensure that Harvester can give the LoadBalancer the address of the endpoint, and no other. Raises `Blocked`."""
    source = used_source(scope) or wanted_source(scope.obj["spec"])
    if source.pool:
        await reserve_address(scope, source.pool, scope.obj["spec"]["controlPlaneEndpoint"]["host"])


async def _keep_reservation(scope: ClusterScope) -> str:
    """Reserve the address of the endpoint again if its pool has lost it: another Service would get it.

    Returns why that fails, empty if it does not: the control plane has the address anyway.
    """
    source, session = used_source(scope) or wanted_source(scope.obj["spec"]), scope.connected()
    host = scope.obj["spec"]["controlPlaneEndpoint"]["host"]
    if not source.pool:
        return ""
    pool = session.pools.get("", source.pool)
    if pool is None:
        # Not as a context manager: the cluster does not need it now, and it may be created again.
        scope.subscribe(triggers.pool(session.fingerprint, source.pool))
        return ""
    retries = scope.memory.reservation
    has_it = ippool.allocated(pool).get(host) == scope.reservation(scope.load_balancer_name)
    if has_it or not ippool.contains(pool, host):
        retries.ended()
        return ""
    try:
        await reserve_address(scope, source.pool, host)
    except Blocked as blocked:
        retries.ended()
        return blocked.message  # a change of the pool requeues the cluster
    except Unauthorized:
        raise  # not the pool's fault: nothing else works either
    except (ApiError, Unreachable) as error:
        log.info("cannot reserve control plane address %s again: %s", host, error)
        kind = kind_of(error)
        scope.requeue_within(retries.retry_after(kind))  # no change of the pool may end it
        return (
            f"cannot reserve control plane address {host} again in {source}: {kind}; the log of the provider says more"
        )
    retries.ended()
    scope.event("AddressReservedAgain", f"{source} no longer had control plane address {host}; reserved it again")
    return ""


def _allocated(load_balancer: Obj) -> bool:
    return bool(((load_balancer.get("status") or {}).get("allocatedAddress") or {}).get("ip"))


def address_failure(load_balancer: Obj) -> str:
    """Why Harvester's controller gives a LoadBalancer no address; empty if it has one, or none was asked for yet."""
    ready = get_condition((load_balancer.get("status") or {}).get("conditions") or [], "Ready") or {}
    if _allocated(load_balancer) or ready.get("status") != "False":
        return ""
    return plain(str(ready.get("message") or "no reason given"), LONGEST_EVENT)


def _require_address(load_balancer: Obj) -> None:
    """Raise `Blocked` if the LoadBalancer gets no address: without one it forwards nothing to the control plane."""
    failure = address_failure(load_balancer)
    if failure:
        message = f"Harvester gives LoadBalancer {key_of(load_balancer)} no address: {failure}"
        raise Blocked(_READY, Reason.INFRASTRUCTURE_PROVISIONING_FAILED, message, Watched.LOAD_BALANCER, warn=True)


def _report(scope: ClusterScope, warnings: dict[str, str], unreachable: str) -> None:
    """Set the condition, with warnings about what is not as it should be, by the reason of their Event.

    :param scope: the cluster
    :param warnings: messages by the reason of their Event, empty for none
    :param unreachable: why the control plane does not answer; empty if it does. Machines can be created all the same
    """
    message = "; ".join(filter(None, (unreachable, *warnings.values())))
    if not scope.draft.has_message(_READY, message):
        for reason in filter(warnings.get, warnings):
            scope.warning_event(reason, warnings[reason])
    if unreachable:
        scope.draft.set_false(_READY, Reason.CONTROL_PLANE_UNREACHABLE, message)
    else:
        scope.draft.set_true(_READY, message)


def _unreachable(scope: ClusterScope, load_balancer: Obj | None) -> str:
    """Return why no machine answers at the endpoint of an initialized control plane; empty if one does."""
    if load_balancer is None or not clusterapi.control_plane_initialized(scope.cluster):
        return ""
    ready = get_condition((load_balancer.get("status") or {}).get("conditions") or [], "Ready") or {}
    if ready.get("status") != "False":
        return ""
    reported = plain(str(ready.get("message") or "no reason given"), LONGEST_EVENT)
    host = scope.obj["spec"]["controlPlaneEndpoint"]["host"]
    return f"no control plane machine answers at {host}:{API_PORT}; Harvester's load balancer reports: {reported}"


def _is_control_plane(scope: ClusterScope, machine: Obj) -> bool:
    if clusterapi.is_control_plane(machine):
        return True
    reference = owner_reference(machine, "Machine", resources.CLUSTER_API_GROUP)
    owner = (
        scope.context.caches.machines.get(machine["metadata"]["namespace"], reference["name"]) if reference else None
    )
    return bool(owner and clusterapi.is_control_plane(owner))
