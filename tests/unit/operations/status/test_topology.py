"""What the core reports of a topology: which of it is a problem, and which only takes its time."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from operations.status.assembly import overview_of
from operations.status.model import Severity
from tests.support.clusters import NOW, Builder, ago, condition
from tests.support.diagnosis import problems

pytestmark = pytest.mark.unit


def unreconciled(reason: str, *more: Obj) -> Builder:
    """Return a cluster whose topology has not been reconciled for hours."""
    builder = Builder()
    reported = condition("TopologyReconciled", "False", reason, "Cluster is upgrading", hours=3)
    builder.cluster["status"]["conditions"] += [reported, *more]
    return builder


@pytest.mark.parametrize(
    ("reason", "severity"),
    [
        ("ClusterUpgrading", Severity.WAITING),
        ("ControlPlaneUpgradePending", Severity.WAITING),
        ("MachineDeploymentsUpgradePending", Severity.WAITING),
        ("MachinePoolsCreatePending", Severity.WAITING),
        ("MachineDeploymentsUpgradeDeferred", Severity.NOTE),
        ("LifecycleHookBlocking", Severity.ERROR),
    ],
)
def test_an_upgrade_takes_as_long_as_its_machines_take(reason: str, severity: Severity) -> None:
    assert [(problem.reason, problem.severity) for problem in problems(unreconciled(reason))] == [(reason, severity)]


def test_an_upgrade_does_not_hide_what_is_wrong_with_its_machines() -> None:
    builder = unreconciled("ClusterUpgrading")
    builder.break_machine("worker-1", "VMProvisioningFailed", "Harvester has no such image")
    assert [problem.severity for problem in problems(builder)] == [Severity.ERROR, Severity.WAITING]


def test_an_upgrade_does_not_hide_a_control_plane_that_does_not_answer() -> None:
    silence = condition("RemoteConnectionProbe", "False", "ProbeFailed", "no answer", hours=1)
    builder = unreconciled("ClusterUpgrading", condition("ControlPlaneInitialized", "True"), silence)
    assert [(problem.reason, problem.severity) for problem in problems(builder)] == [
        ("ProbeFailed", Severity.ERROR),
        ("ClusterUpgrading", Severity.WAITING),
    ]


def test_a_pause_of_a_topology_hides_nothing() -> None:
    paused = condition("Paused", "True", hours=1)
    builder = unreconciled("Paused", paused)
    builder.cluster["spec"]["paused"] = True
    assert [problem.severity for problem in problems(builder)] == [Severity.NOTE]

    builder.cluster["status"]["conditions"][0] = condition("Available", "False", "NotAvailable", "etcd", hours=5)
    assert [problem.reason for problem in problems(builder)] == ["NotAvailable", "Paused"]


def test_a_deletion_waits_for_no_infrastructure_that_is_deleted() -> None:
    builder = Builder()
    builder.cluster["metadata"]["deletionTimestamp"] = ago(hours=2)
    objects = builder.objects()
    objects.harvester_clusters = objects.machines = objects.harvester_machines = []
    (problem,) = overview_of(objects, NOW).clusters[0].problems
    assert (problem.reason, problem.severity) == ("Deleting", Severity.ERROR)
    assert "caphv delete team/shop --explain" in problem.next_step
