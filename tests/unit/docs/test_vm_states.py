"""The table of the states of a VM says what the code does."""

from __future__ import annotations

import re

import pytest

from caphv.api.names import Reason
from reconciler.machine.vmpolicy import AGENT_SECONDS, CREATION_SECONDS, POLICY, RESTART_SECONDS, decide
from reconciler.machine.vmstatus import PHASES, VmPhase
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

PAGE = (CHECKOUT / "docs/reference/vm-states.md").read_text(encoding="utf-8")
SECONDS = {"at once": 0.0, "1 min": CREATION_SECONDS, "3 min": RESTART_SECONDS, "never": None}
# Phases that depend on more than KubeVirt's word.
DERIVED = {"Stopping": {VmPhase.STOPPING, VmPhase.RESTARTING}, "Stopped": {VmPhase.STOPPED, VmPhase.RESTARTING}}


def rows() -> dict[VmPhase, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| `[a-z]+` \|", line)]
    return {VmPhase(cells[0].strip("`")): cells[1:] for cells in lines}


def test_each_phase_has_a_row() -> None:
    assert set(rows()) == set(VmPhase)
    assert set(POLICY) == set(VmPhase) - {VmPhase.RUNNING}


def test_words_of_kubevirt_are_in_the_row_of_their_phase() -> None:
    phases: dict[str, set[VmPhase]] = {}
    for phase, (words, *_) in rows().items():
        for word in re.findall(r"`([A-Z]\w+)`", words):
            phases.setdefault(word, set()).add(phase)
    assert phases == {word: DERIVED.get(word, {phase}) for word, phase in PHASES.items()}


@pytest.mark.parametrize("phase", POLICY)
def test_times_and_reason_are_those_of_the_policy(phase: VmPhase) -> None:
    _, warns_after, is_outage, reason, _ = rows()[phase]
    assert (SECONDS[warns_after], SECONDS[is_outage]) == (POLICY[phase].fails_after, POLICY[phase].is_outage)
    verdict = decide(phase, provisioned=True, ready=True, lasted=1e6, down=1e6)
    assert reason == f"`{Reason.VM_PROVISIONING_FAILED if verdict.failed else Reason.VM_PROVISIONING_IN_PROGRESS}`"


def test_times_in_the_text() -> None:
    assert f"{CREATION_SECONDS / 60:.0f} min" == "1 min"
    assert f"{RESTART_SECONDS / 60:.0f} min" == "3 min"
    assert f"for {AGENT_SECONDS / 60:.0f} min" in PAGE
