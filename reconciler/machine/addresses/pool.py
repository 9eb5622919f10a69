"""Reserve the address of the first NIC in an IPPool on Harvester, before the VM is created."""

from __future__ import annotations

import logging
from dataclasses import replace

from caphv.api import ippool
from caphv.api.names import ConditionType, Reason
from caphv.api.ownership import former_owner
from caphv.runtime.errors import RequestError, Unauthorized, kind_of
from reconciler import metrics, triggers
from reconciler.blocked import Blocked
from reconciler.harvester import addressplan
from reconciler.machine.addresses import entries
from reconciler.machine.addresses.ipamplan import wanted_claims
from reconciler.machine.addresses.state import AddressState
from reconciler.machine.network import (
    InterfaceNetwork,
    Network,
    PoolNetwork,
    StaticAddress,
    effective_network,
    serving_pools,
    with_address,
)
from reconciler.machine.scope import MachineScope
from reconciler.triggers import Watched

log = logging.getLogger(__name__)


async def ensure_address(scope: MachineScope) -> Network:
    """Return the network of the VM, after reserving an address if it comes from a pool.

    Needs the machine's networks to be valid. Leaves address and pool in the status, and the
    condition to its caller. Raises `Blocked` if no pool has an address.
    """
    network = effective_network(scope.spec, scope.cluster_spec)
    if not isinstance(network, PoolNetwork):
        return network

    # Subscribe to all pools, because a user may correct the selector of a pool that does not serve
    # the machine yet.
    fingerprint = scope.session().fingerprint
    topics = [triggers.pool(fingerprint, pool) for pool in network.pools]
    with scope.subscribe(*topics) as changed:
        with metrics.IPPOOL_ALLOCATION_ERRORS.count_exceptions(RequestError):
            answer = await _allocate(scope, network)
        if isinstance(answer, addressplan.Refusal):
            metrics.IPPOOL_ALLOCATION_ERRORS.inc()
            is_exhausted = answer.reason is addressplan.RefusalReason.EXHAUSTED
            raise Blocked(
                ConditionType.VM_IP_ALLOCATED,
                Reason.VM_IP_POOL_EXHAUSTED if is_exhausted else Reason.VM_IP_ALLOCATION_FAILED,
                answer.message,
                changed,
                Watched.SELF,
                Watched.HARVESTER_CLUSTER,
                warn=True,
            )

    # An adopted address was logged by an earlier reconcile that did not write the status.
    if not answer.adopted:
        log.info("reserved address %s in IPPool %s", answer.address, answer.pool)
    _record_address(scope, answer.pool, answer.address)
    return with_address(network, answer.address)


async def _allocate(
    scope: MachineScope, network: PoolNetwork
) -> addressplan.Grant | addressplan.Refusal:
    """Reserve the address in the status again, or another one if no pool can serve it."""
    session = scope.session()
    pools = serving_pools(network, list(session.pools.store), scope.spec.get("networks") or [])
    metrics.IPPOOL_ALLOCATIONS.inc()
    address = str(scope.draft.fields.get("allocatedIPAddress") or "")

    former = former_owner(scope.obj, scope.owner)
    if former and not address:
        # The machine was backed up before its VM was created. Without our mark, the address that it
        # had reserved would stay reserved forever.
        await entries.adopt_addresses(scope, former.management_cluster)
    is_contested = await entries.is_contested_name(scope)

    request = addressplan.AddressRequest(
        scope.reservation, pools, address, entries.cluster_mark(scope), adopt=not is_contested
    )
    answer = await session.allocator.allocate(request)
    # The pool of the address may have been changed or removed. Another address is fine, because the
    # VM does not exist yet.
    if address and isinstance(answer, addressplan.Refusal) and answer.reason in entries.ANOTHER:
        own = scope.reservation
        await entries.give_up(scope, lambda entry: (entry.holder, entry.address) == (own, address))
        del scope.draft.fields["allocatedIPAddress"]
        scope.draft.fields.pop("allocatedPoolRef", None)
        answer = await session.allocator.allocate(replace(request, address=""))
    return answer


async def restore_address(scope: MachineScope) -> AddressState:
    """Restore the address of a machine with a VM in its status and in the pool.

    Returns a failure and continues, because the VM keeps its address anyway.
    """
    network = effective_network(scope.spec, scope.cluster_spec)
    is_allocated = scope.draft.is_true(ConditionType.VM_IP_ALLOCATED)
    is_static = isinstance(network, StaticAddress | InterfaceNetwork)
    # `check_address_claims` decides about a machine with claims.
    if is_static and not is_allocated and not wanted_claims(scope.name, scope.spec):
        return AddressState(is_reserved=True)
    if not isinstance(network, PoolNetwork):
        return AddressState()

    # If a process ended between two writes, the pool has the address but the status does not.
    fields = scope.draft.fields
    candidates = filter(None, (fields.get("allocatedPoolRef"), *network.pools))
    configured = tuple(dict.fromkeys(candidates))
    if not fields.get("allocatedIPAddress"):
        for entry in await entries.held_entries(scope):
            if entry.pool in configured and entry.holder == scope.reservation:
                _record_address(scope, entry.pool, entry.address)

    # If a user or another client has removed the entry, the status has the address but the pool
    # does not, and the pool would allocate the address of a running VM again.
    address = str(fields.get("allocatedIPAddress") or "")
    pool = _holding_pool(scope, configured, address) if address else ""
    if address and not pool and (pools := _pools_with_range(scope, configured, address)):
        return await _reserve_again(scope, pools, address)

    scope.memory.reservation.reset()
    if is_allocated:
        return AddressState()
    if pool:
        _record_address(scope, pool, address)
    # Without a pool, the machine waited for an address until its VM was adopted.
    return AddressState(is_reserved=bool(pool))


def _record_address(scope: MachineScope, pool: str, address: str) -> None:
    scope.draft.fields["allocatedIPAddress"] = address
    scope.draft.fields["allocatedPoolRef"] = pool


def _holding_pool(scope: MachineScope, configured: tuple[str, ...], address: str) -> str:
    """Return the pool that holds an address for the machine, empty for none.

    :param configured: names of the pools that the machine may use
    """
    # Use only the cache, because this runs in every reconcile.
    cached = scope.session().pools
    for name in configured:
        pool = cached.get("", name)
        if pool and ippool.holds(pool, address, scope.reservation, entries.cluster_mark(scope)):
            return name
    return ""


def _pools_with_range(
    scope: MachineScope, configured: tuple[str, ...], address: str
) -> tuple[str, ...]:
    """Return the pools in which an address can be reserved again.

    :param configured: names of the pools that the machine may use
    """
    session = scope.session()
    pools = {name: session.pools.get("", name) for name in configured}
    missing = [name for name, pool in pools.items() if pool is None]
    # The subscription outlives this reconcile, which does not wait for the missing pools.
    scope.subscribe(*(triggers.pool(session.fingerprint, name) for name in missing))
    return tuple(name for name, pool in pools.items() if pool and ippool.contains(pool, address))


async def _reserve_again(scope: MachineScope, pools: tuple[str, ...], address: str) -> AddressState:
    """Reserve the address of a running VM in one of these pools.

    Raises `Unauthorized`, because no other request would succeed either.
    """
    session = scope.session()
    changed = scope.subscribe(*(triggers.pool(session.fingerprint, pool) for pool in pools))
    request = addressplan.AddressRequest(
        scope.reservation, pools, address, entries.cluster_mark(scope)
    )
    try:
        answer = await session.allocator.allocate(request)
    except Unauthorized:
        raise
    except RequestError as error:
        # The other steps do not wait for a pool that cannot be written now.
        kind = kind_of(error)
        problem = f"{kind}; the log of the provider says more"
        failure = f"cannot reserve address {address} again in IPPool {', '.join(pools)}: {problem}"
        log.info("cannot reserve address %s again: %s", address, error)
        # Retry after a time, because the failure may end without a change of the pool.
        scope.requeue_in(scope.memory.reservation.retry_after(kind))
        return AddressState((failure,))

    scope.memory.reservation.reset()
    if isinstance(answer, addressplan.Refusal):
        return AddressState((answer.message,))
    changed.cancel()
    _record_address(scope, answer.pool, address)
    message = f"IPPool {answer.pool} no longer had address {address} of this machine"
    scope.event("AddressReservedAgain", f"{message}; reserved it again")
    return AddressState(is_reserved=True)
