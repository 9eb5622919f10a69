"""Ensure the control plane's address, with a placeholder Service before the first VM.

Bootstrap data has to contain the endpoint. Harvester's LoadBalancer of the same name is created
with the first control plane VM, because its controller requires backends. It then adopts the
Service without owning it, so this provider deletes both.
"""

from __future__ import annotations

from caphv.api import ippool, names
from caphv.api.interfaceaddresses import address_of
from caphv.api.names import LOAD_BALANCER_SUFFIX, ConditionType, Reason, generated_names
from caphv.api.object import SERVICES, Obj, at, key_of, list_at, text_at
from caphv.api.ownership import record
from caphv.runtime.errors import AlreadyExists
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.cluster import adoption, refusals
from reconciler.cluster.addresssource import requested_source, used_source
from reconciler.cluster.pools import adopt_load_balancer_pool, ensure_load_balancer_pool
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester import addressplan
from reconciler.triggers import Watched

API_PORT = 6443
UNSET_HOST = "0.0.0.0"
"""The host in manifests of the Go provider for an endpoint that is not known yet."""
_READY = ConditionType.LOAD_BALANCER_READY


async def ensure_endpoint(scope: ClusterScope) -> None:
    """Ensure the placeholder Service, its address, and `spec.controlPlaneEndpoint`.

    Always overwrites the endpoint in the spec (contract). Raises `Blocked` until kube-vip has
    assigned an address, and if the address differs from the address in use.
    """
    await adopt_load_balancer_pool(scope)
    service = await _ensure_placeholder(scope)

    address = service_address(service)
    if not address:
        raise Blocked(
            _READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            f"waiting for kube-vip on Harvester to assign an address to Service {key_of(service)}",
            Watched.LOAD_BALANCER,
        )

    used_address = known_address(scope.obj)
    if used_address and used_address != address:
        raise Blocked(
            _READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"Service {key_of(service)} on Harvester has address {address}, but the control plane "
            f"endpoint is {used_address}, which cannot change: machines and kubeconfigs contain "
            "it; give the Service its previous address",
            Watched.LOAD_BALANCER,
            warn=True,
        )

    # Overwrite even an endpoint that a user has set (contract), because kubeconfigs contain it.
    endpoint = {"host": address, "port": API_PORT}
    if scope.obj["spec"].get("controlPlaneEndpoint") != endpoint:
        await scope.patch_spec({"controlPlaneEndpoint": endpoint})
        scope.event("ControlPlaneEndpointSet", f"control plane endpoint is {address}:{API_PORT}")


async def _ensure_placeholder(scope: ClusterScope) -> Obj:
    """Return the placeholder Service, after creating or adopting it if necessary."""
    services = scope.require_session().services
    service = services.get(scope.target_namespace, scope.load_balancer_name)
    if service is None:
        service = await _create_placeholder(scope)
    return await adoption.adopt_or_refuse(
        scope, services, service, _READY, Reason.INFRASTRUCTURE_PROVISIONING_FAILED
    )


def known_address(obj: Obj) -> str:
    """Return the address of the control plane endpoint once the cluster has used it, else empty."""
    if not at(obj, "status", "initialization", "provisioned"):
        return ""
    host = text_at(obj, "spec", "controlPlaneEndpoint", "host")
    return "" if host == UNSET_HOST else host


async def reserve_address(scope: ClusterScope, pool: str, address: str) -> str:
    """Reserve the control plane's address in a pool for its LoadBalancer, and return it.

    Writes nothing if the pool already holds the address. Raises `Blocked` if it has no address.

    :param address: the address to reserve; empty for any free one
    """
    session = scope.require_session()
    with scope.subscribe(triggers.pool(session.fingerprint, pool)) as released:
        holder = scope.reservation(scope.load_balancer_name)
        answer = await session.allocator.allocate(
            addressplan.AddressRequest(holder, (pool,), address, load_balancer=True)
        )
        if isinstance(answer, addressplan.Refusal):
            reason = Reason.INFRASTRUCTURE_PROVISIONING_FAILED
            message = answer.message
            if scope.obj["spec"]["loadBalancerConfig"].get("ipPoolRef") == pool:
                message = f"spec.loadBalancerConfig.ipPoolRef: {message}"
            raise Blocked(_READY, reason, message, released, Watched.SELF, warn=True)
    return answer.address


async def delete_placeholder(scope: ClusterScope) -> None:
    """Delete the Service. Raises `Blocked` while it exists, because it announces the address."""
    await adoption.delete(scope, scope.require_session().services, scope.load_balancer_name)


async def release_address(scope: ClusterScope) -> None:
    """Release the control plane's addresses in all pools."""
    # A LoadBalancer can have two names, and either of them may hold the address.
    session = scope.require_session()
    name, *former_names = generated_names(scope.obj, LOAD_BALANCER_SUFFIX)
    holders = set()
    for candidate in (name, *former_names):
        service = session.services.get(scope.target_namespace, candidate)
        if service is None or adoption.may_delete(scope, service):
            holders.add(scope.reservation(candidate))
    # A write without an answer could reserve an address again after the release.
    await session.allocator.settle(holders)

    unique_holder = scope.reservation(name)
    endpoint = at(scope.obj, "spec", "controlPlaneEndpoint", "host")
    for pool in session.pools.store:
        for address, holder in ippool.allocated(pool).items():
            # Two clusters with long names may share the Go provider's name, but not the address.
            if holder in holders and (holder == unique_holder or address == endpoint):
                await session.allocator.release(pool["metadata"]["name"], address, holder)


def service_address(service: Obj) -> str:
    """Return the address that kube-vip has assigned to a Service, empty for none."""
    for entry in list_at(service, "status", "loadBalancer", "ingress"):
        if address_of(entry.get("ip")):
            return str(entry["ip"])
    return ""


def placeholder_service(scope: ClusterScope, address: str) -> Obj:
    """Return a placeholder Service with an address of a pool, or `0.0.0.0` for DHCP (contract)."""
    api_server = {
        "name": "api-server",
        "port": API_PORT,
        "targetPort": API_PORT,
        "protocol": "TCP",
    }

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
            "ports": [api_server],
        },
    }


async def _create_placeholder(scope: ClusterScope) -> Obj:
    """Create the placeholder Service, with an address of a pool unless DHCP assigns one."""
    session = scope.require_session()
    name = scope.load_balancer_name

    # kube-vip interprets this address as a request for DHCP.
    address = "0.0.0.0"
    used = used_source(scope)
    if (used or requested_source(scope.obj["spec"])).ipam == "pool":
        # A recreated Service uses the former pool, whatever the spec says now.
        pool = used.pool if used else await ensure_load_balancer_pool(scope)
        # A recreated Service requests its former address, because the endpoint cannot change.
        address = await reserve_address(scope, pool, known_address(scope.obj))

    service = placeholder_service(scope, address)
    try:
        with refusals.block_on_refusal(f"create Service {scope.target_namespace}/{name}"):
            service = await session.client.create(SERVICES, service)
    except AlreadyExists:
        service = await session.client.get(SERVICES, name, scope.target_namespace)
    session.services.observe(service)
    return service
