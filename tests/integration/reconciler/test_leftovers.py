"""`caphv leftovers` on real API servers: it deletes what a lost cluster left, and nothing of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.guestparts import entry_of, proof_annotations, recorded_guest
from caphv.api.names import OWNER_CLUSTER_ANNOTATION, RECLAIM_POLICY_ANNOTATION
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    PERSISTENT_VOLUME_CLAIMS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    annotations_of,
)
from caphv.api.ownership import Owner, record
from commands.main import cli
from sandbox.harvester import kinds
from tests.support import harvesterui
from tests.support.reconciler.case import CLUSTERS, HARVESTER_CLUSTERS, HARVESTER_MACHINES, MACHINES, Case
from tests.support.reconciler.conditions import is_ready, is_true
from tests.support.reconciler.guestparts import service
from tests.support.simulation import virtual_machine

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("runner")]


@pytest.fixture
def kubeconfig(case: Case, tmp_path: Path) -> Path:
    """Kubeconfig of an administrator of the management cluster."""
    file = tmp_path / "management.kubeconfig"
    file.write_text(yaml.safe_dump(case.environment.management.kubeconfig()))
    return file


async def leftovers(kubeconfig: Path, *arguments: str) -> Result:
    command = ["leftovers", "--kubeconfig", str(kubeconfig), *arguments]
    return await asyncio.to_thread(CliRunner().invoke, cli, command, prog_name="caphv")


async def listed(kubeconfig: Path, case: Case, *arguments: str) -> tuple[int, dict[str, str]]:
    """Return the exit status, and the verdict on each object of the case."""
    result = await leftovers(kubeconfig, "-o", "json", *arguments)
    objects: list[dict[str, Any]] = [each for of in json.loads(result.stdout)["items"] for each in of["objects"]]
    return result.exit_code, {
        f"{each['kind']} {each['name']}": each["verdict"]
        for each in objects
        if case.target in each.get("namespace", "") or case.name in each["name"] + each.get("pool", "")
    }


def described_pool(case: Case, first: int, last: int) -> dict[str, str]:
    bounds = {"rangeStart": f"{case.subnet}.{first}", "rangeEnd": f"{case.subnet}.{last}", "gateway": case.gateway}
    return {"subnet": f"{case.environment.prefix}.0.0/17", **bounds, "vmNetwork": "default/production"}


async def lose(case: Case) -> None:
    """Delete all objects of a cluster while no provider runs, without their finalizers."""
    provider = case.environment.provider
    await provider.stop()
    try:
        for kind in (HARVESTER_MACHINES, MACHINES, HARVESTER_CLUSTERS, CLUSTERS):
            for name in await case.names(kind):
                await case.ask_deletion(kind, name)
                await case.patch(kind, name, {"metadata": {"finalizers": None}})
                await case.until_gone(kind, name)
    finally:
        await provider.start()


async def create_guest_objects(case: Case, other: Case) -> None:
    """Create load balancers of both guests, and volumes that the provider has recorded as the first one's."""
    owners = []
    for each, name in ((case, "of-lost"), (other, "of-other")):
        await service(each, name, ipam="dhcp")
        owners.append(recorded_guest(await each.until(kinds.LOAD_BALANCERS, name, recorded_guest)))
    owner = owners[0]
    assert owner is not None
    for policy in ("Delete", "Retain"):
        name = f"pvc-{policy.lower()}"
        await case.harvester.create(PERSISTENT_VOLUME_CLAIMS, harvesterui.volume(case.target, name))
        claim = await case.get(PERSISTENT_VOLUME_CLAIMS, name)
        annotations = proof_annotations(claim, [entry_of(owner)]) | {RECLAIM_POLICY_ANNOTATION: policy}
        await case.patch(PERSISTENT_VOLUME_CLAIMS, name, {"metadata": {"annotations": annotations}})


@asynccontextmanager
async def sharing(case: Case, other: Case) -> AsyncIterator[Case]:
    """Another cluster with the target namespace of the first."""
    own, other.target = other.target, case.target
    try:
        yield other
    finally:
        await other.delete()
        other.target = own


async def test_of_two_clusters_in_a_namespace_only_what_the_lost_one_left_is_deleted(
    case: Case, other: Case, kubeconfig: Path
) -> None:
    shared = await case.pool("shared", 1, 5)
    network = {"ipPool": described_pool(case, 11, 12), "gateway": case.gateway, "subnetMask": "255.255.128.0"}
    await case.ready_cluster(vmNetworkConfig=network, cloudConfig={"delivery": "File"})
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("CloudProviderConfigReady"))
    await case.ready_machine("one", control_plane=True)
    await case.ready_machine("pooled", vmNetworkConfig=case.vm_network(shared))

    async with sharing(case, other):
        await other.ready_cluster(vmNetworkConfig=case.vm_network(shared), cloudConfig={"delivery": "File"})
        await other.until(HARVESTER_CLUSTERS, other.name, is_true("CloudProviderConfigReady"))
        await other.ready_machine("two", control_plane=True)
        kept_vm = await other.vm("two")
        await create_guest_objects(case, other)
        code, before = await listed(kubeconfig, case)
        assert (code, "leaked" in before.values()) == (0, False), before

        foreign = virtual_machine(case.target, "foreign")
        of_others = record(Owner("HarvesterMachine", case.name, "foreign", "uid", "another-management-cluster"))
        foreign["metadata"]["annotations"] |= of_others
        for vm in (foreign, virtual_machine(case.target, "by-hand")):
            name = f"{vm['metadata']['name']}-cloud-init"
            metadata = {"name": name, "namespace": case.target}
            await case.harvester.create(SECRETS, {"metadata": metadata, "stringData": {"userdata": "#cloud-config\n"}})
            await case.harvester.create(kinds.VIRTUAL_MACHINES, vm)

        await lose(case)
        code, found = await listed(kubeconfig, case)
        assert code == 0
        assert (found["VirtualMachine foreign"], found["VirtualMachine by-hand"]) == ("foreign", "unrecorded")
        used = {name for name, verdict in found.items() if verdict == "in use"}
        assert used >= {"VirtualMachine one", f"LoadBalancer {case.balancer}", f"ServiceAccount {case.name}"}
        assert used >= {"LoadBalancer of-lost", "PersistentVolumeClaim pvc-delete"}, "VMs of the guest are at work"
        assert (found["PersistentVolumeClaim pvc-retain"], found.get("LoadBalancer of-other")) == ("unknown", None)
        refused = await leftovers(kubeconfig, "--delete", "--yes")
        assert (refused.exit_code, await listed(kubeconfig, case)) == (0, (code, found))

        code, found = await listed(kubeconfig, case, "--running")
        assert code == 1
        leaked = {name for name, verdict in found.items() if verdict == "leaked"}
        created_pool = f"{case.name}-{case.name}-vm-ippool"
        assert leaked >= {
            "VirtualMachine one",
            "VirtualMachine pooled",
            "Secret one-cloud-init",
            "Secret pooled-cloud-init",
            f"Secret {case.name}-token",
            f"LoadBalancer {case.balancer}",
            f"Service {case.balancer}",
            f"ServiceAccount {case.name}",
            f"ClusterRoleBinding {case.name}",
            f"IPPool {created_pool}",
            "LoadBalancer of-lost",
            "PersistentVolumeClaim pvc-delete",
        }
        assert not any("two" in name or other.name in name or "foreign" in name for name in leaked)

        dry = await leftovers(kubeconfig, "--delete", "--running", "--dry-run")
        assert dry.exit_code == 0
        assert (await listed(kubeconfig, case, "--running"))[1] == found
        done = await leftovers(kubeconfig, "--delete", "--running", "--yes")
        assert done.exit_code == 0, done.output
        assert f"VirtualMachine {case.target}/one: deleted" in done.stdout
        assert f"IPPool {created_pool}: deleted" in done.stdout

        assert sorted(await case.names(kinds.VIRTUAL_MACHINES)) == ["by-hand", "foreign", "two"]
        assert {"foreign-cloud-init", "by-hand-cloud-init", "two-cloud-init"} <= set(await case.names(SECRETS))
        assert not {"one-cloud-init", "pooled-cloud-init", f"{case.name}-token"} & set(await case.names(SECRETS))
        claims = await case.names(PERSISTENT_VOLUME_CLAIMS)
        assert not [name for name in claims if name.startswith(("one-", "pooled-"))]
        assert len([name for name in claims if name.startswith(("two-", "by-hand-", "foreign-"))]) == 3
        assert sorted(await case.names(kinds.LOAD_BALANCERS)) == sorted([other.balancer, "of-other"])
        assert [name for name in claims if name.startswith("pvc-")] == ["pvc-retain"]
        assert case.balancer not in await case.names(SERVICES)
        assert case.name not in await case.names(SERVICE_ACCOUNTS)
        bindings = {each["metadata"]["name"] for each in (await case.harvester.list(CLUSTER_ROLE_BINDINGS))["items"]}
        assert (case.name in bindings, other.name in bindings) == (False, True)

        # Pools are exact: one address, that of the machine that exists.
        pool = await case.harvester.get(kinds.IP_POOLS, shared)
        assert list(pool["status"]["allocated"].values()) == [f"{other.name}/two"]
        assert pool["status"]["available"] == 4
        assert is_ready(await other.get(HARVESTER_MACHINES, "two"))
        assert (await other.vm("two"))["metadata"]["uid"] == kept_vm["metadata"]["uid"]
        assert annotations_of(await case.vm("foreign"))[OWNER_CLUSTER_ANNOTATION] == "another-management-cluster"

        code, after = await listed(kubeconfig, case)
        assert (code, "leaked" in after.values()) == (0, False), after
        await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, "pvc-retain")
        for name in ("foreign", "by-hand"):
            await case.ask_deletion(kinds.VIRTUAL_MACHINES, name)
            await case.until_gone(kinds.VIRTUAL_MACHINES, name)
            await case.ask_deletion(SECRETS, f"{name}-cloud-init")
            await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, f"{name}-disk-0-x7k2p")
    await case.ask_deletion(SECRETS, f"{other.name}-token")
