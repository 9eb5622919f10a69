"""Show snapshots of etcd."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from caphv.api.quantity import readable
from commands.output.overview import age, aligned, console
from commands.output.text import Text
from operations.read.etcdsnapshots import EtcdSnapshot


def show(snapshots: Sequence[EtcdSnapshot], now: datetime | None = None) -> None:
    """Write a line for each copy of a snapshot, and what is missing."""
    out = console()
    now = now or datetime.now(UTC)
    rows = [
        [
            Text(snapshot.name or "-"),
            Text(snapshot.state, style="red" if snapshot.wrong else "green"),
            Text(age(snapshot.created, now) or "-"),
            Text(readable(snapshot.size, "B") if snapshot.size else "-"),
            Text(snapshot.node or "-"),
            Text(snapshot.location or "-"),
        ]
        for snapshot in snapshots
    ]
    if rows:
        header = ("SNAPSHOT", "STATE", "AGE", "SIZE", "NODE", "LOCATION")
        for line in aligned(header, rows):
            out.print(line, soft_wrap=True)
    else:
        out.print(Text("No snapshots"))

    for snapshot in snapshots:
        if snapshot.error:
            out.print(Text(f"! {snapshot.name}: {snapshot.error}"))
    if not any(snapshot.s3 and not snapshot.wrong for snapshot in snapshots):
        out.print(Text("→ No snapshot outlives its machine: set variable etcdSnapshots with s3"))
