"""Waves of an upgrade."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj, Resource
from caphv.api.resources import FLEET_BUNDLES, FLEET_GIT_REPOS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from packager.addons.gather import ClusterFacts
from packager.controller.fleet import ExpectedBundles
from packager.git.errors import GitError
from packager.waves import CommitOrder, parse, reports_of, split
from tests.support.observed import records
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
        ("canary", "the last wave must be 'rest', so that no cluster is left behind: canary,rest"),
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


def test_only_the_awaited_commit_and_later_heads_are_not_before_it() -> None:
    now, asked = 100.0, 0
    heads = {"person's"}

    def remote() -> set[str]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise GitError("no answer")
        return heads

    order = CommitOrder({"wave"}, remote, lambda: now)
    assert not order.may_be_before("wave", "wave")
    # Fleet may be far behind, at a commit that this process has not seen.
    assert [order.may_be_before("lagging", "wave") for _ in range(5)] == [True] * 5
    assert asked == 1
    now += 10
    assert order.may_be_before("lagging", "wave")
    assert not order.may_be_before("person's", "wave")
    assert asked == 2
    # Heads count that others follow before Fleet reaches them.
    heads = {"passing"}
    now += 10
    assert not order.may_be_before("wave", "wave")
    heads = {"newest"}
    assert not order.may_be_before("passing", "wave")


class Lists(ApiClient):
    """A client that answers lists in pages of one object."""

    def __init__(self, **objects: list[Obj] | Exception) -> None:
        self._objects = objects

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> Obj:
        objects = self._objects[resource.plural]
        if isinstance(objects, Exception):
            raise objects

        start = int(options["continue_token"] or 0)
        more = {"continue": str(start + 1)} if start + 1 < len(objects) else {}
        return {"metadata": more, "items": objects[start : start + 1]}


@pytest.mark.parametrize("may_read", [True, False])
async def test_a_wave_says_what_the_gitrepo_says_if_it_may_be_read(may_read: bool) -> None:
    stalled = next(
        record.outcome["gitRepo"]
        for record in records("rancher-fleet/statuses.yaml")
        if record.name == "a-chart-that-does-not-exist-stops-its-gitrepo"
    )
    metadata = dict.fromkeys(("name", "namespace", "uid", "resourceVersion"), "x")
    old = {**metadata, "name": "cni-a", "labels": {"caphv.io/bundle": "cni", "fleet.cattle.io/commit": "b" * 40}}
    others = {"metadata": {**metadata, "labels": {"caphv.io/bundle": "ccm"}}}
    repos: list[Obj] = [
        {"metadata": metadata, "spec": {"paths": ["clusters/team/other/*"]}, "status": {}},
        {"metadata": metadata, "spec": {"paths": ["clusters/team/*/*"]}, "status": stalled},
    ]
    forbidden = Forbidden(403, "Forbidden", "gitrepos is forbidden")
    client = Lists(
        **{
            FLEET_BUNDLES.plural: [others, {"metadata": old}],
            FLEET_GIT_REPOS.plural: repos if may_read else forbidden,
        }
    )
    wanted = ExpectedBundles("team", (("cni", "cni-a"),), "clusters/team/a", "c" * 40)
    (report,) = (await reports_of(client, {Key("team", "a"): wanted}, lambda *_: True)).values()
    assert report.problems[0] == f"cni: Fleet is still at commit {'b' * 12}"
    assert [problem.endswith("harvester-cloud-provider-9.9.9") for problem in report.problems[1:]] == [True] * may_read
