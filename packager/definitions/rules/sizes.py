"""Rules about the sizes and devices of the machines in a ClusterDefinition.

A pool may set a field and take another one from all machines, so that the rules of a
HarvesterMachine hold for the fields of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from caphv.api import hostresources
from caphv.api.object import Obj
from caphv.api.quantity import quantity
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.model import KINDS

RULES = Rules()

DEFAULT_SIZES: Obj = {"cpu": 2, "memory": "4Gi"}
"""CPU and memory of machines whose definition names none."""


@RULES.rule(
    "definition-maxima",
    KINDS,
    "`cpuMax` and `memoryMax` must be at least `cpu` and `memory` of each pool; all four may come "
    "from `machines`.",
)
def _check_maxima(obj: Obj) -> Iterator[Finding]:
    machines = obj["spec"]["machines"]
    for path, pool in _pools(obj):
        sizes = {**DEFAULT_SIZES, **machines, **pool}
        for field, maximum in (("cpu", "cpuMax"), ("memory", "memoryMax")):
            size = quantity(sizes[field])
            largest = quantity(sizes.get(maximum))
            if size is None or largest is None or largest >= size:
                continue
            detail = f"must be at least {field}, which is {sizes[field]} here"
            if maximum not in pool and field in pool:
                detail += f": set it here, because machines.{maximum} is {sizes[maximum]}"
            is_own = maximum in pool or field in pool
            owner = path if is_own else ("spec", "machines")
            yield Finding((*owner, maximum), Fault.INVALID, detail, value=sizes[maximum])
            if not is_own:
                return  # the same holds for other pools


@RULES.rule(
    "definition-host-resources",
    KINDS,
    "`devices`, `cpuPinning`, `isolateEmulatorThread`, `numaPassthrough` and `hugepages` of each "
    "pool must fit together and with its sizes, as in a HarvesterMachine; all may come from "
    "`machines`.",
)
def _check_host_resources(obj: Obj) -> Iterator[Finding]:
    machines = obj["spec"]["machines"]
    reported = set()
    for path, pool in _pools(obj):
        sizes = {**DEFAULT_SIZES, **machines, **pool}
        for conflict in hostresources.conflicts(sizes):
            # A field that comes from all machines is set there, and reported once.
            is_own = conflict.field in pool
            owner: FieldPath = path if is_own else ("spec", "machines")
            detail = conflict.detail
            if conflict.kind == hostresources.GROWTH_EXCLUDED and not is_own:
                detail += " here, and set it for each pool that may grow"
            finding = Finding(
                (*owner, conflict.field),
                Fault.INVALID,
                detail,
                value=sizes[conflict.field],
            )
            if finding.path not in reported:
                yield finding
            reported.add(finding.path)

    for path, part in (_Part(("spec", "machines"), machines), *_pools(obj)):
        seen: set[str] = set()
        for index, device in enumerate(part.get("devices", ())):
            name = device["resourceName"]
            if name in seen:
                detail = "is in the list already: raise its count, and remove this entry"
                field = (*path, "devices", index, "resourceName")
                yield Finding(field, Fault.DUPLICATE, detail, value=name)
            seen.add(name)


class _Part(NamedTuple):
    """A part of a definition with fields of machines, and its path."""

    path: FieldPath
    fields: Obj


def _pools(obj: Obj) -> list[_Part]:
    """Return control plane and pools of workers. Without `workers`, there is a default pool."""
    spec = obj["spec"]
    workers = spec.get("workers", ({},))
    return [
        _Part(("spec", "controlPlane"), spec.get("controlPlane", {})),
        *(_Part(("spec", "workers", index), pool) for index, pool in enumerate(workers)),
    ]
