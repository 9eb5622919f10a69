"""How free capacity looks: a table for each Harvester."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console

from commands.output.overview import console, row
from commands.output.pools import show_unseen
from commands.output.text import Text
from overview.capacity import Capacity, Quota, Room

__all__ = ["amount", "show", "show_unseen"]

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show(found: Iterable[Capacity], *, hosts: bool) -> None:
    """Write what is free on each Harvester."""
    out = console()
    for each in found:
        out.print(Text.assemble("Harvester ", (each.harvester, "bold")))
        rooms = [each.total, *each.zones, *(each.hosts if hosts else ())]
        lines = [["", "HOSTS", "CPU FREE", "MEMORY FREE"], *map(_room, rooms)]
        if not each.all_vms:
            lines[1][0] += " (by the VMs that are seen)"
        _table(out, lines)
        if each.pools:
            pools = [[pool.name, f"{'?' if pool.free is None else pool.free} of {pool.total}"] for pool in each.pools]
            _table(out, [["IPPOOL", "FREE"], *pools])
        if each.quotas:
            _table(out, [["QUOTA", "RESOURCE", "FREE"], *map(_quota, each.quotas)])
        if each.storage:
            _table(out, [["STORAGE", "FREE"], ["Longhorn", _of(each.storage.free, each.storage.total, "B")]])


def amount(value: float, unit: str = "") -> str:
    """Write a number as people read it; bytes with a binary unit."""
    if unit != "B":
        return f"{value:.1f}".removesuffix(".0")
    size, index = float(value), 0
    while abs(size) >= 1024 and index < len(_UNITS) - 1:
        size, index = size / 1024, index + 1
    return f"{size:.1f} {_UNITS[index]}".replace(".0 ", " ")


def _room(room: Room) -> list[str]:
    name = f"{room.name} ({room.zone})" if room.zone else room.name
    memory = _of(room.memory_free, room.memory, "B")
    return [name, str(room.hosts), _of(room.cpu_free, room.cpu), memory]


def _quota(quota: Quota) -> list[str]:
    unit = "B" if quota.resource.rpartition(".")[2] in ("memory", "storage", "ephemeral-storage") else ""
    return [f"{quota.namespace}/{quota.name}", quota.resource, _of(quota.free, quota.hard, unit)]


def _of(free: float, total: float, unit: str = "") -> str:
    return f"{amount(free, unit)} of {amount(total, unit)}"


def _table(out: Console, lines: Sequence[Sequence[str]]) -> None:
    table = [[Text(cell, style="dim" if line is lines[0] else _style(cell)) for cell in line] for line in lines]
    widths = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
    for cells in table:
        out.print(Text("  ").append_text(row(cells, widths)), soft_wrap=True)


def _style(cell: str) -> str:
    """Yellow for what is used up."""
    free, separator, _ = cell.partition(" of ")
    return "yellow" if separator and (free == "0" or free.startswith(("-", "0 "))) else ""
