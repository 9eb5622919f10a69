"""Arithmetic and validation of Harvester's IPPools.

Every writer updates `available` by adding or subtracting one; only the pool's controller recounts
it, at start-up or when the ranges change.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from caphv.api.object import Obj, dict_at


@dataclass(frozen=True, slots=True)
class Range:
    """Addresses from `first` to `last` as numbers, both included, without the gateway."""

    first: int
    last: int
    gateway: int | None
    mask: str

    def __contains__(self, number: int) -> bool:
        """Return whether a number lies between the bounds, where the gateway may be as well."""
        return self.first <= number <= self.last

    def __str__(self) -> str:
        return f"{_text(self.first)}-{_text(self.last)}"

    @property
    def size(self) -> int:
        """Return the number of allocatable addresses."""
        # Compute the number from the bounds, because a pool may have millions of addresses.
        return self.last - self.first + 1 - (self.gateway is not None and self.gateway in self)


def ranges_of(spec: Obj) -> list[Range]:
    """Return the ranges of a pool. Raise ValueError.

    A range without bounds contains all host addresses of its subnet. A range without a gateway has
    the first of them as its gateway. Modelled after `MakeRange` in pkg/ipam/allocator.go of
    load-balancer-harvester.
    """
    ranges = []
    for entry in spec["ranges"]:
        subnet = ipaddress.IPv4Network(entry["subnet"], strict=False)
        first = int(subnet.network_address)
        last = int(subnet.broadcast_address)
        gateway: int | None = None
        if subnet.prefixlen < 32:
            first += 1
            last -= 1
            gateway = first

        first = _bound(entry, "rangeStart", subnet) or first
        last = _bound(entry, "rangeEnd", subnet) or last
        gateway = _bound(entry, "gateway", subnet) or gateway
        # Bounds in the wrong order are swapped.
        mask = str(subnet.netmask)
        ranges.append(Range(min(first, last), max(first, last), gateway, mask))
    return ranges


def addresses(spec: Obj, last_allocated: str = "") -> Iterator[str]:
    """Yield all allocatable addresses of the pool; gateways are excluded.

    The order is that of Harvester, which continues after the address that it has allocated last, so
    that a released address is not used again at once (`GetIter` in host-local's
    backend/allocator/allocator.go of containernetworking/plugins).
    """
    parts = ranges_of(spec)
    try:
        number = int(ipaddress.IPv4Address(last_allocated))
    except ValueError:
        number = 0
    for index, part in enumerate(parts):
        if number in part:
            following = replace(part, first=number + 1)
            preceding = replace(part, last=number)
            parts = [following, *parts[index + 1 :], *parts[:index], preceding]
            break

    for part in parts:
        for number in range(part.first, part.last + 1):
            if number != part.gateway:
                yield _text(number)


def total(spec: Obj) -> int:
    """Return the number of allocatable addresses."""
    return sum(part.size for part in ranges_of(spec))


def contains(spec: Obj, address: str) -> bool:
    """Return whether an address lies in one of the ranges."""
    number = int(ipaddress.IPv4Address(address))
    return any(number in part for part in ranges_of(spec))


def network_of(spec: Obj, address: str) -> dict[str, str]:
    """Return gateway and mask of the range of an address, as a LoadBalancer reports them."""
    number = int(ipaddress.IPv4Address(address))
    part = next(part for part in ranges_of(spec) if number in part)
    # Go prints an address that is missing in this form.
    gateway = "<nil>" if part.gateway is None else _text(part.gateway)
    return {"gateway": gateway, "mask": part.mask}


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
    if previous:
        _check_request(pool, previous)
    if previous and allocated.get(previous) == holder:
        return status, previous
    if previous in allocated:
        raise AllocationError(
            f"requested IP address {previous} is not available in range set {_range_set(pool)}"
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
        raise AllocationError(f"no IP addresses available in range set: {_range_set(pool)}")

    history.pop(address, None)
    status |= {
        "allocated": allocated | {address: holder},
        "allocatedHistory": history,
        "available": status["available"] - 1,
        "lastAllocated": address,
    }
    return status, address


def release(pool: Obj, holder: str) -> Obj | None:
    """Return a status with an address of `holder` released and the holder in the history.

    Return None if it has no address. As on Harvester, the recorded address of a LoadBalancer does
    not matter, and of several addresses one is released (`ReleaseByID` in pkg/ipam/store/store.go
    of load-balancer-harvester).
    """
    status = dict(pool["status"])
    address = address_of(status, holder)
    if not address:
        return None

    allocated = dict(status["allocated"])
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
        ranges = sorted(ranges_of(pool["spec"]), key=lambda part: part.first)
        taken = [part for other in others for part in ranges_of(other["spec"])]
    except ValueError as error:
        return f"spec.ranges: {error}"
    if any(lower.last >= upper.first for lower, upper in itertools.pairwise(ranges)):
        return "spec.ranges: ranges overlap"

    # Ranges must not overlap the ranges of any other pool, even in another network
    # (pkg/webhook/ippool/validator.go in load-balancer-harvester).
    if any(
        mine.first <= part.last and part.first <= mine.last for mine in ranges for part in taken
    ):
        return "spec.ranges: the ranges overlap those of other pools"

    for ip in dict_at(pool, "status", "allocated"):
        if not contains(pool["spec"], ip):
            return f"spec.ranges: {ip} is allocated but outside the ranges"
    return ""


def _address_in(holders: dict[str, str], holder: str) -> str:
    return next((ip for ip, name in holders.items() if name == holder), "")


def _check_request(pool: Obj, address: str) -> None:
    """Raise `AllocationError` for an address that the pool cannot allocate."""
    number = int(ipaddress.IPv4Address(address))
    part = next((part for part in ranges_of(pool["spec"]) if number in part), None)
    if part is None:
        raise AllocationError(f"{address} not in range set {_range_set(pool)}")
    if number == part.gateway:
        raise AllocationError(f"requested ip {address} is subnet's gateway")


def _range_set(pool: Obj) -> str:
    return ",".join(map(str, ranges_of(pool["spec"])))


def _bound(entry: Obj, field: str, subnet: ipaddress.IPv4Network) -> int | None:
    """Return the address in a field of a range as a number, None for none. Raise ValueError."""
    text = entry.get(field)
    if not text:
        return None
    address = ipaddress.IPv4Address(text)
    if address not in subnet:
        raise ValueError(f"invalid {field} {text}: IP {text} is out of subnet {subnet}")
    if address == subnet.network_address:
        raise ValueError(f"invalid {field} {text}: IP {text} is the network address")
    if address == subnet.broadcast_address:
        raise ValueError(f"invalid {field} {text}: IP {text} is the broadcast address")
    return int(address)


def _text(number: int) -> str:
    return str(ipaddress.IPv4Address(number))
