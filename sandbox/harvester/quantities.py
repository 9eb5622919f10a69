"""Kubernetes quantities as numbers."""

from __future__ import annotations

import re
from decimal import Decimal

from caphv.api.object import Obj

_SUFFIXES = {
    "n": "1e-9",
    "u": "1e-6",
    "m": "1e-3",
    "": "1",
    "k": "1e3",
    "M": "1e6",
    "G": "1e9",
    "T": "1e12",
    "P": "1e15",
}
_FACTORS = {name: Decimal(value) for name, value in _SUFFIXES.items()}
_FACTORS |= {f"{name}i": Decimal(1024) ** power for power, name in enumerate("KMGTP", 1)}
_FORM = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)")


def number(quantity: str | float | None) -> float:
    """Value of a quantity such as `500m` or `4Gi`; 0 for none. Raises ValueError."""
    match = _FORM.fullmatch(str(quantity or 0))
    if match is None or match[2] not in _FACTORS:
        raise ValueError(f"{quantity!r} is not a quantity")
    return float(Decimal(match[1]) * _FACTORS[match[2]])


def demand(spec: Obj) -> tuple[float, float]:
    """CPUs and bytes of memory that a VM requests from its host: requests, else limits, else the guest's size."""
    domain = spec.get("domain") or {}
    resources = domain.get("resources") or {}
    wanted = (resources.get("limits") or {}) | (resources.get("requests") or {})
    cores = (domain.get("cpu") or {}).get("cores", 1)
    guest = (domain.get("memory") or {}).get("guest")
    return number(wanted.get("cpu", cores)), number(wanted.get("memory", guest))
