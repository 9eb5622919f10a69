"""Show members of etcd."""

from __future__ import annotations

from collections.abc import Sequence

from commands.output.overview import aligned, console
from commands.output.text import Text
from operations.change.etcd import EtcdMember

_STYLES = {"healthy": "green", "learner": "cyan"}


def show(members: Sequence[EtcdMember]) -> None:
    """Write a line for each member."""
    out = console()
    rows = [
        [
            Text(member.name or "-"),
            Text(member.id),
            Text(member.state, style=_STYLES.get(member.state, "red")),
            Text(member.machine or "-"),
            Text(member.peer),
        ]
        for member in members
    ]
    for line in aligned(("MEMBER", "ID", "STATE", "MACHINE", "PEER"), rows):
        out.print(line, soft_wrap=True)

    if any(member.state == "stale" for member in members):
        out.print(
            Text("→ Members without a machine count for the quorum. Remove them: caphv etcd remove")
        )


def show_removal(members: Sequence[EtcdMember], machines: Sequence[str]) -> None:
    """Write the members to remove, and the Machines to release."""
    out = console()
    for machine in machines:
        reason = "neither its Node nor its etcd member exists"
        out.print(Text(f"release Machine {machine}: {reason}"))
    if not members and not machines:
        out.print(Text("Nothing to remove: every etcd member has a machine"))
    for member in members:
        out.print(Text(f"remove member {member.name} ({member.id}), {member.state}"))
