"""Parse values that rules must understand: IPv4 addresses, networks, names, references."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import NamedTuple

from webhooks.rules.model import Field

IPv4 = ipaddress.IPv4Address
IPv4Network = ipaddress.IPv4Network

KI, MI, GI, TI = (1024**power for power in (1, 2, 3, 4))
LABEL_LENGTH = 63
NO_QUANTITY = "must be a number with or without a suffix such as Ki, Mi or Gi, for example 4Gi"

# Patterns as in pkg/util/validation of apimachinery.
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN_LENGTH = 253
# Length of an IPv6 address with an IPv4 address at its end.
_MAX_ADDRESS_LENGTH = 45
_MAX_CACHED = 256


def address(field: Field) -> IPv4 | None:
    """Return the IPv4 address in a field, None when it has none."""
    return _ipv4(field.text) if 0 < len(field.text) <= _MAX_ADDRESS_LENGTH else None


# Results are cached, because several rules read each address, and the machines of a cluster share
# most addresses.
@lru_cache(maxsize=_MAX_CACHED)
def _ipv4(text: str) -> IPv4 | None:
    try:
        return IPv4(text)
    except ValueError:
        return None


def is_ip(text: str) -> bool:
    """Return whether a text is an IPv4 or IPv6 address."""
    return len(text) <= _MAX_ADDRESS_LENGTH and _is_ip(text)


@lru_cache(maxsize=_MAX_CACHED)
def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    # A zone, as in fe80::1%eth0, has a meaning only on one machine.
    return "%" not in text


def subnet(field: Field) -> IPv4Network | None:
    """Return the IPv4 subnet in a field, None when it has none.

    `172.17.1.5/24` counts as a subnet, because its host bits are dropped.
    """
    # Require a number, because `ipaddress` would also accept a mask instead of the length.
    if not field.text.rpartition("/")[2].isdecimal() or "/" not in field.text:
        return None
    try:
        return IPv4Network(field.text, strict=False)
    except ValueError:
        return None


def network(host: IPv4, mask: Field) -> IPv4Network | None:
    """Return the network of a host by the dotted mask in a field, None for an invalid mask."""
    dotted = address(mask)
    if dotted is None:
        return None
    prefix = prefix_of(dotted)
    return None if prefix is None else network_of(host, prefix)


@lru_cache(maxsize=_MAX_CACHED)
def network_of(host: IPv4, prefix: int) -> IPv4Network:
    """Return the network of a host by the length of its prefix."""
    return IPv4Network((host, prefix), strict=False)


def prefix_of(mask: IPv4) -> int | None:
    """Return the prefix length of a dotted mask, None for a mask with gaps."""
    inverse = int(mask) ^ 0xFFFFFFFF
    # Without gaps, the inverse has ones only at its end, and adding 1 carries through all of them.
    has_gaps = inverse & (inverse + 1)
    return None if has_gaps else 32 - inverse.bit_length()


def is_end(host: IPv4, within: IPv4Network) -> bool:
    """Return whether a host has the network or broadcast address of a network."""
    return within.prefixlen < 31 and host in (within.network_address, within.broadcast_address)


class Range(NamedTuple):
    """Addresses of a pool, both ends included."""

    first: IPv4
    last: IPv4


def pool_range(pool: Field) -> Range | None:
    """Return the addresses that an `ipPool` allocates, None if its fields are invalid."""
    pool_subnet = subnet(pool.at("subnet"))
    if pool_subnet is None:
        return None

    # Smaller networks have neither network nor broadcast address (RFC 3021).
    margin = 1 if pool_subnet.prefixlen < 31 else 0
    start = pool.at("rangeStart")
    end = pool.at("rangeEnd")
    first = address(start) if start.present else pool_subnet.network_address + margin
    last = address(end) if end.present else pool_subnet.broadcast_address - margin
    return Range(first, last) if first is not None and last is not None else None


def is_label(text: str) -> bool:
    """Return whether a text can be a host name or a namespace (RFC 1123 label)."""
    return len(text) <= LABEL_LENGTH and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Return whether a text can be the name of most objects (RFC 1123 subdomain)."""
    return len(text) <= _SUBDOMAIN_LENGTH and _SUBDOMAIN.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Return whether a text can be the value of a label."""
    return _LABEL_VALUE.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Return whether a text can be the key of a label, with or without a prefix."""
    prefix, slash, name = text.rpartition("/")
    return _LABEL_NAME.fullmatch(name) is not None and (not slash or is_subdomain(prefix))


def is_reference(text: str) -> bool:
    """Return whether a text is `namespace/name` or a bare name of an object."""
    namespace, slash, name = text.rpartition("/")
    return is_subdomain(name) and (not slash or is_label(namespace))
