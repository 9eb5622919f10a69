"""Reserve addresses of IPPools on Harvester for single interfaces.

Module `pool` does the same for the machine as a whole. Each address has an id of its own in
its pool. `entries.release_addresses` releases all of them with the machine.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from caphv.api import ippool
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, at
from caphv.api.ownership import former_owner
from caphv.runtime.errors import RequestError, Unauthorized, kind_of
from reconciler import metrics, triggers
from reconciler.blocked import Blocked
from reconciler.harvester import addressplan
from reconciler.machine.addresses import entries
from reconciler.machine.addresses.ipamplan import wanted_claims
from reconciler.machine.addresses.state import AddressState
from reconciler.machine.guestinterfaces import (
    GuestAddress,
    WantedAddress,
    recorded_addresses,
    wanted_addresses,
)
from reconciler.machine.network import PoolNetwork, effective_network
from reconciler.machine.scope import MachineScope
from reconciler.triggers import Watched

log = logging.getLogger(__name__)

_FIELD = "interfaceAddresses"


async def ensure_pool_addresses(scope: MachineScope) -> list[tuple[int, GuestAddress]]:
    """Return the addresses of IPPools with the numbers of their interfaces, after reserving them.

    Needs a valid spec. Leaves the addresses in the status, and the condition to its caller. Raises
    `Blocked` if one is missing.
    """
    wanted = wanted_addresses(scope.reservation, scope.spec)
    if not wanted and not scope.draft.fields.get(_FIELD):
        return []
    former = former_owner(scope.obj, scope.owner)
    if former and not scope.draft.fields.get(_FIELD):
        # As with the address of the machine, what was reserved before a backup needs our mark.
        await entries.adopt_addresses(scope, former.management_cluster)
    await _give_up_unwanted(scope, wanted)

    fingerprint = scope.session().fingerprint
    topics = [triggers.pool(fingerprint, want.pool) for want in wanted]
    addresses: list[tuple[int, GuestAddress]] = []
    refusals: list[addressplan.Refusal] = []
    with scope.subscribe(*topics) as changed:
        for want in wanted:
            with metrics.IPPOOL_ALLOCATION_ERRORS.count_exceptions(RequestError):
                answer = await _allocate(scope, want)
            if isinstance(answer, addressplan.Refusal):
                metrics.IPPOOL_ALLOCATION_ERRORS.inc()
                refusals.append(answer)
            else:
                addresses.append((want.interface, answer))
        if refusals:
            exhausted = addressplan.RefusalReason.EXHAUSTED
            is_exhausted = all(refusal.reason is exhausted for refusal in refusals)
            raise Blocked(
                ConditionType.VM_IP_ALLOCATED,
                Reason.VM_IP_POOL_EXHAUSTED if is_exhausted else Reason.VM_IP_ALLOCATION_FAILED,
                "; ".join(dict.fromkeys(refusal.message for refusal in refusals)),
                changed,
                Watched.SELF,
                warn=True,
            )
    return addresses


async def restore_pool_addresses(scope: MachineScope) -> AddressState:
    """Restore the addresses of a machine with a VM in its status and in the pools.

    Returns failures and continues, because the VM keeps its addresses anyway.
    """
    wanted = wanted_addresses(scope.reservation, scope.spec)
    if not wanted:
        return AddressState()
    failures = [failure for want in wanted if (failure := await _restore(scope, want))]
    if failures:
        return AddressState(tuple(failures))

    scope.memory.interface_reservation.reset()
    if not all(_recorded(scope, want) for want in wanted):
        # A pool that is missing may have them.
        return AddressState(is_reserved=False)
    is_pooled = isinstance(effective_network(scope.spec, scope.cluster_spec), PoolNetwork)
    # Others decide about the condition of a machine that has addresses elsewhere, too.
    if is_pooled or wanted_claims(scope.name, scope.spec):
        return AddressState()
    return AddressState(is_reserved=True)


def known_pool_addresses(scope: MachineScope) -> list[str]:
    """Return the addresses of IPPools that the status has for interfaces."""
    return list(recorded_addresses(scope.draft.fields))


async def _give_up_unwanted(scope: MachineScope, wanted: Sequence[WantedAddress]) -> None:
    """Release what the machine reserved before its settings were changed."""
    places = {(want.pool, want.holder) for want in wanted}

    def is_unwanted(entry: entries.Entry) -> bool:
        return entry.holder != scope.reservation and (entry.pool, entry.holder) not in places

    recorded = scope.draft.fields.get(_FIELD) or []
    addresses = {_recorded(scope, want) for want in wanted}
    kept = [entry for entry in recorded if entry["address"] in addresses]
    if kept == recorded and not any(map(is_unwanted, await entries.held_entries(scope))):
        return
    # The status proves whose the entries are, and therefore changes after them.
    await entries.give_up(scope, is_unwanted)
    scope.draft.fields[_FIELD] = kept


async def _give_up(scope: MachineScope, want: WantedAddress, address: str) -> None:
    """Release an address that its pool no longer serves."""
    place = (want.pool, want.holder, address)
    await entries.give_up(scope, lambda entry: (entry.pool, entry.holder, entry.address) == place)
    recorded = scope.draft.fields.get(_FIELD) or ()
    scope.draft.fields[_FIELD] = [entry for entry in recorded if entry["address"] != address]


async def _allocate(scope: MachineScope, want: WantedAddress) -> GuestAddress | addressplan.Refusal:
    """Reserve the address in the status again, or another one if the pool cannot serve it."""
    session = scope.session()
    pool = session.pools.get("", want.pool)
    if pool is not None and not ippool.serves(pool, [want.network]):
        selected = pool["spec"]["selector"]["network"]
        message = (
            f"IPPool {want.pool} serves network {selected} only, not {want.network}: name another "
            "pool in addressesFromPools"
        )
        return addressplan.Refusal(addressplan.RefusalReason.NO_POOL, message)

    if entries.is_another_machine(scope, want.holder):
        message = f"{want.holder} is the id of another HarvesterMachine in IPPools: rename one"
        return addressplan.Refusal(addressplan.RefusalReason.NO_POOL, message)

    metrics.IPPOOL_ALLOCATIONS.inc()
    address = _recorded(scope, want)
    request = addressplan.AddressRequest(
        want.holder,
        (want.pool,),
        address,
        entries.cluster_mark(scope),
        adopt=not await entries.is_contested_name(scope),
    )
    answer = await session.allocator.allocate(request)
    outcome = _guest_address(session.pools.get("", want.pool), want, answer)
    # The pool may hold an address that its ranges had before.
    address = answer.address if isinstance(answer, addressplan.Grant) else address
    # Another address is fine, because the VM does not exist yet.
    if address and isinstance(outcome, addressplan.Refusal) and outcome.reason in entries.ANOTHER:
        await _give_up(scope, want, address)
        answer = await session.allocator.allocate(replace(request, address=""))
        outcome = _guest_address(session.pools.get("", want.pool), want, answer)
    if isinstance(answer, addressplan.Refusal):
        return answer

    if not answer.adopted:
        log.info("reserved address %s in IPPool %s", answer.address, answer.pool)
    _record(scope, want, answer.address)
    return outcome


def _guest_address(
    pool: Obj | None, want: WantedAddress, answer: addressplan.Grant | addressplan.Refusal
) -> GuestAddress | addressplan.Refusal:
    """Return an address with prefix and gateway, which the range of the pool has."""
    if isinstance(answer, addressplan.Refusal):
        return answer
    if pool is None:
        message = f"IPPool {want.pool} was deleted: create it again, or name another"
        return addressplan.Refusal(addressplan.RefusalReason.MISSING_POOL, message)
    try:
        prefix, gateway = ippool.subnet_of(pool, answer.address)
    except ippool.InvalidPoolError as error:
        return addressplan.Refusal(addressplan.RefusalReason.INVALID_POOL, str(error))
    if prefix:
        return GuestAddress(answer.address, prefix, gateway)
    message = f"address {answer.address} is in no range of IPPool {want.pool}: correct the pool"
    return addressplan.Refusal(addressplan.RefusalReason.EXHAUSTED, message)


async def _restore(scope: MachineScope, want: WantedAddress) -> str:
    """Restore one address, and return why it cannot be reserved again; empty if it is reserved."""
    session = scope.session()
    mark = entries.cluster_mark(scope)
    pool = session.pools.get("", want.pool)
    if pool is None:
        # The subscription outlives this reconcile, which does not wait for the missing pool.
        scope.subscribe(triggers.pool(session.fingerprint, want.pool))
        return ""
    address = _recorded(scope, want)
    if not address:
        # A process ended between two writes, or the machine was moved without its status.
        for held in ippool.held(pool, want.holder, mark):
            _record(scope, want, held)
            break
        return ""
    if ippool.holds(pool, address, want.holder, mark) or not ippool.contains(pool, address):
        return ""

    changed = scope.subscribe(triggers.pool(session.fingerprint, want.pool))
    request = addressplan.AddressRequest(want.holder, (want.pool,), address, mark)
    try:
        answer = await session.allocator.allocate(request)
    except Unauthorized:
        raise
    except RequestError as error:
        kind = kind_of(error)
        log.info("cannot reserve address %s again: %s", address, error)
        # Retry after a time, because the failure may end without a change of the pool.
        scope.requeue_in(scope.memory.interface_reservation.retry_after(kind))
        problem = f"{kind}; the log of the provider says more"
        return f"cannot reserve address {address} again in IPPool {want.pool}: {problem}"
    if isinstance(answer, addressplan.Refusal):
        return answer.message
    changed.cancel()
    message = f"IPPool {want.pool} no longer had address {address} of this machine"
    scope.event("AddressReservedAgain", f"{message}; reserved it again")
    return ""


def _recorded(scope: MachineScope, want: WantedAddress) -> str:
    """Return the address in the status, empty for none.

    An address that the pool holds for another interface or entry of the machine is that one's.
    """
    pool = scope.session().pools.get("", want.pool) or {}
    for address, place in recorded_addresses(scope.draft.fields).items():
        holder = str(at(pool, "status", "allocated", address) or "")
        is_of_machine = ippool.machine_holder(holder) == scope.reservation
        if place == (want.network, want.pool) and (holder == want.holder or not is_of_machine):
            return address
    return ""


def _record(scope: MachineScope, want: WantedAddress, address: str) -> None:
    if _recorded(scope, want) != address:
        entry = {"address": address, "network": want.network, "pool": want.pool}
        scope.draft.fields[_FIELD] = [*(scope.draft.fields.get(_FIELD) or ()), entry]
