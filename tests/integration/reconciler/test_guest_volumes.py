"""Volumes that guests created on Harvester: deleted with their cluster by reclaim policy, never another's."""

from __future__ import annotations

import pytest

from caphv.api.guestparts import belongs_to_others, hotplugged_claims
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS
from sandbox.harvester import kinds
from sandbox.processes import pki
from tests.support import harvesterui
from tests.support.reconciler.case import CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.guestparts import hot_plug, persistent_volume, remove_volume, until_learnt

pytestmark = pytest.mark.integration

HOLD = "example.com/hold"


async def ready(case: Case, *workers: str, **spec: str) -> None:
    """A cluster with machines, whose workload API answers."""
    await case.connect_workload()
    await case.ready_cluster(**spec)
    for worker in workers:
        await case.ready_machine(worker)


async def test_volumes_of_the_deleted_cluster_are_deleted_by_reclaim_policy(case: Case, other: Case) -> None:
    namespace, other.target = other.target, case.target
    worker, neighbour = f"{case.name}-worker", f"{other.name}-worker"
    await ready(case, worker, guestVolumes="Delete")
    await ready(other, neighbour, guestVolumes="Delete")
    scratch, kept, others = (
        f"pvc-{cluster.name}-{kind}" for cluster, kind in ((case, "scratch"), (case, "kept"), (other, "scratch"))
    )
    await persistent_volume(case, scratch, "Delete", worker)
    await persistent_volume(case, kept, "Retain", worker)
    await persistent_volume(other, others, "Delete", neighbour)
    await until_learnt(case, **{scratch: "Delete", kept: "Retain"})
    await until_learnt(other, **{others: "Delete"})

    await case.environment.provider.stop()
    await case.environment.provider.start()
    await case.delete()

    claims = set(await case.names(PERSISTENT_VOLUME_CLAIMS))
    assert {kept, others} <= claims
    assert scratch not in claims
    await case.until_event(case.name, "Normal", "GuestVolumeDeleted")
    await case.until_event(case.name, "Warning", "GuestVolumesKept")
    assert others in hotplugged_claims(await other.vm(neighbour))

    await other.delete()
    assert await other.names(PERSISTENT_VOLUME_CLAIMS) == [kept]
    for name in (scratch, kept, others):
        await remove_volume(case, name)
    other.target = namespace


async def test_volume_that_was_attached_to_a_vm_of_another_owner_is_kept(case: Case) -> None:
    worker, volume = f"{case.name}-worker", f"pvc-{case.name}-shared"
    await ready(case, worker, guestVolumes="Delete")
    await persistent_volume(case, volume, "Delete", worker)
    await until_learnt(case, **{volume: "Delete"})

    # It moves to a VM that a user made, and back.
    vm = await case.vm(worker)
    devices = {**vm["spec"]["template"]["spec"]["domain"], "devices": {"disks": []}}
    template = {"spec": {"domain": devices, "volumes": []}}
    by_hand = {"metadata": {"name": "by-hand", "namespace": case.target}}
    by_hand["spec"] = {"runStrategy": "Halted", "template": template}
    await case.harvester.create(kinds.VIRTUAL_MACHINES, kinds.typed(kinds.VIRTUAL_MACHINES, by_hand))
    spec = vm["spec"]["template"]["spec"]
    disks = [disk for disk in spec["domain"]["devices"]["disks"] if disk["name"] != volume]
    volumes = [item for item in spec["volumes"] if item["name"] != volume]
    without = {"domain": {"devices": {"disks": disks}}, "volumes": volumes}
    await case.patch(kinds.VIRTUAL_MACHINES, worker, {"spec": {"template": {"spec": without}}})
    await hot_plug(case, volume, "by-hand")
    await case.until(PERSISTENT_VOLUME_CLAIMS, volume, belongs_to_others)
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "by-hand")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "by-hand")

    await case.delete()
    assert volume in await case.names(PERSISTENT_VOLUME_CLAIMS)
    await remove_volume(case, volume)


async def test_machine_that_is_deleted_alone_detaches_its_volumes(case: Case) -> None:
    """Another node gets them although something holds the VM, without which no other VM could have them."""
    await ready(case, "one", "two", guestVolumes="Delete")
    volume = f"pvc-{case.name}-data"
    await persistent_volume(case, volume, "Delete", "one")
    held = (await case.vm("one"))["metadata"].get("finalizers") or []
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"metadata": {"finalizers": [*held, HOLD]}})
    await case.ask_deletion(HARVESTER_MACHINES, "one")

    await case.vm("one", lambda vm: not hotplugged_claims(vm))
    await hot_plug(case, volume, "two")
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"metadata": {"finalizers": None}})
    await case.until_gone(HARVESTER_MACHINES, "one")
    assert volume in await case.names(PERSISTENT_VOLUME_CLAIMS)
    assert volume in hotplugged_claims(await case.vm("two"))

    await case.delete()
    await remove_volume(case, volume)


@pytest.mark.long
async def test_dead_workload_api_delays_the_deletion_for_a_bounded_time(case: Case) -> None:
    worker, scratch, unknown = f"{case.name}-worker", f"pvc-{case.name}-scratch", f"pvc-{case.name}-unknown"
    await ready(case, worker, guestVolumes="Delete")
    await persistent_volume(case, scratch, "Delete", worker)
    await until_learnt(case, **{scratch: "Delete"})
    secret = await case.management.get(SECRETS, f"{case.name}-kubeconfig", case.name)
    dead = case.environment.workload.kubeconfig()
    dead["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    await case.write_secret(secret["metadata"]["name"], {"value": pki.to_yaml(dead).decode()})
    await case.harvester.create(PERSISTENT_VOLUME_CLAIMS, harvesterui.volume(case.target, unknown))
    await hot_plug(case, unknown, worker)

    await case.ask_deletion(CLUSTERS, case.name)
    await case.ask_deletion(HARVESTER_MACHINES, worker)
    await case.until_gone(HARVESTER_MACHINES, worker, timeout=150)
    await case.delete()
    claims = await case.names(PERSISTENT_VOLUME_CLAIMS)
    assert scratch not in claims
    assert unknown in claims
    await case.until_event(case.name, "Warning", "GuestVolumesNotLearnt")
    for name in (scratch, unknown):
        await remove_volume(case, name)
