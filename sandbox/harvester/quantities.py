"""Kubernetes quantities as numbers."""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal

from caphv.api.object import Obj, at, dict_at, text_at

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


def parse_quantity(quantity: str | float | None) -> float:
    """Return the value of a quantity such as `500m` or `4Gi`; 0 for none. Raise ValueError."""
    match = _FORM.fullmatch(str(quantity or 0))
    if match is None or match[2] not in _FACTORS:
        raise ValueError(f"{quantity!r} is not a quantity")
    return float(Decimal(match[1]) * _FACTORS[match[2]])


def demand(spec: Obj) -> tuple[float, float]:
    """Return the CPUs and bytes of memory that an instance requests from its host.

    Like KubeVirt, use the requests, else the limits, else the size of the guest.
    """
    limits = dict_at(spec, "domain", "resources", "limits")
    resources = limits | dict_at(spec, "domain", "resources", "requests")
    topology = dict_at(spec, "domain", "cpu")
    guest = at(spec, "domain", "memory", "guest")
    cpu = parse_quantity(resources.get("cpu", topology.get("cores", 1)))
    memory = parse_quantity(resources.get("memory", guest))
    if topology.get("isolateEmulatorThread"):
        cpu += 1
    # Huge pages are a resource of their own.
    return cpu, 0.0 if _page_size(spec) else memory


def devices(spec: Obj) -> Counter[str]:
    """Return the devices of its host that an instance requests, by the name of their resource.

    Bytes of huge pages count as devices, because the scheduler knows only names and numbers.
    """
    requested = dict_at(spec, "domain", "devices")
    kinds = (requested.get("hostDevices") or (), requested.get("gpus") or ())
    names = Counter(
        str(device["deviceName"]) for devices_of_kind in kinds for device in devices_of_kind
    )
    if page_size := _page_size(spec):
        names[f"hugepages-{page_size}"] = int(parse_quantity(at(spec, "domain", "memory", "guest")))
    return names


def _page_size(spec: Obj) -> str:
    return text_at(spec, "domain", "memory", "hugepages", "pageSize")
