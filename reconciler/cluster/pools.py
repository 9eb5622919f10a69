"""IPPools of a cluster, which the provider creates from `ipPool` or the spec references."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import interfaces, ippool, resources
from caphv.api.counting import and_more
from caphv.api.guestparts import guest_name, service_of
from caphv.api.names import (
    POOL_SUFFIX,
    VM_POOL_SUFFIX,
    ConditionType,
    Reason,
    generated_names,
)
from caphv.api.object import Obj, dict_at, key_of, uid_of
from caphv.api.ownership import Ownership, ownership_of, record, same_name
from caphv.runtime.errors import AlreadyExists, ApiError, Forbidden, Invalid, NotFound
from caphv.validation.finding import did_you_mean
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.cluster import adoption
from reconciler.cluster.scope import ClusterScope
from reconciler.context import Context
from reconciler.harvester.poolmetrics import UsedPools
from reconciler.harvester.rights import command_for
from reconciler.machine.images import split_reference
from reconciler.machine.network import PoolNetwork, effective_network
from reconciler.triggers import Delay, Watched


async def ensure_vm_pool(scope: ClusterScope) -> None:
    """Ensure that a pool for VM addresses exists, and create the pool in the spec (contract).

    Raises `Blocked` if no pool exists, because no machine can be created without an address.
    """
    config = scope.obj["spec"].get("vmNetworkConfig")
    if not config:
        scope.draft.drop(ConditionType.VM_IP_POOL_READY)
        return

    # Create the pool that the spec describes only once, before the spec has a reference to it.
    if config.get("ipPool") and not (config.get("ipPoolRef") or config.get("ipPoolRefs")):
        name = await _ensure_pool(
            scope, VM_POOL_SUFFIX, config["ipPool"], ConditionType.VM_IP_POOL_READY
        )
        scope.draft.set_true(ConditionType.VM_IP_POOL_CREATED)
        await scope.patch_spec({"vmNetworkConfig": {"ipPoolRef": name}})
    await _adopt_pool(scope, VM_POOL_SUFFIX, ConditionType.VM_IP_POOL_CREATED)

    network = effective_network({}, scope.obj["spec"])
    names = network.pools if isinstance(network, PoolNetwork) else ()
    session = scope.require_session()
    # The subscription outlives this reconcile, because some pools may be missing while the cluster
    # is ready.
    created = scope.subscribe(*(triggers.pool(session.fingerprint, name) for name in names))
    missing = [name for name in names if session.pools.get("", name) is None]
    if not missing:
        created.cancel()
        scope.draft.set_true(ConditionType.VM_IP_POOL_READY)
        return

    existing = [str(pool["metadata"]["name"]) for pool in session.pools.store]
    misspelt = ", ".join(
        f"{name}{did_you_mean(name, existing).replace('; ', ', ')}" for name in missing
    )
    message = (
        f"IPPool {misspelt} of vmNetworkConfig does not exist on Harvester; create it or correct "
        "the name"
    )
    # One pool is enough to create machines, so the others are only reported.
    if len(missing) == len(names):
        reason = Reason.VM_IP_POOL_NOT_FOUND
        raise Blocked(
            ConditionType.VM_IP_POOL_READY, reason, message, created, Watched.SELF, warn=True
        )
    scope.draft.set_true(ConditionType.VM_IP_POOL_READY, message)


async def ensure_load_balancer_pool(scope: ClusterScope) -> str:
    """Return the pool for the control plane address, and create it if the spec describes one.

    Raises `Blocked` if the spec names no pool.
    """
    config = scope.obj["spec"]["loadBalancerConfig"]
    if config.get("ipPool") and not config.get("ipPoolRef"):
        name = await _ensure_pool(
            scope, POOL_SUFFIX, config["ipPool"], ConditionType.CUSTOM_IP_POOL_CREATED
        )
        scope.draft.set_true(ConditionType.CUSTOM_IP_POOL_CREATED)
        await scope.patch_spec({"loadBalancerConfig": {"ipPoolRef": name}})

    pool = load_balancer_pool(scope.obj["spec"])
    if pool:
        return pool
    raise Blocked(
        ConditionType.LOAD_BALANCER_READY,
        Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
        "loadBalancerConfig.ipamType is pool, but neither ipPoolRef nor ipPool is set; set one of "
        "them",
        Watched.SELF,
        warn=True,
    )


def load_balancer_pool(cluster_spec: Obj) -> str:
    """Return the name of the pool for the control plane address, empty for none.

    A pool only for this address takes precedence over the first pool of the machines.
    """
    config = cluster_spec["loadBalancerConfig"]
    if config.get("ipPoolRef"):
        # Users write `<namespace>/<name>`, too, although pools are cluster-scoped.
        return str(config["ipPoolRef"]).rpartition("/")[2]
    network = effective_network({}, cluster_spec)
    return network.pools[0] if isinstance(network, PoolNetwork) and network.pools else ""


async def adopt_load_balancer_pool(scope: ClusterScope) -> None:
    """Adopt the pool of the control plane address if it was created for this cluster."""
    await _adopt_pool(scope, POOL_SUFFIX, ConditionType.CUSTOM_IP_POOL_CREATED)


async def delete_pool(scope: ClusterScope, condition: ConditionType, suffix: str) -> None:
    """Delete a pool that was created for this cluster.

    Raises `Blocked` while others hold addresses of it, or if Harvester refuses.
    """
    session = scope.require_session()
    pool = _created_pool(scope, suffix, condition)
    if pool is None:
        return

    name = pool["metadata"]["name"]
    await _require_unused(scope, pool)

    try:
        await session.client.delete(resources.IP_POOLS, name, uid=uid_of(pool))
    except NotFound:
        session.pools.forget("", name)
    except (Forbidden, Invalid) as error:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"Harvester refuses to delete IPPool {name}: {error.message}{_remedy(scope, error)}",
            Delay(60.0),
            warn=True,
        ) from None


async def _require_unused(scope: ClusterScope, pool: Obj) -> None:
    """Raise `Blocked` while a pool has allocated addresses: Harvester would refuse its deletion.

    The pool requeues the cluster when one of them is released.
    """
    session = scope.require_session()
    name = pool["metadata"]["name"]
    with scope.subscribe(triggers.pool(session.fingerprint, name)) as released:
        if not _allocated(pool):
            return
        # The cache may not have what was released a moment ago, by us or by Harvester.
        allocated = _allocated(await session.pools.read("", name))
        if not allocated:
            return

        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.IP_POOL_IN_USE,
            f"IPPool {name} was created for this cluster, and "
            f"{_describe_holders(scope, allocated)}; delete them or give them addresses of another "
            "IPPool; caphv pools audit finds holders that no longer exist",
            released,
            warn=True,
        )


def _allocated(pool: Obj | None) -> dict[str, str]:
    """Return the holders of addresses by address, none without a pool."""
    allocated: dict[str, str] = dict_at(pool, "status", "allocated")
    return allocated


def _describe_holders(scope: ClusterScope, allocated: dict[str, str]) -> str:
    """Return a text that names the first holders of addresses."""
    holders = [
        f"{_describe_holder(scope, holder)} has address {address}"
        for address, holder in sorted(allocated.items())[:5]
    ]
    others = and_more(len(allocated) - 5)
    return ", ".join(holders) + (f"{others} have others" if others else "")


def _describe_holder(scope: ClusterScope, holder: str) -> str:
    """Return what the holder of an address is, as far as it can be found out."""
    namespace, _, name = holder.partition("/")
    for watched in scope.require_session().namespaces.values():
        balancer = watched.load_balancers.get(namespace, name)
        if balancer is None:
            continue
        service = service_of(balancer)
        guest = guest_name(balancer)
        if service and guest:
            return f"Service {service} of guest {guest} (LoadBalancer {holder})"
        return f"LoadBalancer {holder}"
    # The name of a machine of the Go provider may look like the id of an interface.
    for machine in (name, ippool.machine_holder(name)):
        if scope.context.caches.harvester_machines.get(namespace, machine):
            return f"HarvesterMachine {namespace}/{machine}"
    return holder


def used_pools(context: Context) -> Iterator[UsedPools]:
    """Yield the session of each HarvesterCluster, and the pools that it uses."""
    for harvester_cluster in context.caches.harvester_clusters.store:
        session = context.sessions.of(key_of(harvester_cluster))
        if session is None:
            continue

        # The network of the cluster, and of each machine that overrides it.
        specs: list[Obj] = [{}]
        pools: list[str] = []
        cluster = context.caches.cluster_of(harvester_cluster)
        machines = context.caches.machines_of(cluster) if cluster else []
        for machine in machines:
            spec = machine.get("spec") or {}
            if spec.get("vmNetworkConfig"):
                specs.append(spec)
            pools += [name for _, _, name in interfaces.harvester_pools(spec)]

        for spec in specs:
            network = effective_network(spec, harvester_cluster["spec"])
            if isinstance(network, PoolNetwork):
                pools += network.pools
        yield UsedPools(session, pools)


def pool_object(name: str, spec: Obj, namespace: str, annotations: dict[str, str]) -> Obj:
    """Return the IPPool that `ipPool` of a HarvesterCluster describes.

    :param name: name of the IPPool
    :param spec: `ipPool` of the HarvesterCluster
    :param namespace: target namespace of the HarvesterCluster
    :param annotations: owner record of the HarvesterCluster
    """
    fields = ("subnet", "gateway", "rangeStart", "rangeEnd")
    addresses = {field: spec[field] for field in fields if spec.get(field)}

    pool: Obj = {
        "apiVersion": resources.IP_POOLS.api_version,
        "kind": resources.IP_POOLS.kind,
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"ranges": [addresses]},
    }
    # Harvester denies a bare network name.
    if spec.get("vmNetwork"):
        pool["spec"]["selector"] = {
            "network": "/".join(split_reference(spec["vmNetwork"], namespace))
        }

    # The CRD requires the counts, which Harvester's webhook corrects.
    total = ippool.pool_capacity(pool)
    pool["status"] = {"total": total, "available": total, "lastAllocated": ""}
    return pool


async def _ensure_pool(
    scope: ClusterScope, suffix: str, spec: Obj, condition: ConditionType
) -> str:
    """Create or adopt the pool that the spec describes, and return its name.

    :param suffix: the end of the pool's name
    :param spec: `ipPool` of the HarvesterCluster
    :param condition: the condition that reports why the pool cannot be created
    """
    session = scope.require_session()
    name = generated_names(scope.obj, suffix)[0]
    reason = _failure_reason(condition)
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


async def _adopt_pool(scope: ClusterScope, suffix: str, condition: ConditionType) -> None:
    """Adopt a pool that was created for this cluster, and restore its condition.

    A move of the cluster loses the condition.
    """
    pool = _created_pool(scope, suffix, condition)
    if pool is None:
        return
    session = scope.require_session()
    reason = _failure_reason(condition)
    topic = triggers.pool(session.fingerprint, pool["metadata"]["name"])
    with scope.subscribe(topic) as changed:
        await adoption.adopt_or_refuse(scope, session.pools, pool, condition, reason, changed)
    scope.draft.set_true(condition)


def _created_pool(scope: ClusterScope, suffix: str, condition: ConditionType) -> Obj | None:
    """Return the pool that was created for this cluster, None if there is none.

    The record on the pool decides. For a pool without a record, the condition does (contract).
    """
    pools = (
        scope.require_session().pools.get("", name) for name in generated_names(scope.obj, suffix)
    )
    pool = next(filter(None, pools), None)
    if pool is None:
        return None
    ownership = ownership_of(pool, scope.owner)
    if ownership is Ownership.FOREIGN:
        return pool if same_name(pool, scope.owner) and adoption.may_adopt(scope, pool) else None
    return pool if ownership is Ownership.OURS or scope.draft.is_true(condition) else None


def _remedy(scope: ClusterScope, error: ApiError) -> str:
    return command_for(scope.target_namespace, pools=True) if isinstance(error, Forbidden) else ""


def _failure_reason(condition: ConditionType) -> Reason:
    machines = condition in (ConditionType.VM_IP_POOL_READY, ConditionType.VM_IP_POOL_CREATED)
    return Reason.VM_IP_POOL_CREATION_FAILED if machines else Reason.CUSTOM_POOL_CREATION_FAILED
