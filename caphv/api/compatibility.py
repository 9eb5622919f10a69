"""Which Harvester the cloud provider and CSI driver of a guest need: `fleet-bundles/versions.json`.

RKE2 installs its own charts with `cloud-provider-name: harvester`. Others come with a release of
the bundles. Harvester itself says in a setting which versions of the charts it accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from caphv import data
from caphv.api.supported import Version, parse

CLOUD_PROVIDER, CSI_DRIVER = "harvester-cloud-provider", "harvester-csi-driver"
# Harvester's setting has another name for the CSI driver's chart.
_NAMES_IN_SETTING = {CLOUD_PROVIDER: CLOUD_PROVIDER, CSI_DRIVER: "harvester-csi-provider"}
_COMPARISON = re.compile(r"(>=|<=|>|<|=)?v?(\d{1,6}\.\d{1,6}\.\d{1,6})")


@dataclass(frozen=True, slots=True)
class Need:
    """A chart that needs a release of Harvester, from a version on."""

    chart: str
    oldest: str
    harvester: str


@dataclass(frozen=True, slots=True)
class Compatibility:
    """The rows of the table that compare charts with Kubernetes and Harvester.

    `bundles` is the newest release of the bundles, `charts` are its versions by name, and
    `harvester` the oldest and newest release of Harvester that it was made for. `rke2` has the
    charts that RKE2 installs itself, by the first release with them.
    """

    bundles: str
    charts: Mapping[str, str]
    harvester: tuple[str, str]
    needs: Sequence[Need]
    rke2: Mapping[Version, Mapping[str, str]]

    def rke2_charts(self, version: str) -> Mapping[str, str]:
        """Return versions by chart that a release of RKE2 installs; empty if they are not known."""
        release = parse(version)
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

    def unmade_for(self, harvester: tuple[int, int] | None) -> bool:
        """Return whether the newest bundles are not made for a release of Harvester."""
        oldest, newest = map(parse, self.harvester)
        return harvester is not None and not oldest <= harvester <= newest

    def _unmet(self, charts: Mapping[str, str], harvester: tuple[int, int] | None) -> Iterator[str]:
        for need in self.needs:
            version = charts.get(need.chart, "")
            too_old = harvester is not None and harvester < parse(need.harvester)
            if too_old and parse(version) >= parse(need.oldest):
                yield f"{need.chart} {version} needs Harvester {need.harvester} or later"


def in_range(version: str, comparisons: str) -> bool:
    """Return whether a version meets all comparisons, such as `>=0.0.1 <0.3.0`.

    Comparisons in another form count as met, because a wrong refusal is worse than none.
    """
    release = parse(version)
    for text in comparisons.split():
        match = _COMPARISON.fullmatch(text)
        if match is None:
            return True
        limit = parse(match[2])
        meets = {
            ">=": release >= limit,
            "<=": release <= limit,
            ">": release > limit,
            "<": release < limit,
        }
        if not meets.get(match[1], release == limit):
            return False
    return True


def parse_table(content: Mapping[str, Any]) -> Compatibility:
    """Return the rows of a parsed table; a table of an operator may leave out `needs` and `rke2`.

    Raises KeyError, TypeError for another form.
    """
    newest = content["releases"][0]
    supported = newest["supports"]["harvester"]
    return Compatibility(
        str(newest["name"]),
        newest["charts"],
        (str(supported["from"]), str(supported["to"])),
        [Need(row["chart"], row["from"], row["harvester"]) for row in content.get("needs", ())],
        {
            parse(row["from"]): {chart: row[chart] for chart in (CLOUD_PROVIDER, CSI_DRIVER)}
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
        version, comparisons = charts.get(chart, ""), accepted.get(name)
        if not version or not isinstance(comparisons, str):
            continue
        if not in_range(version, comparisons):
            yield f"{chart} {version} is not accepted by this Harvester, which takes {comparisons}"
