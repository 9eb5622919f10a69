"""How members of etcd look."""

from __future__ import annotations

from collections.abc import Sequence

from commands.output.overview import console, row
from commands.output.text import Text
from overview.etcd import EtcdMember

_STYLES = {"healthy": "green", "learner": "cyan"}


def show(members: Sequence[EtcdMember]) -> None:
    """Write a line for each member."""
    out = console()
    lines = [
        [
            Text(member.name or "-"),
            Text(member.id),
            Text(member.state, style=_STYLES.get(member.state, "red")),
            Text(member.machine or "-"),
            Text(member.peer),
        ]
        for member in members
    ]
    table = [[Text(name, style="dim") for name in ("MEMBER", "ID", "STATE", "MACHINE", "PEER")], *lines]
    widths = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
    for cells in table:
        out.print(row(cells, widths), no_wrap=True, crop=False)
    if any(member.state == "stale" for member in members):
        out.print(Text("→ Members without a machine count for the quorum: caphv etcd remove"))


def show_removal(members: Sequence[EtcdMember], machines: Sequence[str]) -> None:
    """Write what will be removed, and which Machines will be released."""
    out = console()
    for machine in machines:
        out.print(Text(f"release Machine {machine}: neither its Node nor a member of etcd exists any more"))
    if not members and not machines:
        out.print(Text("Nothing to remove: every member of etcd has its machine"))
    for member in members:
        out.print(Text(f"remove member {member.name} ({member.id}), {member.state}"))
