"""Show free capacity, in a table for each Harvester."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from caphv.api.quantity import readable
from commands.output.overview import aligned, console
from commands.output.pools import show_unseen
from commands.output.text import Text
from operations.capacity.free import Capacity, Quota, Room

__all__ = ["show", "show_unseen"]


def show(capacities: Iterable[Capacity], *, hosts: bool) -> None:
    """Write the free capacity of each Harvester."""
    out = console()
    for capacity in capacities:
        out.print(Text.assemble("Harvester ", (capacity.harvester, "bold")))
        rooms = [capacity.total, *capacity.zones, *(capacity.hosts if hosts else ())]
        lines = [["", "HOSTS", "CPU FREE", "MEMORY FREE"], *map(_room, rooms)]
        if not capacity.all_vms:
            lines[1][0] += " (by the VMs that are seen)"
        _table(out, lines)

        if capacity.pools:
            pools = [
                [pool.name, f"{'?' if pool.free is None else pool.free} of {pool.total}"]
                for pool in capacity.pools
            ]
            _table(out, [["IPPOOL", "FREE"], *pools])
        if capacity.quotas:
            _table(out, [["QUOTA", "RESOURCE", "FREE"], *map(_quota, capacity.quotas)])
        if storage := capacity.storage:
            longhorn = ["Longhorn", _share(storage.free, storage.total, "B")]
            _table(out, [["STORAGE", "FREE"], longhorn])


def _room(room: Room) -> list[str]:
    name = f"{room.name} ({room.zone})" if room.zone else room.name
    memory = _share(room.memory_free, room.memory, "B")
    return [name, str(room.hosts), _share(room.cpu_free, room.cpu), memory]


def _quota(quota: Quota) -> list[str]:
    in_bytes = quota.resource.rpartition(".")[2] in ("memory", "storage", "ephemeral-storage")
    share = _share(quota.free, quota.hard, "B" if in_bytes else "")
    return [f"{quota.namespace}/{quota.name}", quota.resource, share]


def _share(free: float, total: float, unit: str = "") -> str:
    return f"{readable(free, unit)} of {readable(total, unit)}"


def _table(out: Console, lines: Sequence[Sequence[str]]) -> None:
    header, *rows = lines
    cells = [[Text(cell, style=_style(cell)) for cell in row] for row in rows]
    for line in aligned(header, cells):
        out.print(Text("  ").append_text(line), soft_wrap=True)


def _style(cell: str) -> str:
    """Return the style of a cell: yellow if the resource is used up."""
    free, separator, _ = cell.partition(" of ")
    return "yellow" if separator and (free == "0" or free.startswith(("-", "0 "))) else ""
