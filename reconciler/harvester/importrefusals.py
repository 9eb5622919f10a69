"""Imports of images that Harvester did not accept, and when an account asks for them again.

All clusters of an account share them, and each of them is reconciled for many reasons. Without this
memory, every reconcile would repeat every refused request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from caphv.api.bootimage import ImageImport
from caphv.runtime.errors import RequestError, without_trace

# Seconds after which a refusal that was not repeated is forgotten.
_FORGET_SECONDS = 1200.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that failed.

    :param attempts: how often in a row, at least 1
    :param until: the time of the next attempt, by the clock of `ImportRefusals`
    """

    error: RequestError
    attempts: int
    until: float


class ImportRefusals:
    """Refusals by image, and by namespace where one concerns all images in it.

    :param clock: the time in seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refusals: dict[ImageImport | str, Refusal] = {}

    def of(self, image: ImageImport) -> Refusal | None:
        """Return the refusal because of which an image is not to be requested now."""
        refusals = (self._refusals.get(image.namespace), self._refusals.get(image))
        waiting = [refusal for refusal in refusals if refusal and self.remaining(refusal) > 0]
        return waiting[0] if waiting else None

    def remaining(self, refusal: Refusal) -> float:
        """Return the seconds until the next attempt."""
        return refusal.until - self._clock()

    def note(
        self, subject: ImageImport | str, error: RequestError, first: float, longest: float
    ) -> Refusal:
        """Note that a request failed; the delay doubles with each attempt.

        :param subject: the image, or the namespace whose images are all refused
        :param first: seconds until the second attempt
        :param longest: the most seconds between two attempts
        """
        former = self._refusals.get(subject)
        attempts = former.attempts + 1 if former else 1
        # The exponent is bounded, because a float is.
        delay = min(first * 2 ** min(attempts - 1, 16), longest)
        refusal = Refusal(without_trace(error), attempts, self._clock() + delay)
        self._refusals[subject] = refusal

        # Spec and clusters come and go, so the memory must not keep what no cluster asks for.
        for key, other in list(self._refusals.items()):
            if self.remaining(other) < -_FORGET_SECONDS:
                del self._refusals[key]
        return refusal

    def forget(self, image: ImageImport) -> None:
        """Forget refusals of an image and of its namespace, because Harvester accepted one."""
        self._refusals.pop(image, None)
        self._refusals.pop(image.namespace, None)
