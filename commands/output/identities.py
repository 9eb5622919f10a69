"""How identities look: a line each."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console

from commands.output.overview import row
from commands.output.text import Text
from overview.identities import Identity

_STYLES = {"valid": "green", "expiring": "yellow", "expired": "bold red", "unusable": "bold red", "unused": "dim"}
_SHOWN = 3


def show(out: Console, identities: Iterable[Identity]) -> None:
    """Write a line for each identity, cut to the width of a terminal."""
    header = ["SECRET", "STATE", "ENDS", "HARVESTER", "CLUSTERS"]
    rows = [
        [
            Text(each.secret, style="bold"),
            Text(each.state, style=_STYLES[each.state]),
            Text(_end(each)),
            Text(each.server or each.error),
            Text(_clusters(each.clusters)),
        ]
        for each in identities
    ]
    table = [[Text(name, style="dim") for name in header], *rows]
    widths = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
    for cells in table:
        out.print(row(cells, widths), no_wrap=True, overflow="ellipsis", crop=True)


def _end(identity: Identity) -> str:
    if identity.ends or identity.error:
        return identity.ends or "-"
    return "never" if identity.lasting else "-"


def _clusters(names: tuple[str, ...]) -> str:
    if not names:
        return "none"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
