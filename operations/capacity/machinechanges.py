"""Predict the effect of changed objects on a cluster's machines, and their needs. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from caphv.api.interfaces import addressed_numbers
from caphv.api.object import Key, Obj
from caphv.api.quantity import quantity
from operations.capacity.hosts import Size, devices_of_machine
from operations.capacity.machinepools import CONTROL_PLANE, DesiredState, Pool

_MAX_REASONS = 6


class Action(StrEnum):
    """The effect of a change on an object, or on the machines of a pool."""

    CREATE = "create"
    CHANGE = "change in place"
    REPLACE = "replace"
    DELETE = "delete"
    REFUSED = "refused"


NO_EXTENSION = ("",)
"""Obstacles to an update in place where no extension makes one: no reason is worth its text."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field whose value changes."""

    path: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}: {self.before or '(none)'} → {self.after or '(none)'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEffect:
    """The effect on the machines of a pool.

    :param before: the number of machines before the change
    :param after: the number of machines after it
    :param replaced: how many machines are replaced
    :param surge: how many machines a rollout adds for a time
    :param reasons: the changed fields for which machines are replaced or updated
    :param updated: how many machines are updated in place and keep their VMs
    :param why_replaced: why machines are not updated in place, if an extension could do that
    """

    pool: str
    before: int
    after: int
    replaced: int = 0
    surge: int = 0
    reasons: tuple[Field, ...] = ()
    updated: int = 0
    why_replaced: tuple[str, ...] = ()

    @property
    def created(self) -> int:
        """How many VMs are created."""
        return self.replaced + max(0, self.after - self.before)

    @property
    def deleted(self) -> int:
        """How many VMs are deleted."""
        return self.replaced + max(0, self.before - self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What machines need at most during a change, in addition to what they have.

    CPUs are numbers, memory and storage are bytes.

    :param sizes: the size of each VM that exists in addition at the same time
    :param devices: devices of hosts, and bytes of huge pages, by the name of their resource
    :param smallest: the smallest number of them that any of the machines needs on one host
    """

    vms: int = 0
    cpu: Decimal = Decimal(0)
    memory: Decimal = Decimal(0)
    storage: Decimal = Decimal(0)
    addresses: int = 0
    sizes: tuple[Size, ...] = ()
    devices: Mapping[str, int] = field(default_factory=dict)
    smallest: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Needs) -> Needs:
        """Return the needs of both at the same time."""
        return Needs(
            vms=self.vms + other.vms,
            cpu=self.cpu + other.cpu,
            memory=self.memory + other.memory,
            storage=self.storage + other.storage,
            addresses=self.addresses + other.addresses,
            sizes=self.sizes + other.sizes,
            devices=Counter(self.devices) + Counter(other.devices),
            smallest={
                name: min(part[name] for part in (self.smallest, other.smallest) if name in part)
                for name in self.smallest.keys() | other.smallest.keys()
            },
        )


@dataclass(frozen=True, slots=True)
class ClusterEffect:
    """The effect on one cluster.

    :param infrastructure: fields of its HarvesterCluster that change in place
    :param unknown: why the effect cannot be predicted; empty if it can
    """

    cluster: Key
    pools: tuple[PoolEffect, ...] = ()
    infrastructure: tuple[Field, ...] = ()
    needs: Needs = Needs()
    unknown: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether the change has any effect."""
        return bool(self.pools or self.infrastructure)


def effect_of(
    cluster: Key,
    before: DesiredState,
    after: DesiredState,
    outdated: Mapping[str, int] = MappingProxyType({}),
    obstacles: Callable[[Pool, Pool], tuple[str, ...]] = lambda _before, _after: NO_EXTENSION,
) -> ClusterEffect:
    """Return the effect of a change on a cluster.

    :param cluster: namespace and name
    :param before: the desired state of its objects now
    :param after: their desired state after the change
    :param outdated: by pool, the number of machines that a current rollout still has to replace
    :param obstacles: returns why a change of a pool replaces its machines; empty if machines are
        updated in place, `NO_EXTENSION` if nothing could update them
    """
    unknown = tuple(dict.fromkeys((*before.unknown, *after.unknown)))
    if unknown:
        return ClusterEffect(cluster, unknown=unknown)

    effects = []
    needs = Needs()
    for name in dict.fromkeys((*before.pools, *after.pools)):
        old = before.pools.get(name, Pool(name, 0))
        new = after.pools.get(name, Pool(name, 0))
        # Another component, such as the autoscaler, decides on the number, which therefore stays.
        if name in before.pools and not new.fixed:
            new = replace(new, replicas=old.replicas)

        effect = _pool_effect(old, new, outdated.get(name, 0), obstacles)
        if effect is not None:
            effects.append(effect)
            needs += _needs(old, new, effect, after.infrastructure)

    # In a new cluster, no field changes.
    infrastructure: tuple[Field, ...] = ()
    if before.pools:
        infrastructure = tuple(fields(before.infrastructure, after.infrastructure))
    return ClusterEffect(cluster, tuple(effects), infrastructure, needs)


def fields(before: Any, after: Any, path: str = "") -> Iterator[Field]:
    """Yield the fields that differ, as deep as both values have the same structure."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            yield from fields(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_fields(before, after, path)
    elif before != after and not (_is_empty(before) and _is_empty(after)):
        yield Field(path, _format_short(before), _format_short(after))


def _is_empty(value: Any) -> bool:
    """Return whether a value means the same as an absent field. False and 0 are settings."""
    return not value and value is not False and value != 0


def _list_fields(before: list[Any], after: list[Any], path: str) -> Iterator[Field]:
    """Yield the fields that differ in two lists: by name, else by position, else as a whole."""
    # Compare by name if possible, so that an inserted entry does not make all others differ.
    names = [_name(member) for member in (*before, *after)]
    if all(names):
        old = {_name(member): member for member in before}
        new = {_name(member): member for member in after}
        for name in dict.fromkeys(names):
            yield from fields(old.get(name), new.get(name), f"{path}[{name}]")
    elif len(before) == len(after):
        for index, (old_member, new_member) in enumerate(zip(before, after, strict=True)):
            yield from fields(old_member, new_member, f"{path}[{index}]")
    elif before != after:
        yield Field(path, _format_short(before), _format_short(after))


def _pool_effect(
    before: Pool,
    after: Pool,
    outdated: int,
    obstacles: Callable[[Pool, Pool], tuple[str, ...]],
) -> PoolEffect | None:
    """Return the effect on the machines of a pool; None if there is none.

    :param outdated: the number of machines that a current rollout still has to replace
    :param obstacles: see `effect_of`
    """
    reasons: tuple[Field, ...] = ()
    if before.inputs and after.inputs:
        reasons = tuple(fields(dict(before.inputs), dict(after.inputs)))

    # Without a change, only a rollout that is under way replaces machines.
    staying = min(before.replicas, after.replicas)
    pool_obstacles = obstacles(before, after)
    why_replaced = pool_obstacles if reasons else NO_EXTENSION

    # An extension may update the outdated machines of this rollout in place, which only the
    # rollout's own templates would tell. Such a machine counts as replaced.
    is_replacement_certain = bool(reasons and why_replaced)
    if outdated and pool_obstacles != NO_EXTENSION and not is_replacement_certain:
        why_replaced = ("a rollout is under way, and whether it keeps machines is not known",)
    updated = 0 if why_replaced else staying
    replaced = staying - updated if reasons else min(outdated, staying)
    if not replaced and not updated and before.replicas == after.replicas:
        return None

    # Providers ignore the strategy for one or two members and add a machine first, because etcd
    # would not survive the loss of a member.
    surge = after.surge if replaced else 0
    if replaced and after.name == CONTROL_PLANE and after.replicas < 3:
        surge = 1
    return PoolEffect(
        pool=after.name,
        before=before.replicas,
        after=after.replicas,
        replaced=replaced,
        surge=surge,
        reasons=reasons[:_MAX_REASONS],
        updated=updated,
        why_replaced=tuple(filter(None, why_replaced)),
    )


def _needs(before: Pool, after: Pool, effect: PoolEffect, infrastructure: Obj) -> Needs:
    """Return the resources that the machines of a pool need at most while they change.

    :param before: the pool as it is
    :param after: the pool as it will be
    :param effect: the effect on its machines
    :param infrastructure: the coming spec of the HarvesterCluster
    """
    old = Size.of_machine(before.machine)
    new = Size.of_machine(after.machine)
    additional = max(0, effect.after - effect.before) + effect.surge
    total = effect.after + effect.surge

    # At first, the additional machines exist next to the old ones. In the end, all machines have
    # the new size. The larger need counts.
    cpu = max(new.cpu * additional, new.cpu * total - old.cpu * effect.before)
    memory = max(new.memory * additional, new.memory * total - old.memory * effect.before)
    storage = max(
        _storage(after) * additional,
        _storage(after) * total - _storage(before) * effect.before,
    )
    # A machine with its own network configuration takes no address from the cluster's pools.
    has_own_addresses = bool(after.machine.get("networkConfig")) or (
        0 in addressed_numbers(after.machine)
    )
    uses_pools = bool(infrastructure.get("vmNetworkConfig")) and not has_own_addresses
    devices = _devices(before, after, effect, additional)
    per_machine = devices_of_machine(after.machine)
    return Needs(
        vms=additional,
        cpu=cpu,
        memory=memory,
        storage=storage,
        addresses=additional if uses_pools else 0,
        sizes=(new,) * additional,
        devices=devices,
        smallest={name: per_machine[name] for name in devices},
    )


def _devices(before: Pool, after: Pool, effect: PoolEffect, additional: int) -> dict[str, int]:
    """Return the devices that the machines of a pool need at most, as for CPU and memory."""
    old = devices_of_machine(before.machine)
    new = devices_of_machine(after.machine)
    total = effect.after + effect.surge
    needs = {
        name: max(count * additional, count * total - old[name] * effect.before)
        for name, count in new.items()
    }
    return {name: count for name, count in needs.items() if count > 0}


def _storage(pool: Pool) -> Decimal:
    """Return the bytes of all disks of one machine."""
    volumes: Iterable[Obj] = pool.machine.get("volumes") or ()
    return sum((quantity(volume.get("volumeSize")) or Decimal(0) for volume in volumes), Decimal(0))


def _name(value: Any) -> str:
    """Return the name of an entry of a list; empty if it has none."""
    return str(value.get("name") or "") if isinstance(value, dict) else ""


def _format_short(value: Any) -> str:
    """Format a value as one short line."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value).replace("'", "")
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}…"
