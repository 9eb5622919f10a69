"""Which Harvester the cloud provider and CSI driver of a guest need: `fleet-bundles/versions.json`.

RKE2 installs its own charts with `cloud-provider-name: harvester`. Others come with a release of
the bundles. Harvester itself says in a setting which versions of the charts it accepts.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from caphv import data
from caphv.api.supported import Version, parse

CLOUD_PROVIDER = "harvester-cloud-provider"
CSI_DRIVER = "harvester-csi-driver"
CHARTS = {"ccm": CLOUD_PROVIDER, "csi": CSI_DRIVER}
"""Charts by the names of their settings in definitions and bundles."""
# Harvester's setting has another name for the CSI driver's chart.
_NAMES_IN_SETTING = {CLOUD_PROVIDER: CLOUD_PROVIDER, CSI_DRIVER: "harvester-csi-provider"}
_COMPARISON = re.compile(r"(>=|<=|>|<|=)?v?(\d{1,6}\.\d{1,6}\.\d{1,6})")
_RKE2_SUFFIX = re.compile(r"rke2r(\d{1,3})")


@dataclass(frozen=True, slots=True)
class Need:
    """A chart that needs a release of Harvester, from a version on."""

    chart: str
    oldest: str
    harvester: str


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The rows of the table that compare charts with Kubernetes and Harvester.

    `charts` are the versions of the newest release of the bundles, by name. `rke2` has the charts
    that RKE2 installs itself, by the first release with them; its last number is that of `+rke2r1`.
    """

    charts: Mapping[str, str]
    needs: Sequence[Need]
    rke2: Mapping[Version, Mapping[str, str]]

    def rke2_charts(self, version: str) -> Mapping[str, str]:
        """Return versions by chart that a release of RKE2 installs; empty if they are not known."""
        release = _rke2_release(version)
        # A minor version of RKE2 never returns to older charts.
        rows = [row for row in self.rke2 if row[:2] == release[:2] and row <= release]
        return self.rke2[max(rows)] if rows else {}

    def problems(
        self,
        charts: Mapping[str, str],
        harvester: tuple[int, int] | None,
        accepted: Mapping[str, Any],
    ) -> list[str]:
        """Return why charts do not fit a Harvester.

        :param charts: versions of charts by name
        :param harvester: the release of Harvester; None if it is unknown
        :param accepted: value of Harvester's setting `harvester-csi-ccm-versions`
        """
        return [*self._unmet(charts, harvester), *_refused(charts, accepted)]

    def _unmet(self, charts: Mapping[str, str], harvester: tuple[int, int] | None) -> Iterator[str]:
        for need in self.needs:
            version = charts.get(need.chart, "")
            too_old = harvester is not None and harvester < parse(need.harvester)
            if too_old and parse(version) >= parse(need.oldest):
                yield f"{need.chart} {version} needs Harvester {need.harvester} or later"


def in_range(version: str, comparisons: str) -> bool:
    """Return whether a version meets comparisons, such as `>=0.0.1 <0.3.0 || >=0.4.0`.

    Comparisons in another form count as met, because a wrong refusal is worse than none: Rancher's
    UI understands all forms of npm's semver.
    """
    release = parse(version)
    ranges = [
        [_COMPARISON.fullmatch(text) for text in alternative.split()]
        for alternative in comparisons.split("||")
    ]
    # An empty alternative takes every version; `0.1.0 - 0.3.0` has a text that is no comparison.
    if not release or not all(ranges) or not all(itertools.chain(*ranges)):
        return True
    return any(all(_meets(release, match) for match in matches if match) for matches in ranges)


def _meets(release: Version, comparison: re.Match[str]) -> bool:
    limit = parse(comparison[2])
    meets = {
        ">=": release >= limit,
        "<=": release <= limit,
        ">": release > limit,
        "<": release < limit,
    }
    return meets.get(comparison[1], release == limit)


def _rke2_release(version: str) -> Version:
    """Return the numbers of a release of RKE2, with that of `+rke2r2`; empty if it is none.

    Without a suffix it is the first release, as in definitions.
    """
    numbers, _, suffix = version.partition("+")
    revision = _RKE2_SUFFIX.fullmatch(suffix or "rke2r1")
    release = parse(numbers)
    return (*release, int(revision[1])) if release and revision else ()


def parse_table(content: Mapping[str, Any]) -> Compatibility:
    """Return the rows of a parsed table; a table of an operator may leave out `needs` and `rke2`.

    Raises KeyError, TypeError for another form.
    """
    return Compatibility(
        content["releases"][0]["charts"],
        [Need(row["chart"], row["from"], row["harvester"]) for row in content.get("needs", ())],
        {
            _rke2_release(row["from"]): {
                chart: row[chart] for chart in (CLOUD_PROVIDER, CSI_DRIVER)
            }
            for row in content.get("rke2", ())
        },
    )


@cache
def compatibility() -> Compatibility:
    """Return the shipped table."""
    file = data.folder("fleet-bundles") / "versions.json"
    return parse_table(json.loads(file.read_text(encoding="utf-8")))


def _refused(charts: Mapping[str, str], accepted: Mapping[str, Any]) -> Iterator[str]:
    """Yield the charts that Harvester does not accept."""
    for chart, name in _NAMES_IN_SETTING.items():
        version = charts.get(chart, "")
        comparisons = accepted.get(name)
        if not version or not isinstance(comparisons, str):
            continue
        if not in_range(version, comparisons):
            yield f"{chart} {version} is not accepted by this Harvester, which takes {comparisons}"
