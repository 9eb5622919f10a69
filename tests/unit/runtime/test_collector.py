"""Full collections visit new objects only, and find old cycles once an hour."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from caphv.runtime.collector import THAW_SECONDS, ShortPauses

pytestmark = pytest.mark.unit


class Cycle:
    """An object that only the collector frees."""

    def __init__(self) -> None:
        self.own = self


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    pauses = ShortPauses(clock)
    pauses.install()
    yield clock
    pauses.remove()


def test_survivors_are_not_visited_again(clock: Clock) -> None:
    gc.collect()
    survivors = gc.get_freeze_count()
    assert survivors > 10_000
    kept: list[list[int]] = [[] for _ in range(100)]
    gc.collect()
    assert gc.get_freeze_count() >= survivors + len(kept)
    assert clock.now == 0


def test_new_cycles_are_freed_by_any_full_collection(clock: Clock) -> None:
    gc.collect()
    found = weakref.ref(Cycle())
    gc.collect()
    assert found() is None
    assert clock.now == 0


def test_old_cycles_are_freed_once_an_hour(clock: Clock) -> None:
    old = Cycle()
    found = weakref.ref(old)
    gc.collect()
    del old
    gc.collect()
    assert found() is not None
    clock.now += THAW_SECONDS
    gc.collect()
    assert found() is None


def test_young_collections_freeze_nothing(clock: Clock) -> None:
    before = gc.get_freeze_count()
    gc.collect(0)
    gc.collect(1)
    assert gc.get_freeze_count() == before
    assert clock.now == 0
