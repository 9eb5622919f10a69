"""What `caphv upgrade` changes, in which order, and which versions it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from operations.capacity.preflight import check_charts, check_objects
from operations.change.changes import Change, ChangeError, Plan
from operations.change.clusterparts import cluster_and_parts
from operations.change.upgradeplan import Version, plan_upgrade, progress, surge
from operations.read.chartlimits import ChartLimits
from operations.read.objects import HarvesterObjects
from operations.status.check import Result
from tests.support.clusters import VERSION, Builder, ago, condition

pytestmark = pytest.mark.unit

IMAGE = "default/sles-1.36.3-rke2r1"

NEXT = "v1.36.3+rke2r1"


def parts(builder: Builder) -> Any:
    return cluster_and_parts(builder.objects(), Key("team", builder.name))


def plan(builder: Builder, version: str = NEXT) -> Plan:
    found, deployments, cluster = parts(builder)
    return plan_upgrade(found, deployments, cluster, version)


def verdicts(found: Plan, check: str) -> list[tuple[Result, str]]:
    return [(each.result, each.message) for each in found.checks if each.id == check]


def run_version(builder: Builder, version: str, *, workers: bool) -> None:
    """Have machines run a version."""
    for name, machine in builder.machines.items():
        if workers or "cp" in name:
            machine["spec"]["version"] = version


def test_a_topology_has_one_version() -> None:
    (patch,) = plan(Builder()).patches
    assert plan(Builder()).pending == ()
    assert patch.body == {"spec": {"topology": {"version": NEXT}}}
    assert (patch.changes[0].before, patch.changes[0].after) == (VERSION, NEXT)


def test_without_a_topology_workers_follow_the_control_plane() -> None:
    builder = Builder()
    del builder.cluster["spec"]["topology"]
    (patch,) = plan(builder).patches
    assert (patch.kind, patch.body) == ("RKE2ControlPlane", {"spec": {"version": NEXT}})
    workers = Change("MachineDeployment team/shop-md-0", "spec.template.spec.version", VERSION, NEXT)
    assert plan(builder).pending == (workers,)
    # It is under way: the workers have to wait.
    builder.control_plane["spec"]["version"] = NEXT
    assert (plan(builder).patches, plan(builder).pending) == ((), (workers,))
    run_version(builder, NEXT, workers=False)
    (patch,) = plan(builder).patches
    assert (patch.kind, patch.body) == ("MachineDeployment", {"spec": {"template": {"spec": {"version": NEXT}}}})
    assert plan(builder).pending == ()
    builder.deployment["spec"]["template"]["spec"]["version"] = NEXT
    assert (plan(builder).patches, plan(builder).pending) == ((), ())


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("v1.35.9+rke2r1", "cannot be downgraded"),
        ("v1.36.1+rke2r1", "cannot be downgraded"),
        ("v1.38.0+rke2r1", "skips a minor version"),
        ("v2.0.0+rke2r1", "skips a minor version"),
    ],
)
def test_a_version_that_cannot_follow_is_refused(version: str, message: str) -> None:
    ((result, text),) = verdicts(plan(Builder(), version), "version")
    assert result is Result.ERROR
    assert message in text


def test_a_version_that_skips_one_names_that_one() -> None:
    (check,) = (check for check in plan(Builder(), "v1.38.0+rke2r1").checks if check.id == "version")
    assert check.remedy == "Upgrade to the latest v1.37 first"


@pytest.mark.parametrize("version", ["v1.36.2+rke2r2", "v1.36.3+rke2r1", "v1.37.0+rke2r1", "v1.37.0-rc.1+rke2r1"])
def test_a_version_that_can_follow_is_taken(version: str) -> None:
    assert plan(Builder(), version).errors == ()


@pytest.mark.parametrize(
    ("kind", "version", "example"),
    [
        ("RKE2ControlPlane", "v1.36.3", "v1.36.3+rke2r1"),
        ("RKE2ControlPlane", "v1.36.3+k3s1", "v1.36.3+rke2r1"),
        ("KThreesControlPlane", "v1.36.3+rke2r1", "v1.36.3+k3s1"),
        ("KubeadmControlPlane", "v1.36.3+rke2r1", "v1.36.3"),
        ("RKE2ControlPlane", "1.36.3+rke2r1", "v1.36.3+rke2r1"),
        ("RKE2ControlPlane", "latest", "v1.36.3+rke2r1"),
    ],
)
def test_a_version_of_another_distribution_is_refused_with_an_example(kind: str, version: str, example: str) -> None:
    builder = Builder()
    builder.control_plane["kind"] = builder.cluster["spec"]["controlPlaneRef"]["kind"] = kind
    with pytest.raises(ChangeError) as caught:
        plan(builder, version)
    assert f"--version {version}: " in str(caught.value)
    assert str(caught.value).endswith(f"write it like {example}")


def test_an_upgrade_under_way_has_to_end_first() -> None:
    builder = Builder()
    run_version(builder, "v1.36.1+rke2r1", workers=False)
    ((result, text),) = verdicts(plan(builder), "version")
    assert (result, "an upgrade is under way" in text) == (Result.ERROR, True)
    # Waiting for that one is no new upgrade.
    assert plan(builder, VERSION).errors == ()


def test_kubelets_may_not_be_left_too_far_behind() -> None:
    builder = Builder()
    run_version(builder, "v1.33.9+rke2r1", workers=True)
    ((result, text),) = verdicts(plan(builder, "v1.37.0+rke2r1"), "version")
    assert (result, "more than 3 minor versions older" in text) == (Result.ERROR, True)


def test_only_machines_that_are_too_old_are_named() -> None:
    builder = Builder()
    control_plane, worker, *others = builder.machines.values()
    control_plane["spec"]["version"], worker["spec"]["version"] = "1.30.2", "v1.33.9+rke2r1"
    for machine in others:
        machine["spec"]["version"] = "v1.34.1+rke2r1"
    ((_, text),) = verdicts(plan(builder, "v1.37.0+rke2r1"), "version")
    assert text == "machines of v1.33.9+rke2r1 are more than 3 minor versions older than v1.37.0+rke2r1"


def test_what_is_wrong_with_the_cluster_forbids_it() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    ((result, text),) = verdicts(plan(builder), "health")
    assert result is Result.ERROR
    assert text.startswith("HarvesterMachine/worker-1: the VirtualMachine does not exist")


@pytest.mark.parametrize(
    ("status", "reason", "message", "result"),
    [
        ("True", "ImagesReady", "", Result.OK),
        ("False", "ImagesImporting", f"{IMAGE}: 50 %", Result.WARNING),
        ("False", "ImageImportFailed", f"{IMAGE}: checksum", Result.ERROR),
        ("False", "ImageImportFailed", f"default/a: checksum; {IMAGE}: checksum", Result.ERROR),
        ("False", "ImageImportFailed", f"default/a: bad; {IMAGE}: Harvester is importing the image", Result.WARNING),
        ("False", "ImageImportFailed", "default/a: checksum; default/b: checksum and 1 more", Result.WARNING),
        ("False", "ImageImportFailed", f"default/a: checksum; see {IMAGE}-x: checksum", Result.OK),
        ("False", "ImageImportFailed", "default/a: checksum", Result.OK),
        ("Unknown", "ImagesImporting", "", Result.WARNING),
    ],
)
def test_version_whose_image_cannot_be_imported_is_refused(
    status: str, reason: str, message: str, result: Result
) -> None:
    builder = Builder()
    spec = builder.harvester_cluster["spec"]
    spec["images"] = [{"name": "default/sles-1.36.3-rke2r1", "url": "https://i.example.com/a", "checksum": "a" * 128}]
    found = condition("ImagesReady", status, reason, message)
    builder.harvester_cluster["status"]["conditions"].append(found)
    assert verdicts(plan(builder), "images") == [], "no machine has its image by version"
    for machine in builder.harvester_machines.values():
        machine["spec"]["volumes"] = [
            {"volumeType": "image", "imageLookup": {"format": "default/sles-{{.K8sVersion}}"}}
        ]
    assert [verdict for verdict, _ in verdicts(plan(builder), "images")] == [result]
    # What the provider reported before the last change of the spec, or not at all, is no answer.
    builder.harvester_cluster["metadata"]["generation"] = 2
    for observed in (1, None):
        found["observedGeneration"] = observed
        assert [verdict for verdict, _ in verdicts(plan(builder), "images")] == [Result.WARNING]
    found["observedGeneration"] = 2
    assert [verdict for verdict, _ in verdicts(plan(builder), "images")] == [result]
    builder.harvester_cluster["status"]["conditions"].remove(found)
    assert [verdict for verdict, _ in verdicts(plan(builder), "images")] == [Result.WARNING]
    del spec["images"]
    assert verdicts(plan(builder), "images") == []


@pytest.mark.parametrize(
    ("status", "reason", "result"),
    [
        ("True", "ControlPlaneBackupsReady", Result.OK),
        ("False", "BackupFailed", Result.OK),
        ("False", "BackupsRefused", Result.WARNING),
        ("", "", Result.WARNING),
    ],
)
def test_refused_backups_are_warned_of(status: str, reason: str, result: Result) -> None:
    builder = Builder()
    if status:
        found = condition("ControlPlaneBackupsReady", status, reason, "backup target is not set")
        builder.harvester_cluster["status"]["conditions"].append(found)
    assert verdicts(plan(builder), "backups") == [], "the cluster wants none"
    builder.harvester_cluster["spec"]["controlPlaneBackups"] = {"keep": 3}
    assert [verdict for verdict, _ in verdicts(plan(builder), "backups")] == [result]


def test_it_is_complete_when_every_machine_has_the_version_and_works() -> None:
    builder = Builder()
    builder.cluster["spec"]["topology"]["version"] = NEXT

    def now() -> tuple[str, bool]:
        found, _, cluster = parts(builder)
        state = progress(found, cluster, NEXT)
        return str(state), state.complete

    assert now() == ("0 of 3 machines", False)
    run_version(builder, NEXT, workers=False)
    assert now() == ("1 of 3 machines", False)
    run_version(builder, NEXT, workers=True)
    assert now() == ("3 of 3 machines", True)
    builder.cluster["status"]["workers"]["upToDateReplicas"] = 1
    assert now() == ("3 of 3 machines", False)
    builder.cluster["status"]["workers"]["upToDateReplicas"] = 2

    reconciled = condition("TopologyReconciled", "False")
    builder.cluster["status"]["conditions"].append(reconciled)
    assert now() == ("3 of 3 machines", False), "the topology has more to change"
    reconciled["status"] = "True"
    assert now() == ("3 of 3 machines", True)

    builder.machines["worker-2"]["metadata"]["deletionTimestamp"] = ago(minutes=1)
    assert now() == ("2 of 3 machines", False)
    del builder.machines["worker-2"]["metadata"]["deletionTimestamp"]
    builder.machines["worker-2"]["status"]["conditions"][0]["status"] = "False"
    assert now() == ("2 of 3 machines", False), "its machine does not work"


def test_a_hosted_control_plane_has_no_machines_to_wait_for() -> None:
    builder = Builder()
    builder.cluster["spec"]["topology"]["version"] = NEXT
    run_version(builder, NEXT, workers=True)
    del builder.machines["cp-1"]
    found, _, cluster = parts(builder)
    state = progress(found, cluster, NEXT)
    assert (str(state), state.complete) == ("2 of 2 machines", True)

    # Machines that are not read may exist.
    state = progress(replace(found, sees_machines=False), cluster, NEXT)
    assert (str(state), state.complete) == ("2 of 3 machines", False)


def test_workers_of_talos_follow_a_control_plane_that_counts_no_machines() -> None:
    builder = Builder(control_planes=3)
    builder.control_plane["kind"] = builder.cluster["spec"]["controlPlaneRef"]["kind"] = "TalosControlPlane"
    builder.control_plane["status"] = {"replicas": 3, "readyReplicas": 3}
    del builder.cluster["spec"]["topology"]
    del builder.cluster["status"]["controlPlane"]["upToDateReplicas"]
    builder.control_plane["spec"]["version"] = "v1.36.3"
    run_version(builder, "v1.36.3", workers=False)
    assert [patch.kind for patch in plan(builder, "v1.36.3").patches] == ["MachineDeployment"]
    _keep_version(builder.machines["cp-3"])
    assert plan(builder, "v1.36.3").patches == ()


def _delete(machine: Obj) -> None:
    machine["metadata"]["deletionTimestamp"] = ago(minutes=1)


def _break(machine: Obj) -> None:
    # An Available machine counts as a replica, so that only its own state tells.
    machine["status"]["conditions"] = [condition("Ready", "False"), condition("Available", "True")]


def _keep_version(machine: Obj) -> None:
    machine["spec"]["version"] = VERSION


@pytest.mark.parametrize("change", [_delete, _break, _keep_version])
def test_workers_wait_for_every_machine_of_the_control_plane(change: Callable[[Obj], None]) -> None:
    builder = Builder(control_planes=3)
    del builder.cluster["spec"]["topology"]
    builder.control_plane["spec"]["version"] = NEXT
    run_version(builder, NEXT, workers=False)
    assert [patch.kind for patch in plan(builder).patches] == ["MachineDeployment"]
    change(builder.machines["cp-2"])
    assert plan(builder).patches == ()
    assert len(plan(builder).pending) == 1


def test_workers_wait_until_the_control_plane_counts_no_old_machine() -> None:
    builder = Builder(control_planes=3)
    del builder.cluster["spec"]["topology"]
    builder.control_plane["spec"]["version"] = NEXT
    run_version(builder, NEXT, workers=False)
    builder.cluster["status"]["controlPlane"]["upToDateReplicas"] = 2
    assert plan(builder).patches == ()


def test_a_cluster_that_has_the_version_is_not_checked_for_its_start() -> None:
    builder = Builder()
    assert {"health", "version"} <= {check.id for check in plan(builder).checks}
    found = plan(builder, VERSION)
    assert (found.patches, found.pending) == ((), ())
    assert [check.id for check in found.checks] == [check.id for check in found.checks if check.id != "health"]


@pytest.mark.parametrize(
    ("control_plane", "deployment", "expected"),
    [
        ({}, {}, 1),
        ({"rolloutStrategy": {"rollingUpdate": {"maxSurge": 0}}}, {"strategy": {"rollingUpdate": {"maxSurge": 0}}}, 0),
        ({}, {"strategy": {"rollingUpdate": {"maxSurge": "30%"}}}, 3),
        ({"replicas": 5, "rolloutStrategy": {"rollingUpdate": {"maxSurge": "40%"}}}, {}, 2),
        ({"replicas": 0, "rolloutStrategy": {"rollingUpdate": {"maxSurge": "100%"}}}, {"replicas": 0}, 1),
        ({}, {"rollout": {"strategy": {"rollingUpdate": {"maxSurge": 4}}}}, 4),
    ],
)
def test_the_surge_is_that_of_the_strategies(control_plane: Any, deployment: Any, expected: int) -> None:
    builder = Builder()
    builder.control_plane["spec"] |= control_plane
    builder.deployment["spec"] |= {"replicas": 9, **deployment}
    found, deployments, _ = parts(builder)
    assert surge(found, deployments) == expected


_NUMBERS = st.tuples(*[st.integers(0, 40)] * 3, st.integers(1, 9))


@given(_NUMBERS, _NUMBERS)
def test_versions_have_the_order_of_releases(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    texts = ["v{}.{}.{}+rke2r{}".format(*numbers) for numbers in (one, other)]
    first, second = (Version.parse(text) for text in texts)
    assert first is not None
    assert second is not None
    assert (first < second) == (one < other)


def test_a_pre_release_comes_before_its_release() -> None:
    found = [Version.parse(text) for text in ("v1.37.0-alpha.1", "v1.37.0-rc.1", "v1.37.0")]
    assert found == sorted(found, key=lambda version: version or Version(0, 0, 0, False, "", "", 0))


# Charts that RKE2 installs


def with_rke2_charts() -> Any:
    found, _, _ = parts(Builder())
    found.control_plane["kind"] = "RKE2ControlPlane"
    found.control_plane["spec"]["serverConfig"] = {"cloudProviderName": "harvester"}
    return found


def test_a_harvester_that_does_not_serve_the_charts_has_to_be_upgraded_first() -> None:
    (only,) = check_charts(with_rke2_charts(), NEXT, ChartLimits((1, 1)))
    assert (only.id, only.result) == ("cloud-provider", Result.ERROR)
    assert only.message == "harvester-cloud-provider 0.2.14 needs Harvester 1.2 or later"
    assert "Upgrade Harvester first" in only.remedy
    (only,) = check_charts(with_rke2_charts(), NEXT, ChartLimits((1, 8)))
    assert (only.result, only.message.endswith(f"of RKE2 {NEXT}")) == (Result.OK, True)


def test_a_harvester_that_does_not_answer_is_no_passed_check() -> None:
    assert [check.result for check in check_charts(with_rke2_charts(), NEXT, None)] == [Result.SKIPPED]


def test_charts_of_bundles_do_not_change_with_kubernetes() -> None:
    found, _, _ = parts(Builder())
    assert list(check_charts(found, NEXT, ChartLimits((1, 1)))) == []
    assert list(check_charts(with_rke2_charts(), "v1.99.0+rke2r1", None)) == []


@pytest.mark.parametrize(("image", "result"), [("sles-15", Result.OK), ("sles-16", Result.ERROR)])
def test_an_image_that_harvester_lacks_stops_the_upgrade_before_it_begins(image: str, result: Result) -> None:
    builder = Builder()
    for machine in builder.harvester_machines.values():
        machine["spec"]["volumes"] = [{"volumeType": "image", "imageName": f"default/{image}"}]
    present = {"metadata": {"name": "sles-15", "namespace": "default"}, "spec": {"displayName": "sles-15"}}
    harvester = HarvesterObjects(server="https://harvester:6443", images=[present])
    (check,) = check_objects(parts(builder)[0], harvester, NEXT)
    assert check.result is result
    assert ("default/sles-16: VM image does not exist" in check.message) is (result is Result.ERROR)


def test_objects_of_a_harvester_that_does_not_answer_are_not_checked() -> None:
    (check,) = check_objects(parts(Builder())[0], None, NEXT)
    assert check.result is Result.SKIPPED


def test_a_cluster_that_rancher_provisions_is_upgraded_there() -> None:
    builder = Builder()
    del builder.cluster["spec"]["topology"]
    builder.cluster["spec"]["controlPlaneRef"] |= {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane"}
    with pytest.raises(ChangeError, match="change kubernetesVersion of"):
        plan(builder)
