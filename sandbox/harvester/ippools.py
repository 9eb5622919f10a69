"""Arithmetic and validation of Harvester's IPPools.

Every writer updates `available` by adding or subtracting one; only the pool's controller recounts
it, at start-up or when the ranges change.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Iterator

from caphv.api.object import Obj, dict_at

Span = tuple[int, int]


def spans(spec: Obj) -> list[Span]:
    """Return the first and last address of each range, as numbers.

    A range without bounds contains all host addresses of its subnet.
    """
    result = []
    for entry in spec["ranges"]:
        subnet = ipaddress.IPv4Network(entry["subnet"], strict=False)
        first = entry.get("rangeStart") or str(subnet.network_address + 1)
        last = entry.get("rangeEnd") or str(subnet.broadcast_address - 1)
        result.append((int(ipaddress.IPv4Address(first)), int(ipaddress.IPv4Address(last))))
    return result


def addresses(spec: Obj, last_allocated: str = "") -> Iterator[str]:
    """Yield all allocatable addresses of the pool; gateways are excluded.

    The order is that of Harvester, which continues after the address that it has allocated last, so
    that a released address is not used again at once (`GetIter` in host-local's
    backend/allocator/allocator.go of containernetworking/plugins).
    """
    parts = spans(spec)
    try:
        number = int(ipaddress.IPv4Address(last_allocated))
    except ValueError:
        number = 0
    for index, (first, last) in enumerate(parts):
        if first <= number <= last:
            parts = [(number + 1, last), *parts[index + 1 :], *parts[:index], (first, number)]
            break

    gateways = _gateways(spec)
    for first, last in parts:
        for number in range(first, last + 1):
            if number not in gateways:
                yield str(ipaddress.IPv4Address(number))


def total(spec: Obj) -> int:
    """Return the number of allocatable addresses."""
    # Compute the number from the bounds, because a pool may have millions of addresses.
    gateways = _gateways(spec)
    count = 0
    for first, last in spans(spec):
        gateways_in_span = sum(first <= gateway <= last for gateway in gateways)
        count += last - first + 1 - gateways_in_span
    return count


def contains(spec: Obj, address: str) -> bool:
    """Return whether an address lies in one of the ranges."""
    number = int(ipaddress.IPv4Address(address))
    return any(first <= number <= last for first, last in spans(spec))


def network_of(spec: Obj, address: str) -> dict[str, str]:
    """Return gateway and mask of the range of an address, as a LoadBalancer reports them."""
    for entry in spec["ranges"]:
        subnet = ipaddress.IPv4Network(entry["subnet"], strict=False)
        if ipaddress.IPv4Address(address) in subnet:
            gateway = entry.get("gateway") or str(subnet.network_address + 1)
            return {"gateway": gateway, "mask": str(subnet.netmask)}
    return {}


def address_of(status: Obj, holder: str) -> str:
    """Return the address allocated to `holder`; empty if none."""
    return _address_in(status.get("allocated") or {}, holder)


class AllocationError(Exception):
    """The pool has no address for a holder."""


class DuplicateAllocationError(AllocationError):
    """The pool has an address for the holder that the history does not contain."""


def reserve(pool: Obj, holder: str) -> tuple[Obj, str]:
    """Return a status with an address allocated to `holder`, and the address.

    The address is the holder's address in the history, or else the next free one. Raise
    `AllocationError`.
    """
    status = dict(pool["status"])
    allocated = dict(status.get("allocated") or {})
    history = dict(status.get("allocatedHistory") or {})

    # The address in the history is used even if it is already reserved. A reservation for the same
    # holder stays as it is, and a reservation for another holder is an error (`Get` in
    # pkg/ipam/allocator.go and `Reserve` in pkg/ipam/store/store.go of load-balancer-harvester).
    previous = _address_in(history, holder)
    if previous and allocated.get(previous) == holder:
        return status, previous
    if previous in allocated:
        ranges = ",".join(
            "-".join(str(ipaddress.IPv4Address(number)) for number in span)
            for span in spans(pool["spec"])
        )
        raise AllocationError(
            f"requested IP address {previous} is not available in range set {ranges}"
        )

    # If the history has no address, it is an error that the holder already has one (`Get` in
    # host-local's backend/allocator/allocator.go of containernetworking/plugins).
    duplicate = "" if previous else address_of(status, holder)
    if duplicate:
        raise DuplicateAllocationError(
            f"{duplicate} has been allocated to {holder}, duplicate allocation is not allowed"
        )

    candidates = addresses(pool["spec"], status.get("lastAllocated", ""))
    address = previous or next((ip for ip in candidates if ip not in allocated), "")
    if not address:
        raise AllocationError("no IP addresses available in range set")

    history.pop(address, None)
    status |= {
        "allocated": allocated | {address: holder},
        "allocatedHistory": history,
        "available": status["available"] - 1,
        "lastAllocated": address,
    }
    return status, address


def release(pool: Obj, address: str, holder: str) -> Obj | None:
    """Return a status with the address released and its holder in the history.

    Return None if another holder has the address.
    """
    status = dict(pool["status"])
    allocated = dict(status.get("allocated") or {})
    if allocated.get(address) != holder:
        return None

    del allocated[address]
    status |= {"allocated": allocated, "available": status["available"] + 1}
    status["allocatedHistory"] = (status.get("allocatedHistory") or {}) | {address: holder}
    return status


def recounted_status(pool: Obj) -> Obj:
    """Return the status as the pool's controller computes it.

    The total follows from the ranges, `available` from the allocations. History outside of the
    ranges is forgotten, and the pool is Ready.
    """
    status = dict(pool.get("status") or {})
    count = total(pool["spec"])
    status |= {
        "total": count,
        "available": count - len(status.get("allocated") or {}),
        "lastAllocated": status.get("lastAllocated", ""),
    }

    if history := status.get("allocatedHistory"):
        status["allocatedHistory"] = {
            ip: name for ip, name in history.items() if contains(pool["spec"], ip)
        }
    return status | {"conditions": [{"type": "Ready", "status": "True"}]}


def validate(pool: Obj, others: Iterable[Obj] = ()) -> str:
    """Return the reason to deny a pool; empty for none.

    A pool is denied if its ranges overlap, or an allocated address is outside of the ranges.
    """
    try:
        ranges = sorted(spans(pool["spec"]))
    except ValueError as error:
        return f"spec.ranges: {error}"
    if any(first > last for first, last in ranges):
        return "spec.ranges: rangeStart is greater than rangeEnd"
    if any(lower[1] >= upper[0] for lower, upper in itertools.pairwise(ranges)):
        return "spec.ranges: ranges overlap"

    # Ranges must not overlap the ranges of any other pool, even in another network
    # (pkg/webhook/ippool/validator.go in load-balancer-harvester).
    taken = [span for other in others for span in spans(other["spec"])]
    if any(first <= end and start <= last for first, last in ranges for start, end in taken):
        return "spec.ranges: the ranges overlap those of other pools"

    for ip in dict_at(pool, "status", "allocated"):
        if not contains(pool["spec"], ip):
            return f"spec.ranges: {ip} is allocated but outside the ranges"
    return ""


def _address_in(holders: dict[str, str], holder: str) -> str:
    return next((ip for ip, name in holders.items() if name == holder), "")


def _gateways(spec: Obj) -> set[int]:
    return {
        int(ipaddress.IPv4Address(entry["gateway"]))
        for entry in spec["ranges"]
        if entry.get("gateway")
    }
