"""At level info, the log names what happens to clusters and machines, and a start logs nothing else."""

from __future__ import annotations

import json

import pytest

from caphv.api.object import Obj
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.environment import Environment
from tests.support.waiting import until

pytestmark = pytest.mark.integration


def lines(environment: Environment, since: int = 0) -> list[Obj]:
    """All that users see by default: lines of level info and above."""
    found = [json.loads(line) for line in environment.provider.log[since:].splitlines() if line.startswith("{")]
    return [line for line in found if line["level"] != "debug"]


def about(environment: Environment, name: str, controller: str) -> list[str]:
    """What the log says of an object."""
    return [
        line["message"]
        for line in lines(environment)
        if (line.get("object"), line.get("controller")) == (name, controller)
    ]


async def test_log_tells_the_life_of_a_machine_and_of_its_cluster(case: Case) -> None:
    pool = await case.pool("machines", 1, 1)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.connect_workload()
    machine = await case.ready_machine("one")
    await case.register_node("one")
    spec, status = machine["spec"], machine["status"]
    log = case.environment
    name, address = f"{case.name}/one", f"{case.subnet}.1"
    await until(
        lambda: f"initialized Node one with providerID {spec['providerID']}" in about(log, name, "harvestermachine")
    )
    await case.delete_machine("one")
    await until(lambda: "HarvesterMachine is deleted" in about(log, name, "harvestermachine"))
    seen = about(log, name, "harvestermachine")
    expected = [
        "HarvesterMachine is new",
        f"reserved address {address} in IPPool {pool}",
        f"VMCreated: created VirtualMachine {case.target}/one on Harvester",
        f"VM is on host {status['virtualMachine']['host']}",
        f"VM has address {status['addresses'][0]['address']}",
        "HarvesterMachine is Ready",
        f"VMDeletionStarted: deleting VirtualMachine {case.target}/one",
        f"released address {address} in IPPool {pool}",
        "HarvesterMachine is deleted",
    ]
    assert [line for line in seen if line in expected] == expected
    assert {line.get("cluster") for line in lines(log) if line.get("object") == name} == {f"{case.name}/{case.name}"}
    await case.ask_deletion(HARVESTER_CLUSTERS, case.name)
    cluster = f"{case.name}/{case.name}"
    await until(lambda: "HarvesterCluster is deleted" in about(log, cluster, "harvestercluster"))
    life = about(log, cluster, "harvestercluster")
    expected = [
        "HarvesterCluster is new",
        f"TargetNamespaceCreated: created namespace {case.target} on Harvester",
        "HarvesterCluster is Ready",
        "InfrastructureDeleted: deleted all objects of this cluster on Harvester",
        "HarvesterCluster is deleted",
    ]
    assert [line for line in life if line in expected] == expected


async def test_log_says_why_a_machine_is_not_ready(case: Case) -> None:
    await case.ready_cluster()
    await case.create_machine("one", sshKeyPair="default/absent")
    await until(
        lambda: any(
            "spec.sshKeyPair is 'default/absent'" in line
            for line in about(case.environment, f"{case.name}/one", "harvestermachine")
        )
    )
    expected = [line for line in about(case.environment, f"{case.name}/one", "harvestermachine") if "absent" in line]
    assert len(expected) == 1, "a warning and no second line"
    assert await case.get(HARVESTER_MACHINES, "one")


async def test_workload_cluster_that_does_not_answer_yet_is_no_warning(case: Case) -> None:
    await case.ready_cluster()
    absent = case.environment.workload.kubeconfig()
    absent["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    await case.write_secret(f"{case.name}-kubeconfig", {"value": json.dumps(absent)})
    await case.ready_machine("one")

    def attempts() -> list[Obj]:
        return [
            line
            for line in map(json.loads, case.environment.provider.log.splitlines())
            if line["message"].startswith("watch of nodes on workload failed")
            and line.get("cluster") == f"{case.name}/{case.name}"
        ]

    found = await until(attempts, "no line carries the name of the cluster")
    assert {line["level"] for line in found} == {"debug"}
