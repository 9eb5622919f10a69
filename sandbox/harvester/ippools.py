"""Arithmetic and validation of Harvester's IPPools.

Every writer updates `available` by adding or subtracting one; only the pool's controller recounts it, at start-up or
when the ranges change.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Iterator

from caphv.api.object import Obj

Span = tuple[int, int]


def spans(spec: Obj) -> list[Span]:
    """First and last address of each range, as numbers. A range without bounds is all host addresses of its subnet."""
    found = []
    for entry in spec["ranges"]:
        subnet = ipaddress.IPv4Network(entry["subnet"], strict=False)
        first = entry.get("rangeStart") or str(subnet.network_address + 1)
        last = entry.get("rangeEnd") or str(subnet.broadcast_address - 1)
        found.append((int(ipaddress.IPv4Address(first)), int(ipaddress.IPv4Address(last))))
    return found


def addresses(spec: Obj) -> Iterator[str]:
    """Yield all allocatable addresses of the pool in order; gateways are excluded."""
    gateways = _gateways(spec)
    for first, last in spans(spec):
        for number in range(first, last + 1):
            if number not in gateways:
                yield str(ipaddress.IPv4Address(number))


def total(spec: Obj) -> int:
    """Number of allocatable addresses."""
    gateways = _gateways(spec)
    return sum(last - first + 1 - sum(first <= gateway <= last for gateway in gateways) for first, last in spans(spec))


def contains(spec: Obj, address: str) -> bool:
    """Whether an address lies in one of the ranges."""
    number = int(ipaddress.IPv4Address(address))
    return any(first <= number <= last for first, last in spans(spec))


def network_of(spec: Obj, address: str) -> dict[str, str]:
    """Gateway and mask of the range of an address, as a LoadBalancer reports them."""
    for entry in spec["ranges"]:
        subnet = ipaddress.IPv4Network(entry["subnet"], strict=False)
        if ipaddress.IPv4Address(address) in subnet:
            gateway = entry.get("gateway") or str(subnet.network_address + 1)
            return {"gateway": gateway, "mask": str(subnet.netmask)}
    return {}


def address_of(status: Obj, holder: str) -> str:
    """The address allocated to `holder`; empty if none."""
    return next((ip for ip, name in (status.get("allocated") or {}).items() if name == holder), "")


class AllocationError(Exception):
    """The pool has no address for a holder."""


class DuplicateAllocationError(AllocationError):
    """The pool has an address for the holder, and the history does not say so."""


def reserve(pool: Obj, holder: str) -> tuple[Obj, str]:
    """Status with an address allocated to `holder`: the one in its history, otherwise the first free one.

    The history decides even if its address is reserved already: for the holder that changes nothing, for another one it
    is an error (load-balancer-harvester: `Get` in pkg/ipam/allocator.go, `Reserve` in pkg/ipam/store/store.go). Without
    history, an address that the holder has is an error (containernetworking/plugins: `Get` in host-local's
    backend/allocator/allocator.go). Raises `AllocationError`.
    """
    status = dict(pool["status"])
    allocated = dict(status.get("allocated") or {})
    history = dict(status.get("allocatedHistory") or {})
    before = next((ip for ip, name in history.items() if name == holder), "")
    if before and allocated.get(before) == holder:
        return status, before
    if before in allocated:
        raise AllocationError(f"requested IP address {before} is not available in range set")
    held = "" if before else address_of(status, holder)
    if held:
        raise DuplicateAllocationError(f"{held} has been allocated to {holder}, duplicate allocation is not allowed")
    chosen = before or next((ip for ip in addresses(pool["spec"]) if ip not in allocated), "")
    if not chosen:
        raise AllocationError("no IP addresses available in range set")
    history.pop(chosen, None)
    status |= {"allocated": allocated | {chosen: holder}, "allocatedHistory": history}
    status |= {"available": status["available"] - 1, "lastAllocated": chosen}
    return status, chosen


def release(pool: Obj, address: str, holder: str) -> Obj | None:
    """Status with the address released and its holder in the history; None if another holder has it."""
    status = dict(pool["status"])
    allocated = dict(status.get("allocated") or {})
    if allocated.get(address) != holder:
        return None
    del allocated[address]
    status |= {"allocated": allocated, "available": status["available"] + 1}
    status["allocatedHistory"] = (status.get("allocatedHistory") or {}) | {address: holder}
    return status


def recount(pool: Obj) -> Obj:
    """Status as the pool's controller computes it: total from the ranges, available from the allocations.

    History outside of the ranges is forgotten, and the pool is Ready.
    """
    status = dict(pool.get("status") or {})
    count = total(pool["spec"])
    available = count - len(status.get("allocated") or {})
    status |= {"total": count, "available": available, "lastAllocated": status.get("lastAllocated", "")}
    if history := status.get("allocatedHistory"):
        status["allocatedHistory"] = {ip: name for ip, name in history.items() if contains(pool["spec"], ip)}
    return status | {"conditions": [{"type": "Ready", "status": "True"}]}


def validate(pool: Obj, others: Iterable[Obj] = ()) -> str:
    """Reason to deny a pool: invalid or overlapping ranges, or an allocated address outside the ranges.

    Ranges must not overlap those of any other pool, whatever the networks (load-balancer-harvester:
    pkg/webhook/ippool/validator.go).
    """
    try:
        ordered = sorted(spans(pool["spec"]))
    except ValueError as error:
        return f"spec.ranges: {error}"
    if any(first > last for first, last in ordered):
        return "spec.ranges: rangeStart is greater than rangeEnd"
    if any(left[1] >= right[0] for left, right in itertools.pairwise(ordered)):
        return "spec.ranges: ranges overlap"
    taken = [span for other in others for span in spans(other["spec"])]
    if any(first <= end and start <= last for first, last in ordered for start, end in taken):
        return "spec.ranges: the ranges overlap those of other pools"
    outside = [ip for ip in pool.get("status", {}).get("allocated") or () if not contains(pool["spec"], ip)]
    return f"spec.ranges: {outside[0]} is allocated but outside the ranges" if outside else ""


def _gateways(spec: Obj) -> set[int]:
    return {int(ipaddress.IPv4Address(entry["gateway"])) for entry in spec["ranges"] if entry.get("gateway")}
