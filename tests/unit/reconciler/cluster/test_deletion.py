"""When a deletion may end without Harvester, and what it says of what it leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.conditions import get_condition
from caphv.api.names import CLUSTER_FINALIZER, ConditionType, Reason
from caphv.api.object import Key, Obj
from caphv.runtime.errors import ApiError, Forbidden, Invalid
from caphv.runtime.queue import WorkQueue
from reconciler.blocked import Blocked
from reconciler.cluster import connection, deletion, guestbalancers, guestvolumes, identity, limits
from reconciler.cluster.controller import ClusterReconciler
from reconciler.cluster.deletion import advice, left_over, may_force_delete, was_never_provisioned
from reconciler.cluster.identityprotection import IdentityProtection
from reconciler.cluster.scope import ClusterScope
from reconciler.memory import periods
from reconciler.memory.store import Memory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics, Watched

pytestmark = pytest.mark.unit

PASSING = [
    Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
    Reason.HARVESTER_CONNECTION_IN_PROGRESS,
    Reason.TARGET_NAMESPACE_CHECKING,
]
LASTING = [
    Reason.HARVESTER_CONNECTION_FAILED,
    Reason.HARVESTER_AUTHENTICATION_FAILED,
    Reason.ANOTHER_HARVESTER,
    Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
    Reason.TARGET_NAMESPACE_NOT_READY,
]


def blocked(reason: Reason) -> Blocked:
    return Blocked(ConditionType.HARVESTER_CONNECTION_READY, reason, "message", Watched.CONNECTION)


def cluster(annotation: str = "true", **spec: Any) -> Obj:
    full = {"targetNamespace": "vms", "server": "https://h", "loadBalancerConfig": {"ipamType": "dhcp"}, **spec}
    annotations = {"caphv.io/force-delete": annotation}
    return {"metadata": {"namespace": "clusters", "name": "demo", "annotations": annotations}, "spec": full}


@pytest.mark.parametrize("reason", LASTING)
def test_what_does_not_pass_may_be_left(reason: Reason) -> None:
    assert may_force_delete(cluster(), blocked(reason))
    assert not may_force_delete(cluster("false"), blocked(reason))
    assert "caphv.io/force-delete" in advice(cluster("false"), blocked(reason))


@pytest.mark.parametrize("reason", PASSING)
def test_what_passes_is_waited_for_all_the_same(reason: Reason) -> None:
    assert not may_force_delete(cluster(), blocked(reason))
    assert advice(cluster(), blocked(reason)) == ""


def scope_of(*, synced: bool, refusal: str = "", error: str = "") -> ClusterScope:
    """A scope whose target namespace is not current."""
    namespace = SimpleNamespace(synced=synced, current=False, sync_error=error)
    session: Any = SimpleNamespace(
        fingerprint="harvester",
        watch_namespace=lambda _: namespace,
        refusal=lambda *_: refusal,
        pools=SimpleNamespace(current=True),
        services=SimpleNamespace(current=True),
    )
    context: Any = SimpleNamespace(topics=Topics(), queues=SimpleNamespace(clusters=WorkQueue[Key]("test")))
    return ClusterScope(context, cluster(), cluster(), StatusDraft(cluster()), session)


@pytest.mark.parametrize("synced", [False, True], ids=["never read", "read before"])
def test_namespace_that_the_account_may_not_read_is_no_passing_state(synced: bool) -> None:
    scope = scope_of(synced=synced, refusal="cannot list virtualmachines", error="" if synced else "cannot list")
    with pytest.raises(Blocked, match=r"cannot list virtualmachines.*--target-namespace vms") as found:
        scope.require_current_namespace()
    assert (found.value.reason, found.value.warn, found.value.is_unknown) == ("TargetNamespaceNotReady", True, False)
    assert may_force_delete(scope.obj, found.value)
    scope.context.topics.notify(("caches", "harvester"))
    assert len(scope.context.queues.clusters) == 1


@pytest.mark.parametrize("error", ["", "HTTP 503"])
def test_namespace_that_is_being_read_is_waited_for(error: str) -> None:
    with pytest.raises(Blocked, match=error or "reading namespace vms") as found:
        scope_of(synced=not error, error=error).require_current_namespace()
    assert (found.value.warn, found.value.is_unknown) == (bool(error), not error)
    assert not may_force_delete(cluster(), found.value)


class Deleted:
    """A HarvesterCluster that is being deleted, and of which a request is refused; no machines by default."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: ApiError, annotation: str) -> None:
        async def passes(*_: object) -> None:
            return None

        async def fails(_: object) -> None:
            raise error

        steps = (
            (identity, "ensure_session"),
            (connection, "ensure_connection"),
            (guestbalancers, "record_guest"),
            (guestvolumes, "record_volumes"),
        )
        for module, name in steps:
            monkeypatch.setattr(module, name, passes)
        monkeypatch.setattr(limits, "report_limits", lambda _: None)
        monkeypatch.setattr(deletion, "delete_infrastructure", fails)
        self.obj = cluster(annotation)
        self.obj["metadata"] |= {"uid": "u", "finalizers": [CLUSTER_FINALIZER], "deletionTimestamp": "2026-01-01"}
        self.obj["status"] = {"harvester": {"uid": "h"}}
        self.cluster: Obj | None = {"metadata": {"namespace": "clusters", "name": "demo"}}
        self.machines: list[Obj] = []
        self.message = self.reason = ""
        self.events: list[str] = []
        self.gone = False
        self.memory = Memory()

    async def reconcile(self) -> float | None:
        caches = SimpleNamespace(
            harvester_clusters=SimpleNamespace(get=lambda *_: self.obj),
            cluster_of=lambda _: self.cluster,
            machines_of=lambda _: self.machines,
        )
        context: Any = SimpleNamespace(
            caches=caches,
            memory=self.memory,
            queues=SimpleNamespace(clusters=WorkQueue[Key]("test"), machines=WorkQueue[Key]("test")),
            event=lambda _kind, _obj, _type, reason, _message: self.events.append(reason),
            remove_finalizer=self._remove_finalizer,
            write_status=self._write_status,
            allow_insecure_identities=False,
            namespace="",
            sessions=SimpleNamespace(of=lambda _: None),
            topics=Topics(),
        )
        reconciler = ClusterReconciler(context, cast(IdentityProtection, None))
        result = await reconciler.reconcile(Key("clusters", "demo"))
        return result.requeue_after if result else None

    async def _remove_finalizer(self, *_: object) -> None:
        self.gone = True

    async def _write_status(self, _caches: object, _obj: Obj, draft: StatusDraft) -> None:
        ready = get_condition(draft.fields["conditions"], "Ready")
        self.message, self.reason = (ready["message"], ready["reason"]) if ready else ("", "")


def refusal(kind: type[ApiError], server: str) -> ApiError:
    error = kind(403, "", "cannot delete loadbalancers")
    error.server = server
    return error


@pytest.mark.parametrize("kind", [Forbidden, Invalid])
async def test_deletion_that_harvester_refuses_ends_on_request(
    monkeypatch: pytest.MonkeyPatch, kind: type[ApiError]
) -> None:
    waiting = Deleted(monkeypatch, refusal(kind, "harvester"), annotation="")
    with pytest.raises(kind):
        await waiting.reconcile()
    assert "refused by Harvester: cannot delete loadbalancers" in waiting.message
    assert 'set annotation caphv.io/force-delete: "true"' in waiting.message
    assert ("--target-namespace vms" in waiting.message) is (kind is Forbidden)
    assert not waiting.gone
    forced = Deleted(monkeypatch, refusal(kind, "harvester"), annotation="true")
    await forced.reconcile()
    assert (forced.gone, forced.events) == (True, ["ForcedDeletion"])


async def test_refusal_of_another_server_is_no_reason_to_leave_objects_on_harvester(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forced = Deleted(monkeypatch, refusal(Forbidden, "management"), annotation="true")
    with pytest.raises(Forbidden):
        await forced.reconcile()
    assert not forced.gone
    assert forced.message == "a request was refused by the management cluster: cannot delete loadbalancers"


@pytest.mark.parametrize(
    ("status", "machines", "gone"),
    [({}, [], True), ({"harvester": {"uid": "h"}}, [], False), ({}, [{"metadata": {"name": "one"}}], False)],
    ids=["never connected", "was connected", "has a machine"],
)
async def test_cluster_that_never_reached_harvester_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, status: Obj, machines: list[Obj], gone: bool
) -> None:
    async def fails(_: object) -> None:
        raise blocked(Reason.HARVESTER_CONNECTION_FAILED)

    waiting = Deleted(monkeypatch, refusal(Forbidden, "harvester"), annotation="")
    monkeypatch.setattr(connection, "ensure_connection", fails)
    waiting.obj["status"], waiting.machines = status, machines
    await waiting.reconcile()
    assert (waiting.gone, waiting.message == "") == (gone, gone)


@pytest.mark.parametrize(
    "reason",
    [Reason.HARVESTER_UNREACHABLE, Reason.HARVESTER_AUTHENTICATION_FAILED, Reason.HARVESTER_CONNECTION_FAILED],
)
async def test_only_a_lasting_outage_ends_a_deletion_on_request(
    monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    async def fails(_: object) -> None:
        raise blocked(reason)

    forced = Deleted(monkeypatch, refusal(ApiError, "harvester"), annotation="true")
    passes = connection.ensure_connection
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(periods, "time", SimpleNamespace(monotonic=lambda: now.seconds))

    for seconds in (0, 59):
        now.seconds += seconds
        monkeypatch.setattr(connection, "ensure_connection", fails)
        assert await forced.reconcile() == 60 - seconds
        assert forced.message.endswith("message; force-deleting the cluster if that lasts 60 s")
    # An answer of Harvester begins the wait again.
    monkeypatch.setattr(connection, "ensure_connection", passes)
    with pytest.raises(ApiError):
        await forced.reconcile()
    now.seconds += 10
    monkeypatch.setattr(connection, "ensure_connection", fails)
    assert await forced.reconcile() == 60
    assert not forced.gone

    # Machines do not stop the clock.
    forced.machines = [{"metadata": {"name": "one"}}]
    now.seconds += 30
    await forced.reconcile()
    forced.machines = []
    now.seconds += 30
    await forced.reconcile()
    assert (forced.gone, forced.events) == (True, ["ForcedDeletion"])


class Orphaned(Deleted):
    """A HarvesterCluster with an owner that is being deleted after its Cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, annotation: str = "", **metadata: Any) -> None:
        super().__init__(monkeypatch, refusal(Forbidden, "harvester"), annotation)
        self.cluster = None
        owner = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "demo", "uid": "c"}
        self.obj["metadata"] |= {"ownerReferences": [owner], **metadata}
        self.obj["metadata"]["annotations"] |= metadata.get("annotations") or {}


async def test_deletion_without_its_cluster_waits_for_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Cluster may have been moved: what would be deleted here is in use there."""
    orphan = Orphaned(monkeypatch)
    await orphan.reconcile()
    assert (orphan.gone, orphan.reason, orphan.events) == (
        False,
        "InfrastructureProvisioningFailed",
        ["InfrastructureProvisioningFailed"],
    )
    assert "caphv.io/force-delete" in orphan.message


async def test_deletion_without_its_cluster_ends_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = Orphaned(monkeypatch, annotation="true")
    await orphan.reconcile()
    assert (orphan.gone, orphan.events) == (True, ["ForcedDeletion"])


async def test_deletion_without_its_cluster_waits_for_machines_first(monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = Orphaned(monkeypatch, annotation="true")
    orphan.machines = [{"metadata": {"name": "one"}}]
    await orphan.reconcile()
    assert (orphan.gone, orphan.reason) == (False, "InfrastructureProvisioningInProgress")


@pytest.mark.parametrize(
    "metadata",
    [{"annotations": {"cluster.x-k8s.io/paused": ""}}, {"finalizers": ["example.com/keep"]}, {"finalizers": None}],
    ids=["paused", "kept by others", "done"],
)
async def test_paused_or_finished_deletion_without_its_cluster_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, metadata: Obj
) -> None:
    orphan = Orphaned(monkeypatch, annotation="true")
    orphan.obj["metadata"] |= {
        **metadata,
        "annotations": {"caphv.io/force-delete": "true", **metadata.get("annotations", {})},
    }
    await orphan.reconcile()
    assert (orphan.gone, orphan.events, orphan.message) == (False, [], "")


async def test_cluster_that_never_had_an_owner_is_deleted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = Orphaned(monkeypatch, ownerReferences=[])
    del orphan.obj["status"]
    await orphan.reconcile()
    assert (orphan.gone, orphan.events) == (True, [])


async def test_cluster_whose_owner_was_removed_leaves_nothing_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    orphan = Orphaned(monkeypatch, ownerReferences=[])
    await orphan.reconcile()
    assert (orphan.gone, orphan.events) == (False, ["InfrastructureProvisioningFailed"])
    assert "caphv.io/force-delete" in orphan.message


def test_all_that_may_be_left_is_named() -> None:
    message = left_over(
        cluster(
            controlPlaneEndpoint={"host": "10.0.0.9", "port": 6443},
            loadBalancerConfig={"ipamType": "pool", "ipPool": {"subnet": "10.0.0.0/24"}},
            vmNetworkConfig={"ipPool": {"subnet": "10.1.0.0/24"}},
        )
    )
    for part in ("https://h", "vms/clusters-demo-lb", "10.0.0.9", "clusters-demo-ippool", "clusters-demo-vm-ippool"):
        assert part in message


def test_what_was_never_made_is_not_named() -> None:
    message = left_over(cluster(controlPlaneEndpoint={"host": "10.0.0.9", "port": 6443}, server=None))
    assert "10.0.0.9" not in message
    assert "IPPool" not in message
    assert "ServiceAccount" not in message
    assert "Harvester (unknown)" in message


@pytest.mark.parametrize("field", ["cloudConfig", "updateCloudProviderConfig"])
def test_account_of_guests_may_be_left(field: str) -> None:
    assert "ServiceAccount" in left_over(cluster(**{field: {"delivery": "Secret"}}))


def test_cluster_that_never_reached_harvester_can_be_deleted() -> None:
    never = cluster(controlPlaneEndpoint={"host": "0.0.0.0", "port": 6443})
    assert was_never_provisioned({**never, "status": {"conditions": [{"type": "Ready", "status": "False"}]}})
    # The API server has dropped the status, or a version before conditions wrote it.
    for status in ({}, {"conditions": None}, {"ready": False}, None):
        assert was_never_provisioned({**never, "status": status})
    assert was_never_provisioned(never)
    # A described pool has a name once it was created, one that only has a name is another's.
    for config in ({"ipPool": {"subnet": "10.1.0.0/24"}}, {"ipPoolRef": "shared"}):
        assert was_never_provisioned(cluster(vmNetworkConfig=config))


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"controlPlaneEndpoint": {"host": "10.0.0.9", "port": 6443}}, {}),
        ({"vmNetworkConfig": {"ipPool": {"subnet": "10.1.0.0/24"}, "ipPoolRef": "made"}}, {}),
        ({"loadBalancerConfig": {"ipamType": "pool", "ipPool": {"subnet": "10.1.0.0/24"}, "ipPoolRef": "made"}}, {}),
        ({}, {"harvester": {"uid": "u"}}),
        ({}, {"initialization": {"provisioned": True}}),
        ({}, {"conditions": [{"type": "TargetNamespaceReady", "status": "True"}]}),
    ],
    ids=[
        "moved with an endpoint",
        "moved with a pool",
        "moved with a pool of load balancers",
        "connected",
        "provisioned",
        "namespace created",
    ],
)
def test_cluster_that_may_have_something_on_harvester_is_not_simply_deleted(spec: Obj, status: Obj) -> None:
    assert not was_never_provisioned({**cluster(**spec), "status": status})
