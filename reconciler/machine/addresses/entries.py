"""Find, adopt and release what pools on Harvester hold for a machine and for its interfaces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from caphv.api import ippool, names, resources
from caphv.api.object import Key, Obj, annotations_of, key_of
from caphv.api.ownership import former_owner, record
from caphv.runtime.errors import Conflict, Forbidden
from reconciler import metrics
from reconciler.harvester import addressplan
from reconciler.machine.guestinterfaces import recorded_addresses, wanted_addresses
from reconciler.machine.scope import MachineScope

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


async def give_up(scope: MachineScope, is_useless: Callable[[Entry], bool]) -> None:
    """Release addresses of a machine without a VM, because its pools no longer serve them.

    Raises `Blocked` or `Conflict` if a VM may exist and use the addresses.
    """
    scope.require_current_namespace()
    if await scope.live_vm() is not None:
        message = f"VirtualMachine {scope.target_namespace}/{scope.name} was created; retrying"
        raise Conflict(409, "Conflict", message)

    await _release(scope, filter(is_useless, await held_entries(scope)))


async def release_addresses(scope: MachineScope, *, foreign_vm: bool) -> None:
    """Release every address that a pool holds for the machine, those of interfaces included.

    :param foreign_vm: whether the VM with the machine's name belongs to another owner. It may use
        the address then, so only entries with this management cluster's mark are released
    """
    # The pools decide instead of the status, because a crash after the reservation leaves the
    # address only in the pool, and a write whose answer was lost may add it later.
    holders = (want.holder for want in wanted_addresses(scope.reservation, scope.spec))
    await scope.session().allocator.settle({scope.reservation, *holders})
    former = former_owner(scope.obj, scope.owner)
    if former and not foreign_vm:
        # The machine was restored from a backup, and its VM no longer exists.
        await adopt_marked(scope, former.management_cluster)
    if foreign_vm:
        await _release(scope, _marked_entries(scope, cluster_mark(scope)))
    else:
        await _release(scope, await held_entries(scope))


async def _release(scope: MachineScope, entries: Iterable[Entry]) -> None:
    """Release these addresses."""
    for entry in entries:
        allocator = scope.session().allocator
        if await allocator.release(entry.pool, entry.address, entry.holder, cluster_mark(scope)):
            metrics.IPPOOL_RELEASES.inc()
            log.info("released address %s in IPPool %s", entry.address, entry.pool)


async def adopt_addresses(scope: MachineScope, former_cluster: str) -> None:
    """Mark addresses that another management cluster reserved for this machine as ours.

    :param former_cluster: uid of the other management cluster
    """
    allocator = scope.session().allocator
    for entry in _entries(scope, former_cluster):
        await allocator.mark(entry.pool, entry.address, cluster_mark(scope))


async def adopt_marked(scope: MachineScope, former_cluster: str) -> None:
    """Mark addresses with the mark of another management cluster as ours, so that we release them.

    Unlike `adopt_addresses`, it leaves out entries without a mark: another machine of this name may
    hold them.

    :param former_cluster: uid of the other management cluster
    """
    allocator = scope.session().allocator
    for entry in _marked_entries(scope, former_cluster[:_SHORT]):
        await allocator.mark(entry.pool, entry.address, cluster_mark(scope))


async def held_entries(scope: MachineScope) -> list[Entry]:
    """Return all reservations of the machine."""
    entries = list(_entries(scope, scope.owner.management_cluster))
    is_contested = await _is_contested(scope, entries)
    return [entry for entry in entries if entry.proven or not is_contested]


def _marked_entries(scope: MachineScope, mark: str) -> list[Entry]:
    """Return all reservations with the mark of a management cluster."""
    entries = []
    for pool in scope.session().pools.store:
        held = ippool.held_by_machine(pool, scope.reservation, mark)
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
