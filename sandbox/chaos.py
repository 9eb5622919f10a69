"""Random faults from a seed, in a schedule that runs against a sandbox.

The same seed gives the same schedule. Timing decides which single requests meet a fault with a
`share` below 1, and what the provider does in the meantime. So a seed narrows a failure down, but
does not replay it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sandbox.environment import Sandbox
from sandbox.harvester.faults import Fault, Faults
from sandbox.state import State

# Each transport fault, with the longest time in seconds for which it is active.
FAULTS = {
    "cut-before": 3.0,
    "cut-after": 3.0,
    "too-many-requests": 3.0,
    "server-error": 3.0,
    "unavailable": 3.0,
    "conflict": 3.0,
    "slow": 3.0,
    "create-once": 6.0,
    "watches-cut": 1.0,
    "watches-gone": 1.0,
    "away": 4.0,
}
MAX_PAUSE_SECONDS = 1.0
# On average, one step of this many kills the provider instead of injecting a fault.
KILL_ONE_OF = 6


@dataclass(frozen=True)
class Step:
    """A step of a schedule. After `pause` seconds, a fault begins and lasts for `seconds`.

    Without a fault, the provider is killed.
    """

    pause: float
    seconds: float
    fault: Fault | None

    def __str__(self) -> str:
        return f"{self.fault} for {self.seconds:.1f} s" if self.fault else "kill -9 of the provider"


def schedule(seed: int, seconds: float, *, kills: bool = True) -> list[Step]:
    """Return steps from a seed that together take about `seconds`."""
    chance = random.Random(seed)
    steps: list[Step] = []
    while sum(step.pause + step.seconds for step in steps) < seconds:
        pause = chance.uniform(0, MAX_PAUSE_SECONDS)
        if kills and chance.randrange(KILL_ONE_OF) == 0:
            steps.append(Step(pause, 0, None))
            continue

        name = chance.choice(sorted(FAULTS))
        share = 1.0 if name in ("away", "create-once") else round(chance.uniform(0.2, 1), 2)
        delay = round(chance.uniform(0.1, 1), 2)
        steps.append(
            Step(pause, chance.uniform(0.2, FAULTS[name]), Fault(name, share=share, delay=delay))
        )
    return steps


async def run(
    box: Sandbox, faults: Faults, steps: Sequence[Step], report: Callable[[str], None]
) -> None:
    """Run a schedule. At the end, no fault is active and the provider is running."""
    try:
        for step in steps:
            await asyncio.sleep(step.pause)
            report(str(step))
            if step.fault is None:
                kill_provider(box)
                await box.up()
                continue
            await faults.inject(step.fault)
            await asyncio.sleep(step.seconds)
            await faults.clear(step.fault.name)
    finally:
        await faults.clear()
        await box.up()


def kill_provider(box: Sandbox) -> None:
    """Kill the provider of a sandbox with SIGKILL, if it runs."""
    state = State.load(box.folder)
    part = state.processes.get("provider") if state else None
    if part is not None and "provider" not in box.missing():
        with contextlib.suppress(ProcessLookupError):
            os.kill(part.pid, signal.SIGKILL)
