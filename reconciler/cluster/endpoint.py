"""The control plane's address, from a placeholder Service that exists before the first VM.

Bootstrap data has to contain the endpoint. Harvester's LoadBalancer of the same name is created with the first control
plane VM, because its controller requires backends. It then adopts the Service without owning it, so this provider
deletes both.
"""

from __future__ import annotations

from caphv.api import ippool, names
from caphv.api.names import LOAD_BALANCER_SUFFIX, ConditionType, Reason, generated_names
from caphv.api.object import SERVICES, Obj, key_of
from caphv.runtime.errors import AlreadyExists
from reconciler import triggers
from reconciler.cluster import adoption, refusals
from reconciler.cluster.addresssource import used_source, wanted_source
from reconciler.cluster.pools import adopt_load_balancer_pool, ensure_load_balancer_pool
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester import ipam
from reconciler.harvester.ownership import record
from reconciler.status import Blocked
from reconciler.triggers import Watched

API_PORT = 6443
_READY = ConditionType.LOAD_BALANCER_READY


async def ensure_endpoint(scope: ClusterScope) -> None:
    """Ensure the placeholder Service, its address, and `spec.controlPlaneEndpoint` (always overwritten: contract)."""
    await adopt_load_balancer_pool(scope)
    services = scope.connected().services
    service = services.get(scope.target_namespace, scope.load_balancer_name)
    if service is None:
        service = await _create_placeholder(scope)
    service = await adoption.adopt_or_refuse(
        scope, services, service, _READY, Reason.INFRASTRUCTURE_PROVISIONING_FAILED
    )
    address = service_address(service)
    if not address:
        raise Blocked(
            _READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            f"waiting for kube-vip on Harvester to assign an address to Service {key_of(service)}",
            Watched.LOAD_BALANCER,
        )
    endpoint, known = {"host": address, "port": API_PORT}, known_address(scope.obj)
    if known and known != address:
        raise Blocked(
            _READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"Service {key_of(service)} on Harvester has address {address}, but the control plane endpoint is {known}, "
            "which cannot change: machines and kubeconfigs contain it; give the Service its previous address",
            Watched.LOAD_BALANCER,
            warn=True,
        )
    if scope.obj["spec"].get("controlPlaneEndpoint") != endpoint:
        await scope.patch_spec({"controlPlaneEndpoint": endpoint})
        scope.event("ControlPlaneEndpointSet", f"control plane endpoint is {address}:{API_PORT}")


def known_address(obj: Obj) -> str:
    """Address of the control plane endpoint once the cluster has used it, else empty."""
    provisioned = ((obj.get("status") or {}).get("initialization") or {}).get("provisioned")
    host = str((obj["spec"].get("controlPlaneEndpoint") or {}).get("host") or "")
    return host if provisioned and host != "0.0.0.0" else ""


async def reserve_address(scope: ClusterScope, pool: str, known: str) -> str:
    """Reserve the control plane's address in a pool for its LoadBalancer: the `known` one, or any if that is empty.

    Writes nothing if the pool has it so. Raises `Blocked` without an address.
    """
    session = scope.connected()
    with scope.subscribe(triggers.pool(session.fingerprint, pool)) as released:
        holder = scope.reservation(scope.load_balancer_name)
        answer = await session.allocator.allocate(ipam.AddressRequest(holder, (pool,), known, load_balancer=True))
        if isinstance(answer, ipam.Refusal):
            reason = Reason.INFRASTRUCTURE_PROVISIONING_FAILED
            raise Blocked(_READY, reason, answer.message, released, Watched.SELF, warn=True)
    return answer.address


async def delete_placeholder(scope: ClusterScope) -> None:
    """Delete the Service. Raises `Blocked` while it exists, because it announces the address."""
    services = scope.connected().services
    await adoption.delete(scope, services, services.get(scope.target_namespace, scope.load_balancer_name))


async def release_address(scope: ClusterScope) -> None:
    """Release the control plane's addresses in all pools, whether or not the LoadBalancer had adopted the Service."""
    session = scope.connected()
    candidates = generated_names(scope.obj, LOAD_BALANCER_SUFFIX)
    own = scope.reservation(candidates[0])
    ids = {scope.reservation(name) for name in candidates if not _is_foreign_service(scope, name)}
    endpoint = (scope.obj["spec"].get("controlPlaneEndpoint") or {}).get("host")
    await session.allocator.settle(ids)
    for pool in session.pools.store:
        for address, holder in ippool.allocated(pool).items():
            # Two clusters with long names may share the Go provider's name, but not the address.
            if holder in ids and (holder == own or address == endpoint):
                await session.allocator.release(pool["metadata"]["name"], address, holder)


def service_address(service: Obj) -> str:
    """Address that kube-vip has assigned to a Service, empty for none."""
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


def _is_foreign_service(scope: ClusterScope, name: str) -> bool:
    service = scope.connected().services.get(scope.target_namespace, name)
    return service is not None and adoption.is_foreign(scope, service)


async def _create_placeholder(scope: ClusterScope) -> Obj:
    session, name = scope.connected(), scope.load_balancer_name
    address, used = "0.0.0.0", used_source(scope)
    if (used or wanted_source(scope.obj["spec"])).ipam == "pool":
        # The address of a recreated Service stays in its pool, whatever the spec says now.
        pool = used.pool if used else await ensure_load_balancer_pool(scope)
        # A recreated Service asks for its address again: the endpoint cannot change.
        address = await reserve_address(scope, pool, known_address(scope.obj))
    try:
        with refusals.reported(_READY, f"create Service {scope.target_namespace}/{name}"):
            service = await session.client.create(SERVICES, placeholder_service(scope, address))
    except AlreadyExists:
        service = await session.client.get(SERVICES, name, scope.target_namespace)
    session.services.observe(service)
    return service
