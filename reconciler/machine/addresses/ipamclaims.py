"""Claim addresses from IPAM providers before a VM is created, and release them after the VM.

`reconciler.machine.addresses.ipamplan` decides what is claimed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from caphv.api import clusterapi, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, being_deleted, uid_of
from caphv.runtime.cache import Informer
from caphv.runtime.errors import AlreadyExists, Forbidden, NotFound
from reconciler import triggers
from reconciler.blocked import Blocked, Cause
from reconciler.machine.addresses.ipamplan import (
    WantedClaim,
    address_name,
    answers_claim,
    claim_object,
    claimed_address,
    is_owned,
    names_pool,
    pending_reason,
    wanted_claims,
)
from reconciler.machine.addresses.state import AddressState
from reconciler.machine.guestinterfaces import GuestAddress
from reconciler.machine.network import PoolNetwork, effective_network
from reconciler.machine.scope import MachineScope
from reconciler.remote.ipam import claims_version
from reconciler.triggers import Delay, Subscription, Watched

log = logging.getLogger(__name__)

# Seconds until a machine claims again, because nothing reports what a broken watch has missed.
_RECHECK_SECONDS = 1.0
# Reason in the contract of a claim whose pool has no free address.
_EXHAUSTED = "PoolExhausted"
# Reasons of missing addresses. The first needs a user most, and the last none.
_REASONS = (
    Reason.VM_IP_ALLOCATION_FAILED,
    Reason.VM_IP_POOL_EXHAUSTED,
    Reason.VM_IP_CLAIM_PENDING,
)


async def ensure_address_claims(scope: MachineScope) -> list[tuple[int, GuestAddress]]:
    """Return the addresses of IPAM providers, after claiming them.

    They are with the numbers of their interfaces.

    Needs a valid spec. Leaves the condition to its caller. Raises `Blocked` while an address is
    missing.
    """
    wanted = wanted_claims(scope.name, scope.spec)
    if not wanted:
        return []

    # The subscription comes before the state of the caches is read, so that no change is missed.
    with scope.subscribe(triggers.IPAM) as changed:
        claims, addresses = _caches(scope, changed)
    # All claims are there before the machine waits for the first address.
    answers = [await _ensure_claim(scope, claims, claim) for claim in wanted]
    return _read_addresses(scope, wanted, answers, addresses)


async def confirm_address_claims(
    scope: MachineScope, claimed: Sequence[tuple[int, GuestAddress]]
) -> None:
    """Raise `Blocked` unless the server has the claims whose addresses the guest is to configure.

    A cache whose watch is broken has claims that were deleted. A VM would keep their addresses
    permanently, while others get them.

    :param claimed: the result of `ensure_address_claims`
    """
    wanted = wanted_claims(scope.name, scope.spec)
    if not wanted:
        return
    with scope.subscribe(triggers.IPAM) as changed:
        claims, addresses = _caches(scope, changed)

    answers = []
    for want in wanted:
        try:
            claim = await scope.context.client.get(claims.resource, want.name, scope.key.namespace)
        except NotFound:
            claims.forget(scope.key.namespace, want.name)
            raise _changed_claims(f"IPAddressClaim {want.name} was deleted") from None
        claims.observe(claim)
        _require_usable(scope, want, claim)
        answers.append(claim)
    if _read_addresses(scope, wanted, answers, addresses) != claimed:
        raise _changed_claims("the addresses of IPAddressClaims have changed")


def check_address_claims(scope: MachineScope) -> AddressState:
    """Return lost claims of a machine with a VM, because others may get its address.

    They are not created again: the answer would be another address, which the guest does not have.
    """
    wanted = wanted_claims(scope.name, scope.spec)
    if not wanted:
        return AddressState()
    filled = scope.subscribe(triggers.IPAM)
    scope.context.ipam.start()
    claims = scope.context.ipam.claims
    if claims is None:
        # The subscription outlives this reconcile, which does not wait for the caches.
        return AddressState()
    filled.cancel()

    existing = [claims.get(scope.key.namespace, claim.name) for claim in wanted]
    lost = [
        claim
        for claim, obj in zip(wanted, existing, strict=True)
        if obj is None or being_deleted(obj) or not is_owned(obj, scope.obj)
    ]
    if lost:
        described = ", ".join(f"{claim.name} ({claim.pool_name})" for claim in lost)
        message = (
            f"IPAddressClaim {described} no longer exists, or is being deleted, while the VM uses "
            "its address, which others may get: replace this machine"
        )
        return AddressState((message,), of_pools=False)
    # The pools decide about the condition of a machine that has an address of them, too.
    is_pooled = isinstance(effective_network(scope.spec, scope.cluster_spec), PoolNetwork)
    return AddressState(is_reserved=None if is_pooled else True)


def known_addresses(scope: MachineScope) -> list[str]:
    """Return the addresses of IPAM providers that the caches have for the machine."""
    claims_wanted = wanted_claims(scope.name, scope.spec)
    if not claims_wanted:
        return []
    ipam = scope.context.ipam
    claims, addresses = ipam.claims, ipam.addresses
    if claims is None or addresses is None:
        return []

    found = []
    for wanted in claims_wanted:
        claim = claims.get(scope.key.namespace, wanted.name)
        if claim is None or not is_owned(claim, scope.obj):
            continue
        obj = addresses.get(scope.key.namespace, address_name(claim))
        if obj is not None and answers_claim(obj, claim):
            try:
                found.append(claimed_address(obj).address)
            except ValueError:
                continue
    return found


def describe_released(scope: MachineScope) -> str:
    """Return pools and addresses of claims that a machine without Harvester releases.

    Empty for a machine without claims.
    """
    wanted = wanted_claims(scope.name, scope.spec)
    if not wanted:
        return ""
    addresses = known_addresses(scope)
    if not addresses:
        # Nothing has started the caches yet, and the guest has reported its addresses.
        reported = scope.draft.fields.get("addresses") or ()
        addresses = [entry["address"] for entry in reported if entry["type"] == "InternalIP"]
    pools = " and ".join(dict.fromkeys(claim.pool_name for claim in wanted))
    return f"{pools} ({', '.join(addresses) or 'none known'})"


async def release_address_claims(scope: MachineScope) -> None:
    """Delete the claims of a machine whose VM no longer exists.

    Claims of another owner stay, whatever their name.
    """
    wanted = wanted_claims(scope.name, scope.spec)
    if not wanted:
        return
    client = scope.context.client
    try:
        resource = resources.ip_address_claims(await claims_version(client))
    except NotFound:
        return

    for claim in wanted:
        # Ask the server, because what is missed here would stay until the garbage collector comes.
        try:
            obj = await client.get(resource, claim.name, scope.key.namespace)
            if is_owned(obj, scope.obj) and not being_deleted(obj):
                await client.delete(resource, claim.name, scope.key.namespace, uid=uid_of(obj))
                log.info("deleted IPAddressClaim %s", claim.name)
        except NotFound:
            continue
        except Forbidden as error:
            # Without a VM, the garbage collector may delete the claims after their machine.
            log.warning("leaving IPAddressClaim %s to the garbage collector: %s", claim.name, error)


def _caches(scope: MachineScope, changed: Subscription) -> tuple[Informer, Informer]:
    """Return the caches of claims and addresses. Raises `Blocked` until they are filled."""
    ipam = scope.context.ipam
    ipam.start()
    claims, addresses = ipam.claims, ipam.addresses
    if claims is not None and addresses is not None:
        return claims, addresses

    condition = ConditionType.VM_IP_ALLOCATED
    if ipam.is_served is False or isinstance(ipam.error, NotFound):
        versions = " or ".join(resources.IPAM_VERSIONS)
        described = "" if ipam.is_served is False else f" in {versions}"
        raise Blocked(
            condition,
            Reason.IPAM_NOT_AVAILABLE,
            f"the management cluster has no IPAddressClaims of {resources.IPAM_GROUP}{described}: "
            "install a core of Cluster API that has them, and an IPAM provider, or remove "
            "addressesFromPools",
            changed,
            Watched.SELF,
            # A new CRD is not served at once.
            warn=ipam.is_served is False,
        )
    if ipam.error is not None:
        remedy = "; the log of the provider says more"
        if isinstance(ipam.error, Forbidden):
            remedy = ": give the provider the rights of its ClusterRole caphv-manager-role"
        raise Blocked(
            condition,
            Reason.IPAM_NOT_AVAILABLE,
            f"cannot read IPAddressClaims and IPAddresses ({type(ipam.error).__name__}){remedy}",
            changed,
            Watched.SELF,
            warn=isinstance(ipam.error, Forbidden),
        )
    message = "reading IPAddressClaims"
    raise Blocked(condition, Reason.VM_IP_CLAIM_PENDING, message, changed, cause=Cause.UNKNOWN)


async def _ensure_claim(scope: MachineScope, claims: Informer, wanted: WantedClaim) -> Obj:
    """Return a claim of the machine, after creating it if needed.

    Raises `Blocked` for a claim of another owner, of another pool, or in deletion.
    """
    claim = claims.get(scope.key.namespace, wanted.name)
    if claim is None:
        cluster = clusterapi.cluster_name(scope.obj)
        obj = claim_object(wanted, scope.obj, cluster, claims.resource.version)
        try:
            claim = await scope.context.client.create(claims.resource, obj)
            log.info("created IPAddressClaim %s for %s", wanted.name, wanted.pool_name)
        except AlreadyExists:
            client = scope.context.client
            claim = await client.get(claims.resource, wanted.name, scope.key.namespace)
        claims.observe(claim)

    _require_usable(scope, wanted, claim)
    return claim


def _require_usable(scope: MachineScope, wanted: WantedClaim, claim: Obj) -> None:
    """Raise `Blocked` for a claim of another owner, of another pool, or in deletion."""
    problem = ""
    # A pool may hold the claim of a former machine of this name for a time before it is deleted.
    if being_deleted(claim):
        problem = "is being deleted: a new one follows"
    elif not is_owned(claim, scope.obj):
        problem = "belongs to another owner: delete it, or give this machine another name"
    elif not names_pool(claim, wanted):
        problem = f"is not for {wanted.pool_name}: delete it"
    if problem:
        raise Blocked(
            ConditionType.VM_IP_ALLOCATED,
            Reason.VM_IP_ALLOCATION_FAILED,
            f"IPAddressClaim {wanted.name} {problem}",
            Watched.ADDRESS_CLAIM,
            Watched.SELF,
            warn=not being_deleted(claim),
        )


def _changed_claims(problem: str) -> Blocked:
    """Return what a machine waits for whose claims changed between two of its steps."""
    return Blocked(
        ConditionType.VM_IP_ALLOCATED,
        Reason.VM_IP_CLAIM_PENDING,
        f"{problem} before the VM was created: claiming again",
        Watched.ADDRESS_CLAIM,
        Delay(_RECHECK_SECONDS),
    )


def _read_addresses(
    scope: MachineScope, wanted: Sequence[WantedClaim], claims: Sequence[Obj], addresses: Informer
) -> list[tuple[int, GuestAddress]]:
    """Return all addresses with the numbers of their interfaces. Raises `Blocked` without one."""
    found: list[tuple[int, GuestAddress]] = []
    problems: list[tuple[Reason, str]] = []
    for want, claim in zip(wanted, claims, strict=True):
        obj = None
        if name := address_name(claim):
            obj = addresses.get(scope.key.namespace, name)
        if obj is None or not answers_claim(obj, claim):
            # Claims and addresses have a watch each: this address may be of a former claim.
            problems.append(_describe_pending(want, claim))
            continue
        try:
            found.append((want.interface, claimed_address(obj)))
        except ValueError as error:
            message = (
                f"IPAddress {name} of {want.pool_name} cannot be used, because {error}: correct "
                "the pool"
            )
            problems.append((Reason.VM_IP_ALLOCATION_FAILED, message))

    if problems:
        reasons = {reason for reason, _ in problems}
        reason = next(reason for reason in _REASONS if reason in reasons)
        raise Blocked(
            ConditionType.VM_IP_ALLOCATED,
            reason,
            "; ".join(message for _, message in problems),
            Watched.ADDRESS_CLAIM,
            Watched.SELF,
            warn=reason != Reason.VM_IP_CLAIM_PENDING,
        )
    return found


def _describe_pending(wanted: WantedClaim, claim: Obj) -> tuple[Reason, str]:
    """Return reason and message of a claim without an address."""
    reason, detail = pending_reason(claim)
    if reason == _EXHAUSTED:
        message = f"{wanted.pool_name} has no free address: add a range to it, or free one"
        return Reason.VM_IP_POOL_EXHAUSTED, f"{message} ({detail})" if detail else message

    message = f"waiting for {wanted.pool_name} to answer IPAddressClaim {wanted.name}"
    if detail:
        return Reason.VM_IP_CLAIM_PENDING, f"{message}: {detail}"
    return (
        Reason.VM_IP_CLAIM_PENDING,
        f"{message}; if this stays, check that the pool exists and has a free address, and that "
        "its IPAM provider runs",
    )
