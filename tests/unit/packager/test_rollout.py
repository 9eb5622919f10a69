"""What the next commit of an upgrade in waves is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from caphv.api.object import Key
from packager import rollout
from packager.addons.versions import Versions
from packager.controller.fleet import Report
from packager.rollout import Outdated, Rollout, State, advance, begin, next_wave, parse_request
from packager.waves import split
from tests.support.packager.examples import cluster

pytestmark = pytest.mark.unit

OLD, NEW = Versions("1", "v1", {"a": "1"}), Versions("2", "v2", {"a": "2"})
READY, NOT_READY = Report(()), Report(("ccm: image cannot be pulled",))
A, B, C = (Key("clusters", name) for name in "abc")


def of(versions: Mapping[Key, Versions]) -> Outdated:
    return lambda key: None if versions.get(key) == NEW else versions.get(key)


def started() -> Rollout:
    """The first wave is committed at second 100."""
    waves = split(("1", "rest"), [cluster(name) for name in "abc"])
    step = next_wave(begin(waves, "2", 60.0, "1,rest ready=60s"), of({A: OLD, B: OLD, C: OLD}), NEW, 100.0)
    assert step.pins == {A: NEW}
    return step.rollout


def test_a_ready_wave_is_followed_by_the_next_and_the_last_by_the_end() -> None:
    second = advance(started(), of({B: OLD, C: OLD}), {A: READY}, NEW, now=101.0)
    assert second
    assert (second.pins, second.rollout.since) == ({B: NEW, C: NEW}, 101.0)
    end = advance(second.rollout, of({}), {B: READY, C: READY}, NEW, now=102.0)
    assert end
    assert (end.rollout.state, end.pins) == (State.COMPLETE, {})


def test_a_wave_is_awaited_until_its_gate_and_then_reverted() -> None:
    first, others = started(), of({B: OLD, C: OLD})
    assert advance(first, others, {A: NOT_READY}, NEW, now=159.0) is None
    found = advance(first, others, {A: NOT_READY}, NEW, now=160.0)
    assert found
    assert (found.rollout.state, found.pins) == (State.REVERTED, {A: OLD})
    assert found.rollout.problems == {A: NOT_READY.problems}
    assert found.rollout.notes(A) == ["release 2 was reverted: ccm: image cannot be pulled"]
    assert found.rollout.notes(B) == []


def test_a_wave_is_not_reverted_because_fleet_cannot_be_seen() -> None:
    assert advance(started(), of({B: OLD}), {}, NEW, now=1e9) is None


def test_a_cluster_that_could_not_be_upgraded_is_not_awaited() -> None:
    found = advance(started(), of({A: OLD, B: OLD}), {A: READY}, NEW, now=101.0)
    assert found
    # There is nothing to give back.
    assert (found.rollout.state, found.pins) == (State.REVERTED, {})
    assert found.rollout.problems == {A: ("its bundles were not upgraded",)}


def test_waves_whose_clusters_are_upgraded_or_deleted_are_skipped() -> None:
    found = advance(started(), of({B: NEW}), {A: READY}, NEW, now=101.0)
    assert found
    assert found.rollout.state is State.COMPLETE


def test_the_file_holds_everything() -> None:
    for found in (
        started(),
        replace(started(), state=State.REVERTED, problems={A: ("a: b", "c")}),
        replace(started(), before={A: OLD, B: NEW, C: OLD}),
    ):
        assert rollout.read(rollout.write(found)) == found
    assert rollout.read(None) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"a: [", b"{waves: [], wave: 3}", b"x" * 5_000_000])
def test_a_damaged_file_ends_its_upgrade(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert rollout.read(content) is None
    assert "caphv-upgrade.yaml is damaged" in caplog.text


def test_a_request_names_waves_gate_and_release() -> None:
    found = parse_request(" canary,10%,rest  ready=10m release=2026.12 ")
    assert found == rollout.Request(("canary", "10%", "rest"), 600.0, "2026.12")
    assert parse_request("rest ready=90s").release == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "ready must be a time"),
        ("rest", "ready must be a time"),
        ("rest ready=soon", "ready must be a time"),
        ("canary ready=10m", "the last wave must be 'rest'"),
        ("rest ready=10m releas=1", "releas: unknown"),
    ],
)
def test_a_wrong_request_is_explained(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_request(text)
