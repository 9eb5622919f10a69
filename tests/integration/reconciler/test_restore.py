"""The night on which the management cluster is lost: its clusters are restored elsewhere, and no VM notices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from caphv.api import names
from caphv.api.object import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, SERVICES, Obj, annotations_of, key_of, uid_of
from sandbox.harvester import kinds
from sandbox.processes.apiserver import ApiServer
from tests.support.overview import Management
from tests.support.reconciler.case import CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES, MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_ready, is_true
from tests.support.reconciler.environment import Environment, elsewhere
from tests.support.reconciler.ownership import CLUSTER

pytestmark = pytest.mark.integration

MACHINES_UP = ("cp", "worker-1", "worker-2")


@pytest.fixture
def sides(environment: Environment) -> Iterator[tuple[Environment, Environment]]:
    """A management cluster that can be lost, with its provider, and one on which none runs yet."""
    with elsewhere(environment, "lost") as lost, elsewhere(environment, "restored") as restored:
        asyncio.run(lost.provider.start())
        yield lost, restored


async def _on_harvester(case: Case) -> dict[str, Obj]:
    """What the cluster has on Harvester."""
    found = {}
    for kind in (kinds.VIRTUAL_MACHINES, kinds.INSTANCES, PERSISTENT_VOLUME_CLAIMS, SERVICES, kinds.LOAD_BALANCERS):
        listed = await case.harvester.list(kind, case.target)
        found |= {f"{kind.kind} {key_of(obj)}": obj for obj in listed["items"]}
    return found


async def _addresses(case: Case, pool: str) -> dict[str, str]:
    machines = (await case.management.list(HARVESTER_MACHINES, case.name))["items"]
    found = {obj["metadata"]["name"]: str((obj.get("status") or {}).get("allocatedIPAddress")) for obj in machines}
    cluster = await case.get(HARVESTER_CLUSTERS, case.name)
    return found | {"endpoint": str(cluster["spec"]["controlPlaneEndpoint"]), "pool": str(await case.allocated(pool))}


async def test_a_lost_management_cluster_is_restored_elsewhere_and_no_vm_restarts(
    environment: Environment, sides: tuple[Environment, Environment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, there = sides
    monkeypatch.setenv("CAPHV_BACKUP_PASSPHRASE", "correct horse battery")
    folder = str(tmp_path / "backup")
    old = Case(lost, environment.next_case())
    await old.open()
    pool = await old.pool("pool", 1, 9)
    await old.ready_cluster(vmNetworkConfig=old.vm_network(pool))
    for name in MACHINES_UP:
        await old.ready_machine(name, control_plane=name == "cp")
    # With a problem: `clusterctl move` refuses one with a machine that has no VM.
    await old.write_secret("unusable", {"value": "#!/bin/sh\n"})
    await old.create_machine("stuck", bootstrap="unusable")
    # Its address is reserved; the status says so a moment later.
    await old.until(HARVESTER_MACHINES, "stuck", _has_address)
    before, addresses = await _on_harvester(old), await _addresses(old, pool)

    def caphv(server: ApiServer, *arguments: str) -> tuple[int, str]:
        result = Management(server, tmp_path).caphv(*arguments)
        return result.exit_code, result.output

    status, output = await asyncio.to_thread(caphv, lost.management, "backup", f"{old.name}/{old.name}", folder)
    assert status == 0, output
    await old.close()
    await lost.provider.kill()
    await lost.management.stop()

    since = there.audit_position(there.harvester)
    status, output = await asyncio.to_thread(caphv, there.management, "restore", folder, "--yes")
    assert (status, "stay paused" in output) == (1, True), output
    await there.provider.start()
    new = old.on(there)
    await new.open(create_namespace=False)
    try:
        assert {obj["metadata"]["name"] for obj in (await new.management.list(MACHINES, new.name))["items"]} == {
            *MACHINES_UP,
            "stuck",
        }
        assert await new.writes(since) == []
        flags = ("--yes", "--old-management-cluster-stopped")
        status, output = await asyncio.to_thread(caphv, there.management, "restore", folder, *flags)
        assert status == 0, output
        await new.ready()  # the core's part
        for name in MACHINES_UP:
            await new.until(HARVESTER_MACHINES, name, is_ready)
            await new.until_event(name, "Normal", "VMAdopted")
        await new.until(HARVESTER_CLUSTERS, new.name, is_ready)
        after = await _on_harvester(new)
        assert {name: uid_of(obj) for name, obj in after.items()} == {name: uid_of(obj) for name, obj in before.items()}
        assert [name for name in before if _generation(before[name]) != _generation(after[name])] == []
        await new.until(HARVESTER_MACHINES, "stuck", _has_address)
        assert await _addresses(new, pool) == addresses
        ours = uid_of(await new.management.get(NAMESPACES, "kube-system"))
        recorded = {annotations_of(obj).get(CLUSTER, ours) for obj in after.values()}
        assert recorded == {ours}
        assert {line.partition(" ")[0] for line in await new.writes(since)} == {"patch"}
        assert (await new.get(CLUSTERS, new.name))["spec"].get("paused") in (None, False)
        # No VM was created: the age of those that are adopted would raise an alert about slow creation.
        assert await there.provider.value("caphv_machine_creation_duration_seconds_count") == 0
        assert await new.remove() == []
    finally:
        await new.close()


async def test_a_cluster_that_was_parked_is_restored_as_it_was_and_can_be_resumed(
    environment: Environment, sides: tuple[Environment, Environment], tmp_path: Path
) -> None:
    lost, there = sides
    folder = str(tmp_path / "backup")
    old = Case(lost, environment.next_case())
    await old.open()
    await old.ready_cluster()
    for name in ("cp", "worker"):
        await old.ready_machine(name, control_plane=name == "cp")
    await old.patch(CLUSTERS, old.name, {"metadata": {"annotations": {names.PARK_ANNOTATION: "true"}}})
    await old.until(HARVESTER_CLUSTERS, old.name, is_true("Parked"), timeout=60)
    before = await _on_harvester(old)
    assert not [name for name in before if name.startswith("VirtualMachineInstance ")]

    def caphv(server: ApiServer, *arguments: str) -> tuple[int, str]:
        result = Management(server, tmp_path).caphv(*arguments)
        return result.exit_code, result.output

    status, output = await asyncio.to_thread(
        caphv, lost.management, "backup", f"{old.name}/{old.name}", folder, "--unencrypted"
    )
    assert (status, "a restore keeps it parked" in output) == (0, True), output
    await old.close()
    await lost.provider.kill()
    await lost.management.stop()

    since = there.audit_position(there.harvester)
    restore = ("restore", folder, "--unencrypted", "--yes")
    status, output = await asyncio.to_thread(caphv, there.management, *restore)
    assert (status, "stay paused" in output) == (1, True), output
    await there.provider.start()
    new = old.on(there)
    await new.open(create_namespace=False)
    try:
        await new.until(HARVESTER_CLUSTERS, new.name, lambda obj: condition_of(obj, "Parked"))
        assert await new.writes(since) == [], "the old management cluster may still run"
        status, output = await asyncio.to_thread(caphv, there.management, *restore, "--old-management-cluster-stopped")
        assert status == 0, output
        await new.until(HARVESTER_CLUSTERS, new.name, is_true("Parked"), timeout=60)
        ours = uid_of(await new.management.get(NAMESPACES, "kube-system"))
        for name in ("cp", "worker"):
            annotations = annotations_of(await new.vm(name))
            lost_uid = annotations_of(before[f"VirtualMachine {old.target}/{name}"])[CLUSTER]
            assert (annotations[CLUSTER], annotations[names.FORMER_CLUSTERS_ANNOTATION]) == (ours, lost_uid)
        assert await new.names(kinds.INSTANCES) == []

        await new.patch(CLUSTERS, new.name, {"metadata": {"annotations": {names.PARK_ANNOTATION: None}}})
        await new.until(CLUSTERS, new.name, lambda obj: not obj["spec"].get("paused"), timeout=60)
        await new.ready()  # the core's part
        for name in ("cp", "worker"):
            await new.until(HARVESTER_MACHINES, name, is_ready)
        after = await _on_harvester(new)
        vms = [name for name in before if name.startswith("VirtualMachine ")]
        assert {name: uid_of(after[name]) for name in vms} == {name: uid_of(before[name]) for name in vms}
        assert await new.remove() == []
    finally:
        await new.close()


def _has_address(obj: Obj) -> bool:
    return bool((obj.get("status") or {}).get("allocatedIPAddress"))


def _generation(obj: Obj) -> object:
    """Changes with the spec of a VM."""
    return obj["metadata"].get("generation")
