"""What holds for each reconcile of a cluster that is evacuated, parked or resumed."""

from __future__ import annotations

import pytest

from caphv.api.conditions import get_condition
from caphv.api.object import list_at
from tests.support.reconciler.memorycase import MemoryCase

WAITING = ("Evacuating", "EvacuationBlocked", "Parking", "Resuming")


def waits(case: MemoryCase) -> bool:
    """Whether a condition says that the cluster waits for something that is not watched."""
    if not case.session.available or case.session.error:
        return False  # a Harvester that answers again is an event

    obj = case.management.find("HarvesterCluster", "demo", "team")
    conditions = list_at(obj, "status", "conditions")
    found = [get_condition(conditions, name) or {} for name in ("Parked", "HostsEvacuated")]
    # So is the correction of an annotation.
    return any(each.get("reason") in WAITING and not each["message"].startswith("annotation ") for each in found)


@pytest.fixture(autouse=True)
def what_waits_is_reconciled_again(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Require that a reconcile which waits is repeated: nothing watches Pods, Nodes and what refuses a request."""
    if request.path.parent.name not in ("evacuation", "parking"):
        return
    reconcile = MemoryCase.reconcile

    async def reconcile_and_check(case: MemoryCase) -> float | None:
        requeue_after = await reconcile(case)
        if waits(case):
            # A difference of times is rounded, and may be a little longer than the longest wait, 65 s.
            assert 0 < (requeue_after or 0) < 66
        return requeue_after

    monkeypatch.setattr(MemoryCase, "reconcile", reconcile_and_check)
