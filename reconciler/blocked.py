"""Report that a reconcile cannot continue.

A phase either completes or raises `Blocked`, which is not an error. Its condition tells the user
what is missing, and its trigger requeues the object.
"""

from __future__ import annotations

from enum import Enum

from caphv.api.names import ConditionType, Reason
from reconciler.triggers import Delay, Trigger


class Cause(Enum):
    """Why a reconcile waits, and what that says about an object that was ready."""

    MISSING = "missing"
    """Something is missing or wrong. The object is not ready."""
    OUTAGE = "outage"
    """Harvester does not answer, or rejects these credentials.

    That says nothing about the VMs there, so an object that was ready stays ready.
    """
    UNKNOWN = "unknown"
    """The state cannot be determined, for example until caches are filled.

    Conditions of machines become Unknown, and an object that was ready stays ready.
    """


class Blocked(Exception):
    """The rest of this reconcile has to wait for one of `triggers`, which requeues the object.

    :param warn: emit an Event of type Warning if the message is new, and write the status of a
        machine at once instead of after a debounce. Set for what lasts until a user acts, and if a
        machine that was ready waits again
    :param cause: what kind of wait this is
    """

    def __init__(
        self,
        condition: ConditionType,
        reason: Reason,
        message: str,
        first: Trigger,
        *others: Trigger,
        warn: bool = False,
        cause: Cause = Cause.MISSING,
    ) -> None:
        super().__init__(message)
        self.condition = condition
        self.reason = reason
        self.message = message
        self.warn = warn
        self.cause = cause
        self.triggers = (first, *others)

    def with_advice(self, advice: str) -> Blocked:
        """Return a copy whose message ends with advice for the user."""
        return Blocked(
            self.condition,
            self.reason,
            f"{self.message}{advice}",
            *self.triggers,
            warn=self.warn,
            cause=self.cause,
        )

    @property
    def is_unknown(self) -> bool:
        """Whether the state cannot be determined."""
        return self.cause is Cause.UNKNOWN

    @property
    def is_outage(self) -> bool:
        """Whether nothing is known to be wrong, so that an object that was ready stays ready."""
        return self.cause is not Cause.MISSING

    @property
    def requeue_after(self) -> float | None:
        """Delay in seconds, None if only events requeue the object."""
        return min(
            (trigger.seconds for trigger in self.triggers if isinstance(trigger, Delay)),
            default=None,
        )
