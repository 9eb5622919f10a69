"""Format the result of `caphv bundles trace`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from caphv.api.object import Key
from caphv.api.plaintext import printable
from commands.output.bundles import formats
from packager.trace import Stage, Trace

_MARKS = {True: ("ok", "green"), False: ("stopped", "red"), None: ("unknown", "yellow")}


def _text(cluster: Key, setting: Stage | None, traces: Sequence[Trace]) -> str:
    return "".join(f"{line}\n" for line in _lines(cluster, setting, traces))


def _lines(cluster: Key, setting: Stage | None, traces: Sequence[Trace]) -> Iterator[str]:
    """Yield the stages of each bundle, and the first one at which the value stopped."""
    yield f"cluster {cluster}"
    if setting:
        yield _line(setting)
    for trace in traces:
        yield f"bundle {printable(trace.bundle)}"
        yield from map(_line, trace.stages)
        if trace.stopped:
            yield f"  It stopped at: {trace.stopped.name}."
    if not traces:
        yield "no bundle is rendered for it"


def _line(stage: Stage) -> str:
    word, colour = _MARKS[stage.ok]
    mark = click.style(f"{word:<8}", fg=colour)
    detail = ": ".join(part for part in (stage.place, stage.detail) if part)
    return f"  {mark} {stage.name:<17} {printable(detail)}"


def _content(cluster: Key, setting: Stage | None, traces: Sequence[Trace]) -> Any:
    """Return a trace as data."""
    return {
        "cluster": str(cluster),
        **({"setting": _row(setting)} if setting else {}),
        "items": [
            {
                "name": trace.bundle,
                "wrong": bool(trace.stopped),
                "stages": [_row(stage) for stage in trace.stages],
                **({"stopped": trace.stopped.name} if trace.stopped else {}),
            }
            for trace in traces
        ],
    }


def _row(stage: Stage) -> dict[str, Any]:
    return {"name": stage.name, "place": stage.place, "ok": stage.ok, "detail": stage.detail}


TRACED = formats(_text, _content)
