"""Values that rules have to understand: quantities, IPv4 addresses and networks, names, references."""

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

_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_SUBDOMAIN_LENGTH = 253
# Of IPv6 with an IPv4 address at its end.
_LONGEST_ADDRESS = 45
_REMEMBERED = 256


def address(field: Field) -> IPv4 | None:
    """Return the IPv4 address in a field, None when it has none."""
    return _ipv4(field.text) if 0 < len(field.text) <= _LONGEST_ADDRESS else None


# Several rules read each address, and the machines of a cluster have most of them in common.
@lru_cache(maxsize=_REMEMBERED)
def _ipv4(text: str) -> IPv4 | None:
    try:
        return IPv4(text)
    except ValueError:
        return None


def is_ip(text: str) -> bool:
    """Whether a text is an IPv4 or IPv6 address."""
    return len(text) <= _LONGEST_ADDRESS and _is_ip(text)


@lru_cache(maxsize=_REMEMBERED)
def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def subnet(field: Field) -> IPv4Network | None:
    """Return the IPv4 subnet in a field (`172.17.1.0/24`, also with bits of a host), None when it has none."""
    if not field.text.rpartition("/")[2].isdecimal() or "/" not in field.text:
        return None
    try:
        return IPv4Network(field.text, strict=False)
    except ValueError:
        return None


def network(host: IPv4, mask: Field) -> IPv4Network | None:
    """Return the network of a host by a dotted mask in a field, None without a mask that can be one."""
    dotted = address(mask)
    prefix = None if dotted is None else prefix_of(dotted)
    return None if prefix is None else network_of(host, prefix)


@lru_cache(maxsize=_REMEMBERED)
def network_of(host: IPv4, prefix: int) -> IPv4Network:
    """Return the network of a host by the length of its prefix."""
    return IPv4Network((host, prefix), strict=False)


def prefix_of(mask: IPv4) -> int | None:
    """Return the length of the prefix that a dotted mask stands for, None for one with gaps."""
    inverse = int(mask) ^ 0xFFFFFFFF
    return None if inverse & (inverse + 1) else 32 - inverse.bit_length()


def is_end(host: IPv4, within: IPv4Network) -> bool:
    """Whether a host has the network or broadcast address of a network that has these."""
    return within.prefixlen < 31 and host in (within.network_address, within.broadcast_address)


class Range(NamedTuple):
    """Addresses of a pool, both ends included."""

    first: IPv4
    last: IPv4


def pool_range(pool: Field) -> Range | None:
    """Return what an `ipPool` gives out, None when its fields do not say that."""
    whole = subnet(pool.at("subnet"))
    if whole is None:
        return None
    margin = 1 if whole.prefixlen < 31 else 0
    start, end = pool.at("rangeStart"), pool.at("rangeEnd")
    first = address(start) if start.present else whole.network_address + margin
    last = address(end) if end.present else whole.broadcast_address - margin
    return Range(first, last) if first is not None and last is not None else None


def is_label(text: str) -> bool:
    """Whether a text can be a host name or a namespace (RFC 1123 label)."""
    return len(text) <= LABEL_LENGTH and _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether a text can be the name of most objects (RFC 1123 subdomain)."""
    return len(text) <= _SUBDOMAIN_LENGTH and _SUBDOMAIN.fullmatch(text) is not None


def is_label_value(text: str) -> bool:
    """Whether a text can be the value of a label."""
    return _LABEL_VALUE.fullmatch(text) is not None


def is_label_key(text: str) -> bool:
    """Whether a text can be the key of a label, with or without a prefix."""
    prefix, slash, name = text.rpartition("/")
    return _LABEL_NAME.fullmatch(name) is not None and (not slash or is_subdomain(prefix))


def is_reference(text: str) -> bool:
    """Whether a text is `namespace/name` or a bare name of an object."""
    namespace, slash, name = text.rpartition("/")
    return is_subdomain(name) and (not slash or is_label(namespace))
