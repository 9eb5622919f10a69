"""What happens to machines when a cluster's objects change, and what that needs on Harvester: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from caphv.api.object import Key, Obj
from caphv.api.quantity import quantity
from overview.hostcapacity import Size
from overview.plan.pools import Pool, Wanted

_MOST_REASONS = 6


class Action(StrEnum):
    """What happens to an object or to the machines of a pool."""

    CREATE = "create"
    CHANGE = "change in place"
    REPLACE = "replace"
    DELETE = "delete"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """A field that gets another value."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}: {self.before or '(none)'} → {self.after or '(none)'}"


@dataclass(frozen=True, slots=True)
class PoolEffect:
    """What happens to the machines of a pool, which had `before` of them and gets `after`."""

    pool: str
    before: int
    after: int
    replaced: int = 0
    surge: int = 0
    reasons: tuple[Field, ...] = ()

    @property
    def created(self) -> int:
        """VMs that are created."""
        return self.replaced + max(0, self.after - self.before)

    @property
    def deleted(self) -> int:
        """VMs that are deleted."""
        return self.replaced + max(0, self.before - self.after)


@dataclass(frozen=True, slots=True)
class Needs:
    """What machines need at most while a change is under way, beyond what they have: numbers, CPUs and bytes."""

    vms: int = 0
    cpu: Decimal = Decimal(0)
    memory: Decimal = Decimal(0)
    storage: Decimal = Decimal(0)
    addresses: int = 0
    sizes: tuple[Size, ...] = ()
    """Each VM that exists in addition at the same time."""

    def __add__(self, other: Needs) -> Needs:
        return Needs(
            self.vms + other.vms,
            self.cpu + other.cpu,
            self.memory + other.memory,
            self.storage + other.storage,
            self.addresses + other.addresses,
            self.sizes + other.sizes,
        )


@dataclass(frozen=True, slots=True)
class ClusterEffect:
    """What happens to one cluster."""

    cluster: Key
    pools: tuple[PoolEffect, ...] = ()
    infrastructure: tuple[Field, ...] = ()
    """Fields of its HarvesterCluster that change in place."""
    needs: Needs = Needs()
    unknown: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything happens."""
        return bool(self.pools or self.infrastructure)


def effect_of(cluster: Key, before: Wanted, after: Wanted, outdated: Mapping[str, int] | None = None) -> ClusterEffect:
    """Compare a cluster before and after. `outdated` counts machines that a rollout under way still has to replace."""
    effects, needs = [], Needs()
    unknown = tuple(dict.fromkeys((*before.unknown, *after.unknown)))
    names = () if unknown else dict.fromkeys((*before.pools, *after.pools))
    for name in names:
        one, other = before.pools.get(name, Pool(name, 0)), after.pools.get(name, Pool(name, 0))
        if name in before.pools and not other.fixed:
            other = replace(other, replicas=one.replicas)
        effect = _pool_effect(one, other, (outdated or {}).get(name, 0))
        if effect is not None:
            effects.append(effect)
            needs += _needs(one, other, effect, after.infrastructure)
    infrastructure = () if unknown or not before.pools else tuple(fields(before.infrastructure, after.infrastructure))
    return ClusterEffect(cluster, tuple(effects), infrastructure, needs, unknown)


def fields(before: Any, after: Any, path: str = "") -> Iterator[Field]:
    """Yield the fields that differ, each as deep as both have it."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            yield from fields(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_fields(before, after, path)
    elif before != after and (before or after or before is False or after is False or before == 0 or after == 0):
        yield Field(path, _short(before), _short(after))


def _list_fields(before: list[Any], after: list[Any], path: str) -> Iterator[Field]:
    keys = [_name(each) for each in (*before, *after)]
    if all(keys):  # members are known by name, as pools and variables are
        old, new = ({_name(each): each for each in members} for members in (before, after))
        for name in dict.fromkeys(keys):
            yield from fields(old.get(name), new.get(name), f"{path}[{name}]")
    elif len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from fields(one, other, f"{path}[{index}]")
    elif before != after:
        yield Field(path, _short(before), _short(after))


def _pool_effect(before: Pool, after: Pool, outdated: int) -> PoolEffect | None:
    kept = min(before.replicas, after.replicas)
    reasons = tuple(fields(dict(before.wanted), dict(after.wanted))) if before.wanted and after.wanted else ()
    replaced = kept if reasons else min(outdated, kept)
    if not replaced and before.replicas == after.replicas:
        return None
    surge = after.surge if replaced else 0
    if replaced and after.name == "control plane" and after.replicas < 3:
        surge = 1  # whatever the strategy says: etcd would not survive the loss of a member
    return PoolEffect(after.name, before.replicas, after.replicas, replaced, surge, reasons[:_MOST_REASONS])


def _needs(before: Pool, after: Pool, effect: PoolEffect, infrastructure: Obj) -> Needs:
    grown = max(0, effect.after - effect.before) + effect.surge
    one, other = Size.of(before.machine.get("cpu"), before.machine.get("memory")), _size(after)
    least = (other.cpu * grown, other.memory * grown, _storage(after) * grown)
    total = effect.after + effect.surge
    most = (
        other.cpu * total - one.cpu * effect.before,
        other.memory * total - one.memory * effect.before,
        _storage(after) * total - _storage(before) * effect.before,
    )
    cpu, memory, storage = map(max, zip(least, most, strict=True))
    pooled = bool(infrastructure.get("vmNetworkConfig")) and not after.machine.get("networkConfig")
    return Needs(grown, cpu, memory, storage, grown if pooled else 0, (other,) * grown)


def _size(pool: Pool) -> Size:
    return Size.of(pool.machine.get("cpu"), pool.machine.get("memory"))


def _storage(pool: Pool) -> Decimal:
    volumes: Iterable[Obj] = pool.machine.get("volumes") or ()
    return sum((quantity(volume.get("volumeSize")) or Decimal(0) for volume in volumes), Decimal(0))


def _name(value: Any) -> str:
    return str(value.get("name") or "") if isinstance(value, dict) else ""


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value).replace("'", "")
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}…"
