"""Schedules of random faults."""

import pytest

from sandbox import chaos
from sandbox.harvester.faults import KINDS

pytestmark = pytest.mark.unit


def test_a_seed_always_gives_the_same_schedule() -> None:
    assert chaos.schedule(7, 60) == chaos.schedule(7, 60)
    assert chaos.schedule(7, 60) != chaos.schedule(8, 60)


def test_twenty_seeds_of_a_minute_contain_every_fault_and_kills() -> None:
    steps = [step for seed in range(11, 31) for step in chaos.schedule(seed, 60)]
    assert {step.fault.name for step in steps if step.fault} == set(chaos.FAULTS)
    assert all(KINDS[name].in_transport for name in chaos.FAULTS)
    assert any(step.fault is None for step in steps)
    assert all(step.fault for seed in range(5) for step in chaos.schedule(seed, 60, kills=False))
