"""Names of what is made on Harvester for a cluster: the Go provider's where they fit, never one for two clusters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.names import generated_names

pytestmark = pytest.mark.unit

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?", fullmatch=True)
SUFFIXES = st.sampled_from(["lb", "ippool", "vm-ippool"])


def names_of(namespace: str, name: str, suffix: str = "lb") -> tuple[str, ...]:
    return generated_names({"metadata": {"namespace": namespace, "name": name}}, suffix)


def test_short_names_are_those_of_the_go_provider() -> None:
    assert names_of("clusters", "demo.one") == ("clusters-demo-one-lb",)
    assert names_of("1st", "demo") == ("a-1st-demo-lb",)


def test_of_a_long_name_the_cut_one_comes_second() -> None:
    name, former = names_of("a" * 30, "b" * 40)
    assert former == f"{'a' * 30}-{'b' * 32}"
    assert re.fullmatch(rf"{'a' * 30}-b+-[0-9a-f]{{8}}-lb", name)


@given(NAMES, NAMES, SUFFIXES)
def test_every_name_is_one_that_kubernetes_takes(namespace: str, name: str, suffix: str) -> None:
    for found in names_of(namespace, name, suffix):
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", found)


@given(st.lists(st.tuples(st.just("n" * 40), NAMES), min_size=2, max_size=5, unique=True))
def test_long_names_do_not_meet(clusters: list[tuple[str, str]]) -> None:
    long = [names_of(namespace, f"{'x' * 30}{name}"[:63]) for namespace, name in clusters]
    distinct = {f"{'x' * 30}{name}"[:63] for _, name in clusters}
    assert len({names[0] for names in long}) == len(distinct)
