"""Control plane machines leave etcd before their VM is deleted, by exec through a real API server."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from caphv.api import remedies
from caphv.api.names import (
    ETCD_RESTORE_ANNOTATION,
    OWNER_CLUSTER_ANNOTATION,
    OWNER_UID_ANNOTATION,
    RKE2_HOOK,
)
from caphv.api.object import LEASES, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, PODS, SECRETS, Obj
from caphv.api.resources import ETCD_SNAPSHOT_FILES
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from caphv.runtime.etcd import ETCDCTL
from caphv.runtime.exec import ExecError, pod_exec
from commands.main import cli
from operations.change import etcdrestore, etcdrestorechecks, etcdsteps
from sandbox.harvester import kinds
from sandbox.processes import pki
from sandbox.processes.apiserver import private_file
from tests.support.etcdsnapshots import CRD, snapshot_file
from tests.support.openapi import CRDS
from tests.support.printed import printed_in
from tests.support.reconciler.case import (
    CLUSTER_LABEL,
    CLUSTERS,
    HARVESTER_CLUSTERS,
    HARVESTER_MACHINES,
    MACHINES,
    Case,
)
from tests.support.reconciler.conditions import condition_of, is_false
from tests.support.reconciler.servers import control_plane, machines_of
from tests.support.waiting import until

pytestmark = pytest.mark.integration

K3S_MEMBER = "etcd.k3s.cattle.io/node-name"
REMOVALS, FAILURES = "caphv_etcd_member_remove_total", "caphv_etcd_member_remove_errors_total"


async def etcdctl(client: ApiClient, node: str, *arguments: str) -> bytes:
    return await pod_exec(client, "kube-system", f"etcd-{node}", "etcd", [*ETCDCTL, *arguments], timeout=10)


async def members(client: ApiClient, node: str) -> set[str]:
    """Names of nodes that have a member, asked on one of them."""
    found = json.loads(await etcdctl(client, node, "member", "list", "-w", "json"))
    return {member["name"].rpartition("-")[0] for member in found["members"]}


async def counted(case: Case) -> tuple[float, float]:
    values = await case.environment.provider.metrics()
    return values.get((REMOVALS, frozenset()), 0.0), values.get((FAILURES, frozenset()), 0.0)


async def test_member_is_deleted_with_its_machine(case: Case) -> None:
    client, machines = await control_plane(case, "a", "a-b", "c"), machines_of("a", "a-b", "c")
    try:
        assert await members(client, "c") == {"a", "a-b", "c"}
        before = await counted(case)
        await case.delete_machine("a", machines["a"])
        assert await members(client, "c") == {"a-b", "c"}
        assert await counted(case) == (before[0] + 1, before[1])
        await case.until_event("a", "Normal", "EtcdMemberRemoved")
        # RKE2's provider removes members itself: one that it left is removed and counted.
        owner = {
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
            "kind": "RKE2ControlPlane",
            "name": "x",
            "uid": "x",
        }
        await case.patch(MACHINES, machines["a-b"], {"metadata": {"ownerReferences": [owner]}})
        await case.delete_machine("a-b", machines["a-b"])
        assert await members(client, "c") == {"c"}
        assert await counted(case) == (before[0] + 2, before[1])
        # With the whole cluster nothing is removed any more.
        await case.delete()
        assert await counted(case) == (before[0] + 2, before[1])
    finally:
        await client.close()


async def test_member_of_a_vm_that_another_management_cluster_has_adopted_stays(case: Case) -> None:
    """A machine that a move or a restore has left behind is deleted without its VM, whose guest runs."""
    client, machines = await control_plane(case, "a", "b"), machines_of("a", "b")
    there = {OWNER_CLUSTER_ANNOTATION: "another-cluster", OWNER_UID_ANNOTATION: "another-machine"}
    try:
        before = await counted(case)
        await case.patch(kinds.VIRTUAL_MACHINES, "a", {"metadata": {"annotations": there}})
        await case.until(HARVESTER_MACHINES, "a", is_false("VMProvisioningReady", "VMProvisioningFailed", "belongs to"))
        await case.delete_machine("a", machines["a"])
        assert await members(client, "b") == {"a", "b"}
        assert await counted(case) == before
        await case.until_event("a", "Normal", "VMKept")
        assert (await case.get(kinds.INSTANCES, "a"))["status"]["phase"] == "Running"

        # Its owner deletes the VM.
        await case.ask_deletion(kinds.VIRTUAL_MACHINES, "a")
        await case.until_gone(kinds.VIRTUAL_MACHINES, "a")
        (disk,) = [name for name in await case.names(PERSISTENT_VOLUME_CLAIMS) if name.startswith("a-disk-0-")]
        await case.ask_deletion(PERSISTENT_VOLUME_CLAIMS, disk)
        await case.ask_deletion(SECRETS, "a-cloud-init")
    finally:
        await client.close()


async def test_vm_stays_until_the_member_no_longer_exists(case: Case) -> None:
    client = await control_plane(case, "a", "b")
    try:
        # The etcd Pod that is asked does not answer: its node is at an address where no kubelet is.
        status = {"addresses": [{"type": "InternalIP", "address": f"{case.environment.prefix}.255.254"}]}
        good = (await client.get(NODES, "b"))["status"]["addresses"]
        await client.patch(NODES, "b", "", {"status": status}, subresource="status")
        with pytest.raises((ApiError, Unreachable, ExecError)):
            await members(client, "b")
        before = await counted(case)
        await case.ask_deletion(HARVESTER_MACHINES, "a")
        await case.until(
            HARVESTER_MACHINES, "a", lambda obj: "etcd member" in condition_of(obj, "VMProvisioningReady")["message"]
        )
        assert "deletionTimestamp" not in (await case.get(kinds.VIRTUAL_MACHINES, "a"))["metadata"]
        assert (await counted(case))[1] > before[1]
        await client.patch(NODES, "b", "", {"status": {"addresses": good}}, subresource="status")
        await case.until_gone(HARVESTER_MACHINES, "a")
        assert await members(client, "b") == {"b"}
    finally:
        await client.close()


async def test_member_that_no_pod_can_remove_is_reported_unless_k3s_removes_it(case: Case) -> None:
    client = await control_plane(case, "a", "b")
    try:
        await client.delete(PODS, "etcd-b", "kube-system")
        before = await counted(case)
        await case.ask_deletion(HARVESTER_MACHINES, "a")
        says = is_false("VMProvisioningReady", "VMProvisioningInProgress", "no Pod of etcd runs on another Node")
        await case.until(HARVESTER_MACHINES, "a", says)
        assert "deletionTimestamp" not in (await case.get(kinds.VIRTUAL_MACHINES, "a"))["metadata"]
        assert (await counted(case))[1] > before[1]
        # As of K3s, which has no such Pod and removes the member with the Node.
        status = {"status": {"nodeInfo": {"kubeletVersion": "v1.36.0+k3s1"}}}
        await client.patch(NODES, "b", "", status, subresource="status")
        await case.until_gone(HARVESTER_MACHINES, "a")
    finally:
        await client.close()


async def test_errors_of_a_command_are_reported(case: Case) -> None:
    client = await control_plane(case, "a")
    try:
        with pytest.raises(ExecError, match=r"exit code 1.*not found"):
            await etcdctl(client, "a", "member", "remove", "1")
        with pytest.raises(ApiError):
            await pod_exec(client, "kube-system", "etcd-a", "other", ["ls"], timeout=5)
        with pytest.raises(ApiError):
            await pod_exec(client, "kube-system", "etcd-none", "etcd", ["ls"], timeout=5)
        # The last member stays, and its machine is deleted at once.
        await asyncio.wait_for(case.delete_machine("a"), 20)
    finally:
        await client.close()


async def test_a_member_without_a_machine_is_found_and_removed(case: Case, tmp_path: Path) -> None:
    client, machines = await control_plane(case, "a", "b", "c"), machines_of("a", "b", "c")
    try:
        for name in ("b", "c"):
            ready = {"type": "NodeReady", "status": "True", "reason": "NodeReady", "message": ""}
            status = {"status": {"nodeRef": {"name": name}, "conditions": [ready]}}
            await case.management.patch(MACHINES, machines[name], case.name, status, subresource="status")
        # A machine that is no longer one of the cluster's: nothing removes its member.
        await case.patch(MACHINES, machines["a"], {"metadata": {"labels": {CLUSTER_LABEL: "another"}}})
        ref = f"{case.name}/{case.name}"
        status, text = await caphv(case, tmp_path, "etcd", "members", ref)
        assert status == 1, text
        states = {line.split()[0].rpartition("-")[0]: line.split()[2] for line in text.splitlines()[1:4]}
        assert states == {"a": "stale", "b": "healthy", "c": "healthy"}
        status, text = await caphv(case, tmp_path, "etcd", "remove", ref, "--dry-run")
        assert (status, "remove member a-" in text) == (0, True), text
        assert await members(client, "c") == {"a", "b", "c"}
        status, text = await caphv(case, tmp_path, "etcd", "remove", ref, "--yes")
        assert (status, "removed member a-" in text) == (0, True), text
        assert await members(client, "c") == {"b", "c"}
        status, text = await caphv(case, tmp_path, "etcd", "remove", ref, "--yes")
        assert (status, "Nothing to remove" in text) == (0, True), text
        # A member with a machine stays.
        found = json.loads(await etcdctl(client, "c", "member", "list", "-w", "json"))
        name = next(member["name"] for member in found["members"] if member["name"].startswith("b-"))
        status, text = await caphv(case, tmp_path, "etcd", "remove", ref, name, "--yes")
        assert (status, "which exists" in text) == (1, True), text
        assert await members(client, "c") == {"b", "c"}
        await case.patch(MACHINES, machines["a"], {"metadata": {"labels": {CLUSTER_LABEL: case.name}}})
    finally:
        await client.close()


async def test_a_deletion_that_waits_for_a_deleted_node_is_ended(case: Case, tmp_path: Path) -> None:
    """As with CAPRKE2, which reads from the Node that the member was removed."""
    client, machines = await control_plane(case, "a", "b", "c"), machines_of("a", "b", "c")
    ref, hook = f"{case.name}/{case.name}", {"metadata": {"annotations": {RKE2_HOOK: ""}, "finalizers": ["test/wait"]}}
    try:
        for name in ("a", "b", "c"):
            ready = {"type": "NodeReady", "status": "True", "reason": "NodeReady", "message": ""}
            status = {"status": {"nodeRef": {"name": name}, "conditions": [ready]}}
            await case.management.patch(MACHINES, machines[name], case.name, status, subresource="status")
        machine = machines["a"]
        await case.patch(MACHINES, machine, hook)
        await case.ask_deletion(MACHINES, machine)
        reasons = {"Deleting": "WaitingForPreTerminateHook", "NodeHealthy": "NodeDeleted"}
        conditions = [
            {
                "type": kind,
                "status": "True",
                "reason": reason,
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
            for kind, reason in reasons.items()
        ]
        await case.management.patch(
            MACHINES, machine, case.name, {"status": {"conditions": conditions}}, subresource="status"
        )

        # With its Node, or with its member, the deletion is not stuck.
        _, text = await caphv(case, tmp_path, "etcd", "remove", ref, "--yes")
        assert "release" not in text
        (own,) = [
            member
            for member in json.loads(await etcdctl(client, "c", "member", "list", "-w", "json"))["members"]
            if member["name"].startswith("a-")
        ]
        await etcdctl(client, "c", "member", "remove", f"{own['ID']:x}")
        _, text = await caphv(case, tmp_path, "etcd", "remove", ref, "--yes")
        assert "release" not in text
        await client.delete(NODES, "a")

        # The remedy, as it is printed.
        _, text = await caphv(case, tmp_path, "status", ref)
        command = printed_in(remedies.REMOVE_MEMBERS, text)
        status, text = await caphv(case, tmp_path, *command.split()[1:], "--yes")
        assert (status, f"released Machine {machine}" in text) == (0, True), text
        obj = await case.get(MACHINES, machine)
        assert RKE2_HOOK not in (obj["metadata"].get("annotations") or {})
        await case.patch(MACHINES, machine, {"metadata": {"finalizers": []}})
    finally:
        await client.close()


async def test_snapshots_that_servers_recorded_are_listed(case: Case, tmp_path: Path) -> None:
    client = await control_plane(case, "a")
    try:
        ref = f"{case.name}/{case.name}"
        status, text = await caphv(case, tmp_path, "etcd", "snapshots", ref)
        assert (status, "records no snapshots" in text) == (2, True), text

        await client.create(CRDS, CRD)
        files = [snapshot_file("a", "2026-01-01T12:00:00Z", s3=True), snapshot_file("b", "2026-01-01T00:00:00Z")]
        for file in files:
            await until(lambda file=file: created(client, file), "the API serves no ETCDSnapshotFiles")
        status, text = await caphv(case, tmp_path, "etcd", "snapshots", ref)
        assert status == 1, text
        lines = [line.split()[:2] for line in text.splitlines()[1:3]]
        assert lines == [["etcd-snapshot-a-12", "ready"], ["etcd-snapshot-b-00", "lost"]]
        status, text = await caphv(case, tmp_path, "etcd", "snapshots", ref, "-o", "json")
        locations = [item["location"] for item in json.loads(text)["items"]]
        assert locations == [file["spec"]["location"] for file in files]
    finally:
        await client.close()


async def test_a_restore_pauses_the_cluster_until_its_nodes_are_ready(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Guests of tests have addresses of this computer, which are refused.
    for module in (etcdsteps, etcdrestore, etcdrestorechecks):
        monkeypatch.setattr(module, "address_of", lambda machine: machine.addresses[0])
    client, machines = await control_plane(case, "a", "b"), machines_of("a", "b")
    try:
        reference = {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KThreesControlPlane", "name": case.name}
        await case.patch(CLUSTERS, case.name, {"spec": {"controlPlaneRef": reference}})
        for name, machine in machines.items():
            status = {"status": {"nodeRef": {"name": name}}}
            await case.management.patch(MACHINES, machine, case.name, status, subresource="status")
        for name in machines:
            await client.patch(NODES, name, "", {"metadata": {"annotations": {K3S_MEMBER: f"{name}-1a2b"}}})
        ref, words = f"{case.name}/{case.name}", ("--on", machines["a"], "/var/backup/snapshot")
        before = uids(await case.management.list(MACHINES, case.name))
        status, text = await caphv(case, tmp_path, "etcd", "restore", ref, *words, "--dry-run")
        assert status == 0, text
        assert not (await case.get(CLUSTERS, case.name))["spec"].get("paused")

        status, text = await caphv(case, tmp_path, "etcd", "restore", ref, *words, "--yes")
        assert status == 0, text
        address = (await case.get(HARVESTER_MACHINES, "a"))["status"]["addresses"][0]["address"]
        assert f"Restore the snapshot, and start the server: Machine {machines['a']}'\nssh " in text
        assert f"@{address} sudo sh -s <<'CAPHV'\n" in text
        await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: condition_of(obj, "Paused").get("status") == "True")

        # A user ends the pause too early.
        await case.patch(CLUSTERS, case.name, {"spec": {"paused": False}})
        _, text = await caphv(case, tmp_path, "status", ref)
        command = printed_in(remedies.CONTINUE_RESTORE, text)
        status, text = await caphv(case, tmp_path, *command.split()[1:], "--yes")
        assert (status, "its pause has ended" in text) == (0, True), text
        assert (await case.get(CLUSTERS, case.name))["spec"]["paused"]
        await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: condition_of(obj, "Paused").get("status") == "True")

        # Another operator sees the pause, and how it ends.
        _, text = await caphv(case, tmp_path, "status", ref)
        command = printed_in(remedies.FINISH_RESTORE, text)
        await renew_leases(client, "a", "b")
        await client.delete(NODES, "a")
        status, text = await caphv(case, tmp_path, *command.split()[1:], "--yes")
        assert (status, f"Node a of Machine {machines['a']} does not exist" in text) == (1, True), text
        assert (await case.get(CLUSTERS, case.name))["spec"]["paused"]

        # The snapshot has the Node with the member of its time; servers write the new one.
        node = {"metadata": {"name": "a", "annotations": {K3S_MEMBER: "a-1a2b"}}}
        node["spec"] = {"providerID": "harvester://a"}
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", **node})
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        await client.patch(NODES, "a", "", {"status": {"conditions": [ready]}}, subresource="status")
        status, text = await caphv(case, tmp_path, *command.split()[1:], "--yes")
        assert (status, "the snapshot was not restored" in text) == (1, True), text
        await client.patch(NODES, "a", "", {"metadata": {"annotations": {K3S_MEMBER: "a-3c4d"}}})
        status, text = await caphv(case, tmp_path, *command.split()[1:], "--yes")
        assert status == 0, text
        cluster = await case.get(CLUSTERS, case.name)
        assert not cluster["spec"].get("paused")
        assert ETCD_RESTORE_ANNOTATION not in (cluster["metadata"].get("annotations") or {})
        assert uids(await case.management.list(MACHINES, case.name)) == before
    finally:
        await client.close()


def uids(page: Obj) -> set[str]:
    return {obj["metadata"]["uid"] for obj in page["items"]}


async def renew_leases(client: ApiClient, *nodes: str) -> None:
    """Renew the Leases as kubelets do."""
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}
    with suppress(ApiError):
        await client.create(NAMESPACES, space)
    for node in nodes:
        metadata = {"name": node, "namespace": "kube-node-lease"}
        spec = {"renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        await client.create(LEASES, lease)


async def created(client: ApiClient, obj: Obj) -> bool:
    try:
        await client.create(ETCD_SNAPSHOT_FILES, obj)
    except NotFound:
        return False
    return True


async def caphv(case: Case, folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command as an administrator of the management cluster."""
    kubeconfig = folder / "management.kubeconfig"
    private_file(kubeconfig, pki.to_yaml(case.environment.management.kubeconfig()))
    result = await asyncio.to_thread(CliRunner().invoke, cli, [*arguments, "--kubeconfig", str(kubeconfig)])
    return result.exit_code, result.output
