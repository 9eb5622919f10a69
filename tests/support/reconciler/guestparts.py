"""What the cloud provider and the CSI driver in a guest create on Harvester, and who may have it next.

Shapes are those of cloud-provider-harvester v0.2.7 (`constructLB` in pkg/cloud-controller-manager/loadbalancer.go) and
harvester-csi-driver v0.2.9 (`CreateVolume` and `ControllerPublishVolume` in pkg/csi/controller_server.go).
"""

from __future__ import annotations

import contextlib
from typing import Any

from caphv.api.guestparts import reclaim_policy, recorded_guest
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, Obj
from caphv.runtime.errors import Conflict, Invalid, NotFound
from sandbox.harvester import kinds
from tests.support import harvesterui
from tests.support.reconciler.case import Case
from tests.support.waiting import until


async def pool_of_guests(case: Case, number: int, selected: str) -> str:
    """An IPPool for guests of the target namespace, with a network or none."""
    prefix = case.environment.world.network.removesuffix(".0.0/16")
    name = f"{case.name}-guests-{number}"
    ranges = {
        "subnet": f"{prefix}.0.0/17",
        "rangeStart": f"{prefix}.110.{number}0",
        "rangeEnd": f"{prefix}.110.{number}9",
    }
    scope = {"namespace": case.target, "project": "*", "guestCluster": "*"}
    spec = {"ranges": [ranges], "selector": {"network": selected, "scope": [scope]}}
    status = {"total": 10, "available": 10, "lastAllocated": ""}
    await case.harvester.create(
        kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, {"metadata": {"name": name}, "spec": spec, "status": status})
    )
    return name


async def service(case: Case, name: str, network: str = "", **spec: Any) -> Obj:
    """The LoadBalancer that a cloud provider in the guest creates for a Service, with its outcome.

    `network` is what an annotation of the Service asks for.
    """
    domain = "cloudprovider.harvesterhci.io"
    labels = {f"{domain}/cluster": case.name, f"{domain}/serviceNamespace": "default", f"{domain}/serviceName": name}
    metadata = {
        "name": name,
        "namespace": case.target,
        "labels": labels,
        "annotations": {
            "loadbalancer.harvesterhci.io/cluster": case.name,
            **({"loadbalancer.harvesterhci.io/network": network} if network else {}),
        },
    }
    balancer = {"metadata": metadata, "spec": {"workloadType": "cluster", "ipam": "pool", **spec}}
    await case.harvester.create(kinds.LOAD_BALANCERS, kinds.typed(kinds.LOAD_BALANCERS, balancer))
    return await case.until(kinds.LOAD_BALANCERS, name, lambda obj: (obj.get("status") or {}).get("conditions"))


async def remove(case: Case, name: str) -> None:
    """Delete the LoadBalancer of a Service, as the cloud provider does with the Service."""
    await case.ask_deletion(kinds.LOAD_BALANCERS, name)
    await case.until_gone(kinds.LOAD_BALANCERS, name)


def allocated(balancer: Obj) -> Obj:
    """The address that a LoadBalancer has."""
    address: Obj = balancer["status"].get("allocatedAddress") or {}
    return address


async def persistent_volume(case: Case, name: str, policy: str, vm: str) -> None:
    """A volume that the CSI driver provisions, with its claim on Harvester, which it hot-plugs to a VM."""
    await case.harvester.create(PERSISTENT_VOLUME_CLAIMS, harvesterui.volume(case.target, name))
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": policy,
        "csi": {"driver": "driver.harvesterhci.io", "volumeHandle": name},
    }
    await case.workload.create(PERSISTENT_VOLUMES, {"metadata": {"name": name}, "spec": spec})
    await hot_plug(case, name, vm)


async def hot_plug(case: Case, claim: str, vm: str) -> None:
    """Attach a claim to a VM, as the CSI driver does; other writers of the VM may be faster."""

    async def is_plugged() -> bool:
        obj = await case.vm(vm)
        try:
            await case.patch(kinds.VIRTUAL_MACHINES, vm, harvesterui.hot_plug(obj, claim))
        except (Conflict, Invalid):
            return False
        return True

    await until(is_plugged, f"VM {vm} has volume {claim}")


async def until_learnt(case: Case, **policies: str) -> None:
    """Wait until claims have the reclaim policies of their volumes, and the proof whose they are."""
    for name, policy in policies.items():
        await case.until(
            PERSISTENT_VOLUME_CLAIMS,
            name,
            lambda claim, policy=policy: reclaim_policy(claim) == policy and recorded_guest(claim),
        )


async def remove_volume(case: Case, name: str) -> None:
    """Delete a volume that was kept, on both sides."""
    await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, name)
    await case.until_gone(PERSISTENT_VOLUME_CLAIMS, name)
    with contextlib.suppress(NotFound):
        await case.workload.delete(PERSISTENT_VOLUMES, name)
