"""IPPools of a cluster: created from `ipPool` and deleted with the cluster, or referenced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caphv.api import ippool, resources
from caphv.api.names import ConditionType, Reason, generated_names
from caphv.api.object import Obj, key_of, uid_of
from caphv.runtime.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from caphv.validation.finding import did_you_mean
from reconciler import triggers
from reconciler.cluster import adoption
from reconciler.cluster.scope import ClusterScope
from reconciler.context import Context
from reconciler.harvester.identityaccount import command_for
from reconciler.harvester.ownership import Ownership, ownership_of, record, same_name
from reconciler.harvester.session import Session
from reconciler.machine.images import qualified
from reconciler.machine.network import PoolNetwork, effective_network
from reconciler.status import Blocked
from reconciler.triggers import Delay, Watched

LOAD_BALANCER_SUFFIX = "ippool"
VM_SUFFIX = "vm-ippool"


async def ensure_vm_pool(scope: ClusterScope) -> None:
    """Ensure that the pools for VM addresses exist; create the one in `vmNetworkConfig.ipPool` (contract)."""
    config = scope.obj["spec"].get("vmNetworkConfig")
    if not config:
        scope.draft.drop(ConditionType.VM_IP_POOL_READY)
        return
    if config.get("ipPool") and not (config.get("ipPoolRef") or config.get("ipPoolRefs")):
        name = await _ensure_pool(scope, VM_SUFFIX, config["ipPool"], ConditionType.VM_IP_POOL_READY)
        scope.draft.set_true(ConditionType.VM_IP_POOL_CREATED)
        await scope.patch_spec({"vmNetworkConfig": {"ipPoolRef": name}})
    await _adopt_created(scope, VM_SUFFIX, ConditionType.VM_IP_POOL_CREATED)
    network = effective_network({}, scope.obj["spec"])
    names = network.pools if isinstance(network, PoolNetwork) else ()
    session = scope.connected()
    # Not as a context manager: some pools may be missing while the cluster is ready.
    created = scope.subscribe(*(triggers.pool(session.fingerprint, name) for name in names))
    missing = [name for name in names if session.pools.get("", name) is None]
    if not missing:
        created.cancel()
        scope.draft.set_true(ConditionType.VM_IP_POOL_READY)
        return
    existing = [str(pool["metadata"]["name"]) for pool in session.pools.store]
    wrong = ", ".join(f"{name}{did_you_mean(name, existing).replace('; ', ', ')}" for name in missing)
    message = f"IPPool {wrong} of vmNetworkConfig does not exist on Harvester; create it or correct the name"
    if len(missing) == len(names):
        reason = Reason.VM_IP_POOL_NOT_FOUND
        raise Blocked(ConditionType.VM_IP_POOL_READY, reason, message, created, Watched.SELF, warn=True)
    scope.draft.set_true(ConditionType.VM_IP_POOL_READY, message)


async def ensure_load_balancer_pool(scope: ClusterScope) -> str:
    """Name of the pool for the control plane address; one described in `loadBalancerConfig.ipPool` is created."""
    config = scope.obj["spec"]["loadBalancerConfig"]
    if config.get("ipPool") and not config.get("ipPoolRef"):
        name = await _ensure_pool(scope, LOAD_BALANCER_SUFFIX, config["ipPool"], ConditionType.CUSTOM_IP_POOL_CREATED)
        scope.draft.set_true(ConditionType.CUSTOM_IP_POOL_CREATED)
        await scope.patch_spec({"loadBalancerConfig": {"ipPoolRef": name}})
    pool = load_balancer_pool(scope.obj["spec"])
    if pool:
        return pool
    raise Blocked(
        ConditionType.LOAD_BALANCER_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
        "loadBalancerConfig.ipamType is pool, but neither ipPoolRef nor ipPool is set; set one of them",
        Watched.SELF,
        warn=True,
    )


def load_balancer_pool(cluster_spec: Obj) -> str:
    """Name of the pool for the control plane address: its own, else the first of the machines; empty for none."""
    config = cluster_spec["loadBalancerConfig"]
    if config.get("ipPoolRef"):
        return str(config["ipPoolRef"]).rpartition("/")[2]
    network = effective_network({}, cluster_spec)
    return network.pools[0] if isinstance(network, PoolNetwork) and network.pools else ""


async def adopt_load_balancer_pool(scope: ClusterScope) -> None:
    """Adopt the pool of the control plane address if it was created for this cluster."""
    await _adopt_created(scope, LOAD_BALANCER_SUFFIX, ConditionType.CUSTOM_IP_POOL_CREATED)


async def delete_pool(scope: ClusterScope, condition: ConditionType, suffix: str) -> None:
    """Delete a pool that was created for this cluster."""
    session, pool = scope.connected(), _created(scope, suffix, condition)
    if pool is None:
        return
    name = pool["metadata"]["name"]
    try:
        await session.client.delete(resources.IP_POOLS, name, uid=uid_of(pool))
    except NotFound:
        session.pools.forget("", name)
    except (Forbidden, Invalid) as error:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"Harvester refuses to delete IPPool {name}: {error.message}{_remedy(scope, error)}",
            Delay(10.0),
            warn=True,
        ) from None


def used_pools(context: Context) -> Iterator[tuple[Session, list[str]]]:
    """The session of each HarvesterCluster, and the pools from which it and its machines take addresses."""
    for harvester_cluster in context.caches.harvester_clusters.store:
        session = context.sessions.of(key_of(harvester_cluster))
        if session is None:
            continue
        cluster = context.caches.cluster_of(harvester_cluster)
        machines = context.caches.machines_of(cluster) if cluster else []
        overrides = [spec for machine in machines if (spec := machine.get("spec") or {}).get("vmNetworkConfig")]
        networks = [effective_network(spec, harvester_cluster["spec"]) for spec in ({}, *overrides)]
        yield session, [name for network in networks if isinstance(network, PoolNetwork) for name in network.pools]


def pool_object(name: str, spec: dict[str, Any], namespace: str, annotations: dict[str, str]) -> Obj:
    """IPPool from `ipPool` of a HarvesterCluster with target namespace `namespace`.

    Harvester denies a bare network name. The CRD requires the counts, which Harvester's webhook corrects.
    """
    source = {field: spec[field] for field in ("subnet", "gateway", "rangeStart", "rangeEnd") if spec.get(field)}
    pool: Obj = {
        "apiVersion": resources.IP_POOLS.api_version,
        "kind": resources.IP_POOLS.kind,
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"ranges": [source]},
    }
    if spec.get("vmNetwork"):
        pool["spec"]["selector"] = {"network": "/".join(qualified(spec["vmNetwork"], namespace))}
    total = ippool.pool_capacity(pool)
    pool["status"] = {"total": total, "available": total, "lastAllocated": ""}
    return pool


async def _ensure_pool(scope: ClusterScope, suffix: str, spec: dict[str, Any], condition: ConditionType) -> str:
    session, name = scope.connected(), generated_names(scope.obj, suffix)[0]
    reason = _failure(condition)
    existing = session.pools.get("", name)
    if existing is None:
        try:
            pool = pool_object(name, spec, scope.target_namespace, record(scope.owner))
            existing = await session.client.create(resources.IP_POOLS, pool)
            scope.event("IPPoolCreated", f"created IPPool {name} on Harvester")
        except ippool.InvalidPoolError as error:
            raise Blocked(condition, reason, str(error), Watched.SELF, warn=True) from None
        except AlreadyExists:
            existing = await session.client.get(resources.IP_POOLS, name)
        except (Forbidden, Invalid) as error:
            message = f"Harvester refuses IPPool {name}: {error.message}{_remedy(scope, error)}"
            raise Blocked(condition, reason, message, Delay(60.0), warn=True) from None
        session.pools.observe(existing)
    with scope.subscribe(triggers.pool(session.fingerprint, name)) as changed:
        await adoption.adopt_or_refuse(scope, session.pools, existing, condition, reason, changed)
    return name


async def _adopt_created(scope: ClusterScope, suffix: str, condition: ConditionType) -> None:
    """Adopt a pool that was created for this cluster, and restore its condition, which a move loses."""
    pool = _created(scope, suffix, condition)
    if pool:
        session = scope.connected()
        with scope.subscribe(triggers.pool(session.fingerprint, pool["metadata"]["name"])) as changed:
            await adoption.adopt_or_refuse(scope, session.pools, pool, condition, _failure(condition), changed)
        scope.draft.set_true(condition)


def _created(scope: ClusterScope, suffix: str, condition: ConditionType) -> Obj | None:
    """The pool that was created for this cluster: by its record, or, without one, by the condition (contract)."""
    pools = (scope.connected().pools.get("", name) for name in generated_names(scope.obj, suffix))
    pool = next(filter(None, pools), None)
    if pool is None:
        return None
    ownership = ownership_of(pool, scope.owner)
    if ownership is Ownership.FOREIGN:
        return pool if same_name(pool, scope.owner) and adoption.may_adopt(scope, pool) else None
    return pool if ownership is Ownership.OURS or scope.draft.is_true(condition) else None


def _remedy(scope: ClusterScope, error: ApiError) -> str:
    return command_for(scope.target_namespace, pools=True) if isinstance(error, Forbidden) else ""


def _failure(condition: ConditionType) -> Reason:
    machines = condition in (ConditionType.VM_IP_POOL_READY, ConditionType.VM_IP_POOL_CREATED)
    return Reason.VM_IP_POOL_CREATION_FAILED if machines else Reason.CUSTOM_POOL_CREATION_FAILED
