"""The machine's static address: reserved before its VM is created, released after the VM was deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from caphv.api import ippool, names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, annotations_of, key_of
from caphv.runtime.errors import ApiError, Conflict, Forbidden, Unauthorized, Unreachable, kind_of
from reconciler import metrics, triggers
from reconciler.harvester import ipam
from reconciler.harvester.ownership import former_owner, record
from reconciler.machine.network import (
    Network,
    PoolNetwork,
    StaticAddress,
    effective_network,
    serving_pools,
    with_address,
)
from reconciler.machine.scope import MachineScope
from reconciler.status import Blocked
from reconciler.triggers import Watched

log = logging.getLogger(__name__)

# Characters of a management cluster's uid that mark its addresses: random, and short for pools of thousands.
_SHORT = 8
# Refusals of a machine's own address after which another one may be free.
_ANOTHER = (ipam.RefusalReason.EXHAUSTED, ipam.RefusalReason.TAKEN)
# Pool, address, and whether the machine certainly holds it.
_Entry = tuple[str, str, bool]


async def ensure_address(scope: MachineScope) -> Network:
    """Network of the VM, with an address reserved if it comes from a pool. Raises `Blocked` if there is none."""
    network = effective_network(scope.spec, scope.cluster_spec)
    if isinstance(network, StaticAddress):
        scope.draft.set_true(ConditionType.VM_IP_ALLOCATED)
        return network
    if not isinstance(network, PoolNetwork):
        return network
    session = scope.session()
    # All pools, also those that do not serve the machine yet: their selector may be corrected.
    with scope.subscribe(*(triggers.pool(session.fingerprint, pool) for pool in network.pools)) as changed:
        answer = await _allocate(scope, network)
        if isinstance(answer, ipam.Refusal):
            metrics.IPPOOL_ALLOCATION_ERRORS.inc()
            exhausted = answer.reason is ipam.RefusalReason.EXHAUSTED
            raise Blocked(
                ConditionType.VM_IP_ALLOCATED,
                Reason.VM_IP_POOL_EXHAUSTED if exhausted else Reason.VM_IP_ALLOCATION_FAILED,
                answer.message,
                changed,
                Watched.SELF,
                Watched.HARVESTER_CLUSTER,
                warn=True,
            )
    if not answer.adopted:  # a reconcile before the status was written finds the same one
        log.info("reserved address %s in IPPool %s", answer.address, answer.pool)
    _reserved(scope, answer.pool, answer.address)
    return with_address(network, answer.address)


async def _allocate(scope: MachineScope, network: PoolNetwork) -> ipam.Grant | ipam.Refusal:
    session = scope.session()
    pools = serving_pools(network, list(session.pools.store), scope.spec.get("networks") or [])
    metrics.IPPOOL_ALLOCATIONS.inc()
    known = str(scope.draft.fields.get("allocatedIPAddress") or "")
    former = former_owner(scope.obj, scope.owner)
    if former and not known:
        # Restored before its VM was created: what it had reserved would be reserved forever.
        await adopt_address(scope, former.management_cluster)
    contested = await _contested(scope, _entries(scope, scope.owner.management_cluster))
    request = ipam.AddressRequest(scope.reservation, pools, known, _cluster(scope), adopt=not contested)
    answer = await session.allocator.allocate(request)
    if known and isinstance(answer, ipam.Refusal) and answer.reason in _ANOTHER:
        await _give_up(scope, known)
        answer = await session.allocator.allocate(replace(request, address=""))
    return answer


async def _give_up(scope: MachineScope, address: str) -> None:
    """Release the address of a machine without a VM: nothing uses it, and its pools cannot serve it any more.

    Raises `Blocked` or `Conflict` if a VM may exist.
    """
    scope.current_namespace()
    if await scope.live_vm() is not None:
        raise Conflict(409, "Conflict", f"VirtualMachine {scope.target_namespace}/{scope.name} was created; retrying")
    await _release(scope, [entry for entry in await _held(scope) if entry[1] == address])
    del scope.draft.fields["allocatedIPAddress"]
    scope.draft.fields.pop("allocatedPoolRef", None)


async def restore_address(scope: MachineScope) -> None:
    """Restore the address of a machine with a VM: in its status from the pool, and in the pool from its status.

    A process that ended between reservation and status write leaves the address only in the pool. Users and other
    clients remove entries of pools, and the address of a running VM would be allocated again.
    """
    network = effective_network(scope.spec, scope.cluster_spec)
    known = scope.draft.is_true(ConditionType.VM_IP_ALLOCATED)
    if isinstance(network, StaticAddress) and not known:
        scope.draft.set_true(ConditionType.VM_IP_ALLOCATED)
    if not isinstance(network, PoolNetwork):
        return
    fields = scope.draft.fields
    configured = tuple(dict.fromkeys(filter(None, (fields.get("allocatedPoolRef"), *network.pools))))
    if not known:
        for pool, address in await _held(scope):
            if pool in configured:
                _reserved(scope, pool, address)
    address = str(fields.get("allocatedIPAddress") or "")
    pools = _lacking(scope, configured, address) if address else ()
    if pools:
        await _reserve_again(scope, pools, address)
        return
    scope.memory.reservation.ended()
    if not scope.draft.is_true(ConditionType.VM_IP_ALLOCATED):
        # It waited for an address when its VM was adopted, and does not any more.
        scope.draft.drop(ConditionType.VM_IP_ALLOCATED)


def _reserved(scope: MachineScope, pool: str, address: str) -> None:
    scope.draft.fields["allocatedIPAddress"] = address
    scope.draft.fields["allocatedPoolRef"] = pool
    scope.draft.set_true(ConditionType.VM_IP_ALLOCATED)


def _lacking(scope: MachineScope, configured: tuple[str, ...], address: str) -> tuple[str, ...]:
    """Those of these pools that serve an address, if none of them has it for the machine. From the cache alone."""
    session = scope.session()
    pools = {name: session.pools.get("", name) for name in configured}
    if any(pool and address in ippool.held(pool, scope.reservation, _cluster(scope)) for pool in pools.values()):
        return ()
    missing = [name for name, pool in pools.items() if pool is None]
    # Not as a context manager: the machine needs none of them now.
    scope.subscribe(*(triggers.pool(session.fingerprint, name) for name in missing))
    return tuple(name for name, pool in pools.items() if pool and ippool.contains(pool, address))


async def _reserve_again(scope: MachineScope, pools: tuple[str, ...], address: str) -> None:
    """Reserve the address of a running VM in one of these pools, or report why that fails: the VM keeps it anyway."""
    session = scope.session()
    changed = scope.subscribe(*(triggers.pool(session.fingerprint, pool) for pool in pools))
    request = ipam.AddressRequest(scope.reservation, pools, address, _cluster(scope))
    try:
        answer = await session.allocator.allocate(request)
    except Unauthorized:
        raise  # not the pool's fault: nothing else works either
    except (ApiError, Unreachable) as error:
        # The machine works, so that the rest of its reconcile does not wait for a pool that cannot be written now.
        kind = kind_of(error)
        why = f"{kind}; the log of the provider says more"
        failure = f"cannot reserve address {address} again in IPPool {', '.join(pools)}: {why}"
        log.info("cannot reserve address %s again: %s", address, error)
        # No change of the pool may end it.
        scope.requeue_after = scope.memory.reservation.retry_after(kind)
    else:
        scope.memory.reservation.ended()
        if isinstance(answer, ipam.Grant):
            changed.cancel()
            _reserved(scope, answer.pool, address)
            message = f"IPPool {answer.pool} no longer had address {address} of this machine"
            scope.event("AddressReservedAgain", f"{message}; reserved it again")
            return
        failure = answer.message
    if not scope.draft.has_message(ConditionType.VM_IP_ALLOCATED, failure):
        metrics.IPPOOL_ALLOCATION_ERRORS.inc()
        scope.warning_event(Reason.VM_IP_ALLOCATION_FAILED, failure)
    scope.draft.set_false(ConditionType.VM_IP_ALLOCATED, Reason.VM_IP_ALLOCATION_FAILED, failure)


async def release_address(scope: MachineScope, *, foreign_vm: bool) -> None:
    """Release every address that a pool holds for the machine's id.

    With `foreign_vm`, the VM of the machine's name belongs to another owner and may use the address: only entries with
    this management cluster's mark are released.

    Pools are read instead of the status: a crash after the reservation leaves the address only in the pool.
    """
    await scope.session().allocator.settle({scope.reservation})
    await _release(scope, _marked(scope) if foreign_vm else await _held(scope))


async def _release(scope: MachineScope, entries: Iterable[tuple[str, str]]) -> None:
    for pool, address in entries:
        if await scope.session().allocator.release(pool, address, scope.reservation, _cluster(scope)):
            metrics.IPPOOL_RELEASES.inc()
            log.info("released address %s in IPPool %s", address, pool)


async def adopt_address(scope: MachineScope, before: str) -> None:
    """Mark addresses that management cluster `before` (its uid) reserved for this machine as ours."""
    allocator = scope.session().allocator
    for pool, address, _ in _entries(scope, before):
        await allocator.mark(pool, address, _cluster(scope))


async def _held(scope: MachineScope) -> list[tuple[str, str]]:
    """Pool and address of all reservations of the machine."""
    entries = list(_entries(scope, scope.owner.management_cluster))
    contested = await _contested(scope, entries)
    return [(pool, address) for pool, address, proven in entries if proven or not contested]


def _marked(scope: MachineScope) -> list[tuple[str, str]]:
    """Pool and address of all reservations with this management cluster's mark."""
    short = _cluster(scope)
    return [
        (pool["metadata"]["name"], address)
        for pool in scope.session().pools.store
        for address, marked in ippool.held(pool, scope.reservation, short).items()
        if marked
    ]


async def _contested(scope: MachineScope, entries: Iterable[_Entry]) -> bool:
    """Whether one of these entries may belong to a machine of that name in another management cluster.

    Marks decide. For an unmarked entry, of the Go provider or made by hand, look for such a VM on Harvester.
    """
    if all(proven for _, _, proven in entries):
        return False
    try:
        found = await scope.session().client.list(
            resources.VIRTUAL_MACHINES, field_selector=f"metadata.name={scope.name}"
        )
    except Forbidden:
        return True  # credentials for some namespaces only
    return any(_may_hold(scope, vm) for vm in found.get("items") or ())


def _may_hold(scope: MachineScope, vm: Obj) -> bool:
    """Whether a VM that is not the machine's may use addresses under the machine's id."""
    if key_of(vm) == Key(scope.target_namespace, scope.name):
        return False
    ours = record(scope.owner)[names.OWNER_ANNOTATION]
    return annotations_of(vm).get(names.OWNER_ANNOTATION, ours) == ours


def _entries(scope: MachineScope, management_cluster: str) -> Iterator[_Entry]:
    """All entries that may be the machine's."""
    known = scope.draft.fields.get("allocatedIPAddress")
    for pool in scope.session().pools.store:
        for address, marked in ippool.held(pool, scope.reservation, management_cluster[:_SHORT]).items():
            yield pool["metadata"]["name"], address, marked or address == known


def _cluster(scope: MachineScope) -> str:
    return scope.owner.management_cluster[:_SHORT]
