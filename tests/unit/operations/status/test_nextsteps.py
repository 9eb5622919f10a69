"""What an operator is to do next, and never is to do: the remedy of each problem."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.names import CLONED_FROM_ANNOTATION, Reason
from caphv.api.object import Key, Obj
from operations.read.objects import Unseen
from operations.status.assembly import overview_of
from operations.status.remedies import Subject, next_step
from reconciler.machine.vminputs import template_advice
from tests.support import observed
from tests.support.clusters import NOW, Builder, ago, condition
from tests.support.diagnosis import problems


def test_a_lost_vm_names_the_command_that_replaces_its_machine() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    (problem,) = problems(builder)
    assert "kubectl delete machine worker-1 -n team" in problem.next_step


def named_as_by_rke2(builder: Builder, name: str = "cp-1") -> Obj:
    """Have the HarvesterMachine of a machine another name than its Machine, as CAPRKE2 and CAPK3s do."""
    own = builder.harvester_machines[name]
    own["metadata"]["name"] = builder.machines[name]["spec"]["infrastructureRef"]["name"] = f"template-{name}"
    return own


NAMES = [
    record
    for path in ("rancher-cluster-api-provider-rke2/objects.yaml", "k3s-io-cluster-api-k3s/objects.yaml")
    for record in observed.records(path)
    if record.name == "control-plane-machine"
]


@pytest.mark.parametrize("record", NAMES, ids=lambda record: record.project)
@pytest.mark.parametrize("reason", ["MachineNotFound", "VMProvisioningFailed"])
def test_a_remedy_names_the_machine_and_not_its_infrastructure(record: observed.Record, reason: str) -> None:
    builder = Builder()
    own, machine = builder.harvester_machines["cp-1"], builder.machines["cp-1"]
    machine["metadata"]["name"] = record.outcome["machine"]
    own["metadata"]["name"] = machine["spec"]["infrastructureRef"]["name"] = record.outcome["harvesterMachine"]
    builder.break_machine("cp-1", reason, "it is broken")
    (problem,) = problems(builder)
    assert problem.objects == (f"HarvesterMachine/{record.outcome['harvesterMachine']}",)
    assert f"kubectl delete machine {record.outcome['machine']} -n team" in problem.next_step


def test_a_machine_that_is_being_deleted_is_not_to_be_deleted_again() -> None:
    builder = Builder()
    named_as_by_rke2(builder)
    builder.machines["cp-1"]["metadata"]["deletionTimestamp"] = ago(minutes=1)
    builder.break_machine("cp-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    (problem,) = problems(builder)
    assert "kubectl delete" not in problem.next_step
    assert problem.next_step.endswith("kubectl describe machine cp-1 -n team")


def test_infrastructure_without_a_machine_is_deleted_itself() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    del builder.machines["worker-1"]
    assert "kubectl delete harvestermachine worker-1 -n team" in problems(builder)[0].next_step


@pytest.mark.parametrize("why", ["machines is forbidden", "not read yet"])
def test_infrastructure_whose_machine_may_not_be_read_is_not_deleted(why: str) -> None:
    builder = Builder()
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    objects = builder.objects()
    objects.machines = []
    objects.unseen = [Unseen("machines.cluster.x-k8s.io", why)]
    problem = overview_of(objects, NOW).clusters[0].problems[0]
    assert problem.objects == ("HarvesterMachine/worker-1",)
    assert problem.next_step == "Read what it reports: kubectl describe harvestermachine worker-1 -n team"


def test_a_wrong_value_is_corrected_where_the_user_edits_it() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "VMProvisioningFailed", "spec.volumes[0].imageName is 'absent'")
    step = problems(builder)[0].next_step
    assert "Correct spec.topology.variables: kubectl edit cluster shop -n team" in step
    assert step.endswith("kubectl delete machine worker-1 -n team")
    del builder.cluster["spec"]["topology"]
    step = problems(builder)[0].next_step
    assert "HarvesterMachineTemplate under another name" in step
    assert step.endswith("kubectl delete machine worker-1 -n team")


def test_a_machine_that_ran_is_corrected_on_harvester_and_not_deleted() -> None:
    """A quota, a stopped VM or dead hosts are not corrected by another machine, which would wait, too."""
    builder = Builder()
    builder.harvester_machines["worker-1"]["status"]["initialization"] = {"provisioned": True}
    builder.break_machine("worker-1", "VMProvisioningFailed", "no host of Harvester can run the VM")
    (problem,) = problems(builder)
    assert "kubectl delete" not in problem.next_step
    assert problem.next_step.endswith("caphv doctor team/shop")


def test_what_harvester_lacks_for_a_new_machine_may_be_added_there() -> None:
    builder = Builder()
    builder.break_machine("worker-1", "VMProvisioningFailed", "Harvester has no such image; upload it")
    (problem,) = problems(builder)
    assert problem.next_step.startswith("What Harvester lacks can be added there, and the machine continues.")


@pytest.mark.parametrize(("ran", "step"), [(False, ": the machine then continues"), (True, ", and start the VM")])
def test_a_quota_is_raised_and_no_machine_replaced(ran: bool, step: str) -> None:
    builder = Builder()
    builder.harvester_machines["worker-1"]["status"]["initialization"] = {"provisioned": ran}
    builder.break_machine("worker-1", "QuotaExhausted", "cpu")
    (problem,) = problems(builder)
    raise_it = "Raise the quota of namespace vms on Harvester, or delete VMs there"
    assert problem.next_step == raise_it + step


ADVICE = [
    "correct spec.topology.variables of Cluster shop, then delete Machine worker-1",
    "HarvesterMachineTemplate shop-md-0-x is immutable: create a corrected one under another name, refer to it in the "
    "control plane or MachineDeployment, and delete Machine worker-1",
]


@pytest.mark.parametrize("advice", ADVICE)
def test_advice_in_a_message_is_not_repeated_in_the_next_step(advice: str) -> None:
    builder = Builder()
    message = "spec.volumes[0].imageName: Harvester has no such image; upload it or correct the name"
    builder.break_machine("worker-1", "VMProvisioningFailed", f"{message}; {advice}")
    (problem,) = problems(builder)
    assert problem.cause == message
    assert problem.next_step.endswith("kubectl delete machine worker-1 -n team")


def test_the_provider_words_this_advice_so() -> None:
    topology = {"spec": {"topology": {"class": "a"}}}
    for cluster, advice in zip((topology, None), ADVICE, strict=True):
        metadata = {"annotations": {CLONED_FROM_ANNOTATION: "shop-md-0-x"}}
        scope: Any = SimpleNamespace(
            obj={"metadata": metadata},
            machine={"metadata": {"name": "worker-1"}},
            cluster=cluster,
            cluster_key=Key("team", "shop"),
        )
        assert template_advice(scope) == [advice]


@pytest.mark.parametrize(
    ("marked", "step"), [(True, "Its owner replaces it once"), (False, "A MachineHealthCheck has")]
)
def test_a_machine_that_its_health_check_does_not_mark_waits_for_no_owner(marked: bool, step: str) -> None:
    """As while more machines are unhealthy than the MachineHealthCheck allows (cluster-api v1.13)."""
    builder = Builder()
    conditions = [condition("HealthCheckSucceeded", "False", "UnhealthyNode")]
    if marked:
        conditions.append(condition("OwnerRemediated", "False", "WaitingForRemediation"))
    builder.machines["worker-1"]["status"]["conditions"] = conditions
    builder.break_machine("worker-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    problem = problems(builder)[0]
    assert problem.next_step.startswith(step)
    assert problem.next_step.endswith("kubectl delete machine worker-1 -n team")


@pytest.mark.parametrize("reason", ["MachineNotFound", "VMProvisioningFailed", "VMDiffers", "NodeDeleted"])
def test_the_only_machine_with_etcd_is_not_to_be_deleted(reason: str) -> None:
    builder = Builder()
    builder.cluster["status"]["initialization"] = {"controlPlaneInitialized": True}
    builder.harvester_machines["cp-1"]["status"]["initialization"] = {"provisioned": True}
    builder.break_machine("cp-1", reason, "it is broken")
    (problem,) = problems(builder)
    assert "kubectl delete" not in problem.next_step


def test_the_only_vm_with_etcd_is_restored_and_adopted() -> None:
    builder = Builder()
    builder.cluster["status"]["initialization"] = {"controlPlaneInitialized": True}
    named_as_by_rke2(builder)
    builder.break_machine("cp-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    command = "kubectl annotate harvestermachine template-cp-1 -n team caphv.io/adopt=true --overwrite"
    assert problems(builder)[0].next_step.endswith(command)


def test_one_of_several_machines_with_etcd_is_replaced() -> None:
    builder = Builder(control_planes=3)
    builder.cluster["status"]["initialization"] = {"controlPlaneInitialized": True}
    builder.break_machine("cp-1", "MachineNotFound", "the VirtualMachine does not exist on Harvester")
    assert problems(builder)[0].next_step.endswith("kubectl delete machine cp-1 -n team")

    # The others have not joined, or leave.
    del builder.machines["cp-2"]["status"]["nodeRef"]
    builder.machines["cp-3"]["metadata"]["deletionTimestamp"] = ago(minutes=1)
    assert "kubectl delete" not in problems(builder)[0].next_step


@pytest.mark.parametrize("reason", [*Reason, "SomethingNew", "TopologyReconcileFailed"])
def test_every_reason_has_a_next_step_without_gaps(reason: str) -> None:
    subject = Subject("team", "shop", "HarvesterMachine", "worker-1", "team/identity", "vms")
    assert next_step(reason, subject)
    assert "{" not in next_step(reason, subject)
    assert next_step(reason, Subject("team", "shop", "HarvesterCluster", "shop-x"))


def test_a_missing_pool_is_corrected_where_the_user_edits_it() -> None:
    builder = Builder()
    message = "IPPool machine of vmNetworkConfig does not exist on Harvester"
    builder.harvester_cluster["status"]["conditions"] = [
        condition("VMIPPoolReady", "False", "VMIPPoolNotFound", message)
    ]
    (with_topology,) = overview_of(builder.objects(), NOW).clusters[0].problems
    assert "correct variable ipPoolRef or ipPoolRefs: kubectl edit cluster shop -n team" in with_topology.next_step
    del builder.cluster["spec"]["topology"]
    (without,) = overview_of(builder.objects(), NOW).clusters[0].problems
    assert without.next_step.endswith("kubectl edit harvestercluster shop-x -n team")


def test_a_failure_of_the_load_balancer_is_corrected_in_the_topology() -> None:
    builder = Builder()
    message = "spec.loadBalancerConfig.ipPoolRef: IPPool lb does not exist on Harvester"
    builder.harvester_cluster["status"]["conditions"] = [
        condition("LoadBalancerReady", "False", "InfrastructureProvisioningFailed", message)
    ]
    (problem,) = overview_of(builder.objects(), NOW).clusters[0].problems
    assert problem.next_step.endswith("kubectl edit cluster shop -n team")


def test_the_next_step_for_shared_credentials_names_no_secret_that_is_not_known() -> None:
    subject = Subject("team", "shop", "HarvesterCluster", "shop-x", identity="HarvesterClusterIdentity/shared")
    assert "caphv identity rotate NAMESPACE/NAME" in next_step(Reason.HARVESTER_AUTHENTICATION_FAILED, subject)
    step = next_step(Reason.ANOTHER_HARVESTER, subject)
    assert "Secret of HarvesterClusterIdentity shared" in step
