"""How `caphv bundles check` writes what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from commands.output.bundles import count, formats
from commands.output.validate import printable
from packager.checks.check import Checked, Located


def _lines(found: Sequence[Checked]) -> str:
    lines = [_line(located) for one in found for located in one.findings]
    charts = [chart for one in found for chart in one.charts]
    errors = sum(not located.finding.advice for one in found for located in one.findings)
    rendered = sum(chart.rendered for chart in charts)
    left = sorted({str(chart.chart) for chart in charts if not chart.rendered})
    lines += [f"not rendered: {', '.join(map(printable, left))}"] if left else []
    warnings = sum(len(one.findings) for one in found) - errors
    lines.append(
        f"{count(len(found), 'cluster')}, {count(rendered, 'chart')} rendered: "
        f"{count(errors, 'error')}, {count(warnings, 'warning')}"
    )
    return "".join(f"{line}\n" for line in lines)


def _line(located: Located) -> str:
    kind, colour = ("warning", "yellow") if located.finding.advice else ("error", "red")
    return f"{printable(located.place)}: {click.style(kind, fg=colour)}: {printable(str(located.finding))}"


def _content(found: Sequence[Checked]) -> Any:
    return {
        "ok": all(located.finding.advice for one in found for located in one.findings),
        "clusters": [
            {
                "name": one.cluster,
                "charts": [
                    {
                        "bundle": chart.bundle,
                        "name": chart.chart.name,
                        "repo": chart.chart.repo,
                        "version": chart.chart.version,
                        "rendered": chart.rendered,
                    }
                    for chart in one.charts
                ],
                "findings": [
                    {
                        "file": located.place,
                        "field": located.finding.field,
                        "rule": located.finding.rule,
                        "advice": located.finding.advice,
                        "message": str(located.finding),
                    }
                    for located in one.findings
                ],
            }
            for one in found
        ],
    }


CHECKED = formats(_lines, _content)
