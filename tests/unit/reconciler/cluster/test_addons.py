"""Missing add-ons of a workload cluster are reported once they should exist, unless a packager reports them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from caphv.api import names
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj
from caphv.runtime.errors import Forbidden, Unreachable
from reconciler.cluster.addons import GRACE_SECONDS, RECHECK_SECONDS, report_missing_addons
from reconciler.cluster.scope import ClusterScope
from reconciler.statusdraft import StatusDraft
from tests.support.reconciler.memorycase import MemoryCase

pytestmark = pytest.mark.unit

READY = ConditionType.ADDON_BUNDLES_READY
LEASE: Obj = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
LEASE["metadata"] = {"name": "cloud-controller-manager", "namespace": "kube-system"}
PROVIDER: Obj = {"apiVersion": "apps/v1", "kind": "Deployment"}
PROVIDER["metadata"] = {"name": "harvester-cloud-provider", "namespace": "kube-system"}
DRIVER: Obj = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "driver.harvesterhci.io"}}


def node(seconds: float, name: str = "one") -> Obj:
    created = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "creationTimestamp": created}}


class Guests:
    """A workload cluster with these objects, and one scope of its HarvesterCluster after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *objs: Obj) -> None:
        self.case = MemoryCase(monkeypatch)
        self.case.guests_answer = True
        for obj in objs:
            self.case.workload.put(obj)
        self.draft = StatusDraft(self.case.obj)
        self.requeue_after: float | None = None

    async def report(self) -> tuple[str, str]:
        """Return status and reason of the condition."""
        scope = ClusterScope(self.case.context, self.case.obj, self.case.cluster, self.draft)
        await report_missing_addons(scope)
        self.requeue_after = scope.requeue_after
        self.draft = self.case.written(self.draft)
        found = [each for each in self.draft.fields.get("conditions") or () if each["type"] == READY]
        return (found[0]["status"], found[0]["reason"]) if found else ("", "")


MISSING = ("False", Reason.ADDON_BUNDLES_MISSING)


@pytest.mark.parametrize(
    ("present", "labels", "expected"),
    [
        ([], {}, MISSING),
        ([LEASE], {}, MISSING),
        ([DRIVER], {}, MISSING),
        ([LEASE, DRIVER], {}, ("", "")),
        ([PROVIDER, DRIVER], {}, ("", "")),
        ([LEASE], {names.CSI_LABEL: "none"}, ("", "")),
        ([DRIVER], {names.CSI_LABEL: "none"}, MISSING),
    ],
)
async def test_what_is_missing_is_reported(
    present: list[Obj], labels: dict[str, str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guests = Guests(monkeypatch, node(GRACE_SECONDS + 1), *present)
    guests.case.cluster["metadata"]["labels"] = labels
    for _ in range(2):
        assert await guests.report() == expected
        assert guests.requeue_after == (RECHECK_SECONDS if expected == MISSING else None)
    assert [reason for _, reason in guests.case.events] == ([Reason.ADDON_BUNDLES_MISSING] if any(expected) else [])


async def test_installed_addons_end_the_report_and_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    guests = Guests(monkeypatch, node(GRACE_SECONDS + 1))
    assert await guests.report() == MISSING
    for obj in (LEASE, DRIVER):
        guests.case.workload.put(obj)
    assert await guests.report() == ("", "")
    guests.case.workload.errors["get Lease"] = AssertionError("read again")  # type: ignore[assignment]
    assert await guests.report() == ("", "")


async def test_addons_have_time_after_the_first_node(monkeypatch: pytest.MonkeyPatch) -> None:
    guests = Guests(monkeypatch)
    assert await guests.report() == ("", "")
    assert guests.requeue_after == GRACE_SECONDS
    guests.case.workload.put(node(100, "newer"))
    guests.case.workload.put(node(200, "older"))
    assert await guests.report() == ("", "")
    assert guests.requeue_after == pytest.approx(GRACE_SECONDS - 200, abs=5)


@pytest.mark.parametrize("error", [Unreachable("no answer"), Forbidden(403, "Forbidden", "cannot get leases")])
async def test_workload_cluster_that_does_not_say_is_asked_again(
    error: Unreachable | Forbidden, monkeypatch: pytest.MonkeyPatch
) -> None:
    guests = Guests(monkeypatch, node(GRACE_SECONDS + 1))
    guests.case.workload.errors["get Lease"] = error
    assert await guests.report() == ("", "")
    assert guests.requeue_after == RECHECK_SECONDS


async def test_workload_cluster_that_was_not_reached_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    guests = Guests(monkeypatch, node(GRACE_SECONDS + 1))
    guests.case.guests_answer = False
    assert await guests.report() == ("", "")
    assert guests.requeue_after is None


async def test_report_of_a_packager_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    guests = Guests(monkeypatch, node(GRACE_SECONDS + 1))
    guests.draft.set_false(READY, Reason.ADDON_BUNDLES_INVALID, "bundles of a packager")
    assert await guests.report() == ("False", Reason.ADDON_BUNDLES_INVALID)
    guests.draft.set_true(READY)
    assert (await guests.report())[0] == "True"


async def test_user_can_end_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    guests = Guests(monkeypatch, node(GRACE_SECONDS + 1))
    assert await guests.report() == MISSING
    guests.case.cluster["metadata"]["annotations"] = {names.SUSPEND_ADDONS_ANNOTATION: "true"}
    assert await guests.report() == ("", "")
