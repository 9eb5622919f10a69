"""How `caphv bundles check` and `caphv bundles images` write what they found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from caphv.api.counting import counted
from caphv.api.plaintext import printable
from commands.output.bundles import formats, table
from packager.checks.check import Checked, Located
from packager.checks.images import ChartImages


def _lines(found: Sequence[Checked]) -> str:
    lines = [_line(located) for one in found for located in one.findings]
    charts = [chart for one in found for chart in one.charts]
    errors = sum(not located.finding.advice for one in found for located in one.findings)
    rendered = sum(chart.rendered for chart in charts)
    left = sorted({str(chart.chart) for chart in charts if not chart.rendered})
    lines += [f"not rendered: {', '.join(map(printable, left))}"] if left else []
    warnings = sum(len(one.findings) for one in found) - errors
    lines.append(
        f"{counted(len(found), 'cluster')}, {counted(rendered, 'chart')} rendered: "
        f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
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


# Charts and images


def _address(one: ChartImages) -> str:
    return f"{one.chart.repo}/{one.chart.name}" if one.chart.repo.startswith("oci://") else one.chart.repo


def _tables(found: Sequence[ChartImages]) -> str:
    rows = [(one.chart.name, one.chart.version, _address(one), one.source or "-") for one in found]
    listed = [(image, one.chart.name) for one in found for image in sorted(one.images)]
    text = table(("CHART", "VERSION", "REPOSITORY", "IMAGES"), rows) if rows else ""
    return text + (f"\n{table(('IMAGE', 'CHART'), listed)}" if listed else "")


def _images(found: Sequence[ChartImages]) -> str:
    return "".join(f"{printable(image)}\n" for image in sorted({image for one in found for image in one.images}))


def _charts(found: Sequence[ChartImages]) -> str:
    return "".join(printable(f"{_address(one)} {one.chart.name} {one.chart.version}") + "\n" for one in found)


def _mirrored(found: Sequence[ChartImages]) -> Any:
    return {
        "charts": [
            {
                "name": one.chart.name,
                "repo": one.chart.repo,
                "version": one.chart.version,
                "source": one.source,
                "images": sorted(one.images),
            }
            for one in found
        ],
        "images": sorted({image for one in found for image in one.images}),
    }


IMAGES = {**formats(_tables, _mirrored), "images": _images, "charts": _charts}
