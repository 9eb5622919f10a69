"""Addresses in use on the simulated networks, and the DHCP server of each network."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Iterator


class Addresses:
    """Addresses in use, by holder.

    DHCP gives a holder its previous address again if this address is free.
    """

    def __init__(self) -> None:
        self._holders: dict[str, str] = {}
        self._leases: dict[str, str] = {}
        # The address that DHCP must not give to a holder with its next lease.
        self._expired: dict[str, str] = {}

    def claim(self, address: str, holder: str) -> str:
        """Claim an address. Return the holder that already uses it; empty on success."""
        current = self._holders.setdefault(address, holder)
        return "" if current == holder else current

    def lease(self, dhcp: str, holder: str) -> str:
        """Claim an address of a DHCP range `<first>-<last>`.

        Raise LookupError if all addresses are in use.
        """
        candidates = _iterate_range(dhcp)
        if previous := self._leases.get(holder):
            candidates = itertools.chain([previous], candidates)
        for address in candidates:
            if address != self._expired.get(holder) and not self.claim(address, holder):
                self._leases[holder] = address
                return address
        raise LookupError(f"no free address left in the DHCP range {dhcp}")

    def expire(self, holder: str) -> None:
        """Give a holder a different address with its next lease."""
        if holder in self._leases:
            self._expired[holder] = self._leases.pop(holder)

    def release(self, holder: str) -> None:
        """Stop using all addresses of a holder, and remember its lease."""
        for address in [ip for ip, name in self._holders.items() if name == holder]:
            del self._holders[address]


def _iterate_range(dhcp: str) -> Iterator[str]:
    first, last = (int(ipaddress.IPv4Address(part)) for part in dhcp.split("-"))
    return (str(ipaddress.IPv4Address(number)) for number in range(first, last + 1))
