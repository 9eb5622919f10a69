"""Decide how long each state of a VM may last before its machine reports it. Pure functions.

docs/reference/vm-states.md shows the policy as a table.

KubeVirt and Harvester work concurrently. While a VM is created, its instance exists before its
volumes, so that KubeVirt reports states for some seconds that look like failures. A restart that a
user requests passes through stopped and starting. Such states of a healthy VM must neither cause a
Warning nor make the machine unready.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.machine.vmstatus import VmPhase

AGENT_SECONDS = 300.0
"""The agent of a running VM may be silent for so many seconds, for example during installation."""
CREATION_SECONDS = 60.0
"""A VM may lack a volume or a host for so many seconds before that is a failure."""
SHORTAGE_SECONDS = 10.0
"""A VM may find no free device for so many seconds, while one that had it is being deleted."""
RESTART_SECONDS = 180.0
"""A restart may take so many seconds. Harvester gives a guest 120 seconds to shut down."""


@dataclass(frozen=True)
class Patience:
    """Seconds for which a state is normal.

    :param fails_after: seconds until the state is a failure of a machine that was never
        provisioned; None if the state is never a failure
    :param is_outage: seconds for which a ready machine stays ready in this state. Afterwards the
        state is a failure, unless `fails_after` is None
    """

    fails_after: float | None
    is_outage: float


POLICY = {
    VmPhase.DELETING: Patience(fails_after=None, is_outage=0),
    VmPhase.STARTING: Patience(fails_after=None, is_outage=RESTART_SECONDS),
    VmPhase.RESTARTING: Patience(fails_after=None, is_outage=RESTART_SECONDS),
    VmPhase.STOPPING: Patience(fails_after=None, is_outage=0),
    VmPhase.STOPPED: Patience(fails_after=0, is_outage=0),
    VmPhase.PAUSED: Patience(fails_after=0, is_outage=0),
    VmPhase.UNSCHEDULABLE: Patience(fails_after=CREATION_SECONDS, is_outage=CREATION_SECONDS),
    VmPhase.FAILED: Patience(fails_after=CREATION_SECONDS, is_outage=0),
    VmPhase.CRASHED: Patience(fails_after=0, is_outage=0),
    VmPhase.UNKNOWN: Patience(fails_after=CREATION_SECONDS, is_outage=0),
}
"""Patience with each phase. `RUNNING` needs none."""


@dataclass(frozen=True)
class Verdict:
    """The report of a machine about a VM that does not run.

    :param failed: a user has to act; otherwise the state may end without an action
    :param holds: a ready machine stays ready
    :param review_after: seconds until this may change without an event, None for never
    """

    failed: bool
    holds: bool
    review_after: float | None


def decide(
    phase: VmPhase, *, provisioned: bool, ready: bool, lasted: float, down: float
) -> Verdict:
    """Decide what a machine reports about a VM that does not run.

    :param phase: a key of `POLICY`
    :param provisioned: whether the machine was ever ready
    :param ready: whether the machine is ready
    :param lasted: seconds since the VM entered this phase
    :param down: seconds since the VM was last seen running
    """
    patience = POLICY[phase]

    if ready:
        # A restart consists of several phases, which together must end in time.
        remaining = min(patience.is_outage - lasted, RESTART_SECONDS - down)
        if remaining > 0:
            return Verdict(failed=False, holds=True, review_after=remaining)

    if patience.fails_after is None:
        return Verdict(failed=False, holds=False, review_after=None)
    remaining = patience.fails_after - lasted
    if provisioned or remaining <= 0:
        return Verdict(failed=True, holds=False, review_after=None)
    return Verdict(failed=False, holds=False, review_after=remaining)


class VmClock:
    """Measure how long a VM is in its phase, does not run, or its guest agent is silent.

    Times come from the monotonic clock and are only kept in memory, so a restart of the provider
    resets them.
    """

    def __init__(self) -> None:
        self._phase: VmPhase | None = None
        self._phase_since = 0.0
        self._down_since: float | None = None
        self._silent_since: float | None = None

    def follow(self, phase: VmPhase) -> VmPhase:
        """Return the phase to report, which may depend on the previous phase."""
        # KubeVirt kills a guest that does not shut down in time. During a restart this is no crash.
        if phase is VmPhase.CRASHED and self._phase is VmPhase.RESTARTING:
            return VmPhase.RESTARTING
        return phase

    def measure(self, phase: VmPhase, moment: float) -> tuple[float, float]:
        """Return how long the VM has been in this phase, and how long it has not run, in seconds.

        :param moment: the present time of the monotonic clock
        """
        if phase is not self._phase:
            self._phase = phase
            self._phase_since = moment
        if phase is VmPhase.RUNNING:
            self._down_since = None
            return moment - self._phase_since, 0.0
        if self._down_since is None:
            self._down_since = moment
        return moment - self._phase_since, moment - self._down_since

    def silence(self, moment: float, *, answers: bool) -> float:
        """Return for how many seconds the guest agent of a running VM has been silent."""
        if answers:
            self._silent_since = None
            return 0.0
        if self._silent_since is None:
            self._silent_since = moment
        return moment - self._silent_since
