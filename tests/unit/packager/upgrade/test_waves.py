"""Waves of an upgrade."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.addons.facts import ClusterFacts
from packager.upgrade.waves import parse, split
from tests.support.packager.examples import cluster

pytestmark = pytest.mark.unit


def clusters(count: int, canaries: int = 0) -> list[ClusterFacts]:
    labels = {"caphv.io/wave": "canary"}
    return [cluster(f"c-{number:03}", labels=labels if number < canaries else {}) for number in range(count)]


def sizes(text: str, found: list[ClusterFacts]) -> dict[str, int]:
    return {wave.name: len(wave.clusters) for wave in split(parse(text), found)}


def test_canaries_then_a_share_then_the_rest() -> None:
    assert sizes("canary,10%,rest", clusters(50, canaries=2)) == {"canary": 2, "10%": 5, "rest": 43}
    assert sizes("3,canary,rest", clusters(10, canaries=4)) == {"3": 3, "canary": 4, "rest": 3}


def test_a_wave_without_clusters_is_left_out() -> None:
    assert sizes("canary,10%,rest", clusters(1)) == {"10%": 1}
    assert sizes("canary,rest", []) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("canary", "the last wave must be 'rest', so that no cluster is left behind; add it"),
        ("0,101%,a b,rest", "'0' is no wave.*'101%' is no wave.*'a b' is no wave"),
        ("canary,canary,rest", "'canary' is listed twice"),
        ("", "'' is no wave"),
    ],
)
def test_wrong_waves_are_all_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse(text)


@given(count=st.integers(0, 40), canaries=st.integers(0, 40), share=st.integers(1, 100), number=st.integers(1, 50))
def test_every_cluster_is_in_one_wave(count: int, canaries: int, share: int, number: int) -> None:
    found = clusters(count, min(canaries, count))
    waves = split(parse(f"{number},canary,{share}%,rest"), found)
    assert sorted(facts.key for wave in waves for facts in wave.clusters) == [facts.key for facts in found]
    by_name = {wave.name: len(wave.clusters) for wave in waves}
    assert by_name.get(f"{share}%", 0) <= math.ceil(count * share / 100)
    assert by_name.get(str(number), 0) <= number
