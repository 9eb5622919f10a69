"""Reserve the machine's static address before its VM is created, and release it after the VM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from caphv.api import ippool, names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, annotations_of, key_of
from caphv.api.ownership import former_owner, record
from caphv.runtime.errors import Conflict, Forbidden, RequestError, Unauthorized, kind_of
from reconciler import metrics, triggers
from reconciler.harvester import addressplan
from reconciler.machine.addressclaims import wanted_claims
from reconciler.machine.addressstate import AddressState
from reconciler.machine.guestinterfaces import recorded_addresses, wanted_addresses
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
from reconciler.status import Blocked
from reconciler.triggers import Watched

log = logging.getLogger(__name__)

# So many characters of a management cluster's uid mark its addresses. They are random enough, and
# short enough for pools with thousands of addresses.
_SHORT = 8
ANOTHER = (addressplan.RefusalReason.EXHAUSTED, addressplan.RefusalReason.TAKEN)
"""If its own address is refused for these reasons, a machine may get another one."""


class Entry(NamedTuple):
    """An address that a pool holds for the machine, and whether that is certain.

    `holder` is the id of the machine, or that of an address of a single interface.
    """

    pool: str
    address: str
    holder: str
    proven: bool


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
        await adopt_address(scope, former.management_cluster)
    is_contested = await is_contested_name(scope)

    request = addressplan.AddressRequest(
        scope.reservation, pools, address, cluster_mark(scope), adopt=not is_contested
    )
    answer = await session.allocator.allocate(request)
    # The pool of the address may have been changed or removed. Another address is fine, because the
    # VM does not exist yet.
    if address and isinstance(answer, addressplan.Refusal) and answer.reason in ANOTHER:
        own = scope.reservation
        await give_up(scope, lambda entry: (entry.holder, entry.address) == (own, address))
        del scope.draft.fields["allocatedIPAddress"]
        scope.draft.fields.pop("allocatedPoolRef", None)
        answer = await session.allocator.allocate(replace(request, address=""))
    return answer


async def give_up(scope: MachineScope, is_useless: Callable[[Entry], bool]) -> None:
    """Release addresses of a machine without a VM, because its pools no longer serve them.

    Raises `Blocked` or `Conflict` if a VM may exist and use the addresses.
    """
    scope.current_namespace()
    if await scope.live_vm() is not None:
        message = f"VirtualMachine {scope.target_namespace}/{scope.name} was created; retrying"
        raise Conflict(409, "Conflict", message)

    await _release(scope, filter(is_useless, await held_entries(scope)))


async def restore_address(scope: MachineScope) -> AddressState:
    """Restore the address of a machine with a VM in its status and in the pool.

    Returns a failure and continues, because the VM keeps its address anyway.
    """
    network = effective_network(scope.spec, scope.cluster_spec)
    is_allocated = scope.draft.is_true(ConditionType.VM_IP_ALLOCATED)
    is_static = isinstance(network, StaticAddress | InterfaceNetwork)
    # `check_claims` decides about a machine with claims.
    if is_static and not is_allocated and not wanted_claims(scope.name, scope.spec):
        return AddressState(is_reserved=True)
    if not isinstance(network, PoolNetwork):
        return AddressState()

    # If a process ended between two writes, the pool has the address but the status does not.
    fields = scope.draft.fields
    candidates = filter(None, (fields.get("allocatedPoolRef"), *network.pools))
    configured = tuple(dict.fromkeys(candidates))
    if not fields.get("allocatedIPAddress"):
        for entry in await held_entries(scope):
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
        if pool and ippool.holds(pool, address, scope.reservation, cluster_mark(scope)):
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
    request = addressplan.AddressRequest(scope.reservation, pools, address, cluster_mark(scope))
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


async def release_address(scope: MachineScope, *, foreign_vm: bool) -> None:
    """Release every address that a pool holds for the machine, those of interfaces included.

    :param foreign_vm: whether the VM with the machine's name belongs to another owner. It may use
        the address then, so only entries with this management cluster's mark are released
    """
    # The pools decide instead of the status, because a crash after the reservation leaves the
    # address only in the pool, and a write whose answer was lost may add it later.
    holders = (want.holder for want in wanted_addresses(scope.reservation, scope.spec))
    await scope.session().allocator.settle({scope.reservation, *holders})
    await _release(scope, _marked_entries(scope) if foreign_vm else await held_entries(scope))


async def _release(scope: MachineScope, entries: Iterable[Entry]) -> None:
    """Release these addresses."""
    for entry in entries:
        allocator = scope.session().allocator
        if await allocator.release(entry.pool, entry.address, entry.holder, cluster_mark(scope)):
            metrics.IPPOOL_RELEASES.inc()
            log.info("released address %s in IPPool %s", entry.address, entry.pool)


async def adopt_address(scope: MachineScope, former_cluster: str) -> None:
    """Mark addresses that another management cluster reserved for this machine as ours.

    :param former_cluster: uid of the other management cluster
    """
    allocator = scope.session().allocator
    for entry in _entries(scope, former_cluster):
        await allocator.mark(entry.pool, entry.address, cluster_mark(scope))


async def held_entries(scope: MachineScope) -> list[Entry]:
    """Return all reservations of the machine."""
    entries = list(_entries(scope, scope.owner.management_cluster))
    is_contested = await _is_contested(scope, entries)
    return [entry for entry in entries if entry.proven or not is_contested]


def _marked_entries(scope: MachineScope) -> list[Entry]:
    """Return all reservations with this management cluster's mark."""
    entries = []
    for pool in scope.session().pools.store:
        held = ippool.held_by_machine(pool, scope.reservation, cluster_mark(scope))
        entries += [
            Entry(pool["metadata"]["name"], address, holder, is_marked)
            for address, (holder, is_marked) in held.items()
            if is_marked and not is_another_machine(scope, holder)
        ]
    return entries


async def is_contested_name(scope: MachineScope) -> bool:
    """Return whether an entry of a pool may be of another machine of this name."""
    return await _is_contested(scope, _entries(scope, scope.owner.management_cluster))


async def _is_contested(scope: MachineScope, entries: Iterable[Entry]) -> bool:
    """Return whether a machine of that name in another management cluster may hold an entry."""
    # Marks decide. Entries that the Go provider or a user has made have no mark. For them, the
    # existence of another VM with the name on Harvester decides.
    if all(entry.proven for entry in entries):
        return False
    try:
        answer = await scope.session().client.list(
            resources.VIRTUAL_MACHINES, field_selector=f"metadata.name={scope.name}"
        )
    except Forbidden:
        return True  # the account may read only some namespaces
    return any(_may_hold(scope, vm) for vm in answer.get("items") or ())


def _may_hold(scope: MachineScope, vm: Obj) -> bool:
    """Return whether another VM may use addresses that pools hold for the machine's id."""
    if key_of(vm) == Key(scope.target_namespace, scope.name):
        return False
    owner = record(scope.owner)[names.OWNER_ANNOTATION]
    return annotations_of(vm).get(names.OWNER_ANNOTATION, owner) == owner


def _entries(scope: MachineScope, management_cluster: str) -> Iterator[Entry]:
    """Yield all entries of pools that may belong to the machine of a management cluster."""
    recorded = {
        scope.draft.fields.get("allocatedIPAddress"),
        *recorded_addresses(scope.draft.fields),
    }
    for pool in scope.session().pools.store:
        held = ippool.held_by_machine(pool, scope.reservation, management_cluster[:_SHORT])
        for address, (holder, is_marked) in held.items():
            if is_another_machine(scope, holder):
                continue
            is_proven = is_marked or address in recorded
            yield Entry(pool["metadata"]["name"], address, holder, is_proven)


def is_another_machine(scope: MachineScope, holder: str) -> bool:
    """Return whether the id of an address of an interface is that of another machine.

    The Go provider allowed such names, for example `one.1-0` next to machine `one`.
    """
    if holder == scope.reservation:
        return False
    namespace, _, name = holder.partition("/")
    return scope.context.caches.harvester_machines.get(namespace, name) is not None


def cluster_mark(scope: MachineScope) -> str:
    """Return the text with which pools mark addresses of this management cluster."""
    return scope.owner.management_cluster[:_SHORT]
