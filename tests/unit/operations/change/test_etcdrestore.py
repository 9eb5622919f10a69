"""Which snapshot is restored on which machine, with which commands, and when the restore is complete."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caphv.api.names import ETCD_RESTORE_ANNOTATION
from caphv.api.object import Key, Obj
from operations.change.changes import ChangeError
from operations.change.clusterparts import cluster_and_parts
from operations.change.etcdnodes import EtcdNodes, member_names, ready_nodes
from operations.change.etcdrestore import (
    Restore,
    begin,
    choose,
    discard,
    finish,
    identify,
    pause_again,
    restore_of,
)
from operations.change.etcdrestorechecks import begin_checks, finish_checks
from operations.read.etcdsnapshots import EtcdSnapshot, snapshots_of
from operations.status.check import Check, Result
from operations.status.model import Cluster
from operations.status.parts import Parts
from tests.support.clusters import Builder, condition
from tests.support.etcdsnapshots import FOLDER, snapshot_file

pytestmark = pytest.mark.unit

NAME = "etcd-snapshot-cp-2-12"
ID = "0123abcd"
TAKEN = "2026-01-01T12:00:00Z"


def parts_of(builder: Builder) -> tuple[Parts, Cluster]:
    parts, _, cluster = cluster_and_parts(builder.objects(), Key("team", "shop"))
    return parts, cluster


def three(**changes: Obj) -> Builder:
    builder = Builder(control_planes=3, workers=1)
    builder.cluster["spec"] |= changes.get("spec", {})
    return builder


def copies(*, s3: bool = True, local: bool = True) -> tuple[EtcdSnapshot, ...]:
    files = [snapshot_file("cp-2", TAKEN)] * local + [snapshot_file("cp-2", TAKEN, s3=True)] * s3
    return snapshots_of(files, {"cp-1", "cp-2", "cp-3"})


def failed(checks: list[Check]) -> list[str]:
    return [check.id for check in checks if check.result is Result.ERROR]


def test_the_copy_in_a_store_is_restored_on_a_ready_machine_and_a_file_where_it_is() -> None:
    builder = three()
    builder.machines["cp-1"]["status"]["conditions"] = [condition("Ready", "False"), condition("NodeReady", "False")]
    _, cluster = parts_of(builder)
    assert choose(cluster, NAME, "", copies())[0] == Restore(NAME, True, "cp-2")
    assert choose(cluster, NAME, "cp-3", copies())[0] == Restore(NAME, True, "cp-3")
    file = Restore(f"{FOLDER}/{NAME}", False, "cp-2")
    assert choose(cluster, NAME, "", copies(s3=False))[0] == file
    # No download, where the file is.
    assert choose(cluster, NAME, "cp-2", copies())[0] == file


def test_a_machine_that_is_deleted_or_has_no_address_is_not_chosen() -> None:
    builder = three()
    builder.machines["cp-1"]["metadata"]["deletionTimestamp"] = TAKEN
    builder.harvester_machines["cp-2"]["status"]["addresses"] = []
    _, cluster = parts_of(builder)
    restore, _ = choose(cluster, NAME, "", copies())
    assert restore.machine == "cp-3"
    with pytest.raises(ChangeError, match="cp-1 is not a control plane machine"):
        choose(cluster, NAME, "cp-1", copies())


def test_without_the_workload_cluster_the_user_names_the_machine() -> None:
    _, cluster = parts_of(three())
    assert choose(cluster, "/backup/db", "cp-1", None)[0] == Restore("/backup/db", False, "cp-1")
    assert choose(cluster, NAME, "cp-1", None)[0] == Restore(NAME, True, "cp-1")
    _, single = parts_of(Builder())
    assert choose(single, NAME, "", None)[0].machine == "cp-1"


@pytest.mark.parametrize(
    ("snapshot", "machine", "known", "message"),
    [
        ("/backup/db", "", copies(), "name the machine to restore on with --on: cp-1, cp-2, cp-3"),
        (NAME, "", None, "with --on"),
        (NAME, "worker-1", copies(), "worker-1 is not a control plane machine"),
        ("other", "", copies(), "no snapshot other; there are etcd-snapshot-cp-2-12"),
        (NAME, "cp-1", copies(s3=False), "on Node cp-2 only: leave out --on"),
    ],
)
def test_what_cannot_be_restored_is_refused(
    snapshot: str, machine: str, known: tuple[EtcdSnapshot, ...] | None, message: str
) -> None:
    with pytest.raises(ChangeError, match=message):
        choose(parts_of(three())[1], snapshot, machine, known)


def test_a_file_of_a_machine_that_no_longer_exists_is_refused() -> None:
    files = snapshots_of([snapshot_file("gone", TAKEN)], {"cp-1"})
    with pytest.raises(ChangeError, match="on Node gone only: choose another one"):
        choose(parts_of(three())[1], "etcd-snapshot-gone-12", "", files)


def test_the_cluster_records_the_restore_and_only_its_own_pause_ends() -> None:
    for paused in (False, True):
        builder = three(spec={"paused": paused} if paused else {})
        parts, _ = parts_of(builder)
        (patch,) = begin(parts, Restore(NAME, True, "cp-2", ID, "cp-2-1a2b"), ()).patches
        assert ("spec" in patch.body) is not paused
        builder.cluster["metadata"]["annotations"] = patch.body["metadata"]["annotations"]
        builder.cluster["spec"]["paused"] = True
        parts, _ = parts_of(builder)
        begun = restore_of(parts.cluster)
        assert begun == Restore(NAME, True, "cp-2", ID, "cp-2-1a2b", paused=not paused)
        (patch,) = finish(parts, begun, ()).patches
        assert patch.body["metadata"] == {"annotations": {ETCD_RESTORE_ANNOTATION: None}}
        assert patch.body.get("spec") == (None if paused else {"paused": False})


@pytest.mark.parametrize(
    "text",
    [
        *("", "cp-1", "[]", "{}", '{"snapshot": "a", "s3": 1}'),
        *(
            f'{{"snapshot": "{snapshot}", "s3": {s3}, "machine": "cp-1", "id": "{uid}", "member": "", "paused": true}}'
            for snapshot, s3, uid in (
                *(("", "true", ID), ("", "false", ID), ("relative", "false", ID), ("a/b", "true", ID)),
                *(("a", "true", ""), ("a", "true", "$(reboot)")),
            )
        ),
    ],
)
def test_an_unreadable_record_is_refused(text: str) -> None:
    assert restore_of({"metadata": {}}) is None
    with pytest.raises(ChangeError, match="is not the record of a restore"):
        restore_of({"metadata": {"annotations": {ETCD_RESTORE_ANNOTATION: text}}})


def test_a_restore_begins_only_with_a_good_snapshot_on_a_machine_with_an_address() -> None:
    parts, cluster = parts_of(three())
    good, copy = choose(cluster, NAME, "", copies())
    checks = begin_checks(parts, cluster, good, copy, "")
    assert failed(checks) == []
    assert "snapshot" in [check.id for check in checks]

    broken = snapshots_of([snapshot_file("cp-2", TAKEN, s3=True, error="full")], {"cp-2"})
    restore, copy = choose(cluster, NAME, "", broken)
    assert failed(begin_checks(parts, cluster, restore, copy, "")) == ["snapshot"]

    # A server that cannot be stopped would run with the old database.
    builder = three()
    builder.harvester_machines["cp-2"]["status"]["addresses"] = []
    parts, cluster = parts_of(builder)
    assert failed(begin_checks(parts, cluster, Restore(NAME, True, "cp-1"), None, "silent")) == ["machine"]


def test_a_file_is_good_although_its_upload_failed() -> None:
    """A server records both under one name."""
    file = snapshot_file("cp-2", TAKEN)
    upload = snapshot_file("cp-2", TAKEN, s3=True, error="no answer")
    known = snapshots_of([upload, file], {"cp-2"})
    _, cluster = parts_of(three())
    assert choose(cluster, NAME, "", known)[0] == Restore(f"{FOLDER}/{NAME}", False, "cp-2")

    lost = snapshots_of([snapshot_file("cp-2", TAKEN, error="full"), snapshot_file("cp-2", TAKEN, s3=True)], {"cp-2"})
    assert choose(cluster, NAME, "cp-2", lost)[0] == Restore(NAME, True, "cp-2")


@pytest.mark.parametrize(
    ("store", "result"),
    [
        (None, Result.WARNING),
        ({"bucket": "etcd-snapshots", "folder": "team/shop"}, None),
        ({"bucket": "etcd-snapshots", "folder": "other"}, Result.ERROR),
    ],
)
@pytest.mark.parametrize("kind", ["RKE2ControlPlane", "KThreesControlPlane"])
def test_servers_look_for_the_snapshot_in_their_own_store(kind: str, store: Any, result: Result | None) -> None:
    builder = three()
    parts, cluster = parts_of(builder)
    spec: Obj = {}
    if store and kind == "RKE2ControlPlane":
        spec = {"serverConfig": {"etcd": {"backupConfig": {"s3": store}}}}
    elif store:
        content = f"etcd-s3: true\netcd-s3-bucket: {store['bucket']}\netcd-s3-folder: {store['folder']}\n"
        file = {"path": "/etc/rancher/k3s/config.yaml.d/55-etcd-snapshots.yaml", "content": content}
        spec = {"kthreesConfigSpec": {"files": [file]}}
    parts = replace(parts, control_plane={"kind": kind, "spec": spec})
    restore, copy = choose(cluster, NAME, "cp-1", copies(local=False))
    found = [check.result for check in begin_checks(parts, cluster, restore, copy, "") if check.id == "store"]
    assert found == ([result] if result else [])


def test_machines_that_are_being_deleted_and_a_schedule_are_named() -> None:
    builder = three()
    builder.machines["cp-3"]["metadata"]["deletionTimestamp"] = TAKEN
    builder.cluster["metadata"]["annotations"] = {"caphv.io/park-schedule": "Mon-Fri 20:00-06:00 Europe/Berlin"}
    parts, cluster = parts_of(builder)
    checks = begin_checks(parts, cluster, Restore("/backup/db", False, "cp-1"), None, "")
    warnings = {check.id: check.message for check in checks if check.result is Result.WARNING}
    assert "cp-3 is being deleted" in warnings["machine"]
    assert "schedule" in warnings


def test_a_pause_that_ended_too_early_begins_again() -> None:
    builder, begun = three(), Restore(NAME, True, "cp-2", ID, paused=False)
    parts, _ = parts_of(builder)
    (patch,) = pause_again(parts, begun).patches
    assert patch.body["spec"] == {"paused": True}
    assert '"paused": true' in patch.body["metadata"]["annotations"][ETCD_RESTORE_ANNOTATION]
    builder.cluster["spec"]["paused"] = True
    assert pause_again(parts_of(builder)[0], begun).patches == ()


def test_a_record_that_cannot_be_read_is_removed_and_the_pause_stays() -> None:
    builder = three(spec={"paused": True})
    builder.cluster["metadata"]["annotations"] = {ETCD_RESTORE_ANNOTATION: "x"}
    (patch,) = discard(parts_of(builder)[0]).patches
    assert patch.body == {"metadata": {"annotations": {ETCD_RESTORE_ANNOTATION: None}}}


NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("renewed", "ready"),
    [
        ((NOW - timedelta(seconds=15)).isoformat(), True),
        # The clock of the server is ahead.
        ((NOW + timedelta(minutes=5)).isoformat(), True),
        ((NOW - timedelta(hours=1)).isoformat(), False),
        ("2026-01-02T12:00:00", False),
        (None, False),
    ],
)
def test_a_node_of_a_server_that_is_still_stopped_is_not_ready(renewed: str | None, ready: bool) -> None:
    """The snapshot says that it was."""
    node: Obj = {"metadata": {"name": "cp-1"}, "status": {"conditions": [condition("Ready", "True")]}}
    lease: Obj = {"metadata": {"name": "cp-1"}, "spec": {"renewTime": renewed}}
    assert ready_nodes([node], [lease], NOW) == {"cp-1": ready}
    assert ready_nodes([node], [], NOW) == {"cp-1": False}


@pytest.mark.parametrize("skew", [timedelta(minutes=-3), timedelta(minutes=3)])
def test_the_clock_of_this_computer_may_differ(skew: timedelta) -> None:
    nodes: list[Obj] = [
        {"metadata": {"name": name}, "status": {"conditions": [condition("Ready", "True")]}}
        for name in ("cp-1", "cp-2")
    ]
    leases: list[Obj] = [
        {"metadata": {"name": "cp-1"}, "spec": {"renewTime": (NOW - timedelta(seconds=9)).isoformat()}},
        {"metadata": {"name": "cp-2"}, "spec": {"renewTime": (NOW - timedelta(minutes=2)).isoformat()}},
    ]
    assert ready_nodes(nodes, leases, NOW + skew) == {"cp-1": True, "cp-2": False}
    # That of a single server does not count.
    leases.append({"metadata": {"name": "cp-3"}, "spec": {"renewTime": "9999-12-31T23:59:59-23:59"}})
    assert ready_nodes(nodes, leases, NOW) == {"cp-1": True, "cp-2": False}


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"caphv.io/moving-to": "x"}},
        {"deletionTimestamp": TAKEN},
    ],
)
def test_a_cluster_that_is_moved_or_deleted_is_never_restored(metadata: Obj) -> None:
    builder = three()
    builder.cluster["metadata"] |= metadata
    builder.cluster["spec"]["paused"] = True
    parts, cluster = parts_of(builder)
    with pytest.raises(ChangeError, match="the Cluster is being"):
        begin_checks(parts, cluster, Restore(NAME, True, "cp-1"), None, "")


def test_a_cluster_whose_move_was_given_up_is_restored() -> None:
    """Its pause has ended. The annotation may stay."""
    builder = three()
    builder.cluster["metadata"]["annotations"] = {"caphv.io/moving-to": "x"}
    parts, cluster = parts_of(builder)
    begin_checks(parts, cluster, Restore(NAME, True, "cp-1"), None, "")


AFTER = {"cp-1": "cp-1-5e6f", "cp-2": "cp-2-3c4d"}


def test_a_restore_is_complete_when_the_restored_node_is_ready() -> None:
    parts, cluster = parts_of(three())
    begun = Restore(NAME, True, "cp-2", ID, "cp-2-1a2b")
    nodes = dict.fromkeys(("cp-1", "cp-2", "cp-3", "worker-1"), True)
    checks = finish_checks(parts, cluster, begun, EtcdNodes(nodes, AFTER), "")
    assert all(check.result is Result.OK for check in checks)
    assert "api" in [check.id for check in checks]
    assert failed(finish_checks(parts, cluster, begun, EtcdNodes({}, AFTER), "no answer")) == ["api"]
    assert failed(finish_checks(parts, cluster, begun, EtcdNodes(nodes | {"cp-2": False}, AFTER), "")) == ["machine"]

    # Without the pause, controllers would delete a server while etcd has a single member.
    del nodes["cp-1"]
    checks = finish_checks(parts, cluster, begun, EtcdNodes(nodes | {"worker-1": False, "old": True}, AFTER), "")
    assert failed(checks) == ["machine"]
    wrong = {check.message: check.remedy for check in checks if check.wrong}
    assert [message.split()[1] for message in wrong] == ["cp-1", "worker-1", "old"]
    assert "kubectl delete machine cp-1 -n team" in wrong["Node cp-1 of Machine cp-1 does not exist"]


@pytest.mark.parametrize("annotation", ["etcd.rke2.cattle.io/node-name", "etcd.k3s.cattle.io/node-name"])
def test_a_database_that_was_not_reset_is_not_that_of_the_snapshot(annotation: str) -> None:
    """A reset gives etcd of the server a new name."""
    parts, cluster = parts_of(three())
    node: Obj = {"metadata": {"name": "cp-2", "annotations": {annotation: "cp-2-1a2b"}}}
    members = member_names([node])
    begun = identify(Restore(NAME, True, "cp-2"), cluster, ID, members)
    assert begun == Restore(NAME, True, "cp-2", ID, "cp-2-1a2b")
    nodes = dict.fromkeys(("cp-1", "cp-2", "cp-3", "worker-1"), True)
    assert failed(finish_checks(parts, cluster, begun, EtcdNodes(nodes, members), "")) == ["database"]
    node["metadata"]["annotations"][annotation] = "cp-2-3c4d"
    assert failed(finish_checks(parts, cluster, begun, EtcdNodes(nodes, member_names([node])), "")) == []

    # It is unknown where the API did not answer.
    begun = identify(Restore(NAME, True, "cp-2"), cluster, ID, {})
    checks = finish_checks(parts, cluster, begun, EtcdNodes(nodes, AFTER), "")
    (unknown,) = (check for check in checks if check.id == "database")
    assert unknown.result is Result.SKIPPED


@pytest.mark.parametrize("name", ["", "a/b", "a\x1b[2J", "x" * 300, 5])
def test_a_name_of_etcd_that_a_workload_cluster_made_up_is_not_recorded(name: object) -> None:
    node: Obj = {"metadata": {"name": "cp-2", "annotations": {"etcd.rke2.cattle.io/node-name": name}}}
    assert member_names([node]) == {}


def test_a_restore_is_not_complete_when_its_machine_was_deleted() -> None:
    builder = three()
    del builder.machines["cp-2"]
    parts, cluster = parts_of(builder)
    nodes = dict.fromkeys(("cp-1", "cp-3", "worker-1"), True)
    assert failed(finish_checks(parts, cluster, Restore(NAME, True, "cp-2"), EtcdNodes(nodes, AFTER), "")) == [
        "machine"
    ]


def test_the_restore_of_a_cluster_that_is_being_deleted_ends_without_checks() -> None:
    builder = three()
    builder.cluster["metadata"]["deletionTimestamp"] = TAKEN
    parts, cluster = parts_of(builder)
    assert failed(finish_checks(parts, cluster, Restore(NAME, True, "cp-2"), EtcdNodes({}, AFTER), "no answer")) == []


def test_a_parked_cluster_is_never_restored() -> None:
    builder = three()
    builder.cluster["metadata"]["annotations"] = {"caphv.io/park": "true"}
    parts, cluster = parts_of(builder)
    with pytest.raises(ChangeError, match="caphv resume team/shop"):
        begin_checks(parts, cluster, Restore(NAME, True, "cp-1"), None, "")
