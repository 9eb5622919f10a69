"""The next commit of an upgrade is due as soon as the last cluster of its wave is ready."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from caphv.api.names import Reason
from caphv.api.object import Key
from packager.addons.versions import Versions
from packager.controller.condition import Outcome
from packager.controller.publisher import Published
from packager.controller.upgrades import Upgrades
from packager.fleet import ExpectedBundles, Report
from packager.git.changeplan import Plan
from packager.git.result import Result
from packager.rendering.bundler import Batch
from packager.upgrade.decision import Decision
from packager.upgrade.request import Request
from packager.upgrade.rollout import Rollout

pytestmark = pytest.mark.unit

ONE, TWO = Key("team", "one"), Key("team", "two")
OLD = Versions("1", "v1", {})
READY, NOT_READY = Report(()), Report(("ccm: image cannot be pulled",))


def bundle(key: Key) -> Key:
    return Key(key.namespace, f"ccm-{key.name}")


class Site:
    """A wave of two clusters, with Fleet's reports about those that were rendered."""

    is_reviewed = False

    def __init__(self) -> None:
        self.reports: dict[str, Report] = {}
        self.outcomes: dict[Key, Outcome] = {}
        self.due = 0
        waves = (("rest", (ONE, TWO)),)
        self.rollout = Rollout(
            "2", Request(("rest",), 60.0), waves, wave=1, since=time.time(), before={ONE: OLD, TWO: OLD}
        )
        this = cast("Any", self)
        self.upgrades = Upgrades(this, this, this, this, election=None, file="caphv-upgrade.yaml", due=self.count_due)

    def count_due(self) -> None:
        self.due += 1

    def render(self, *keys: Key) -> None:
        for key in keys:
            expected = ExpectedBundles("team", (("ccm", bundle(key).name),), f"clusters/{key}", "a" * 40)
            self.outcomes[key] = Outcome(expected=expected)

    def sync(self, *present: Key) -> None:
        """Sync without a commit; all clusters are present unless some are given."""
        self.upgrades.observe(frozenset(present or (ONE, TWO)))
        result = Result(Plan(), "a" * 40, "main")
        self.upgrades.note(Published(batch=Batch(), result=result, waves=Decision(self.rollout)))

    def report_by_fleet(self, key: Key, report: Report) -> None:
        self.reports[bundle(key).name] = report
        self.upgrades.on_fleet_change(bundle(key))

    # Publisher, Fleet and Reporter

    def may_be_before(self, _commit: str, _other: str) -> bool:
        return False

    def uninstallable(self) -> frozenset[str]:
        return frozenset()

    def report(self, expected: ExpectedBundles, _is_before: object) -> Report | None:
        return self.reports.get(expected.bundles[0][1])

    def outcome(self, key: Key) -> Outcome | None:
        return self.outcomes.get(key)

    def clusters_of(self, changed: Key) -> set[Key]:
        return {key for key in self.outcomes if bundle(key) == changed}


@pytest.fixture
def site() -> Site:
    return Site()


def test_the_last_cluster_that_becomes_ready_makes_the_next_wave_due(site: Site) -> None:
    site.render(ONE, TWO)
    site.report_by_fleet(ONE, READY)
    site.report_by_fleet(TWO, NOT_READY)
    site.sync()
    assert site.due == 0
    assert 0 < site.upgrades.seconds_left() <= 60
    site.report_by_fleet(TWO, READY)
    assert site.due == 1


def test_a_cluster_without_a_report_is_awaited(site: Site) -> None:
    # After a restart, the control plane of one cluster was not read yet.
    site.render(ONE)
    site.outcomes[TWO] = Outcome(Reason.ADDON_BUNDLES_IN_PROGRESS, "waiting")
    site.report_by_fleet(ONE, READY)
    site.sync()
    assert site.due == 0
    site.render(TWO)
    site.report_by_fleet(TWO, NOT_READY)
    site.sync()
    assert site.due == 0
    site.report_by_fleet(TWO, READY)
    assert site.due == 1


def test_a_cluster_that_is_ready_with_its_first_report_makes_the_next_wave_due(site: Site) -> None:
    site.render(ONE)
    site.report_by_fleet(ONE, READY)
    site.report_by_fleet(TWO, READY)
    site.sync()
    assert site.due == 0
    # This sync was planned without the report.
    site.render(TWO)
    site.sync()
    assert site.due == 1
    site.sync()
    assert site.due == 1


def test_a_cluster_that_was_ready_before_is_awaited_again(site: Site) -> None:
    site.render(ONE, TWO)
    site.report_by_fleet(ONE, READY)
    site.report_by_fleet(TWO, NOT_READY)
    site.sync()
    site.report_by_fleet(ONE, NOT_READY)
    site.sync()
    site.report_by_fleet(TWO, READY)
    assert site.due == 0
    site.report_by_fleet(ONE, READY)
    assert site.due == 1


def test_a_cluster_that_is_suspended_or_deleted_is_not_awaited(site: Site) -> None:
    site.render(ONE, TWO)
    site.report_by_fleet(ONE, NOT_READY)
    site.report_by_fleet(TWO, NOT_READY)
    site.sync()
    site.sync(ONE)
    assert site.due == 0
    site.report_by_fleet(ONE, READY)
    assert site.due == 1


def test_the_report_of_an_invalid_cluster_is_short(site: Site) -> None:
    # The file of a reverted upgrade holds it, and a packager must be able to read that again.
    site.outcomes[ONE] = Outcome(Reason.ADDON_BUNDLES_INVALID, "spec.x: unknown field; " * 10_000)
    site.sync()
    (report,) = site.upgrades.observe(frozenset((ONE, TWO))).reports.values()
    assert not report.ready
    assert len(report.problems[0]) < 1000
