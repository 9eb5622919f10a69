"""Which changes on a Harvester requeue which objects."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api import resources
from caphv.api.names import (
    DRAIN_REQUESTED_ANNOTATION,
    DRAIN_TAINT,
    EVACUATE_ANNOTATION,
    GUEST_OF_ANNOTATION,
    LOAD_BALANCER_SUFFIX,
    MAINTENANCE_ANNOTATION,
    PARK_ANNOTATION,
    PARKED_SINCE_ANNOTATION,
    UPDATE_IN_PROGRESS_ANNOTATION,
    generated_names,
)
from caphv.api.object import DEPLOYMENTS, NODES, PERSISTENT_VOLUME_CLAIMS, SERVICES, Key, Obj, Resource
from caphv.api.ownership import record
from caphv.runtime.cache import Change
from caphv.runtime.queue import WorkQueue
from reconciler import triggers
from reconciler.context import Context
from reconciler.harvester.session import Session
from reconciler.harvesterhandlers import HarvesterHandlers
from reconciler.machine.diskdeletion import _is_leftover
from reconciler.machine.guestlabels import VM_LABELS
from reconciler.predicates import may_serve_more
from reconciler.triggers import Topics
from tests.support.reconciler.handlers import CLUSTER, Fixture, OpenSession, vm
from tests.support.reconciler.machinedeletion import OWN, scope_of

pytestmark = pytest.mark.unit


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


def test_caches_of_a_namespace_requeue_the_clusters_and_machines_that_use_it() -> None:
    fixture = Fixture()
    fixture.context.sessions.users = lambda _session, namespace: [CLUSTER] if namespace in ("", "vms") else []
    session = cast(Session, None)
    fixture.harvester.filled(session, "other")
    assert (len(fixture.clusters), len(fixture.queue)) == (0, 0)
    fixture.harvester.filled(session, "vms")
    assert (len(fixture.clusters), len(fixture.queue)) == (1, 1)


def test_limit_of_a_harvester_requeues_its_clusters() -> None:
    fixture = Fixture()
    fixture.harvester.limits(cast(Session, None))
    assert len(fixture.clusters) == 1


@pytest.mark.parametrize("condition", [("Synchronized", "False"), ("Failure", "True")])
def test_refusal_of_kubevirt_requeues_the_machine_once(condition: tuple[str, str]) -> None:
    """KubeVirt creates no Pod for a device that is not permitted, and the VM stays "Starting"."""

    def starting(*messages: str) -> Obj:
        kind, status = condition
        conditions = [{"type": kind, "status": status, "message": message} for message in messages]
        return vm({"printableStatus": "Starting", "conditions": conditions})

    assert Fixture().vm(starting(), starting("GPU is not permitted"))
    assert not Fixture().vm(starting("one host"), starting("two hosts"))


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


@pytest.mark.parametrize(
    "claim",
    ["one-disk-0-abcde", "one-disk-12-a1b2c", "one-disk-1-disk-0", "other-disk-0-abcde", "restore-x-uid-disk-0"],
)
def test_every_disk_for_which_a_deletion_waits_requeues_its_machine(claim: str) -> None:
    """It waits for no disk with another name, such as those of a VM that Harvester has restored."""
    fixture = Fixture()
    (machine,) = fixture.machines
    by_name = lambda _, name: [machine] if name == "one" else []  # noqa: E731
    fixture.context.caches.harvester_machines.store = SimpleNamespace(by_index=by_name)
    metadata = {"namespace": "vms", "name": claim, "uid": "u", "annotations": record(OWN)}
    deleted: Obj = {"metadata": metadata}
    scope, _ = scope_of()
    is_awaited = _is_leftover(scope, deleted, is_ours=True)
    fixture.harvester.handle({}, Change(PERSISTENT_VOLUME_CLAIMS, deleted, None))
    assert len(fixture.queue) == is_awaited


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
@pytest.mark.parametrize(
    "host",
    [
        {"metadata": {"annotations": {EVACUATE_ANNOTATION: "true"}}},
        {"metadata": {"annotations": {DRAIN_REQUESTED_ANNOTATION: "true"}}},
        {"metadata": {"annotations": {MAINTENANCE_ANNOTATION: "running"}}},
        {"metadata": {}, "spec": {"taints": [{"key": DRAIN_TAINT}]}},
    ],
    ids=["evacuated", "drain requested", "in maintenance", "upgraded"],
)
def test_instance_that_comes_to_an_evacuated_host_requeues_its_cluster(
    before: str, after: str, requeued: bool, host: Obj
) -> None:
    hosts = {"h0": host, "h1": {"metadata": {}}}

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
        ({"conditions": [{"type": "RestartRequired", "status": "True"}]}, True),
    ],
)
def test_size_of_an_instance_requeues_only_a_machine_that_can_grow_or_is_updated(status: Obj, matters: bool) -> None:
    old = vm({"phase": "Running"})
    change = Change(resources.VIRTUAL_MACHINE_INSTANCES, old, vm({"phase": "Running", **status}))
    updated = {UPDATE_IN_PROGRESS_ANNOTATION: ""}
    for maxima, marks, updates_in_place, requeued in (
        ({}, {}, False, False),
        ({"memoryMax": "32Gi"}, {}, False, matters),
        ({}, updated, False, matters),
        ({}, {}, True, matters),
    ):
        fixture = Fixture(**maxima)
        fixture.context.updates_in_place = updates_in_place
        fixture.machines[0]["metadata"]["annotations"] = marks
        fixture.harvester.handle({}, change)
        assert (len(fixture.queue) == 1) is requeued


def test_disks_of_an_instance_requeue_only_a_machine_that_is_updated() -> None:
    old, new = vm({"phase": "Running"}), vm({"phase": "Running", "volumeStatus": [{"phase": "Ready"}]})
    for marks, updates_in_place, requeued in (
        ({}, False, False),
        ({}, True, False),
        ({UPDATE_IN_PROGRESS_ANNOTATION: ""}, True, True),
    ):
        fixture = Fixture(memoryMax="32Gi")
        fixture.context.updates_in_place = updates_in_place
        fixture.machines[0]["metadata"]["annotations"] = marks
        fixture.harvester.handle({}, Change(resources.VIRTUAL_MACHINE_INSTANCES, old, new))
        assert (len(fixture.queue) == 1) is requeued


@pytest.mark.parametrize("updates_in_place", [True, False])
def test_upgrade_of_harvester_requeues_machines_whose_disks_may_change_now(updates_in_place: bool) -> None:
    def deployment(image: str) -> Obj:
        containers = [{"image": f"rancher/harvester:{image}"}]
        return {"metadata": {"name": "harvester"}, "spec": {"template": {"spec": {"containers": containers}}}}

    sessions: dict[Session, None] = {cast(Session, None): None}
    for old, new, requeued in (
        (deployment("v1.7.1"), deployment("v1.8.0"), updates_in_place),
        (deployment("v1.8.0"), deployment("v1.8.2"), False),
    ):
        fixture = Fixture()
        fixture.context.updates_in_place = updates_in_place
        fixture.harvester.handle(sessions, Change(DEPLOYMENTS, old, new))
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
    ("change", "wakes"),
    [
        ({}, False),
        ({"progress": 58}, False),
        ({"progress": 60}, True),
        ({"storageClassName": "lh-x"}, True),
        (None, True),
    ],
)
def test_image_wakes_those_who_wait_for_it_once_for_each_tenth_of_its_import(change: Obj | None, wakes: bool) -> None:
    topics, queue = Topics(), WorkQueue[Key]("waiting")
    awaited = {
        "any": triggers.images("account"),
        "name": triggers.image("account", "default", "image-x"),
        "shown": triggers.image("account", "default", "sles"),
        "other": triggers.image("account", "default", "other"),
        "elsewhere": triggers.image("account", "vms", "sles"),
    }
    for name, topic in awaited.items():
        topics.subscribe(queue, Key("team", name), topic)
    context = SimpleNamespace(
        caches=None,
        queues=SimpleNamespace(clusters=None, machines=None, templates=None, identities=None),
        topics=topics,
    )
    metadata = {"namespace": "default", "name": "image-x", "resourceVersion": "1"}
    old = {"metadata": metadata, "spec": {"displayName": "sles"}, "status": {"progress": 51}}
    new = None
    if change is not None:
        new = {**old, "metadata": {**metadata, "resourceVersion": "2"}, "status": {"progress": 51, **change}}
    session = cast(Mapping[Session, None], [SimpleNamespace(fingerprint="account")])
    HarvesterHandlers(cast(Context, context)).handle(session, Change(resources.IMAGES, old, new))
    assert len(queue) == (3 if wakes else 0)


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
