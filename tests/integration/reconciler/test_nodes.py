"""The Nodes of machines in the workload cluster: providerID and the taint that waits for a cloud provider."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caphv.api import names
from caphv.api.object import NODES, Obj, annotations_of, uid_of
from sandbox.processes import pki
from tests.support.reconciler.case import AT_ONCE, HARVESTER_MACHINES, UNINITIALIZED, Case
from tests.support.reconciler.conditions import is_false, is_ready

pytestmark = pytest.mark.integration

OTHERS = [
    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
    {"key": "example.com/mine", "value": "uninitialized", "effect": "NoExecute"},
]


def initialized(provider_id: str) -> Callable[[Obj], bool]:
    """A test for Nodes with this providerID and without the taint."""

    def check(node: Obj) -> bool:
        keys = [taint["key"] for taint in node["spec"].get("taints") or ()]
        return node["spec"].get("providerID") == provider_id and UNINITIALIZED["key"] not in keys

    return check


async def until_initialized(case: Case, name: str, provider_id: str) -> Obj:
    return await case.until(NODES, name, initialized(provider_id), client=case.workload, timeout=AT_ONCE)


async def test_node_gets_the_provider_id_and_loses_only_the_one_taint(case: Case) -> None:
    await case.ready_cluster()
    await case.connect_workload()
    name = f"{case.name}-one"
    machine = await case.ready_machine(name)
    await case.register_node(name, taints=[OTHERS[0], UNINITIALIZED, OTHERS[1]])
    node = await until_initialized(case, name, machine["spec"]["providerID"])
    assert node["spec"]["taints"] == OTHERS


async def test_kubeconfig_that_comes_after_the_node_is_enough(case: Case) -> None:
    await case.ready_cluster()
    name = f"{case.name}-one"
    await case.register_node(name)
    machine = await case.ready_machine(name)
    assert "providerID" not in (await case.workload.get(NODES, name))["spec"]
    await case.connect_workload()
    await until_initialized(case, name, machine["spec"]["providerID"])


async def test_provider_id_of_the_node_wins(case: Case) -> None:
    await case.ready_cluster()
    await case.connect_workload()
    name = f"{case.name}-one"
    await case.register_node(name, providerID="harvester://its-own")
    await case.create_machine(name)
    found = await case.until(
        HARVESTER_MACHINES, name, lambda obj: obj["spec"].get("providerID") == "harvester://its-own"
    )
    await case.until(HARVESTER_MACHINES, name, is_ready)
    node = await until_initialized(case, name, "harvester://its-own")
    assert node["spec"]["providerID"] == found["spec"]["providerID"]
    # A move preserves it, and it proves then whose the VM is.
    assert annotations_of(found)[names.VM_UID_ANNOTATION] == uid_of(await case.vm(name))


async def test_node_is_initialized_although_its_vm_reports_no_address(case: Case) -> None:
    """A guest agent may need the cloud provider, which waits for the taint: the provider must not wait for both."""
    await case.ready_cluster()
    await case.connect_workload()
    name = f"{case.name}-one"
    nowhere = {"address": "192.0.2.10", "gateway": "192.0.2.1"}
    await case.create_machine(name, networkConfig=nowhere)
    vm = await case.vm(name)
    await case.register_node(name)
    await until_initialized(case, name, f"harvester://{vm['metadata']['uid']}")
    says = is_false("VMProvisioningReady", "VMProvisioningInProgress", "waiting for its address")
    machine = await case.until(HARVESTER_MACHINES, name, says)
    assert machine["spec"]["providerID"] == f"harvester://{vm['metadata']['uid']}"
    assert not machine["status"]["ready"]


async def test_workload_cluster_that_does_not_answer_holds_nothing_up(case: Case) -> None:
    await case.ready_cluster()
    server = case.environment.workload
    away = pki.kubeconfig(
        "https://127.0.0.1:1", server.ca.certificate, name="away", user="admin", credentials={"token": "none"}
    )
    await case.write_secret(f"{case.name}-kubeconfig", {"value": pki.to_yaml(away).decode()})
    name = f"{case.name}-one"
    machine = await case.ready_machine(name)
    await case.register_node(name)
    await case.connect_workload()
    await until_initialized(case, name, machine["spec"]["providerID"])


async def test_node_that_registers_again_is_initialized_again(case: Case) -> None:
    await case.ready_cluster()
    await case.connect_workload()
    name = f"{case.name}-one"
    machine = await case.ready_machine(name)
    await case.register_node(name)
    await until_initialized(case, name, machine["spec"]["providerID"])
    await case.workload.delete(NODES, name)
    await case.register_node(name)
    await until_initialized(case, name, machine["spec"]["providerID"])
