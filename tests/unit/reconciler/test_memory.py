"""What reconciles remember between runs: since when a state lasts that will not stay."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.memory.periods import Debounce, Repeated

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


async def written(transient: Debounce, seconds: float, step: float = 0.25) -> list[float]:
    """When a state is written that is reconciled again and again, in seconds from now."""
    found = []
    for number in range(round(seconds / step)):
        if not transient.remaining(1.0):
            found.append(number * step)
        await asyncio.sleep(step)
    return found


async def test_state_that_does_not_last_is_not_written() -> None:
    assert await written(Debounce(), 1.0) == []


async def test_state_that_lasts_is_written_after_a_second_and_then_every_five_seconds() -> None:
    assert await written(Debounce(), 12.0) == [1.0, 6.0, 11.0]


async def test_next_transient_state_after_one_that_stays_is_written_after_a_second() -> None:
    transient = Debounce()
    await written(transient, 4.0)
    transient.end()
    assert await written(transient, 2.0) == [1.0]


@given(st.lists(st.floats(0.01, 5.0), min_size=1, max_size=30))
async def test_a_reconcile_at_the_end_of_the_delay_may_write(pauses: list[float]) -> None:
    transient = Debounce()
    for pause in pauses:
        await asyncio.sleep(pause)
        left = transient.remaining(1.0)
        assert 0 <= left <= 5.0
        if left:
            await asyncio.sleep(left + 1e-6)
            assert not transient.remaining(1.0)


async def test_failure_that_lasts_is_tried_again_less_often_until_it_ends_or_changes() -> None:
    failing, delays = Repeated(), []
    for _ in range(6):
        delays.append(failing.retry_after("HTTP 500"))
        await asyncio.sleep(delays[-1])
    assert delays == [60, 60, 120, 240, 480, 600]
    assert failing.retry_after("HTTP 403") == 60
    await asyncio.sleep(300)
    failing.reset()
    assert failing.retry_after("HTTP 403") == 60
