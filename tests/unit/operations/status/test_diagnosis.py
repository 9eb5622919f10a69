"""What is wrong with a cluster: causes before consequences, each with a next step."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from caphv.api.names import RANCHER_HOOK
from operations.status.assembly import overview_of, parts_of
from operations.status.diagnosis import problems_of
from operations.status.model import Severity
from tests.support import observed
from tests.support.clusters import NOW, Builder, ago, condition
from tests.support.diagnosis import problems


def disconnected(builder: Builder) -> None:
    """Make the identity unusable, and let it show everywhere, as it does."""
    message = "identity Secret team/identity: not found; create it with key kubeconfig"
    builder.harvester_cluster["status"]["conditions"] = [
        condition(kind, "False", "HarvesterConnectionFailed", message)
        for kind in ("HarvesterConnectionReady", "InfrastructureReady", "Ready")
    ]
    for name in builder.harvester_machines:
        builder.break_machine(name, "InfrastructureProvisioningInProgress", "waiting for the cluster's infrastructure")
    builder.cluster["status"]["conditions"] = [condition("Available", "False", "NotAvailable", "* all of it")]


def test_one_cause_is_one_problem_however_often_it_shows() -> None:
    builder = Builder()
    disconnected(builder)
    (problem,) = problems(builder)
    assert (problem.severity, problem.objects) == (Severity.ERROR, ("HarvesterCluster/shop-x",))
    assert "team/identity: not found" in problem.cause
    assert "caphv doctor team/shop" in problem.next_step


@pytest.mark.parametrize(
    ("reason", "state"), [("HarvesterUnreachable", "Unreachable"), ("HarvesterAuthenticationFailed", "Degraded")]
)
def test_an_outage_is_one_cause_and_no_failure(reason: str, state: str) -> None:
    builder = Builder(workers=3)
    status = builder.harvester_cluster["status"]
    message = "Harvester is unreachable: connection refused; last known to be ready: 1 of 1 control plane machines"
    status["ready"] = True
    status["conditions"][1] = condition("HarvesterConnectionReady", "False", reason, message, minutes=5)
    builder.harvester_machines["worker-1"]["status"]["conditions"][0] = condition("Ready", "Unknown", reason, "see")
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    (problem,) = cluster.problems
    assert (cluster.state, problem.objects) == (state, ("HarvesterCluster/shop-x",))
    assert (problem.cause, problem.since) == (message, ago(minutes=5))
    assert (str(cluster.control_plane), str(cluster.workers)) == ("1/1", "3/3")


@pytest.mark.parametrize(
    ("reason", "severities"), [("IdentityExpiring", ["error", "warning"]), ("HarvesterAuthenticationFailed", ["error"])]
)
def test_an_older_report_on_the_identity_does_not_hide_an_outage(reason: str, severities: list[str]) -> None:
    builder = Builder()
    status = builder.harvester_cluster["status"]
    status["ready"] = True
    status["conditions"][1] = condition("HarvesterConnectionReady", "False", "HarvesterUnreachable", "no answer")
    status["conditions"].append(condition("IdentityUpToDate", "False", reason, "of the time before", minutes=9))
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    assert [problem.severity for problem in cluster.problems] == severities
    assert (cluster.state, cluster.problems[0].cause) == ("Unreachable", "no answer")


def test_missing_add_ons_are_a_note_and_hide_no_problem() -> None:
    builder = Builder()
    builder.harvester_cluster["status"]["conditions"].append(
        condition("AddonBundlesReady", "False", "AddonBundlesMissing", "no cloud provider", minutes=20)
    )
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    (problem,) = cluster.problems
    assert (cluster.state, cluster.wrong, problem.severity) == ("Available", False, Severity.NOTE)
    assert "kubectl annotate cluster shop -n team addons.caphv.io/suspend=true" in problem.next_step

    builder.cluster["status"]["conditions"] = [condition("Available", "False", "NotAvailable", "why", hours=1)]
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    assert [(each.severity, each.cause) for each in cluster.problems] == [
        (Severity.ERROR, "why"),
        (Severity.NOTE, "no cloud provider"),
    ]


def test_a_new_cluster_whose_harvester_never_answered_is_no_outage() -> None:
    builder = Builder()
    conditions = [condition(kind, "False", "HarvesterUnreachable") for kind in ("HarvesterConnectionReady", "Ready")]
    builder.harvester_cluster["status"]["conditions"] = conditions
    builder.cluster["status"] = {"conditions": [condition("Available", "False")]}
    builder.control_plane["status"] = {}
    builder.machines["cp-1"]["status"] = builder.harvester_machines["cp-1"]["status"] = {}
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    assert cluster.state == "Failed"


def test_what_many_machines_have_in_common_is_one_problem() -> None:
    builder = Builder(workers=5)
    for number in range(1, 6):
        message = f"no free address in IPPool machines for worker-{number}"
        builder.break_machine(f"worker-{number}", "VMIPPoolExhausted", message)
    (problem,) = problems(builder)
    assert len(problem.objects) == 5
    assert "caphv pools audit" in problem.next_step


def test_what_takes_its_time_becomes_an_error_when_it_takes_too_long() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "VMProvisioningInProgress", "the VM is starting", minutes=2)
    assert [problem.severity for problem in problems(builder)] == [Severity.WAITING]
    builder.break_machine("worker-1", "VMProvisioningInProgress", "the VM is starting", minutes=20)
    assert [problem.severity for problem in problems(builder)] == [Severity.ERROR]


def test_vms_that_do_not_run_explain_that_the_control_plane_does_not_answer() -> None:
    builder = Builder(workers=0, control_planes=3)
    silence = condition("LoadBalancerReady", "False", "ControlPlaneUnreachable", "no control plane machine answers")
    builder.harvester_cluster["status"]["conditions"].append(silence)
    for name in ("cp-1", "cp-2"):
        builder.break_machine(name, "VMProvisioningFailed", "no host of Harvester can run the VM")

    # The VM of the third one runs, so something else keeps it from answering.
    assert {problem.reason for problem in problems(builder)} == {"ControlPlaneUnreachable", "VMProvisioningFailed"}
    builder.break_machine("cp-3", "VMProvisioningFailed", "no host of Harvester can run the VM")
    (problem,) = problems(builder)
    assert (problem.reason, len(problem.objects)) == ("VMProvisioningFailed", 3)
    assert overview_of(builder.objects(), NOW).clusters[0].state != "Available"


def test_a_machine_without_bootstrap_data_says_since_when_of_whom_and_where_to_look() -> None:
    """As with CAPRKE2 v0.25.0, whose conditions do not say that a value cannot be used."""
    (record,) = (
        record
        for record in observed.records("rancher-cluster-api-provider-rke2/bootstrap.yaml")
        if record.name == "registry-config-without-secret"
    )
    builder = Builder()
    builder.cluster["status"]["initialization"] = {"infrastructureProvisioned": True}
    builder.machines["cp-1"]["spec"]["bootstrap"] = {"configRef": {"kind": "RKE2Config", "name": "shop-x7k2p"}}
    reported = record.outcome["machine"]
    builder.machines["cp-1"]["status"] = {"conditions": [condition(**reported, minutes=20)]}
    message = "waiting for the bootstrap provider to set spec.bootstrap.dataSecretName of the Machine"
    builder.break_machine("cp-1", "InfrastructureProvisioningInProgress", message)

    problem = problems(builder)[0]
    assert (problem.severity, problem.objects) == (Severity.ERROR, ("Machine/cp-1",))
    assert f"since {ago(minutes=20)} for the bootstrap provider" in problem.cause
    assert "RKE2Config shop-x7k2p (DataSecretAvailable: Condition not yet reported)" in problem.cause
    assert "kubectl logs -n rke2-bootstrap-system -l cluster.x-k8s.io/provider=bootstrap-rke2" in problem.next_step


def test_a_deletion_that_rke2_never_ends_names_the_command_that_does() -> None:
    """As with CAPRKE2 v0.25.0 when the Node was deleted before the Machine."""
    (record,) = (
        record
        for record in observed.records("rancher-cluster-api-provider-rke2/deletion.yaml")
        if record.name == "node-deleted-before-the-machine"
    )
    builder = Builder()
    machine = builder.machines["cp-1"]
    machine["metadata"] |= {"deletionTimestamp": ago(minutes=10), "annotations": record.outcome["annotations"]}
    machine["status"]["conditions"] = [
        condition(**reported, minutes=10) for reported in record.outcome["conditions"].values()
    ]
    problem = problems(builder)[0]
    assert (problem.severity, problem.objects) == (Severity.ERROR, ("Machine/cp-1",))
    assert problem.next_step.endswith("caphv etcd remove team/shop")


def test_drift_and_an_identity_that_expires_are_warnings() -> None:
    builder = Builder()
    own = builder.harvester_machines["worker-1"]["status"]["conditions"]
    own[1] = condition("VMUpToDate", "False", "VMDiffers", "cpu is 4, wanted 2")
    builder.harvester_cluster["status"]["conditions"].append(
        condition("IdentityUpToDate", "False", "IdentityExpiring", "the credentials end in 3 days")
    )
    assert [(each.severity, each.reason) for each in problems(builder)] == [
        (Severity.WARNING, "IdentityExpiring"),
        (Severity.WARNING, "VMDiffers"),
    ]


@pytest.mark.parametrize(("minutes", "severities"), [(9, []), (11, [Severity.WARNING])])
def test_update_in_place_is_a_problem_once_it_takes_long(minutes: int, severities: list[Severity]) -> None:
    builder = Builder()
    own = builder.harvester_machines["worker-1"]["status"]["conditions"]
    own[1] = condition("VMUpToDate", "False", "VMUpdating", "the VM migrates", minutes=minutes)
    assert [problem.severity for problem in problems(builder)] == severities
    assert all("room for the VM" in problem.next_step for problem in problems(builder))


def test_a_node_that_is_not_healthy_is_reported_though_its_vm_runs() -> None:
    builder = Builder()
    builder.machines["worker-2"]["status"]["conditions"] = [
        condition("NodeHealthy", "False", "NodeNotHealthy", "* Node.Ready: kubelet stopped posting", minutes=20)
    ]
    (problem,) = problems(builder)
    assert problem.objects == ("Machine/worker-2",)
    assert problem.cause == "Node.Ready: kubelet stopped posting"


def test_a_guest_that_does_not_join_is_to_be_asked_why() -> None:
    builder = Builder()
    status = builder.machines["worker-2"]["status"]
    del status["nodeRef"]
    message = "Waiting for a Node with spec.providerID harvester://x to exist"
    status["conditions"] = [condition("NodeHealthy", "Unknown", "InspectionFailed", message, minutes=20)]
    (problem,) = problems(builder)
    assert problem.next_step.startswith("Read in the guest why it does not join, with cloud-init status --long")
    assert problem.next_step.endswith("caphv tree team/shop")


@pytest.mark.parametrize(
    ("webhook", "step"),
    [
        (
            "vharvestermachinetemplate.v1beta1.kb.io",
            "Check that the provider runs, and the certificate of its webhooks",
        ),
        ("validation.rke2controlplane.kb.io", "Correct spec.topology as it says"),
    ],
)
def test_webhooks_that_do_not_answer_lead_to_their_provider(webhook: str, step: str) -> None:
    builder = Builder()
    message = f'dry-run failed: failed calling webhook "{webhook}": connect: connection refused'
    builder.cluster["status"]["conditions"].append(
        condition("TopologyReconciled", "False", "TopologyReconcileFailed", message)
    )
    (problem,) = problems(builder)
    assert problem.next_step.startswith(step)


def test_a_topology_that_cannot_be_reconciled_is_an_error_at_once() -> None:
    builder = Builder()
    builder.cluster["status"]["conditions"].append(
        condition("TopologyReconciled", "False", "TopologyReconcileFailed", "variable image is required")
    )
    (problem,) = problems(builder)
    assert (problem.severity, problem.cause) == (Severity.ERROR, "variable image is required")


def test_an_infrastructure_object_that_does_not_exist_is_named() -> None:
    builder = Builder()
    found = builder.objects()
    found.harvester_clusters = []
    (cluster,) = overview_of(found, NOW).clusters
    assert "HarvesterCluster shop-x" in cluster.problems[0].cause


def test_a_core_that_alone_knows_what_is_wrong_is_quoted() -> None:
    builder = Builder()
    message = "* ControlPlaneAvailable:\n  * etcd lost its quorum"
    builder.cluster["status"]["conditions"] = [condition("Available", "False", "NotAvailable", message, hours=1)]
    (problem,) = problems(builder)
    assert problem.cause == "ControlPlaneAvailable; etcd lost its quorum"


PAUSED = {"cluster.x-k8s.io/paused": ""}
RESUME = 'kubectl patch cluster shop -n team --type=merge -p \'{"spec":{"paused":false}}\''
UNMARK = "kubectl annotate {} {} -n team cluster.x-k8s.io/paused-"


@pytest.mark.parametrize(
    ("spec", "cluster", "harvester_cluster", "objects", "commands"),
    [
        (True, False, False, ("Cluster/shop",), [RESUME]),
        (False, True, False, ("Cluster/shop",), [UNMARK.format("cluster", "shop")]),
        (False, False, True, ("HarvesterCluster/shop-x",), [UNMARK.format("harvestercluster", "shop-x")]),
        (
            True,
            True,
            True,
            ("Cluster/shop", "HarvesterCluster/shop-x"),
            [RESUME, UNMARK.format("cluster", "shop"), UNMARK.format("harvestercluster", "shop-x")],
        ),
    ],
    ids=["spec", "annotation of the Cluster", "annotation of the HarvesterCluster", "all of them"],
)
def test_a_paused_cluster_says_how_to_resume_it(
    spec: bool, cluster: bool, harvester_cluster: bool, objects: tuple[str, ...], commands: list[str]
) -> None:
    builder = Builder()
    builder.cluster["spec"]["paused"] = spec
    for obj, marked in ((builder.cluster, cluster), (builder.harvester_cluster, harvester_cluster)):
        obj["metadata"]["annotations"] = dict(PAUSED) if marked else {}
        obj["status"]["conditions"].append(condition("Paused", "True", "Paused", hours=5))
    (problem,) = problems(builder)
    assert problem.objects == objects
    assert problem.next_step == f"Resume it: {' && '.join(commands)}"
    assert (problem.severity, problem.since) == (Severity.NOTE, ago(hours=5))


def test_the_pause_of_a_restore_ends_with_it() -> None:
    builder = Builder()
    builder.cluster["spec"]["paused"] = True
    builder.cluster["metadata"]["annotations"] = {"caphv.io/etcd-restore": "{}"}
    (problem,) = problems(builder)
    assert problem.next_step == "Resume it: caphv etcd restore team/shop --finish"


def test_a_restore_whose_pause_has_ended_is_an_error() -> None:
    """Servers may be stopped, and are replaced."""
    builder = Builder()
    builder.cluster["metadata"]["annotations"] = {"caphv.io/etcd-restore": "{}"}
    (problem,) = problems(builder)
    assert (problem.severity, problem.next_step) == (
        Severity.ERROR,
        "Pause it again: caphv etcd restore team/shop",
    )
    builder.cluster["metadata"]["annotations"]["cluster.x-k8s.io/paused"] = ""
    builder.cluster["spec"]["paused"] = True
    (problem,) = problems(builder)
    assert "--finish && kubectl annotate" in problem.next_step


def test_a_pause_hides_nothing_else() -> None:
    builder = Builder()
    builder.cluster["spec"]["paused"] = True
    builder.cluster["status"]["conditions"] = [condition("Available", "False", "NotAvailable", "etcd", hours=1)]
    assert [problem.reason for problem in problems(builder)] == ["NotAvailable", "Paused"]


def test_nothing_is_late_while_the_cluster_is_paused() -> None:
    builder = Builder()
    builder.cluster["spec"]["paused"] = True
    builder.cluster["status"]["conditions"] = [
        condition("Available", "False", "NotAvailable", "etcd", hours=3),
        condition("Paused", "True", "Paused", hours=3),
    ]
    assert [problem.severity for problem in problems(builder)] == [Severity.WAITING, Severity.NOTE]

    # What had been late before stays an error, and so does all that the pause does not hold.
    builder.cluster["status"]["conditions"][1] = condition("Paused", "True", "Paused", hours=2)
    assert [problem.severity for problem in problems(builder)] == [Severity.ERROR, Severity.NOTE]
    builder.cluster["spec"]["paused"] = False
    assert [problem.severity for problem in problems(builder)] == [Severity.ERROR]


SCHEDULE = "Mon-Fri 20:00-06:00 Europe/Berlin; Sat-Sun"


def scheduled(**annotations: str) -> Builder:
    builder = Builder()
    named = {f"caphv.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
    builder.cluster["metadata"]["annotations"] = {"caphv.io/park-schedule": SCHEDULE, **named}
    return builder


def notes(builder: Builder, now: datetime) -> list[tuple[str, str]]:
    (found,) = parts_of(builder.objects())
    return [(problem.cause, problem.next_step) for problem in problems_of(found, now)]


def test_a_schedule_names_its_next_change() -> None:
    day = datetime(2026, 11, 26, 12, tzinfo=UTC)
    ((cause, step),) = notes(scheduled(), day)
    assert cause == f"schedule {SCHEDULE} has it parked at 2026-11-26 20:00 CET"
    assert step == "Keep it running: kubectl annotate cluster shop -n team caphv.io/park=false --overwrite"

    builder = scheduled(parked_by_schedule="true", parked_since="x")
    builder.harvester_cluster["status"]["conditions"].append(condition("Parked", "True", message="3 VMs stopped"))
    ((cause, step),) = notes(builder, day.replace(hour=23))
    assert cause == f"3 VMs stopped; schedule {SCHEDULE} has it resumed at 2026-11-27 06:00 CET"
    assert step == "Resume it: caphv resume team/shop"


@pytest.mark.parametrize("name", ["cluster.x-k8s.io/paused", "cluster.x-k8s.io/managed-by"])
def test_a_schedule_that_the_provider_does_not_follow_names_no_change(name: str) -> None:
    builder = scheduled()
    builder.harvester_cluster["metadata"]["annotations"] = {name: ""}
    causes = [cause for cause, _ in notes(builder, datetime(2026, 11, 26, 12, tzinfo=UTC))]
    assert not any("schedule" in cause for cause in causes)


def test_what_overrides_a_schedule_is_named() -> None:
    ((cause, step),) = notes(scheduled(park="false"), datetime(2026, 11, 26, 12, tzinfo=UTC))
    assert cause == f"annotation caphv.io/park: false overrides schedule {SCHEDULE}"
    assert step == "Have it follow the schedule: kubectl annotate cluster shop -n team caphv.io/park-"


@pytest.mark.parametrize(("text", "cause"), [("Mon-Sun", "schedule Mon-Sun never has it resumed"), ("weekends", "")])
def test_a_schedule_without_a_change_or_that_cannot_be_read_names_none(text: str, cause: str) -> None:
    builder = scheduled(park_schedule=text)
    assert [each for each, _ in notes(builder, datetime(2026, 11, 26, 12, tzinfo=UTC))] == ([cause] if cause else [])
    builder.cluster["spec"]["paused"] = True
    assert [each for each, _ in notes(builder, NOW)] == ["paused: nothing is reconciled"]


def test_a_deletion_says_that_the_cluster_is_paused() -> None:
    builder = Builder()
    builder.cluster["metadata"]["deletionTimestamp"] = ago(hours=2)
    builder.cluster["spec"]["paused"] = True
    (problem,) = problems(builder)
    assert (problem.severity, problem.cause) == (Severity.ERROR, "being deleted, and paused: no controller acts")
    assert problem.next_step.startswith("Resume it: kubectl patch cluster shop -n team")


def test_a_deletion_says_what_it_waits_for_and_later_that_it_hangs() -> None:
    builder = Builder()
    builder.cluster["metadata"]["deletionTimestamp"] = ago(minutes=2)
    (problem,) = problems(builder)
    assert (problem.severity, problem.cause) == (Severity.WAITING, "being deleted: waiting for 3 machines, first cp-1")
    builder.cluster["metadata"]["deletionTimestamp"] = ago(hours=2)
    assert problems(builder)[0].severity is Severity.ERROR


FINALIZER = (
    "waiting for VirtualMachine worker-1 on Harvester to be deleted: finalizer "
    "wrangler.cattle.io/harvester-lb-vm-controller is removed by Harvester's load balancer controller: check "
    "Deployment harvester-load-balancer"
)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("minutes", "severity"), [(1, Severity.WAITING), (3, Severity.ERROR)])
def test_a_deletion_that_a_finalizer_blocks_says_so_after_two_minutes(
    minutes: int, severity: Severity, whole: bool
) -> None:
    """The deletion of a cluster, or of one of its machines."""
    builder = Builder()
    deleted = [builder.machines["worker-1"], builder.harvester_machines["worker-1"], *([builder.cluster] * whole)]
    for obj in deleted:
        obj["metadata"]["deletionTimestamp"] = ago(minutes=minutes)
    builder.break_machine("worker-1", "VMProvisioningInProgress", FINALIZER, minutes=minutes)
    (problem,) = problems(builder)
    assert problem.severity is severity
    if whole and severity is Severity.WAITING:
        assert problem.cause.startswith("being deleted: ")
        return
    assert problem.cause == FINALIZER
    assert problem.next_step.startswith("Have the controller of the finalizer run")


def test_machines_that_wait_for_bootstrap_data_together_name_none_of_their_objects() -> None:
    builder = Builder()
    builder.cluster["status"]["initialization"] = {"infrastructureProvisioned": True}
    for name in ("worker-1", "worker-2"):
        machine = builder.machines[name]
        machine["spec"]["bootstrap"] = {"configRef": {"kind": "RKE2Config", "name": name}}
        machine["status"] = {"conditions": [condition("BootstrapConfigReady", "False", minutes=20)]}
    (problem,) = problems(builder)
    assert problem.objects == ("Machine/worker-1", "Machine/worker-2")
    assert problem.cause.endswith("to create the data of its RKE2Config")


def test_a_deletion_does_not_wait_for_steps_of_the_creation() -> None:
    builder = Builder()
    builder.cluster["metadata"]["deletionTimestamp"] = ago(minutes=2)
    message = "waiting for the API of the workload cluster"
    builder.harvester_cluster["status"]["conditions"].append(
        condition("CloudProviderConfigReady", "False", "CloudProviderConfigGenerationInProgress", message, hours=2)
    )
    (problem,) = problems(builder)
    assert (problem.severity, problem.cause) == (Severity.WAITING, "being deleted: waiting for 3 machines, first cp-1")


def test_suspended_bundles_are_no_problem() -> None:
    builder = Builder()
    builder.harvester_cluster["status"]["conditions"].append(
        condition("AddonBundlesReady", "False", "AddonBundlesSuspended", "suspended")
    )
    assert problems(builder) == ()


@pytest.mark.parametrize(
    ("reason", "severity"), [("Evacuating", Severity.NOTE), ("EvacuationBlocked", Severity.WARNING)]
)
def test_a_host_that_is_evacuated_is_no_problem_until_a_machine_stays(reason: str, severity: Severity) -> None:
    builder = Builder()
    found = condition("HostsEvacuated", "False", reason, "worker-1 leaves harvester-2", hours=2)
    builder.harvester_cluster["status"]["conditions"].append(found)
    (problem,) = problems(builder)
    assert (problem.severity, problem.cause) == (severity, "worker-1 leaves harvester-2")


@pytest.mark.parametrize(
    ("reason", "severity"), [("ImagesImporting", Severity.NOTE), ("ImageImportFailed", Severity.WARNING)]
)
def test_an_import_of_an_image_is_no_problem_until_it_fails(reason: str, severity: Severity) -> None:
    builder = Builder()
    found = condition("ImagesReady", "False", reason, "default/sles: why", hours=2)
    builder.harvester_cluster["status"]["conditions"].append(found)
    (problem,) = problems(builder)
    assert (problem.severity, problem.cause) == (severity, "default/sles: why")


@pytest.mark.parametrize(("minutes", "severity"), [(1, Severity.WAITING), (10, Severity.ERROR)])
def test_a_deletion_that_rancher_holds_says_what_ends_it(minutes: int, severity: Severity) -> None:
    builder = Builder()
    machine = builder.machines["cp-1"]
    annotations = {RANCHER_HOOK: "rke-bootstrap-controller"}
    machine["metadata"] |= {"deletionTimestamp": ago(minutes=minutes), "annotations": annotations}
    machine["status"]["conditions"] = [condition("Deleting", "True", "WaitingForPreTerminateHook", minutes=minutes)]
    problem = problems(builder)[0]
    assert (problem.severity, problem.objects) == (severity, ("Machine/cp-1",))
    assert "hook rke-bootstrap-cleanup" in problem.cause
    assert "rke.cattle.io/etcd-force-remove=true" in problem.next_step
