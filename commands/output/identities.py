"""Show identities, one per line."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from caphv.api.counting import name_some
from commands.output.overview import aligned
from commands.output.text import Text
from operations.status.identities import Identity

_STYLES = {
    "valid": "green",
    "expiring": "yellow",
    "expired": "bold red",
    "rejected": "bold red",
    "unusable": "bold red",
    "unused": "dim",
}
_MAX_LISTED = 3


def show(out: Console, identities: Iterable[Identity]) -> None:
    """Write a line for each identity, cut to the width of a terminal."""
    header = ["SECRET", "STATE", "ENDS", "HARVESTER", "CLUSTERS"]
    rows = [
        [
            Text(identity.secret, style="bold"),
            Text(identity.state, style=_STYLES[identity.state]),
            Text(_end(identity)),
            Text(identity.server or identity.error),
            Text(_clusters(identity.clusters)),
        ]
        for identity in identities
    ]
    for line in aligned(header, rows):
        out.print(line, no_wrap=True, overflow="ellipsis")


def _end(identity: Identity) -> str:
    if identity.renewed:
        return f"{identity.ends} renewed"
    if identity.ends or identity.error:
        return identity.ends or "-"
    return "never" if identity.lasting else "-"


def _clusters(names: tuple[str, ...]) -> str:
    if not names:
        return "none"
    return name_some(names, _MAX_LISTED)
