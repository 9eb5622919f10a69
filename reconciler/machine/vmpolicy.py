"""How long each state of a VM may last before its machine reports it. Pure; docs/reference/vm-states.md is its table.

KubeVirt and Harvester work side by side: while a VM is created, its instance is there before its volumes, so that for
seconds KubeVirt reports states that look like failures. A restart that a user requests passes through stopped and
starting. What a healthy VM passes through must neither become a Warning nor take readiness from its machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.machine.vmstatus import VmPhase

AGENT_SECONDS = 300.0
"""Seconds that the guest agent of a running VM may be silent, for example while the guest installs it."""
CREATION_SECONDS = 60.0
"""Seconds that a VM may lack a volume or a host before that is a failure."""
RESTART_SECONDS = 180.0
"""Seconds that a VM may take from its stop to its start: Harvester gives a guest 120 to shut down."""


@dataclass(frozen=True)
class Patience:
    """For how many seconds a state is normal.

    `fails_after`: of a machine that was never provisioned, until the state is a failure; None if it never is.
    `keeps_ready`: of a machine that is ready, until it is not; it is a failure then, unless `fails_after` is None.
    """

    fails_after: float | None
    keeps_ready: float


POLICY = {
    VmPhase.DELETING: Patience(fails_after=None, keeps_ready=0),
    VmPhase.STARTING: Patience(fails_after=None, keeps_ready=RESTART_SECONDS),
    VmPhase.RESTARTING: Patience(fails_after=None, keeps_ready=RESTART_SECONDS),
    VmPhase.STOPPING: Patience(fails_after=None, keeps_ready=0),
    VmPhase.STOPPED: Patience(fails_after=0, keeps_ready=0),
    VmPhase.PAUSED: Patience(fails_after=0, keeps_ready=0),
    VmPhase.UNSCHEDULABLE: Patience(fails_after=CREATION_SECONDS, keeps_ready=CREATION_SECONDS),
    VmPhase.FAILED: Patience(fails_after=CREATION_SECONDS, keeps_ready=0),
    VmPhase.CRASHED: Patience(fails_after=0, keeps_ready=0),
    VmPhase.UNKNOWN: Patience(fails_after=CREATION_SECONDS, keeps_ready=0),
}
"""For each phase except `RUNNING`, which is normal, and `MISSING`, which no patience helps."""


@dataclass(frozen=True)
class Verdict:
    """What a machine reports of a VM that does not run.

    `failed`: a user has to act; otherwise the state may end by itself.
    `holds`: a ready machine stays ready.
    `review_after`: seconds until this may change without an event, None for never.
    """

    failed: bool
    holds: bool
    review_after: float | None


def decide(phase: VmPhase, *, provisioned: bool, ready: bool, lasted: float, down: float) -> Verdict:
    """Decide what a machine reports of a VM that does not run.

    :param phase: one of `POLICY`
    :param provisioned: whether the machine was ever ready
    :param ready: whether the machine is ready
    :param lasted: seconds since the VM entered this phase
    :param down: seconds since the VM was last seen running
    """
    patience = POLICY[phase]

    # A restart consists of several phases, which together must end in time.
    held = min(patience.keeps_ready - lasted, RESTART_SECONDS - down) if ready else 0
    if held > 0:
        return Verdict(failed=False, holds=True, review_after=held)

    if patience.fails_after is None or provisioned:
        return Verdict(failed=patience.fails_after is not None, holds=False, review_after=None)

    remaining = patience.fails_after - lasted
    return Verdict(failed=remaining <= 0, holds=False, review_after=remaining if remaining > 0 else None)


class VmClock:
    """Since when a VM is in its phase, does not run, or its guest agent is silent, by a monotonic clock.

    Kept in memory only: after a restart of the provider they begin again.
    """

    def __init__(self) -> None:
        self._phase: VmPhase | None = None
        self._phase_since = 0.0
        self._down_since: float | None = None
        self._silent_since: float | None = None

    def follow(self, phase: VmPhase) -> VmPhase:
        """Return the phase that this one means after the last: a guest that does not shut down in time is ended."""
        return VmPhase.RESTARTING if (phase, self._phase) == (VmPhase.CRASHED, VmPhase.RESTARTING) else phase

    def observe(self, phase: VmPhase, now: float) -> tuple[float, float]:
        """Return for how many seconds the VM has been in this phase, and for how many it has not run."""
        if phase is not self._phase:
            self._phase, self._phase_since = phase, now
        if phase is VmPhase.RUNNING:
            self._down_since = None
            return now - self._phase_since, 0.0
        if self._down_since is None:
            self._down_since = now
        return now - self._phase_since, now - self._down_since

    def silence(self, now: float, *, answers: bool) -> float:
        """Return for how many seconds the guest agent of a running VM has been silent."""
        if answers:
            self._silent_since = None
            return 0.0
        if self._silent_since is None:
            self._silent_since = now
        return now - self._silent_since
