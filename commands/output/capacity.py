"""Show free capacity, in a table for each Harvester."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from commands.output.overview import aligned, console
from commands.output.pools import show_unseen
from commands.output.text import Text
from operations.capacity.free import Capacity, Quota, Room

__all__ = ["amount", "show", "show_unseen"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


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


def amount(value: float, unit: str = "") -> str:
    """Format a number for people; bytes get a binary unit."""
    if unit != "B":
        return f"{value:.1f}".removesuffix(".0")
    size = float(value)
    index = 0
    while abs(size) >= 1024 and index < len(_UNITS) - 1:
        size = size / 1024
        index += 1
    return f"{size:.1f} {_UNITS[index]}".replace(".0 ", " ")


def _room(room: Room) -> list[str]:
    name = f"{room.name} ({room.zone})" if room.zone else room.name
    memory = _share(room.memory_free, room.memory, "B")
    return [name, str(room.hosts), _share(room.cpu_free, room.cpu), memory]


def _quota(quota: Quota) -> list[str]:
    in_bytes = quota.resource.rpartition(".")[2] in ("memory", "storage", "ephemeral-storage")
    share = _share(quota.free, quota.hard, "B" if in_bytes else "")
    return [f"{quota.namespace}/{quota.name}", quota.resource, share]


def _share(free: float, total: float, unit: str = "") -> str:
    return f"{amount(free, unit)} of {amount(total, unit)}"


def _table(out: Console, lines: Sequence[Sequence[str]]) -> None:
    header, *rows = lines
    cells = [[Text(cell, style=_style(cell)) for cell in row] for row in rows]
    for line in aligned(header, cells):
        out.print(Text("  ").append_text(line), soft_wrap=True)


def _style(cell: str) -> str:
    """Return the style of a cell: yellow if the resource is used up."""
    free, separator, _ = cell.partition(" of ")
    return "yellow" if separator and (free == "0" or free.startswith(("-", "0 "))) else ""
