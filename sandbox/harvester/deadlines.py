"""The times at which steps of instances end."""

from __future__ import annotations

import time

from caphv.api.object import Obj, uid_of

_STEPS = ("start", "stop", "migrate")


class Deadlines:
    """The times (monotonic) at which the steps `start`, `stop` and `migrate` of instances end."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], float] = {}

    def remaining(self, step: str, vmi: Obj, seconds: float) -> float:
        """Return the seconds until a step of an instance ends. The first call starts the step."""
        time_now = time.monotonic()
        return self._times.setdefault((step, uid_of(vmi)), time_now + seconds) - time_now

    def forget(self, vmi: Obj, *steps: str) -> None:
        """Forget steps of an instance; all of them without `steps`."""
        for step in steps or _STEPS:
            self._times.pop((step, uid_of(vmi)), None)
