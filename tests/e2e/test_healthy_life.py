"""A healthy life of a cluster: no Warning on its machines, and `Ready` never becomes false after it was true.

The provider has the shipped roles, and the core is the real one. Volumes come seconds after the instance of a VM, and
the guest agent is silent after each reboot and migration.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from caphv.api.names import ZONE_LABEL
from caphv.api.object import EVENTS, NODES, SECRETS, Obj, annotations_of, key_of, labels_of, uid_of
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Unreachable
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.cluster import ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import maintenance
from sandbox.harvester.faults import Fault, Faults
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings
from tests.support.e2e import impatient_core, running_sandbox
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

# KubeVirt reports missing and unbound volumes for more than a second each. A restart takes less time than that after
# which kube-controller-manager takes a Node for lost, as with real VMs: with the simulator's one second, the core
# rightly has `NodeHealthy` Unknown (its machine_controller_status.go, summarizeNodeConditions).
SETTINGS = SandboxSettings(
    older_versions=False,
    boot_seconds=0.5,
    register_seconds=0.2,
    claim_seconds=1.5,
    bind_seconds=1.5,
    migrate_seconds=1.5,
    agent_seconds=2.0,
    node_lost_seconds=40.0,
)
KINDS = ("Machine", "HarvesterMachine")
WATCHED = ("Ready", "InfrastructureReady", "VMProvisioningReady")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with impatient_core(), running_sandbox(tmp_path_factory.mktemp("healthy"), SETTINGS) as box:
        yield box


@dataclass
class Log:
    """Transitions from true to another status with their reasons, Events, and states of VMs, as they come."""

    flips: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    words: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    _statuses: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def condition_changed(self, kind: str, change: Change) -> None:
        """Note each condition that was true and is not any more, and what the object reports then."""
        entries = ((change.new or {}).get("status") or {}).get("conditions") or ()
        for entry in entries:
            condition, status = (kind, change.key.name, entry["type"]), entry["status"]
            if entry["type"] in WATCHED and status != "True" and self._statuses.get(condition) == "True":
                causes = [f"{it['type']}={it['status']} {it['reason']}" for it in entries if it["status"] != "True"]
                self.flips.append(f"{' '.join(condition)} {status}: {entry.get('message', '')} {causes}")
            self._statuses[condition] = status

    def event_came(self, change: Change) -> None:
        """Note an Event of a machine."""
        event = change.obj
        if (event.get("involvedObject") or {}).get("kind") in KINDS:
            self.events.append(event["reason"])
            if event["type"] == "Warning":
                self.warnings.append(f"{event['involvedObject']['name']} {event['reason']}: {event['message']}")

    def vm_changed(self, change: Change) -> None:
        """Note the word of KubeVirt."""
        self.words.add((change.obj.get("status") or {}).get("printableStatus", ""))

    def instance_changed(self, change: Change) -> None:
        """Note an instance whose guest agent is silent."""
        agent = {entry["type"] for entry in change.obj["status"].get("conditions") or ()}
        if change.obj["status"].get("phase") == "Running" and "AgentConnected" not in agent:
            self.silent.add(change.key.name)


@asynccontextmanager
async def transitions_of(scenario: Scenario) -> AsyncIterator[Log]:
    log, view = Log(), scenario.view
    view.machines.add_handler(lambda change: log.condition_changed("Machine", change))
    view.harvester_machines.add_handler(lambda change: log.condition_changed("HarvesterMachine", change))
    view.vms.add_handler(log.vm_changed)
    view.instances.add_handler(log.instance_changed)
    events = Informer(scenario.management, EVENTS, namespace=scenario.spec.namespace)
    events.add_handler(log.event_came)
    task = events.start()
    try:
        yield log
    finally:
        task.cancel()


@pytest.mark.long
async def test_no_warning_and_no_flip_in_a_healthy_life(box: Sandbox) -> None:
    spec = ClusterSpec(name="healthy", namespace="healthy", target_namespace="healthy", control_planes=1, workers=2)
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=300)
    async with scenario.watching(), transitions_of(scenario) as log:
        await scenario.create()
        await scenario.bring_up()
        # It was not easy: each state that looks like a failure was there.
        assert {"Stopped", "ErrorPvcNotFound", "ErrorUnschedulable", "Running"} <= log.words

        faults = Faults(scenario.harvester)
        workers = scenario.view.workers()
        log.silent.clear()
        await disturb(scenario, faults, "reboot", workers[0])
        await disturb(scenario, faults, "migration", workers[1])
        assert log.silent == {vm["metadata"]["name"] for vm in workers}
        assert "Migrating" in log.words
        await restart(scenario, faults, workers[0])

        worker_host, _ = hosts_of(scenario, workers)
        await drain(scenario, faults, worker_host)
        # While the agent of the only control plane VM is silent, Harvester's load balancer has no backend: the zone of
        # its Node cannot be written then.
        _, control_plane_host = hosts_of(scenario, workers)
        await drain(scenario, faults, control_plane_host)
        await until(lambda: zones_are_current(scenario), "each Node has the zone of its host")

        assert (log.warnings, log.flips) == ([], [])
        assert {"VMMigrated", "VMRestarted"} <= set(log.events)
        await scenario.delete()


async def disturb(scenario: Scenario, faults: Faults, kind: str, vm: Obj) -> None:
    await faults.inject(Fault(kind, str(key_of(vm))))
    await until(lambda: all_answer(scenario), f"the guest agent answers after the {kind}")


def hosts_of(scenario: Scenario, workers: Iterable[Obj]) -> tuple[str, str]:
    """Return the host of a worker, one without the control plane VM if there is one, and that of the latter."""
    hosts = {vmi["metadata"]["name"]: vmi["status"]["nodeName"] for vmi in scenario.view.instances.store}
    names = {vm["metadata"]["name"] for vm in workers}
    control_plane = next(host for name, host in hosts.items() if name not in names)
    return next((hosts[name] for name in names if hosts[name] != control_plane), control_plane), control_plane


async def drain(scenario: Scenario, faults: Faults, host: str) -> None:
    """Put a host into maintenance until its VMs have left and answer again, and end the maintenance."""
    await faults.inject(Fault("host-maintenance", host))
    await until(lambda: completed(scenario, host), f"{host} is empty")
    await until(lambda: all_answer(scenario), "all guest agents answer")
    await faults.clear()


async def zones_are_current(scenario: Scenario) -> bool:
    """Whether each Node has the zone of the host that its VM runs on."""
    secret = await scenario.management.get(SECRETS, f"{scenario.spec.name}-kubeconfig", scenario.spec.namespace)
    workload = parse_kubeconfig(base64.b64decode(secret["data"]["value"])).client(name="workload")
    try:
        nodes = await zones_of(workload)
    except Unreachable:
        return False  # the load balancer has no backend yet
    finally:
        await workload.close()
    hosts = await zones_of(scenario.harvester)
    instances = scenario.view.instances.store
    return all(nodes[vmi["metadata"]["name"]] == hosts[vmi["status"]["nodeName"]] for vmi in instances)


async def zones_of(client: ApiClient) -> dict[str, str | None]:
    """Return the zones of Nodes or hosts by name."""
    return {node["metadata"]["name"]: labels_of(node).get(ZONE_LABEL) for node in (await client.list(NODES))["items"]}


async def restart(scenario: Scenario, faults: Faults, vm: Obj) -> None:
    before = uid_of(scenario.view.instances.get(*key_of(vm)) or {"metadata": {}})
    await faults.inject(Fault("restart", str(key_of(vm))))

    def restarted() -> bool:
        vmi = scenario.view.instances.get(*key_of(vm))
        return vmi is not None and uid_of(vmi) != before and all_answer(scenario)

    await until(restarted, "the VM has restarted")


def all_answer(scenario: Scenario) -> bool:
    return all(
        any(
            entry["type"] == "AgentConnected" and entry["status"] == "True"
            for entry in vmi["status"].get("conditions") or ()
        )
        for vmi in scenario.view.instances.store
    )


async def completed(scenario: Scenario, host: str) -> bool:
    node = await scenario.harvester.get(NODES, host)
    return annotations_of(node).get(maintenance.STATUS) == maintenance.COMPLETED
