"""Which changes requeue a machine and its cluster: not those that leave nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import resources
from caphv.api.names import (
    CONTROL_PLANE_LABEL,
    EVACUATE_ANNOTATION,
    GUEST_OF_ANNOTATION,
    LOAD_BALANCER_SUFFIX,
    MAINTENANCE_ANNOTATION,
    PARK_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    UNINITIALIZED_TAINT,
    generated_names,
)
from caphv.api.object import NODES, PERSISTENT_VOLUME_CLAIMS, SERVICES, Key, Obj, Resource
from caphv.runtime.cache import Change
from caphv.runtime.queue import WorkQueue
from reconciler import triggers
from reconciler.context import Context
from reconciler.eventhandlers import EventHandlers
from reconciler.harvester.session import Session
from reconciler.harvesterhandlers import HarvesterHandlers
from reconciler.machine.guestlabels import VM_LABELS
from reconciler.predicates import may_serve_more
from reconciler.triggers import Topics

pytestmark = pytest.mark.unit

CLUSTER, MACHINE = Key("team", "cluster"), Key("team", "one")
PROVIDER_ID = "harvester://uid"
READY: Obj = {"conditions": [{"type": "Ready", "status": "True"}]}
TAINTS = [{"key": UNINITIALIZED_TAINT, "value": "true", "effect": "NoSchedule"}]


@dataclass(eq=False)
class OpenSession:
    """A session with caches of namespaces."""

    namespaces: dict[str, Any]


class Fixture:
    """Handlers of one machine."""

    def __init__(self, **spec: str) -> None:
        self.queue: WorkQueue[Key] = WorkQueue("test")
        self.clusters: WorkQueue[Key] = WorkQueue("clusters")
        self.cluster: Obj = {"metadata": {"namespace": CLUSTER.namespace, "name": CLUSTER.name}, "status": READY}
        machine = {"metadata": {"namespace": MACHINE.namespace, "name": MACHINE.name}, "spec": spec}
        self.machines = [machine]
        store = SimpleNamespace(by_index=lambda *_: [machine])
        caches = SimpleNamespace(
            harvester_clusters=SimpleNamespace(get=lambda *_: self.cluster),
            harvester_machines=SimpleNamespace(get=lambda *_: machine, store=store),
            cluster_of=lambda _: self.cluster,
            machines_of=lambda _: self.machines,
            harvester_cluster_of=lambda _: self.cluster,
        )
        queues = SimpleNamespace(clusters=self.clusters, machines=self.queue, templates=None, identities=None)
        sessions = SimpleNamespace(uses=lambda *_: True, users=lambda *_: [CLUSTER])
        context = cast(Context, SimpleNamespace(caches=caches, queues=queues, sessions=sessions))
        self.handlers, self.harvester = EventHandlers(context), HarvesterHandlers(context)

    def node(self, old: Obj | None, new: Obj | None) -> bool:
        self.handlers.node(CLUSTER, Change(NODES, old, new))
        return len(self.queue) > 0

    def vm(self, old: Obj | None, new: Obj | None) -> bool:
        sessions: dict[Session, None] = {}
        self.harvester.handle(sessions, Change(resources.VIRTUAL_MACHINES, old, new))
        return len(self.queue) > 0

    def deleted(self, **labels: str) -> bool:
        """Delete the machine; return whether its cluster is requeued."""
        machine = {"metadata": {"namespace": MACHINE.namespace, "name": MACHINE.name, "labels": labels}}
        self.handlers.harvester_machine(Change(resources.HARVESTER_MACHINES, machine, None))
        return len(self.clusters) > 0


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_new_claim_requeues_clusters_that_delete_volumes(policy: str) -> None:
    """A VM may list it before the cache has it. An update matters to none."""
    fixture = Fixture()
    fixture.cluster["spec"] = {"guestVolumes": policy}
    metadata = {"namespace": "vms", "name": "pvc-1", "annotations": {GUEST_OF_ANNOTATION: "uid:entry"}}
    claim: Obj = {"metadata": metadata}
    sessions: dict[Session, None] = {cast(Session, None): None}
    for old, new, matters in ((None, claim, True), (claim, claim, False), (claim, None, True)):
        fixture.clusters = WorkQueue("clusters")
        cast(Any, fixture.harvester)._clusters = fixture.clusters
        fixture.harvester.handle(sessions, Change(PERSISTENT_VOLUME_CLAIMS, old, new))
        assert len(fixture.clusters) == (matters and policy == "Delete")


@pytest.mark.parametrize(("annotation", "matters"), [({GUEST_OF_ANNOTATION: "uid:entry"}, True), ({}, False)])
def test_volume_that_a_guest_had_requeues_every_cluster_that_may_have_it_now(
    annotation: dict[str, str], matters: bool
) -> None:
    fixture = Fixture()
    fixture.cluster["spec"] = {}
    claim: Obj = {"metadata": {"namespace": "vms", "name": "pvc-1", "annotations": annotation}}
    namespace = SimpleNamespace(claims=SimpleNamespace(get=lambda *_: claim))
    session = cast(Session, OpenSession({"vms": namespace}))
    before, plugged = vm({}), vm({})
    source = {"claimName": "pvc-1", "hotpluggable": True}
    plugged["spec"] = {"template": {"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": source}]}}}
    fixture.harvester.handle({session: None}, Change(resources.VIRTUAL_MACHINES, before, plugged))
    assert len(fixture.clusters) == matters


def test_limit_of_a_harvester_requeues_its_clusters() -> None:
    fixture = Fixture()
    fixture.harvester.limits(cast(Session, None))
    assert len(fixture.clusters) == 1


def node(uid: str = "1", **spec: Any) -> Obj:
    return {"metadata": {"name": MACHINE.name, "uid": uid}, "spec": spec}


def vm(status: Obj, uid: str = "uid") -> Obj:
    return {"metadata": {"namespace": "vms", "name": MACHINE.name, "uid": uid}, "status": status}


INITIALIZED = node(providerID=PROVIDER_ID)


def test_initialization_of_a_node_does_not_requeue_its_machine() -> None:
    assert not Fixture(providerID=PROVIDER_ID).node(node(taints=TAINTS), INITIALIZED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(None, INITIALIZED, id="registers"),
        pytest.param(INITIALIZED, None, id="deleted"),
        pytest.param(INITIALIZED, node(uid="2", providerID=PROVIDER_ID), id="registers again"),
        pytest.param(INITIALIZED, node(providerID=PROVIDER_ID, taints=TAINTS), id="tainted"),
        pytest.param(node(taints=TAINTS), node(), id="without providerID"),
        pytest.param(node(), node(providerID="other://1"), id="providerID of another cloud provider"),
    ],
)
def test_other_changes_of_a_node_requeue_its_machine(old: Obj | None, new: Obj | None) -> None:
    assert Fixture(providerID=PROVIDER_ID).node(old, new)


@pytest.mark.parametrize("before", [{}, {"nodeInfo": {"systemUUID": "former"}}], ids=["unknown", "another"])
def test_node_that_turns_out_to_be_the_guest_of_the_vm_requeues_its_machine(before: Obj) -> None:
    """An earlier machine may have left the Node, and the kubelet of the new guest takes it over."""
    old, new = {**INITIALIZED, "status": before}, {**INITIALIZED, "status": {"nodeInfo": {"systemUUID": "guest"}}}
    assert Fixture(providerID=PROVIDER_ID).node(old, new)
    assert not Fixture(providerID=PROVIDER_ID).node(new, new)


def test_node_that_gets_a_provider_id_requeues_a_machine_without_one() -> None:
    assert Fixture().node(node(), INITIALIZED)


def test_vm_without_status_does_not_requeue_its_machine() -> None:
    assert not Fixture().vm(None, vm({}))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(vm({}), vm({"printableStatus": "Starting"}), id="first status"),
        pytest.param(None, vm({"printableStatus": "Stopped"}), id="appears with a status"),
        pytest.param(vm({}), None, id="deleted"),
        pytest.param(vm({}), vm({}, uid="other"), id="recreated"),
    ],
)
def test_other_changes_of_a_vm_requeue_its_machine(old: Obj | None, new: Obj | None) -> None:
    assert Fixture().vm(old, new)


@pytest.mark.parametrize("annotations", [{PARK_ANNOTATION: "true"}, {PARKED_SINCE_ANNOTATION: "x"}, {}])
def test_worker_that_starts_while_its_cluster_is_parked_requeues_the_cluster(annotations: dict[str, str]) -> None:
    fixture = Fixture()
    fixture.cluster["metadata"]["annotations"] = annotations
    fixture.vm(vm({"printableStatus": "Stopped"}), vm({"printableStatus": "Starting"}))
    assert (len(fixture.clusters) == 1) is bool(annotations)


@pytest.mark.parametrize(
    ("annotation", "requeued"),
    [
        ("caphv.io/evacuate", True),
        ("harvesterhci.io/drain-requested", True),
        ("harvesterhci.io/drain-forced", True),
        ("harvesterhci.io/maintain-status", True),
        ("harvesterhci.io/other", False),
    ],
)
def test_host_that_is_about_to_be_drained_requeues_its_clusters(annotation: str, requeued: bool) -> None:
    fixture = Fixture()
    host: Obj = {"metadata": {"name": "h0", "annotations": {annotation: "x"}}}
    change = Change(NODES, {"metadata": {"name": "h0"}}, host)
    fixture.harvester.handle({cast(Session, None): None}, change)
    assert (len(fixture.clusters) == 1) is requeued


@pytest.mark.parametrize(
    ("before", "after", "requeued"),
    [("", "h0", True), ("h0", "h1", True), ("h0", "h0", False), ("", "h1", False), ("h1", "h9", False)],
)
def test_instance_that_comes_to_an_evacuated_host_requeues_its_cluster(before: str, after: str, requeued: bool) -> None:
    hosts = {"h0": {"metadata": {"annotations": {EVACUATE_ANNOTATION: "true"}}}, "h1": {"metadata": {}}}

    class Evacuated:
        hosts = SimpleNamespace(get=lambda _, name: hosts.get(name))

    fixture, sessions = Fixture(), {cast(Session, Evacuated()): None}
    old, new = vm({"nodeName": before, "phase": "Scheduled"}), vm({"nodeName": after, "phase": "Running"})
    fixture.harvester.handle(sessions, Change(resources.VIRTUAL_MACHINE_INSTANCES, old, new))
    assert (len(fixture.clusters) == 1) is requeued


@pytest.mark.parametrize("name", VM_LABELS)
def test_label_that_a_user_removes_from_a_vm_requeues_its_machine(name: str) -> None:
    labelled, bare = vm({"printableStatus": "Running"}), vm({"printableStatus": "Running"})
    labelled["metadata"]["labels"] = {name: "value", "team": "blue"}
    bare["metadata"]["labels"] = {"team": "red"}
    assert Fixture().vm(labelled, bare)
    assert not Fixture().vm(bare, vm({"printableStatus": "Running"})), "other labels are no concern of the machine"


@pytest.mark.parametrize(
    ("status", "matters"),
    [
        ({"currentCPUTopology": {"sockets": 4}}, True),
        ({"memory": {"guestCurrent": "8Gi"}}, True),
        ({"memory": {"guestAtBoot": "8Gi"}}, False),
        ({"conditions": [{"type": "LiveMigratable", "status": "True"}]}, True),
    ],
)
def test_size_of_an_instance_requeues_only_a_machine_that_can_grow(status: Obj, matters: bool) -> None:
    old = vm({"phase": "Running"})
    change = Change(resources.VIRTUAL_MACHINE_INSTANCES, old, vm({"phase": "Running", **status}))
    for maxima, requeued in (({}, False), ({"memoryMax": "32Gi"}, matters)):
        fixture = Fixture(**maxima)
        fixture.harvester.handle({}, change)
        assert (len(fixture.queue) == 1) is requeued


@pytest.mark.parametrize(
    ("spec", "annotations", "requeued"),
    [
        ({"unschedulable": True}, {}, True),
        ({}, {MAINTENANCE_ANNOTATION: "running"}, True),
        ({"taints": [{"key": "a"}]}, {}, False),
    ],
)
def test_host_that_takes_no_vms_any_more_requeues_machines_that_can_grow(
    spec: Obj, annotations: dict[str, str], requeued: bool
) -> None:
    metadata = {"name": "host"}
    open_host: Obj = {"metadata": metadata, "spec": {}}
    closed_host: Obj = {"metadata": {**metadata, "annotations": annotations}, "spec": spec}
    sessions: dict[Session, None] = {cast(Session, None): None}
    for old, new in ((open_host, closed_host), (closed_host, open_host)):
        for maxima in ({}, {"cpuMax": "8"}):
            fixture = Fixture(**maxima)
            fixture.harvester.handle(sessions, Change(NODES, old, new))
            assert (len(fixture.queue) == 1) is (requeued and bool(maxima))


def test_labels_that_an_instance_gets_from_its_vm_do_not_requeue_the_machine() -> None:
    labelled = vm({"phase": "Running"})
    labelled["metadata"]["labels"] = dict.fromkeys(VM_LABELS, "value")
    fixture = Fixture()
    fixture.harvester.handle({}, Change(resources.VIRTUAL_MACHINE_INSTANCES, vm({"phase": "Running"}), labelled))
    assert len(fixture.queue) == 0


def test_deletion_of_a_machine_does_not_requeue_a_cluster_that_is_ready() -> None:
    assert not Fixture().deleted()


def test_deletion_of_a_control_plane_machine_requeues_its_cluster() -> None:
    assert Fixture().deleted(**{CONTROL_PLANE_LABEL: ""})


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(None, id="created"),
        pytest.param({"ownerReferences": [{"kind": "RKE2ControlPlane"}]}, id="owned by its Machine"),
        pytest.param({"ready": False}, id="ready"),
    ],
)
async def test_new_control_plane_machine_requeues_the_others_of_the_control_plane(before: Obj | None) -> None:
    """The older one stays until the load balancer serves the newer one."""
    fixture, labels = Fixture(), {CONTROL_PLANE_LABEL: ""}
    metadata = {"namespace": MACHINE.namespace, "name": "new", "labels": labels}
    new: Obj = {"metadata": {**metadata, "ownerReferences": [{"kind": "Machine"}]}, "status": {"ready": True}}
    former: Obj | None = None
    if before is not None:
        former = {"metadata": {**new["metadata"], **before}, "status": {"ready": before.get("ready", True)}}
    old: Obj = {"metadata": {"namespace": MACHINE.namespace, "name": "old", "labels": labels}}
    fixture.machines += [old, new]
    fixture.handlers.harvester_machine(Change(resources.HARVESTER_MACHINES, former, new))
    assert {(await fixture.queue.get()).name for _ in range(len(fixture.queue))} >= {"old"}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"status": {}}, id="not ready"),
        pytest.param({"status": {**READY, "failureDomains": [{"name": "a"}]}}, id="failure domain not available"),
        pytest.param(
            {"metadata": {"namespace": "team", "name": "cluster", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
            id="being deleted",
        ),
    ],
)
def test_deletion_of_a_machine_requeues_a_cluster_that_may_wait_for_it(changes: Obj) -> None:
    fixture = Fixture()
    fixture.cluster |= changes
    assert fixture.deleted()


async def test_deletion_of_a_machine_requeues_a_cluster_that_is_being_reconciled() -> None:
    fixture = Fixture()
    fixture.clusters.add(CLUSTER)
    await fixture.clusters.get()
    fixture.deleted()
    fixture.clusters.done(CLUSTER)
    assert len(fixture.clusters) == 1


@pytest.mark.parametrize(
    ("kind", "old", "new", "freed"),
    [
        (SERVICES, {"spec": {"loadBalancerIP": "10.0.0.1"}}, None, True),
        (SERVICES, {"spec": {"loadBalancerIP": "10.0.0.1"}}, {"spec": {"loadBalancerIP": "10.0.0.2"}}, True),
        (SERVICES, {"spec": {"loadBalancerIP": "10.0.0.1"}}, {"spec": {"loadBalancerIP": "10.0.0.1"}}, False),
        (SERVICES, None, {"spec": {"loadBalancerIP": "10.0.0.1"}}, False),
        (SERVICES, {"spec": {"loadBalancerIP": "0.0.0.0"}}, None, False),
        (resources.LOAD_BALANCERS, {"spec": {}, "status": {"address": "10.0.0.1"}}, None, True),
    ],
)
def test_address_that_a_load_balancer_no_longer_holds_wakes_who_waits_for_a_pool(
    kind: Resource, old: Obj | None, new: Obj | None, freed: bool
) -> None:
    """The pool itself does not change when a placeholder is deleted whose address was freed in it before."""
    topics, queue = Topics(), WorkQueue[Key]("waiting")
    topics.subscribe(queue, Key("team", "waits"), triggers.pool("account", "balancers"))
    context = SimpleNamespace(
        caches=None,
        queues=SimpleNamespace(clusters=None, machines=None, templates=None, identities=None),
        sessions=SimpleNamespace(users=lambda *_: ()),
        topics=topics,
    )
    session = SimpleNamespace(fingerprint="account", pools=SimpleNamespace(store=[{"metadata": {"name": "balancers"}}]))
    metadata = {"metadata": {"namespace": "vms", "name": "lb"}}
    change = Change(kind, old and {**metadata, **old}, new and {**metadata, **new})
    HarvesterHandlers(cast(Context, context)).handle(cast(Mapping[Session, None], [session]), change)
    assert (len(queue) == 1) is freed


@pytest.mark.parametrize(
    ("annotation", "wakes"),
    [("addresses.caphv.io/10.0.0.1", False), ("caphv.io/superseded-version", False), ("team.io/note", True)],
)
def test_own_annotation_of_a_pool_wakes_none_of_those_that_wait_for_it(annotation: str, wakes: bool) -> None:
    old: Obj = {"metadata": {"name": "balancers"}}
    new: Obj = {"metadata": {"name": "balancers", "annotations": {annotation: "7"}}}
    assert may_serve_more(Change(resources.IP_POOLS, old, new)) is wakes


@pytest.mark.parametrize("new", [None, {"metadata": {"name": "balancers"}, "status": {}}])
@pytest.mark.parametrize(("holder", "requeued"), [("vms/team-cluster-lb", True), ("vms/other", False)])
def test_entry_that_a_load_balancer_loses_requeues_its_cluster(holder: str, requeued: bool, new: Obj | None) -> None:
    clusters: WorkQueue[Key] = WorkQueue("clusters")
    cluster = {"metadata": {"namespace": CLUSTER.namespace, "name": CLUSTER.name}}
    assert "team-cluster-lb" in generated_names(cluster, LOAD_BALANCER_SUFFIX)
    context = SimpleNamespace(
        caches=SimpleNamespace(
            harvester_machines=SimpleNamespace(get=lambda *_: None),
            harvester_clusters=SimpleNamespace(get=lambda *_: cluster),
        ),
        queues=SimpleNamespace(clusters=clusters, machines=None, templates=None, identities=None),
        sessions=SimpleNamespace(users=lambda _session, namespace: [CLUSTER] if namespace == "vms" else []),
        topics=Topics(),
    )
    session = SimpleNamespace(fingerprint="account")
    old = {"metadata": {"name": "balancers"}, "status": {"allocated": {"10.0.0.1": holder}}}
    handlers = HarvesterHandlers(cast(Context, context))
    handlers.handle(cast(Mapping[Session, None], [session]), Change(resources.IP_POOLS, old, new))
    assert (len(clusters) == 1) is requeued


@pytest.mark.parametrize(("ipam_type", "queued"), [("none", 1), ("dhcp", 0)])
def test_outage_of_a_workload_api_concerns_clusters_with_an_external_endpoint(ipam_type: str, queued: int) -> None:
    fixture = Fixture()
    fixture.cluster["spec"] = {
        "loadBalancerConfig": {"ipamType": ipam_type},
        "infrastructureRef": {"kind": "HarvesterCluster", "name": CLUSTER.name},
    }
    caches = cast(Any, fixture.handlers)._caches
    caches.clusters = SimpleNamespace(get=lambda *_: fixture.cluster)
    fixture.handlers.workload_reach(CLUSTER)
    assert len(fixture.clusters) == queued
