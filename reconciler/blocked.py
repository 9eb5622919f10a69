"""Report that a reconcile cannot continue.

A phase either completes or raises `Blocked`, which is not an error. Its condition tells the user
what is missing, and its trigger requeues the object.
"""

from __future__ import annotations

from caphv.api.names import ConditionType, Reason
from reconciler.triggers import Delay, Trigger


class Blocked(Exception):
    """The rest of this reconcile has to wait for one of `triggers`, which requeues the object.

    :param warn: emit an Event of type Warning if the message is new, and write the status of a
        machine at once instead of after a debounce. Set for what lasts until a user acts, and if a
        machine that was ready waits again
    :param unknown: the state cannot be determined, for example while Harvester does not answer
    :param outage: Harvester does not answer, or rejects these credentials. That says nothing about
        the VMs there, so objects that were ready stay ready. An unknown state is an outage, too
    """

    def __init__(
        self,
        condition: ConditionType,
        reason: Reason,
        message: str,
        first: Trigger,
        *others: Trigger,
        warn: bool = False,
        unknown: bool = False,
        outage: bool = False,
    ) -> None:
        super().__init__(message)
        self.condition = condition
        self.reason = reason
        self.message = message
        self.warn = warn
        self.unknown = unknown
        self.outage = outage or unknown
        self.triggers = (first, *others)

    def with_advice(self, advice: str) -> Blocked:
        """Return a copy whose message ends with advice for the user."""
        return Blocked(
            self.condition,
            self.reason,
            f"{self.message}{advice}",
            *self.triggers,
            warn=self.warn,
            unknown=self.unknown,
            outage=self.outage,
        )

    @property
    def requeue_after(self) -> float | None:
        """Delay in seconds, None if only events requeue the object."""
        return min(
            (trigger.seconds for trigger in self.triggers if isinstance(trigger, Delay)),
            default=None,
        )
