"""Commands of a person on clusters of the real Cluster API core: they wait, and what they predict comes true."""

from __future__ import annotations

import asyncio
import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SERVICES, Obj, uid_of
from commands.main import cli
from sandbox import clusterclass, manifests
from sandbox.capi.resources import CLUSTERS
from sandbox.cluster import EARLIER_VERSION, LATER_VERSION, ClusterSpec, identity, manifest
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from sandbox.state import SandboxSettings
from tests.support.clusterclasses import rename
from tests.support.e2e import SHORT_AND_WHOLE, running_sandbox
from tests.support.lostmanagement import install_again, lose
from tests.support.planned import PlannedCluster
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

SETTINGS = SandboxSettings(older_versions=False, boot_seconds=0.5, register_seconds=0.2)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with running_sandbox(tmp_path_factory.mktemp("box"), SETTINGS) as box:
        yield box


@pytest.fixture(scope="module")
def spec(box: Sandbox) -> ClusterSpec:
    """A cluster that is up: one test grows and upgrades it, another one loses and restores it."""
    spec = ClusterSpec(control_planes=1, workers=1, version=EARLIER_VERSION, unhealthy_seconds=3600)
    scenario = Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=240)

    async def create() -> None:
        async with scenario.watching():
            await scenario.create()
            await scenario.bring_up()

    asyncio.run(create())
    return scenario.spec


async def caphv(box: Sandbox, *words: str) -> Result:
    arguments = [*words, "--kubeconfig", str(box.kubeconfig("management"))]
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments)


async def test_a_cluster_is_scaled_and_upgraded_while_the_command_waits(box: Sandbox, spec: ClusterSpec) -> None:
    scenario = Scenario(box.folder, spec, timeout=240)
    ref = f"{spec.namespace}/{spec.name}"
    async with scenario.watching():
        result = await caphv(box, "scale", ref, "--workers", "2", "--yes", "--wait", "--timeout", "3m")
        assert result.exit_code == 0, result.output
        assert "addresses: free addresses in IPPool" in result.output
        assert "capacity: hosts have room for 1 more VM" in result.output
        await until(lambda: len(scenario.view.running()) == 3, "the view has all machines of the command")
        assert len(scenario.view.workers()) == 2

        result = await caphv(box, "etcd", "members", ref)
        assert (result.exit_code, "healthy" in result.output) == (0, True), result.output

        words = ("upgrade", ref, "--version", LATER_VERSION)
        result = await caphv(box, *words, "--yes", "--wait", "--timeout", "5m")
        assert result.exit_code == 0, result.output
        assert f"3 of 3 machines run {LATER_VERSION}" in result.output
        await until(lambda: runs(scenario, LATER_VERSION, 3), "the view has the new machines of the command")
        result = await caphv(box, *words, "--yes", "--wait", "--timeout", "1m")
        assert (result.exit_code, "Nothing to change" in result.output) == (0, True), result.output


def runs(scenario: Scenario, version: str, machines: int) -> bool:
    """Whether so many machines run, and all have this version."""
    versions = {machine["spec"]["version"] for machine in scenario.view.machines.store}
    return versions == {version} and len(scenario.view.running()) == machines


# What a person changes in the manifests of a cluster, in this order. Each change stays for those that follow.
def _a_label(cluster: Obj) -> None:
    cluster["metadata"]["labels"] = {"env": "production"}


def _one_more_worker(cluster: Obj) -> None:
    _pool(cluster)["replicas"] = 2


def _another_pool(cluster: Obj) -> None:
    pool = {"class": "large-worker", "name": "md-1", "replicas": 1}
    pool["variables"] = {"overrides": [{"name": "largeWorker", "value": {"cpuCount": 3, "memorySize": "4Gi"}}]}
    _pools(cluster).append(pool)


def _larger_machines_of_one_pool(cluster: Obj) -> None:
    _pool(cluster, 1)["variables"]["overrides"][0]["value"]["memorySize"] = "5Gi"


def _a_failure_domain(cluster: Obj) -> None:
    _pool(cluster, 1)["failureDomain"] = "zone-2"


def _one_pool_less(cluster: Obj) -> None:
    del _pools(cluster)[1]


def _a_description(cluster: Obj) -> None:
    _variable(cluster, "loadBalancer")["value"]["description"] = "API of a cluster"


def _a_health_check(cluster: Obj) -> None:
    _pool(cluster)["healthCheck"]["checks"]["nodeStartupTimeoutSeconds"] = 900


def _a_time_for_drains(cluster: Obj) -> None:
    _pool(cluster)["deletion"] = {"nodeDrainTimeoutSeconds": 60}


def _a_label_of_nodes(cluster: Obj) -> None:
    _pool(cluster)["metadata"] = {"labels": {"node.cluster.x-k8s.io/team": "a"}}


def _a_file_of_workers(cluster: Obj) -> None:
    _set(cluster, "workerFiles", [{"path": "/etc/motd", "content": "welcome\n"}])


def _a_file_of_the_control_plane(cluster: Obj) -> None:
    _variable(cluster, "controlPlaneFiles")["value"].append({"path": "/etc/motd", "content": "welcome\n"})


def _no_surge(cluster: Obj) -> None:
    rolling = {"maxSurge": 0, "maxUnavailable": 1}
    _pool(cluster)["rollout"] = {"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}


def _larger_workers_and_one_less(cluster: Obj) -> None:
    _set(cluster, "worker", {"memorySize": "6Gi"})
    _pool(cluster)["replicas"] = 1


def _settings_of_add_ons(cluster: Obj) -> None:
    _set(cluster, "addons", {"csi": {"enabled": True}})


def _a_wrong_value(cluster: Obj) -> None:
    _variable(cluster, "cpuCount")["value"] = "two"


def _the_former_value(cluster: Obj) -> None:
    _variable(cluster, "cpuCount")["value"] = 2


def _more_cpus_of_all(cluster: Obj) -> None:
    _variable(cluster, "cpuCount")["value"] = 3


def _a_new_version(cluster: Obj) -> None:
    cluster["spec"]["topology"]["version"] = LATER_VERSION


def _a_copy_of_the_class(cluster: Obj) -> list[Obj]:
    found = clusterclass.objects(cluster["metadata"]["namespace"], clusterclass.HARVESTER_RKE2)
    copied = rename(found, clusterclass.HARVESTER_RKE2, "own")
    cluster["spec"]["topology"]["classRef"] = {"name": "own", "namespace": cluster["metadata"]["namespace"]}
    return copied


def _a_default_of_the_class(cluster: Obj) -> list[Obj]:
    own = _a_copy_of_the_class(cluster)[-1]
    memory = next(each for each in own["spec"]["variables"] if each["name"] == "memorySize")
    memory["schema"]["openAPIV3Schema"]["default"] = "6Gi"
    return [own]


def _no_workers(cluster: Obj) -> None:
    _pool(cluster)["replicas"] = 0


# In the short form, those of a row are made at one time: each rollout replaces machines.
CHANGES: tuple[tuple[Callable[[Obj], list[Obj] | None], ...], ...] = (
    (_a_label, _one_more_worker, _another_pool),
    (_larger_machines_of_one_pool, _a_failure_domain),
    (
        _one_pool_less,
        _a_description,
        _a_health_check,
        _a_time_for_drains,
        _a_label_of_nodes,
        _a_file_of_workers,
        _a_file_of_the_control_plane,
    ),
    (_no_surge, _larger_workers_and_one_less, _settings_of_add_ons),
    (_a_wrong_value,),
    (_the_former_value, _more_cpus_of_all, _a_new_version),
    (_a_copy_of_the_class,),
    (_a_default_of_the_class, _no_workers),
)


@SHORT_AND_WHOLE
async def test_changes_that_are_planned_and_then_applied_do_what_was_predicted(
    box: Sandbox, tmp_path: Path, whole: bool
) -> None:
    name = "planned-whole" if whole else "planned"
    spec = ClusterSpec(name, name, name, control_planes=1, workers=1)
    spec = in_network(spec, box.status()["network"])
    scenario = Scenario(box.folder, spec, timeout=240)
    cluster = manifest(spec)
    identities = identity(spec, box.kubeconfig("identity").read_bytes())
    await manifests.apply(scenario.management, identities)
    own = PlannedCluster(scenario, lambda *words: caphv(box, *words), tmp_path)
    wrong = {}
    async with own.watching():
        for changes in ((), *([(change,) for row in CHANGES for change in row] if whole else CHANGES)):
            further = [obj for change in changes for obj in change(cluster) or ()]
            objects = [*further, copy.deepcopy(cluster)]
            predicted = await own.planned(objects)
            outcome = await own.applied(objects)
            if predicted != outcome:
                wrong[", ".join(change.__name__ for change in changes)] = (predicted, outcome)
    assert wrong == {}


async def test_a_lost_management_cluster_is_restored_and_no_vm_restarts(
    box: Sandbox, spec: ClusterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last of this module: it loses what the others have made."""
    monkeypatch.setenv("CAPHV_BACKUP_PASSPHRASE", "correct horse battery")
    scenario = Scenario(box.folder, spec, timeout=240)
    ref, folder = f"{spec.namespace}/{spec.name}", tmp_path / "backup"
    async with scenario.watching():
        workers = len(scenario.view.workers())
        before = await on_harvester(scenario)
        machines = {uid_of(machine) for machine in scenario.view.machines.store}
        result = await caphv(box, "backup", ref, str(folder))
        assert result.exit_code == 0, result.output
    await lose(box)
    management = await install_again(box)
    try:
        half = tmp_path / "half"
        shutil.copytree(folder, half)
        lost = sorted(path for kind in LOST for path in half.rglob(f"{kind}/*.json*"))
        for path in lost:
            path.unlink()
        result = await caphv(box, "restore", str(half), "--yes")
        missing = [line for line in result.output.splitlines() if line.startswith("missing: ")]
        assert (result.exit_code, len(missing)) == (2, len(lost)), result.output
        assert f"missing: HarvesterCluster {ref}-" in result.output
        assert "missing: ClusterClass default/harvester-rke2 (the file does not exist)" in missing
        assert not (await management.list(CLUSTERS))["items"]

        result = await caphv(box, "restore", str(folder), "--yes", "--old-management-cluster-stopped")
        assert result.exit_code == 0, result.output
    finally:
        await management.close()
    await box.restart("provider")
    scenario = Scenario(box.folder, replace(spec, workers=workers), timeout=240)
    async with scenario.watching():
        await scenario.bring_up()
        assert machines.isdisjoint(uid_of(machine) for machine in scenario.view.machines.store)
        assert await on_harvester(scenario) == before
        # It is a cluster like any other again.
        await scenario.scale(1, workers + 1)
        after = await on_harvester(scenario)
        assert {name: after.get(name) for name in before} == before


LOST = ("clusterclass.cluster.x-k8s.io", "harvestercluster.infrastructure.cluster.x-k8s.io")


async def on_harvester(scenario: Scenario) -> dict[str, str]:
    """What the cluster has on Harvester: uids, which a restart or a new VM would change, and addresses with holders."""
    target = scenario.spec.target_namespace
    found: dict[str, str] = {}
    for kind in (kinds.VIRTUAL_MACHINES, kinds.INSTANCES, PERSISTENT_VOLUME_CLAIMS, SERVICES, kinds.LOAD_BALANCERS):
        listed = await scenario.harvester.list(kind, target)
        found |= {f"{kind.kind} {obj['metadata']['name']}": uid_of(obj) for obj in listed["items"]}
    for pool in (await scenario.harvester.list(kinds.IP_POOLS))["items"]:
        held = (pool.get("status") or {}).get("allocated") or {}
        found |= {ip: holder for ip, holder in held.items() if holder.startswith(f"{scenario.spec.namespace}/")}
    return found


def _pools(cluster: Obj) -> list[Obj]:
    pools: list[Obj] = cluster["spec"]["topology"]["workers"]["machineDeployments"]
    return pools


def _pool(cluster: Obj, number: int = 0) -> Obj:
    return _pools(cluster)[number]


def _variable(cluster: Obj, name: str) -> Obj:
    return next(each for each in cluster["spec"]["topology"]["variables"] if each["name"] == name)


def _set(cluster: Obj, name: str, value: object) -> None:
    cluster["spec"]["topology"]["variables"].append({"name": name, "value": value})
