"""Format the results of `caphv bundles check` and `caphv bundles images`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from caphv.api.counting import counted
from caphv.api.plaintext import printable
from commands.output.bundles import formats, table
from packager.checks.check import Checked, Located
from packager.checks.images import ChartImages


def _lines(clusters: Sequence[Checked]) -> str:
    """Return all findings as lines, and a summary."""
    lines = [_line(located) for cluster in clusters for located in cluster.findings]
    charts = [chart for cluster in clusters for chart in cluster.charts]
    errors = sum(not located.finding.advice for cluster in clusters for located in cluster.findings)
    rendered = sum(chart.rendered for chart in charts)
    unrendered = sorted({str(chart.chart) for chart in charts if not chart.rendered})
    if unrendered:
        lines.append(f"not rendered: {', '.join(map(printable, unrendered))}")
    warnings = sum(len(cluster.findings) for cluster in clusters) - errors
    lines.append(
        f"{counted(len(clusters), 'cluster')}, {counted(rendered, 'chart')} rendered: "
        f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    )
    return "".join(f"{line}\n" for line in lines)


def _line(located: Located) -> str:
    kind, colour = ("warning", "yellow") if located.finding.advice else ("error", "red")
    return (
        f"{printable(located.place)}: {click.style(kind, fg=colour)}: "
        f"{printable(str(located.finding))}"
    )


def _content(clusters: Sequence[Checked]) -> Any:
    """Return the checks as data."""
    return {
        "items": [
            {
                "name": cluster.cluster,
                "wrong": not all(located.finding.advice for located in cluster.findings),
                "charts": [
                    {
                        "bundle": chart.bundle,
                        "name": chart.chart.name,
                        "repo": chart.chart.repo,
                        "version": chart.chart.version,
                        "rendered": chart.rendered,
                    }
                    for chart in cluster.charts
                ],
                "findings": [
                    {
                        "file": located.place,
                        "field": located.finding.field,
                        "rule": located.finding.rule,
                        "advice": located.finding.advice,
                        "message": str(located.finding),
                    }
                    for located in cluster.findings
                ],
            }
            for cluster in clusters
        ],
    }


CHECKED = formats(_lines, _content)


# Charts and images


def _address(chart: ChartImages) -> str:
    return (
        f"{chart.chart.repo}/{chart.chart.name}"
        if chart.chart.repo.startswith("oci://")
        else chart.chart.repo
    )


def _tables(charts: Sequence[ChartImages]) -> str:
    rows = [
        (chart.chart.name, chart.chart.version, _address(chart), chart.source or "-")
        for chart in charts
    ]
    listed = [(image, chart.chart.name) for chart in charts for image in sorted(chart.images)]
    text = table(("CHART", "VERSION", "REPOSITORY", "IMAGES"), rows) if rows else ""
    return text + (f"\n{table(('IMAGE', 'CHART'), listed)}" if listed else "")


def _images(charts: Sequence[ChartImages]) -> str:
    return "".join(
        f"{printable(image)}\n"
        for image in sorted({image for chart in charts for image in chart.images})
    )


def _charts(charts: Sequence[ChartImages]) -> str:
    return "".join(
        printable(f"{_address(chart)} {chart.chart.name} {chart.chart.version}") + "\n"
        for chart in charts
    )


def _mirror_content(charts: Sequence[ChartImages]) -> Any:
    """Return the images and charts to mirror as data."""
    return {
        "images": sorted({image for chart in charts for image in chart.images}),
        "items": [
            {
                "name": chart.chart.name,
                "repo": chart.chart.repo,
                "version": chart.chart.version,
                "source": chart.source,
                "images": sorted(chart.images),
            }
            for chart in charts
        ],
    }


IMAGES = {**formats(_tables, _mirror_content), "images": _images, "charts": _charts}
