"""The control plane's address: a placeholder Service first, Harvester's LoadBalancer once there is a VM behind it.

The Service gives the endpoint before the first VM exists, because bootstrap data has to contain it. The LoadBalancer
comes when a control plane VM does: its controller wants backends. Both have one name, and Harvester's controller then
takes the Service over without owning it, so we delete both.
"""

from __future__ import annotations

from typing import Any

from caphv.api import names
from caphv.api.names import ConditionType, Reason
from caphv.runtime.errors import AlreadyExists, Conflict, NotFound
from caphv.runtime.resource import SERVICES, Obj, Resource, annotations_of, being_deleted, key_of
from reconciler import resources
from reconciler.cluster.pools import ensure_load_balancer_pool
from reconciler.cluster.scope import ClusterScope
from reconciler.flow import Blocked
from reconciler.harvester import ipam
from reconciler.harvester.ownership import Ownership, owned_by, record
from reconciler.harvester.session import TargetNamespace
from reconciler.machine.vm import control_plane_selector

API_PORT = 6443
_READY = ConditionType.LOAD_BALANCER_READY


async def ensure_endpoint(scope: ClusterScope) -> None:
    """Placeholder Service, its address, and `spec.controlPlaneEndpoint` (overwritten whatever it was: contract)."""
    namespace = scope.namespace()
    service = namespace.services.get(scope.target_namespace, scope.load_balancer_name)
    if service is None:
        service = await _create_placeholder(scope, namespace)
    _refuse_foreign(scope, SERVICES, service)
    address = service_address(service)
    if not address:
        raise Blocked(
            _READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            f"waiting for kube-vip on Harvester to give Service {key_of(service)} an address",
        )
    endpoint = {"host": address, "port": API_PORT}
    if scope.obj["spec"].get("controlPlaneEndpoint") != endpoint:
        await scope.patch_spec({"controlPlaneEndpoint": endpoint})
        scope.tell("ControlPlaneEndpointSet", f"control plane endpoint is {address}:{API_PORT}")


async def ensure_load_balancer(scope: ClusterScope) -> None:
    """LoadBalancer in front of the control plane, as soon as one of its VMs exists."""
    namespace = scope.namespace()
    has_vm = bool(namespace.vms.store.by_index("machinetype", control_plane_selector(scope.cluster_key.name)))
    if has_vm:
        scope.draft.set_true(ConditionType.INIT_MACHINE_CREATED)
    elif not scope.draft.is_true(ConditionType.INIT_MACHINE_CREATED):
        scope.draft.set_false(
            ConditionType.INIT_MACHINE_CREATED, Reason.MACHINE_NOT_FOUND, "waiting for the first control plane VM"
        )
    load_balancer = namespace.load_balancers.get(scope.target_namespace, scope.load_balancer_name)
    if load_balancer is not None:
        _refuse_foreign(scope, resources.LOAD_BALANCERS, load_balancer)
    elif has_vm:
        client = scope.connected().client
        try:
            created = await client.create(resources.LOAD_BALANCERS, load_balancer_object(scope))
        except AlreadyExists:
            created = await client.get(resources.LOAD_BALANCERS, scope.load_balancer_name, scope.target_namespace)
        namespace.load_balancers.observe(created)
        scope.tell("LoadBalancerCreated", f"created LoadBalancer {key_of(created)} on Harvester")
    scope.draft.set_true(_READY)


async def delete_load_balancer(scope: ClusterScope) -> None:
    """Delete the LoadBalancer; returns once it is gone."""
    namespace = scope.namespace()
    await _delete(scope, resources.LOAD_BALANCERS, namespace.load_balancers.get(*_name(scope)), namespace)


async def delete_placeholder(scope: ClusterScope) -> None:
    """Delete the Service; returns once it is gone: as long as it lives, it announces the address."""
    namespace = scope.namespace()
    await _delete(scope, SERVICES, namespace.services.get(*_name(scope)), namespace)


async def release_address(scope: ClusterScope) -> None:
    """Give back what pools still hold for this control plane, whether or not the LoadBalancer had taken over."""
    session = scope.connected()
    for pool in session.pools.store:
        allocated = (pool.get("status") or {}).get("allocated") or {}
        for address in [ip for ip, holder in allocated.items() if holder == scope.reservation]:
            await session.allocator.release(pool["metadata"]["name"], address, scope.reservation)


def service_address(service: Obj) -> str:
    """Address that kube-vip gave a Service, empty for none yet."""
    ingress = (service.get("status") or {}).get("loadBalancer", {}).get("ingress") or ()
    return next((entry["ip"] for entry in ingress if entry.get("ip")), "")


def placeholder_service(scope: ClusterScope, address: str) -> Obj:
    """Placeholder Service with an address of a pool, or `0.0.0.0` for one by DHCP (contract)."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": scope.load_balancer_name,
            "namespace": scope.target_namespace,
            "labels": {names.SERVICE_LB_LABEL: "true"},
            "annotations": record(scope.owner),
        },
        "spec": {
            "type": "LoadBalancer",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "loadBalancerIP": address,
            "ports": [{"name": "api-server", "port": API_PORT, "targetPort": API_PORT, "protocol": "TCP"}],
        },
    }


def load_balancer_object(scope: ClusterScope) -> Obj:
    """LoadBalancer as the contract describes it: the spec's listeners first, then the API server's."""
    config: dict[str, Any] = scope.obj["spec"]["loadBalancerConfig"]
    listeners = [
        {name: listener[name] for name in ("name", "port", "protocol", "backendPort")}
        for listener in config.get("listeners") or ()
    ]
    listeners.append({"name": "api-server", "port": API_PORT, "protocol": "TCP", "backendPort": API_PORT})
    spec: dict[str, Any] = {
        "workloadType": "vm",
        "ipam": config["ipamType"],
        "listeners": listeners,
        "healthCheck": {
            "port": API_PORT,
            "successThreshold": 1,
            "failureThreshold": 3,
            "periodSeconds": 30,
            "timeoutSeconds": 60,
        },
        "backendServerSelector": {names.MACHINE_TYPE_LABEL: [control_plane_selector(scope.cluster_key.name)]},
    }
    if config.get("description"):
        spec["description"] = config["description"]
    if config["ipamType"] == "pool":
        pool = str(config.get("ipPoolRef") or "").rpartition("/")[2]
        if pool:
            spec["ipPool"] = pool
    return {
        "apiVersion": resources.LOAD_BALANCERS.api_version,
        "kind": resources.LOAD_BALANCERS.kind,
        "metadata": {
            "name": scope.load_balancer_name,
            "namespace": scope.target_namespace,
            "annotations": record(scope.owner),
        },
        "spec": spec,
    }


async def _create_placeholder(scope: ClusterScope, namespace: TargetNamespace) -> Obj:
    session = scope.connected()
    address = "0.0.0.0"
    if scope.obj["spec"]["loadBalancerConfig"]["ipamType"] == "pool":
        pool = await ensure_load_balancer_pool(scope)
        answer = await session.allocator.allocate(ipam.AddressRequest(scope.reservation, (pool,)))
        if isinstance(answer, ipam.Refusal):
            scope.context.waiters.wait(("pool", session.fingerprint, pool), scope.key)
            raise Blocked(_READY, Reason.INFRASTRUCTURE_PROVISIONING_FAILED, answer.message, warn=True)
        address = answer.address
    try:
        service = await session.client.create(SERVICES, placeholder_service(scope, address))
    except AlreadyExists:
        service = await session.client.get(SERVICES, scope.load_balancer_name, scope.target_namespace)
    namespace.services.observe(service)
    return service


async def _delete(scope: ClusterScope, resource: Resource, obj: Obj | None, namespace: TargetNamespace) -> None:
    if obj is None or owned_by(obj, scope.owner) is Ownership.FOREIGN:
        return
    client, informer = scope.connected().client, namespace.of(resource)
    if not being_deleted(obj):
        try:
            name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
            if informer.deleted(*key_of(obj), await client.delete(resource, name, scope.target_namespace, uid=uid)):
                return
        except (NotFound, Conflict):
            informer.forget(*key_of(obj))
            return
    raise Blocked(
        ConditionType.INFRASTRUCTURE_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        f"waiting for {resource.kind} {key_of(obj)} on Harvester to go",
    )


def _refuse_foreign(scope: ClusterScope, resource: Resource, obj: Obj) -> None:
    if owned_by(obj, scope.owner) is Ownership.FOREIGN:
        raise Blocked(
            _READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"{resource.kind} {key_of(obj)} on Harvester belongs to "
            f"{annotations_of(obj).get('caphv.io/owner', 'somebody else')}; rename this HarvesterCluster or remove it",
            warn=True,
        )


def _name(scope: ClusterScope) -> tuple[str, str]:
    return scope.target_namespace, scope.load_balancer_name
