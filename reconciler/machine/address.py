"""The machine's static address: reserved before its VM is made, given back after the VM is gone."""

from __future__ import annotations

from caphv.api.names import ConditionType, Reason
from reconciler import metrics
from reconciler.flow import Blocked
from reconciler.harvester import ipam
from reconciler.machine.network import (
    Network,
    PoolNetwork,
    StaticAddress,
    effective_network,
    serving_pools,
    with_address,
)
from reconciler.machine.scope import MachineScope


async def ensure_address(scope: MachineScope) -> Network:
    """Network of the VM, with an address reserved for it where it comes from a pool. Raises `Blocked` without one."""
    network = effective_network(scope.spec, scope.cluster_spec)
    if isinstance(network, StaticAddress):
        scope.draft.set_true(ConditionType.VM_IP_ALLOCATED)
        return network
    if not isinstance(network, PoolNetwork):
        return network
    session = scope.session()
    pools = serving_pools(network, list(session.pools.store), scope.spec.get("networks") or [])
    metrics.IPPOOL_ALLOCATIONS.inc()
    known = str(scope.draft.fields.get("allocatedIPAddress") or "")
    answer = await session.allocator.allocate(ipam.AddressRequest(scope.reservation, pools, known))
    if isinstance(answer, ipam.Refusal):
        metrics.IPPOOL_ALLOCATION_ERRORS.inc()
        for pool in pools:
            scope.context.waiters.wait(("pool", session.fingerprint, pool), scope.key)
        exhausted = answer.reason is ipam.Reason.EXHAUSTED
        raise Blocked(
            ConditionType.VM_IP_ALLOCATED,
            Reason.VM_IP_POOL_EXHAUSTED if exhausted else Reason.VM_IP_ALLOCATION_FAILED,
            answer.message,
            warn=True,
        )
    scope.draft.fields["allocatedIPAddress"] = answer.address
    scope.draft.fields["allocatedPoolRef"] = answer.pool
    scope.draft.set_true(ConditionType.VM_IP_ALLOCATED)
    return with_address(network, answer.address)


def recall_address(scope: MachineScope) -> None:
    """Put into the status which address a machine has whose VM exists, when the status does not say.

    A process that ended between reservation and status write leaves it in the pool alone.
    """
    if scope.draft.is_true(ConditionType.VM_IP_ALLOCATED):
        return
    network = effective_network(scope.spec, scope.cluster_spec)
    if isinstance(network, StaticAddress):
        scope.draft.set_true(ConditionType.VM_IP_ALLOCATED)
    if not isinstance(network, PoolNetwork):
        return
    for pool, address in _held(scope):
        if pool in network.pools:
            scope.draft.fields["allocatedIPAddress"] = address
            scope.draft.fields["allocatedPoolRef"] = pool
            scope.draft.set_true(ConditionType.VM_IP_ALLOCATED)


async def release_address(scope: MachineScope) -> None:
    """Give back every address that a pool holds under the machine's id.

    The pools are asked, not the status: a crash after the reservation leaves it in the pool alone.
    """
    for pool, address in _held(scope):
        if await scope.session().allocator.release(pool, address, scope.reservation):
            metrics.IPPOOL_RELEASES.inc()


def _held(scope: MachineScope) -> list[tuple[str, str]]:
    """Pool and address of all that is reserved under the machine's id."""
    return [
        (pool["metadata"]["name"], address)
        for pool in scope.session().pools.store
        for address, holder in ((pool.get("status") or {}).get("allocated") or {}).items()
        if holder == scope.reservation
    ]
