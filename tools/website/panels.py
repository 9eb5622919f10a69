"""Draw panels of a Grafana dashboard as one SVG: their title, unit, axes, lines, legend or rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from caphv.api.object import Obj, at
from caphv.api.quantity import readable

Labels = tuple[tuple[str, str], ...]
Points = dict[int, float]
"""Values by the number of the scrape."""
Results = Mapping[str, Mapping[Labels, Points]]
"""Series by query."""

SCRAPE_SECONDS = 5
_WIDTH = 1200
_COLUMNS = 24
_ROW = 26
_GAP = 5
_CHARACTER = 6.1
_MAX_LEGEND_LINES = 3
_COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7a3e9d", "#5b5b5b"),
    *("#a0522d", "#2f6f3a", "#e15759", "#1b9aaa"),
)
_THRESHOLDS = {"green": "#1a7f37", "orange": "#b35900", "red": "#cf222e"}
_STYLE = (
    "text{font:11px sans-serif;fill:#57606a}.t{font-size:13px;font-weight:600;fill:#1b2733}"
    ".r{font-size:15px;font-weight:600;fill:#1b2733}.v{font-size:30px;font-weight:600}"
    ".l{fill:#1b2733}.p{fill:#fff;stroke:#d0d7de}.g{stroke:#eaeef2}path{fill:none;stroke-width:1.5}"
    ".e{text-anchor:end}.m{text-anchor:middle}"
)
_TIMES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_RATES = {"reqps": " req/s", "ops": " ops/s"}


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle of a panel."""

    x: float
    y: float
    width: float
    height: float


class _LegendEntry(NamedTuple):
    """The name of a series in a legend, or a note, whose `series` is -1."""

    series: int
    text: str
    offset: float


def picture(dashboard: Obj, results: Results, variables: Mapping[str, str], scrapes: int) -> str:
    """Return the dashboard as an SVG.

    :param dashboard: the dashboard as Grafana imports it
    :param results: the series of its queries, by the query with values for its variables
    :param variables: values of the dashboard's variables
    :param scrapes: the number of scrapes
    """
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    height = rows * _ROW + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _GAP} {height}" '
        f'width="{_WIDTH + _GAP}" height="{height}" role="img">',
        f"<title>Dashboard: {escape(dashboard['title'])}</title><style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#f6f8fa"/>',
    ]
    for panel in dashboard["panels"]:
        queries = [
            (filled_in(target["expr"], variables), target.get("legendFormat") or "")
            for target in panel.get("targets") or ()
        ]
        series = [
            (legend(text, labels), labels, points)
            for query, text in queries
            for labels, points in results[query].items()
        ]
        parts += _panel(panel, series, scrapes)
    return "\n".join([*parts, "</svg>", ""])


def filled_in(query: str, variables: Mapping[str, str]) -> str:
    """Return a query with values for the variables of the dashboard."""
    return re.sub(r"\$\{?(\w+)\}?", lambda match: variables[match[1]], query)


def legend(text: str, labels: Labels) -> str:
    """Return the name of a series, as Grafana fills in a format such as `{{pool}} free`."""
    values = dict(labels)
    if not text:
        return ", ".join(f"{name}={value}" for name, value in labels) or "value"
    return re.sub(r"\{\{ *(\w+) *\}\}", lambda match: values.get(match[1], ""), text).strip()


def in_unit(value: float, unit: str) -> str:
    """Format a value for people, in a unit of Grafana."""
    if not math.isfinite(value):
        return str(value)
    if unit == "percentunit":
        return f"{_number(value * 100)} %"
    if unit == "bytes":
        return readable(value, "B")
    if unit == "s":
        if abs(value) < 1:
            return f"{_number(value * 1000)} ms"
        size, name = next(entry for entry in _TIMES if abs(value) >= entry[0])
        return f"{_number(value / size)} {name}"
    return _number(value) + _RATES.get(unit, "")


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


Series = tuple[str, Labels, Points]


def _panel(panel: Obj, series: Sequence[Series], scrapes: int) -> Iterator[str]:
    """Yield the elements of a panel."""
    place = panel["gridPos"]
    column = _WIDTH / _COLUMNS
    frame = Frame(
        place["x"] * column + _GAP,
        place["y"] * _ROW + _GAP,
        place["w"] * column - _GAP,
        place["h"] * _ROW - _GAP,
    )
    title = escape(panel["title"])
    if panel["type"] == "row":
        yield f'<text class="r" x="{frame.x:g}" y="{frame.y + 15:g}">{title}</text>'
        return

    yield (
        f'<rect class="p" x="{frame.x:g}" y="{frame.y:g}" width="{frame.width:g}" '
        f'height="{frame.height:g}" rx="3"/>'
        f'<text class="t" x="{frame.x + 8:g}" y="{frame.y + 18:g}">{title}</text>'
    )
    if not any(points for _, _, points in series):
        middle = frame.y + frame.height / 2
        yield f'<text class="m" x="{frame.x + frame.width / 2:g}" y="{middle:g}">No data</text>'
    elif panel["type"] == "timeseries":
        yield from _graph(panel, frame, series, scrapes)
    elif panel["type"] == "table":
        yield from _table(panel, frame, series, scrapes)
    else:
        yield from _stat(panel, frame, series)


def _stat(panel: Obj, frame: Frame, series: Sequence[Series]) -> Iterator[str]:
    """Yield the last value of a panel in the colour of its threshold."""
    _, _, points = series[0]
    value = points[max(points)]
    defaults = panel["fieldConfig"]["defaults"]
    colour = ""
    for step in at(defaults, "thresholds", "steps") or ():
        if step["value"] is None or value >= step["value"]:
            colour = _THRESHOLDS[step["color"]]
    x = frame.x + frame.width / 2
    y = frame.y + frame.height - 25
    text = escape(in_unit(value, defaults.get("unit", "")))
    yield f'<text class="v m" style="fill:{colour}" x="{x:g}" y="{y:g}">{text}</text>'


def _table(panel: Obj, frame: Frame, series: Sequence[Series], scrapes: int) -> Iterator[str]:
    """Yield a line for each series that exists at the end."""
    unit = ""
    for override in panel["fieldConfig"].get("overrides") or ():
        for setting in override["properties"]:
            unit = setting["value"] if setting["id"] == "unit" else unit

    (transformation,) = panel.get("transformations") or [{}]
    hidden = at(transformation, "options", "excludeByName") or {}
    rows = [
        {**dict(labels), "Value": in_unit(points[scrapes - 1], unit)}
        for _, labels, points in series
        if scrapes - 1 in points
    ]
    names = [name for name in (rows[0] if rows else ()) if not hidden.get(name)]
    lines = [names, *([row[name] for name in names] for row in rows)]
    x = frame.x + 8
    for column in zip(*lines[: int((frame.height - 40) // 18)], strict=True):
        room = frame.x + frame.width - 8 - x
        for number, cell in enumerate(column):
            name = ' class="l"' if number else ""
            y = frame.y + 40 + number * 18
            yield f'<text{name} x="{x:g}" y="{y:g}">{escape(_cut(cell, room))}</text>'
        x += max(map(len, column)) * _CHARACTER + 14


def _graph(panel: Obj, frame: Frame, series: Sequence[Series], scrapes: int) -> Iterator[str]:
    """Yield axes, lines and legend."""
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults.get("unit", "")
    lines = [(name, points) for name, _, points in series if points]
    if at(defaults, "custom", "stacking"):
        lines = _stack(lines)

    legend_lines = list(_wrap([name for name, _ in lines], frame.width - 16))
    left = frame.x + 66
    right = frame.x + frame.width - 10
    top = frame.y + 32
    bottom = frame.y + frame.height - 24 - 15 * len(legend_lines)
    values = [value for _, points in lines for value in points.values() if math.isfinite(value)]
    ticks = _ticks(max(values, default=0), defaults.get("max"), unit)

    def x_of(scrape: float) -> float:
        return left + (right - left) * scrape / max(1, scrapes - 1)

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * max(0, min(value, ticks[-1])) / ticks[-1]

    for tick in ticks:
        y = y_of(tick)
        yield f'<path class="g" d="M{left:.0f} {y:.1f}H{right:.0f}"/>'
        text = escape(in_unit(tick, unit)) if tick else "0"
        yield f'<text class="e" x="{left - 6:.0f}" y="{y + 4:.1f}">{text}</text>'
    for minute in range((scrapes - 1) * SCRAPE_SECONDS // 60 + 1):
        x = x_of(minute * 60 / SCRAPE_SECONDS)
        if x < right - 12:
            text = f'<text class="m" x="{x:.0f}" y="{bottom + 14:.0f}">{minute} min</text>'
            yield text if minute else text.replace(" min", "")

    for index, (_, points) in reversed(list(enumerate(lines))):
        colour = _COLOURS[index % len(_COLOURS)]
        shapes = [[(x_of(scrape), y_of(points[scrape])) for scrape in run] for run in _runs(points)]
        path = "".join(map(_path, shapes))
        yield f'<path stroke="{colour}" d="{path}"/>'
    for number, line in enumerate(legend_lines):
        y = bottom + 32 + number * 15
        for index, text, offset in line:
            colour = _COLOURS[index % len(_COLOURS)]
            x = frame.x + 8 + offset
            if index >= 0:
                yield f'<path stroke="{colour}" d="M{x:.0f} {y - 4:.0f}h10" stroke-width="3"/>'
            yield f'<text class="l" x="{x + 14:.0f}" y="{y:.0f}">{escape(text)}</text>'


def _stack(lines: Sequence[tuple[str, Points]]) -> list[tuple[str, Points]]:
    """Return lines that each stand on the sum of those before."""
    sums: Points = {}
    stacked = []
    for name, points in lines:
        for scrape, value in points.items():
            sums[scrape] = sums.get(scrape, 0.0) + value
        stacked.append((name, {scrape: sums[scrape] for scrape in points}))
    return stacked


def _ticks(highest: float, limit: float | None, unit: str) -> list[float]:
    """Return the values of the vertical axis, from 0 to a round number above the highest one."""
    # A third of the smallest floats is 0, which has no logarithm.
    top = float(limit) if limit is not None else max(highest, 1e-9) if highest else 1.0
    base = 1024.0 if unit == "bytes" else 10.0
    exponent = math.floor(math.log(top / 3, base))
    factors = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    step = next(factor * base**exponent for factor in factors if factor * base**exponent * 4 >= top)
    count = math.ceil(top / step - 1e-9)
    return [step * number for number in range(count + 1)]


def _runs(points: Points) -> Iterator[list[int]]:
    """Yield scrapes that follow each other and have a value."""
    run: list[int] = []
    for scrape in sorted(points):
        if not math.isfinite(points[scrape]):
            continue
        if run and scrape != run[-1] + 1:
            yield run
            run = []
        run.append(scrape)
    if run:
        yield run


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return a line without the points at which it does not bend."""
    kept = [
        point
        for index, point in enumerate(points)
        if index in (0, len(points) - 1)
        or not points[index - 1][1] == point[1] == points[index + 1][1]
    ]
    # A point alone is a short line.
    end = "h2" if len(kept) == 1 else ""
    return "M" + "L".join(f"{x:.0f} {y:.1f}" for x, y in kept) + end


def _wrap(names: Sequence[str], width: float) -> Iterator[list[_LegendEntry]]:
    """Yield the lines of a legend."""
    line: list[_LegendEntry] = []
    offset = 0.0
    count = 1
    for index, name in enumerate(names):
        needed = 26 + len(name) * _CHARACTER
        if line and offset + needed > width and count < _MAX_LEGEND_LINES:
            yield line
            line = []
            offset = 0.0
            count += 1

        note = f"and {len(names) - index} more"
        # The last line keeps room for the note about the series after this one.
        has_more = count == _MAX_LEGEND_LINES and index < len(names) - 1
        room = width - offset - (26 + len(note) * _CHARACTER if has_more else 0)
        if line and needed > room:
            line.append(_LegendEntry(-1, note, offset - 14))
            break
        line.append(_LegendEntry(index, _cut(name, room - 20), offset))
        offset += min(needed, room)
    if line:
        yield line


def _cut(text: str, width: float) -> str:
    most = max(4, int(width / _CHARACTER))
    return text if len(text) <= most else f"{text[: most - 1]}…"
