"""How the watch of Harvester's Deployment speaks for the other watches."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.runtime.cache import Informer
from caphv.runtime.errors import ServerFault, Unreachable
from reconciler.harvester.harvester import Probe
from reconciler.harvester.sharedcache import Collection
from reconciler.harvester.watchedcollections import DEPLOYMENT

pytestmark = pytest.mark.unit


class Watch:
    """A watch that counts how often it is to try again at once."""

    def __init__(self) -> None:
        self.retries = 0

    def retry_now(self) -> None:
        self.retries += 1


class Case:
    """A probe with two other watches, and what it has called."""

    def __init__(self) -> None:
        self.watches = [Watch(), Watch()]
        self.health = self.failures = 0
        self.probe = Probe(self._on_health, lambda: cast("list[Informer]", self.watches), self._on_failure)
        options = self.probe.options(DEPLOYMENT, None)
        self.fail, self.answer = options["on_error"], options["on_contact"]

    def fail_other(self) -> None:
        """Have another watch fail."""
        other = cast(Collection, object())
        self.probe.options(other, None)["on_error"](Unreachable("no route"))

    @property
    def retries(self) -> list[int]:
        return [watch.retries for watch in self.watches]

    def _on_health(self) -> None:
        self.health += 1

    def _on_failure(self) -> None:
        self.failures += 1


def test_health_is_reported_when_it_changes() -> None:
    case = Case()
    steps: list[tuple[Any, int]] = [
        (lambda: case.fail(Unreachable("no route")), 1),
        (lambda: case.fail(Unreachable("another route")), 1),
        (lambda: case.fail(ServerFault(500, "", "broken")), 2),
        (case.answer, 3),
        (case.answer, 3),
        (lambda: case.fail(Unreachable("no route")), 4),
    ]
    for step, reports in steps:
        step()
        assert case.health == reports


def test_other_watches_resume_once_harvester_answers() -> None:
    case = Case()
    case.answer()
    assert case.retries == [0, 0], "none of them has failed"
    case.fail_other()
    assert (case.failures, case.retries) == (1, [0, 0])
    case.answer()
    case.answer()
    assert case.retries == [1, 1]


def test_only_other_watches_wait_for_the_probe() -> None:
    case = Case()
    probe = cast(Informer, object())
    assert case.probe.options(cast(Collection, object()), probe)["probe"] is probe
    assert "probe" not in case.probe.options(DEPLOYMENT, probe)
