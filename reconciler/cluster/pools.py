"""IPPools that a cluster asks for: made from `ipPool`, or looked up; those that we made go with the cluster."""

from __future__ import annotations

from typing import Any

from caphv.api import names
from caphv.api.names import ConditionType, Reason
from caphv.runtime.errors import AlreadyExists, ApiError, Conflict, NotFound
from caphv.runtime.resource import Obj, annotations_of
from reconciler import resources
from reconciler.cluster.scope import ClusterScope, pool_name
from reconciler.flow import Blocked
from reconciler.harvester import ipam
from reconciler.harvester.ownership import Ownership, owned_by, record
from reconciler.machine.network import PoolNetwork, effective_network

LOAD_BALANCER_SUFFIX = "ippool"
VM_SUFFIX = "vm-ippool"


async def ensure_vm_pool(scope: ClusterScope) -> None:
    """The pools for VM addresses exist; one described in `vmNetworkConfig.ipPool` is created (contract)."""
    config = scope.obj["spec"].get("vmNetworkConfig")
    if not config:
        scope.draft.drop(ConditionType.VM_IP_POOL_READY)
        return
    if config.get("ipPool") and not (config.get("ipPoolRef") or config.get("ipPoolRefs")):
        name = pool_name(scope.obj, VM_SUFFIX)
        await _ensure_pool(scope, name, config["ipPool"], ConditionType.VM_IP_POOL_READY)
        scope.draft.set_true(ConditionType.VM_IP_POOL_CREATED)
        await scope.patch_spec({"vmNetworkConfig": {"ipPoolRef": name}})
    network = effective_network({}, scope.obj["spec"])
    names = network.pools if isinstance(network, PoolNetwork) else ()
    missing = [name for name in names if scope.connected().pools.get("", name) is None]
    if missing:
        for name in missing:
            scope.context.waiters.wait(("pool", scope.connected().fingerprint, name), scope.key)
        message = (
            f"IPPool {', '.join(missing)} of vmNetworkConfig does not exist on Harvester; create it or correct the name"
        )
        if len(missing) == len(names):
            raise Blocked(ConditionType.VM_IP_POOL_READY, Reason.VM_IP_POOL_CREATION_FAILED, message, warn=True)
        scope.draft.set_true(ConditionType.VM_IP_POOL_READY, message)
        return
    scope.draft.set_true(ConditionType.VM_IP_POOL_READY)


async def ensure_load_balancer_pool(scope: ClusterScope) -> str:
    """Name of the pool for the control plane address; one described in `loadBalancerConfig.ipPool` is created."""
    config = scope.obj["spec"]["loadBalancerConfig"]
    if config.get("ipPoolRef"):
        return str(config["ipPoolRef"]).rpartition("/")[2]
    if config.get("ipPool"):
        name = pool_name(scope.obj, LOAD_BALANCER_SUFFIX)
        await _ensure_pool(scope, name, config["ipPool"], ConditionType.CUSTOM_IP_POOL_CREATED)
        scope.draft.set_true(ConditionType.CUSTOM_IP_POOL_CREATED)
        await scope.patch_spec({"loadBalancerConfig": {"ipPoolRef": name}})
        return name
    network = effective_network({}, scope.obj["spec"])
    if isinstance(network, PoolNetwork) and network.pools:
        return network.pools[0]
    raise Blocked(
        ConditionType.LOAD_BALANCER_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
        "loadBalancerConfig.ipamType is pool, but neither ipPoolRef nor ipPool says which; set one of them",
        warn=True,
    )


async def delete_pool(scope: ClusterScope, condition: ConditionType, suffix: str) -> None:
    """Delete a pool that we made, marked by its condition (contract); answers once it is gone."""
    if not scope.draft.is_true(condition):
        return
    session, name = scope.connected(), pool_name(scope.obj, suffix)
    pool = session.pools.get("", name)
    if pool is None or owned_by(pool, scope.owner) is Ownership.FOREIGN:
        return
    try:
        await session.client.delete(resources.IP_POOLS, name, uid=pool["metadata"]["uid"])
    except (NotFound, Conflict):
        session.pools.forget("", name)
        return
    except ApiError as error:
        if error.status not in (400, 403, 422):
            raise
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"Harvester does not delete IPPool {name}: {error.message}",
            warn=True,
            after=10,
        ) from None


def pool_object(name: str, spec: dict[str, Any], annotations: dict[str, str]) -> Obj:
    """IPPool from the description in a HarvesterCluster. Harvester's webhook counts it; the CRD wants the fields."""
    source = {field: spec[field] for field in ("subnet", "gateway", "rangeStart", "rangeEnd") if spec.get(field)}
    pool: Obj = {
        "apiVersion": resources.IP_POOLS.api_version,
        "kind": resources.IP_POOLS.kind,
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"ranges": [source]},
    }
    if spec.get("vmNetwork"):
        pool["spec"]["selector"] = {"network": spec["vmNetwork"]}
    total = ipam.pool_capacity(pool)
    pool["status"] = {"total": total, "available": total, "lastAllocated": ""}
    return pool


async def _ensure_pool(scope: ClusterScope, name: str, spec: dict[str, Any], condition: ConditionType) -> None:
    session = scope.connected()
    existing = session.pools.get("", name)
    reason = (
        Reason.CUSTOM_POOL_CREATION_FAILED
        if condition is ConditionType.CUSTOM_IP_POOL_CREATED
        else Reason.VM_IP_POOL_CREATION_FAILED
    )
    if existing is None:
        try:
            pool = pool_object(name, spec, record(scope.owner))
            session.pools.observe(await session.client.create(resources.IP_POOLS, pool))
        except ipam.InvalidPoolError as error:
            raise Blocked(condition, reason, str(error), warn=True) from None
        except AlreadyExists:
            existing = await session.client.get(resources.IP_POOLS, name)
            session.pools.observe(existing)
        except ApiError as error:
            if error.status not in (400, 403, 422):
                raise
            message = f"Harvester refuses IPPool {name}: {error.message}"
            raise Blocked(condition, reason, message, warn=True, after=60) from None
        else:
            scope.tell("IPPoolCreated", f"created IPPool {name} on Harvester")
    if existing and owned_by(existing, scope.owner) is Ownership.FOREIGN:
        owner = annotations_of(existing).get(names.OWNER_ANNOTATION, "somebody else")
        raise Blocked(condition, reason, f"IPPool {name} exists and belongs to {owner}", warn=True)
