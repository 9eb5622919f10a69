"""Which members of etcd belong to a machine, which Pods can be asked, and what happens when none answers."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key
from caphv.runtime import etcd as runtime_etcd
from caphv.runtime.errors import Unreachable
from caphv.runtime.etcd import ETCDCTL, ETCDCTL_KUBEADM, Member, members, members_of, pods_to_ask
from caphv.runtime.exec import ExecError
from reconciler import metrics
from reconciler.blocked import Blocked
from reconciler.machine import etcd
from reconciler.machine.etcd import remove_etcd_member, removed_by_provider
from reconciler.memory.machine import MachineMemory
from reconciler.triggers import Trigger

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "belongs"),
    [
        ("a", True),
        ("a-0123abcd", True),
        ("a-b", False),
        ("a-b-0123abcd", False),
        ("a-0123abcd-4567cdef", False),
        ("a-0123abc", False),
        ("a-0123ABCD", False),
        ("ab-0123abcd", False),
        ("", False),
    ],
)
def test_member_belongs_to_the_node_it_is_named_after(name: str, belongs: bool) -> None:
    assert bool(members_of("a", [Member(1, name)], ())) is belongs


def test_member_of_a_machine_with_a_name_like_a_hash_is_left_alone() -> None:
    found = [Member(1, "a-0123abcd"), Member(2, "a-deadbeef")]
    assert members_of("a", found, {"a-0123abcd"}) == [Member(2, "a-deadbeef")]


@given(st.text("ab-", min_size=1, max_size=6), st.text("ab-", min_size=1, max_size=6))
def test_no_node_takes_the_member_of_another(node: str, other: str) -> None:
    found = [Member(1, f"{other}-0123abcd")]
    assert bool(members_of(node, found, ())) is (node == other)


def test_ids_of_64_bits_survive() -> None:
    output = json.dumps({"members": [{"ID": 2**64 - 1, "name": "a"}, {"ID": 1}]}).encode()
    assert members(output) == [Member(2**64 - 1, "a"), Member(1, "")]


@pytest.mark.parametrize("output", [b"", b"[]", b"{}", b'{"members": [{}]}', b'{"members": 1}', b"null"])
def test_answer_that_is_none_is_an_error(output: bytes) -> None:
    with pytest.raises(ExecError):
        members(output)


def pod(name: str, node: str, *, labels: bool = True, ready: bool = True, container: str = "etcd") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"component": "etcd", "tier": "control-plane"} if labels else {}},
        "spec": {"nodeName": node, "containers": [{"name": container}]},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def asked(*pods: dict[str, Any]) -> list[str]:
    return [found["metadata"]["name"] for found in pods_to_ask(pods, "own")]


def test_pods_on_other_nodes_are_asked_ready_ones_first() -> None:
    assert asked(pod("etcd-own", "own"), pod("x", "one", ready=False), pod("y", "two")) == ["y", "x"]
    assert asked(pod("etcd-z", "")) == []


def test_names_count_only_without_labels() -> None:
    assert asked(pod("etcd-a", "one", labels=False), pod("other", "one", labels=False)) == ["etcd-a"]
    assert asked(pod("etcd-a", "one", labels=False), pod("b", "two")) == ["b"]
    assert asked(pod("etcd-snapshot", "one", labels=False, container="snapshot")) == []


def owned_by(kind: str, group: str = "controlplane.cluster.x-k8s.io") -> dict[str, Any]:
    return {"metadata": {"ownerReferences": [{"apiVersion": f"{group}/v1beta2", "kind": kind, "name": "x"}]}}


def test_providers_that_remove_members_themselves() -> None:
    assert removed_by_provider(owned_by("RKE2ControlPlane"), None)
    assert removed_by_provider(owned_by("KubeadmControlPlane"), None)
    assert removed_by_provider(owned_by("TalosControlPlane"), None)
    assert removed_by_provider(owned_by("KThreesControlPlane"), None)
    assert not removed_by_provider(owned_by("K0sControlPlane"), None)
    assert not removed_by_provider(owned_by("RKE2ControlPlane", "example.com"), None)
    assert not removed_by_provider({"metadata": {}}, None)
    assert not removed_by_provider(None, None)


BOOTSTRAP = {"apiGroup": "rke.cattle.io", "kind": "RKEBootstrap", "name": "m"}
ETCD = {"rke.cattle.io/etcd-role": "true"}
HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/rke-bootstrap-cleanup"


def of_rancher(*, hook: bool = False) -> dict[str, Any]:
    annotations = {HOOK: "rke-bootstrap-controller"} if hook else {}
    metadata = {"name": "m", "namespace": "x", "labels": ETCD, "annotations": annotations}
    return {"metadata": metadata, "spec": {"bootstrap": {"configRef": BOOTSTRAP}}}


def test_rancher_removes_members_of_machines_with_its_role_itself() -> None:
    assert removed_by_provider(of_rancher(), None)
    worker = of_rancher()
    worker["metadata"]["labels"] = {"rke.cattle.io/worker-role": "true"}
    assert not removed_by_provider(worker, None)


@pytest.mark.parametrize("role", ["etcd", "worker"])
def test_labels_of_rancher_change_nothing_in_clusters_of_others(role: str) -> None:
    """The member is removed, and etcd that does not answer is waited for."""
    client = Silent()
    obj = {"metadata": {"name": "own", "labels": {f"rke.cattle.io/{role}-role": "true"}}}
    scope = scope_of(client, seconds=1, obj=obj, machine={**METADATA, **obj})
    with pytest.raises(Blocked):
        asyncio.run(remove_etcd_member(scope))
    assert client.asked


# When the workload cluster does not answer


METADATA = {"metadata": {"name": "x", "namespace": "x"}}


class Silent:
    """A workload API that is unreachable."""

    budget = None

    def __init__(self) -> None:
        self.asked = 0

    async def list(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        raise Unreachable("https://192.0.2.1:6443: timed out")


def scope_of(client: Any, *, seconds: float, **changes: Any) -> Any:
    async def ensure(_: Key) -> None:
        return None

    def in_progress(message: str, source: Trigger) -> Blocked:
        return Blocked(etcd.ConditionType.VM_PROVISIONING_READY, "VMProvisioningInProgress", message, source)  # type: ignore[arg-type]

    memory = MachineMemory("uid")
    memory.deletion.seen_at = time.monotonic() - seconds
    warnings: list[str] = []
    workloads = SimpleNamespace(ensure=ensure, client=lambda _: client)
    values: dict[str, Any] = {
        "cluster_key": Key("x", "x"),
        "cluster": cluster(initialized=True),
        "harvester_cluster": METADATA,
        "machine": METADATA,
        "name": "own",
        "control_plane": True,
        "owner": SimpleNamespace(uid="uid"),
        # By a clock that is hours ahead.
        "obj": {"metadata": {"deletionTimestamp": "2999-01-01T00:00:00Z"}},
        "draft": SimpleNamespace(is_true=lambda _: True),
        "spec": {},
        "context": SimpleNamespace(workloads=workloads, caches=caches()),
        "in_progress": in_progress,
        "memory": memory,
        "warning_event": lambda reason, _: warnings.append(reason),
        "warnings": warnings,
    }
    return SimpleNamespace(**{**values, **changes})


def cluster(*, initialized: bool) -> dict[str, Any]:
    return {**METADATA, "status": {"initialization": {"controlPlaneInitialized": initialized}}}


def harvester_machine(name: str, *, control_plane: bool = True) -> dict[str, Any]:
    labels = {"cluster.x-k8s.io/control-plane": ""} if control_plane else {}
    return {"metadata": {"name": name, "namespace": "x", "labels": labels}}


def caches(*machines: dict[str, Any]) -> Any:
    return SimpleNamespace(machines_of=lambda _: list(machines))


def failures() -> float:
    return metrics.ETCD_REMOVE_ERRORS._value.get()


def test_silence_is_waited_for() -> None:
    before, scope = failures(), scope_of(Silent(), seconds=1)
    with pytest.raises(Blocked) as blocked:
        asyncio.run(remove_etcd_member(scope))
    assert blocked.value.requeue_after
    assert failures() == before + 1
    assert scope.warnings == []


def test_silence_is_not_waited_for_forever() -> None:
    scope = scope_of(Silent(), seconds=etcd.PATIENCE_SECONDS + 1)
    asyncio.run(remove_etcd_member(scope))
    asyncio.run(remove_etcd_member(scope))
    assert scope.warnings == ["EtcdMemberRemovalFailed"]


def test_patience_begins_when_the_deletion_is_first_seen() -> None:
    memory = MachineMemory("uid")
    scope = scope_of(Silent(), seconds=0, memory=memory)
    with pytest.raises(Blocked):
        asyncio.run(remove_etcd_member(scope))
    assert memory.deletion.seen_at is not None
    memory.deletion.seen_at -= etcd.PATIENCE_SECONDS
    asyncio.run(remove_etcd_member(scope))
    assert scope.warnings == ["EtcdMemberRemovalFailed"]


def test_for_rke2_a_member_that_may_be_left_is_reported_without_delay() -> None:
    """Its provider removes members itself, so nothing waits; metric and alert report what it could not do."""
    before, scope = failures(), scope_of(Silent(), seconds=0, machine=owned_by("RKE2ControlPlane"))
    asyncio.run(remove_etcd_member(scope))
    assert scope.warnings == ["EtcdMemberRemovalFailed"]
    assert failures() == before + 1


def test_nothing_is_removed_and_no_vm_deleted_while_rancher_holds_the_machine() -> None:
    """Nor does patience end that: only the end of the hook does."""
    client = Silent()
    seconds = 10 * etcd.PATIENCE_SECONDS
    scope = scope_of(client, seconds=seconds, machine=of_rancher(hook=True), control_plane=False)
    with pytest.raises(Blocked, match="waiting for Rancher to remove the etcd member: Machine m has its hook"):
        asyncio.run(remove_etcd_member(scope))
    assert client.asked == 0
    assert not scope.memory.deletion.member_removed


def test_a_member_that_rancher_has_left_is_reported_without_delay() -> None:
    client = Silent()
    scope = scope_of(client, seconds=0, machine=of_rancher(), control_plane=False)
    asyncio.run(remove_etcd_member(scope))
    assert client.asked
    assert scope.warnings == ["EtcdMemberRemovalFailed"]


def test_a_control_plane_machine_without_etcd_has_no_member() -> None:
    client, labels = Silent(), {"rke.cattle.io/control-plane-role": "true"}
    machine = of_rancher()
    machine["metadata"]["labels"] = labels
    scope = scope_of(client, seconds=0, machine=machine)
    asyncio.run(remove_etcd_member(scope))
    assert client.asked == 0


@pytest.mark.parametrize(
    ("initialized", "others", "asked"),
    [
        (False, [], False),
        (False, [harvester_machine("worker", control_plane=False)], False),
        (False, [harvester_machine("other")], True),
        (True, [], True),
    ],
    ids=["never up", "never up, with workers", "never up, with another", "up"],
)
def test_the_only_machine_of_a_control_plane_that_never_came_up_leaves_no_member(
    initialized: bool, others: list[dict[str, Any]], asked: bool
) -> None:
    client = Silent()
    scope = scope_of(client, seconds=0, machine=owned_by("RKE2ControlPlane"), cluster=cluster(initialized=initialized))
    scope.context.caches = caches(harvester_machine("own"), *others)
    asyncio.run(remove_etcd_member(scope))
    assert bool(client.asked) is asked
    assert bool(scope.warnings) is asked


GOING = {"metadata": {"name": "x", "namespace": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}}


@pytest.mark.parametrize(
    "changes",
    [
        {"control_plane": False},
        {"cluster": GOING},
        {"harvester_cluster": GOING},
        {"harvester_cluster": None},
        {"machine": owned_by("KubeadmControlPlane")},
        {"machine": owned_by("KThreesControlPlane")},
        {"draft": SimpleNamespace(is_true=lambda _: False)},
        {"cluster_key": None},
    ],
    ids=[
        "worker",
        "cluster in deletion",
        "infrastructure in deletion",
        "no infrastructure",
        "kubeadm",
        "K3s",
        "never made",
        "no cluster",
    ],
)
def test_no_member_is_asked_when_there_is_nothing_to_do(changes: dict[str, Any]) -> None:
    client = Silent()
    asyncio.run(remove_etcd_member(scope_of(client, seconds=1, **changes)))
    assert client.asked == 0


def test_machine_that_was_moved_has_a_member_before_it_has_a_status() -> None:
    client = Silent()
    never_made = SimpleNamespace(is_true=lambda _: False)
    scope = scope_of(client, seconds=1, draft=never_made, spec={"providerID": "harvester://uid"})
    with pytest.raises(Blocked):
        asyncio.run(remove_etcd_member(scope))
    assert client.asked


def test_no_kubeconfig_means_no_etcd() -> None:
    asyncio.run(remove_etcd_member(scope_of(None, seconds=1)))


# Distributions, which run etcd in a Pod with files of their own, or without a Pod


class Workload:
    """A workload cluster with these Pods of etcd, and Nodes `own` and `other` of this version."""

    budget = None

    def __init__(self, *pods: dict[str, Any], version: str = "v1.36.0") -> None:
        self._pods = list(pods)
        self._version = version

    async def list(self, *_: Any, **__: Any) -> Any:
        return {"metadata": {}, "items": self._pods}

    async def get(self, _resource: Any, name: str, *_: str) -> Any:
        return {"metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": self._version}}}


def scope_on(client: Workload, *, seconds: float = 1, others: tuple[str, ...] = ("other",), **changes: Any) -> Any:
    """A scope whose cluster has further control plane machines with Nodes."""
    scope = scope_of(client, seconds=seconds, **changes)
    scope.context.caches = caches(harvester_machine("own"), *map(harvester_machine, others))
    scope.context.workloads.node = lambda _, name: {"metadata": {"name": name}} if name in others else None
    scope.events = []
    scope.event = lambda reason, _: scope.events.append(reason)
    return scope


@pytest.mark.parametrize(("folder", "options"), [("/etc/kubernetes/pki/etcd", ETCDCTL_KUBEADM), ("/db", ETCDCTL)])
def test_member_is_removed_with_the_certificates_that_the_pod_has(
    monkeypatch: pytest.MonkeyPatch, folder: str, options: tuple[str, ...]
) -> None:
    """A control plane of kubeadm may have no KubeadmControlPlane, which would remove the member."""
    commands: list[list[str]] = []

    async def run(_client: Any, _namespace: str, _pod: str, _container: str, command: list[str], **_: Any) -> bytes:
        commands.append(command)
        if tuple(command[: len(options)]) != options:
            raise ExecError("open server-ca.crt: no such file or directory")
        return json.dumps({"members": [{"ID": 1, "name": "own"}, {"ID": 2, "name": "other"}]}).encode()

    monkeypatch.setattr(runtime_etcd, "pod_exec", run)
    mounted = pod("etcd-other", "other")
    mounted["spec"]["containers"][0]["volumeMounts"] = [{"mountPath": folder}, {"mountPath": "/var/lib/etcd"}]
    scope = scope_on(Workload(mounted))
    asyncio.run(remove_etcd_member(scope))
    assert commands[-1][-3:] == ["member", "remove", "1"]
    assert (scope.events, scope.warnings) == (["EtcdMemberRemoved"], [])


def test_member_that_no_pod_can_remove_is_reported() -> None:
    before, scope = failures(), scope_on(Workload())
    with pytest.raises(Blocked, match="no Pod of etcd runs on another Node"):
        asyncio.run(remove_etcd_member(scope))
    assert scope.warnings == []
    scope.memory.deletion.seen_at -= etcd.PATIENCE_SECONDS
    asyncio.run(remove_etcd_member(scope))
    assert scope.warnings == ["EtcdMemberRemovalFailed"]
    assert failures() == before + 2


@pytest.mark.parametrize(
    ("client", "changes"),
    [
        (Workload(version="v1.36.0+k3s1"), {}),
        (Workload(), {"others": ()}),
        (Workload(), {"machine": owned_by("RKE2ControlPlane")}),
        (Workload(), {"machine": of_rancher(), "control_plane": False}),
    ],
    ids=["K3s removes it with the Node", "last member", "RKE2's provider has removed it", "Rancher has removed it"],
)
def test_without_a_pod_nothing_is_reported_if_nothing_has_to_be_removed(
    client: Workload, changes: dict[str, Any]
) -> None:
    scope = scope_on(client, **changes)
    asyncio.run(remove_etcd_member(scope))
    assert scope.warnings == []
    assert scope.memory.deletion.member_removed
