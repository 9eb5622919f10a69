"""Clusters that an upgrade leaves out, with reasons that the file of the upgrade can hold."""

from __future__ import annotations

import pytest

from caphv.api.object import Key
from packager.git.changeplan import Plan
from packager.planning.state import Planned, find_unfit
from packager.rendering.bundler import Batch
from packager.rendering.renderer import Renderer
from packager.upgrade import rolloutfile
from packager.upgrade.request import Request
from packager.upgrade.rollout import Rollout
from tests.support.packager.examples import cluster

pytestmark = pytest.mark.unit


def test_many_errors_of_a_cluster_are_counted_and_not_all_listed() -> None:
    facts = cluster("demo", {f"unknown-{number}": 1 for number in range(3000)})
    rendered = Renderer().render_one(facts, {})
    (reasons,) = find_unfit(Planned(Batch((rendered,)), None, Plan()), [facts.key]).values()
    assert len(reasons) == 6
    assert reasons[-1] == "and 2995 more"

    # A packager reads the file that it wrote.
    many = {Key("clusters", f"c{number}"): reasons for number in range(1000)}
    upgrade = Rollout("2", Request(("rest",), 60.0), (), left_out=many)
    assert rolloutfile.parse(rolloutfile.serialize(upgrade)) == upgrade


def test_few_errors_are_all_listed() -> None:
    facts = cluster("demo", {"one": 1, "two": 2})
    rendered = Renderer().render_one(facts, {})
    (reasons,) = find_unfit(Planned(Batch((rendered,)), None, Plan()), [facts.key]).values()
    assert len(reasons) == 2
