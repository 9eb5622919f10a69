"""Which snapshot is restored on which machine, with which commands, and when the restore is complete."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.names import ETCD_RESTORE_ANNOTATION
from caphv.api.object import Key, Obj
from operations.change.changes import ChangeError
from operations.change.clusterparts import cluster_and_parts
from operations.change.etcdrestore import (
    Distribution,
    Restore,
    begin,
    begin_checks,
    choose,
    distribution_of,
    finish,
    finish_checks,
    restore_of,
    steps,
)
from operations.read.etcdsnapshots import EtcdSnapshot, snapshots_of
from operations.status.check import Check, Result
from operations.status.model import Cluster
from operations.status.parts import Parts
from tests.support.clusters import Builder, condition
from tests.support.etcdsnapshots import FOLDER, snapshot_file

pytestmark = pytest.mark.unit

NAME = "etcd-snapshot-cp-2-12"
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


def distribution(kind: str, control_plane: Obj | None = None) -> Distribution:
    return distribution_of({"spec": {"controlPlaneRef": {"kind": kind}}}, control_plane)


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
    machines = {step.machine for step in steps(cluster, distribution("RKE2ControlPlane"), restore, {})}
    assert machines == {"cp-2", "cp-3"}
    with pytest.raises(ChangeError, match="cp-1 is no control plane machine"):
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
        (NAME, "worker-1", copies(), "worker-1 is no control plane machine"),
        ("other", "", copies(), "no snapshot other; there are etcd-snapshot-cp-2-12"),
        (NAME, "cp-1", copies(s3=False), "on Node cp-2 only: leave --on away"),
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


def test_all_servers_stop_first_and_the_others_join_last() -> None:
    _, cluster = parts_of(three())
    rke2 = distribution("RKE2ControlPlane")
    plan = steps(cluster, rke2, Restore(NAME, True, "cp-2"), {"cp-2": "sles"})
    assert [(step.title.split()[0], step.machine) for step in plan] == [
        *(("Stop", name) for name in ("cp-2", "cp-1", "cp-3")),
        ("Restore", "cp-2"),
        *(("Set", name) for name in ("cp-1", "cp-3")),
    ]
    assert plan[0].login.startswith("sles@10.0.0.")
    _, reset, start = plan[3].commands
    assert reset.endswith(f"rke2 server --cluster-reset --cluster-reset-restore-path={NAME}")
    assert start == "sudo systemctl start rke2-server"
    # Nothing is deleted: the snapshots of a server are in the same folder.
    assert not any("rm " in command for step in plan for command in step.commands)


def test_k3s_has_other_names_and_a_file_is_not_looked_for_in_the_store() -> None:
    _, cluster = parts_of(Builder())
    k3s = distribution("KThreesControlPlane")
    plan = steps(cluster, k3s, Restore("/backup/db", False, "cp-1"), {})
    text = "\n".join(command for step in plan for command in step.commands)
    assert "k3s server --cluster-reset --etcd-s3=false --cluster-reset-restore-path=/backup/db" in text
    assert "rke2-server" not in text
    assert "systemctl stop k3s" in text
    with pytest.raises(ChangeError, match="KubeadmControlPlane takes no snapshots"):
        distribution("KubeadmControlPlane")


def test_the_database_is_where_the_control_plane_says() -> None:
    _, cluster = parts_of(three())
    folder = distribution("RKE2ControlPlane", {"spec": {"agentConfig": {"dataDir": "/data/my rke2"}}})
    plan = steps(cluster, folder, Restore(NAME, True, "cp-1"), {})
    assert plan[-1].commands[0].startswith("sudo mv '/data/my rke2/server/db' '/data/my rke2/server/db'.before-")


@given(st.text(min_size=1))
def test_a_name_of_a_snapshot_cannot_act_as_a_command(name: str) -> None:
    """It comes from the workload cluster."""
    _, cluster = parts_of(Builder())
    rke2 = distribution("RKE2ControlPlane")
    reset = steps(cluster, rke2, Restore(name, True, "cp-1"), {})[1].commands[1]
    assert shlex.split(reset)[-1] == f"--cluster-reset-restore-path={name}"


@pytest.mark.parametrize("config", ["token: x\n", "token: x", "server: https://other:9345\ntoken: x\n"])
def test_a_server_that_joins_names_a_server_that_lives_and_the_restored_one_none(tmp_path: Path, config: str) -> None:
    """The first server of a cluster would begin a new cluster otherwise."""
    _, cluster = parts_of(three())
    rke2 = distribution("RKE2ControlPlane")
    plan = steps(cluster, rke2, Restore(NAME, True, "cp-1"), {})
    file = tmp_path / "config.yaml"

    def run(command: str) -> list[str]:
        file.write_text(config)
        script = command.replace("sudo ", "").replace("/etc/rancher/rke2/config.yaml", str(file))
        subprocess.run(["/bin/sh", "-c", script], check=True, capture_output=True)
        return [line for line in file.read_text().splitlines() if line.startswith("server:")]

    address = cluster.machines[0].addresses[0]
    own = ["server: https://other:9345"] if "server:" in config else [f"server: https://{address}:9345"]
    assert run(plan[-1].commands[1]) == own
    assert run(plan[3].commands[0]) == []


def test_the_cluster_records_the_restore_and_only_its_own_pause_ends() -> None:
    for paused in (False, True):
        builder = three(spec={"paused": paused} if paused else {})
        parts, _ = parts_of(builder)
        (patch,) = begin(parts, Restore(NAME, True, "cp-2"), ()).patches
        assert ("spec" in patch.body) is not paused
        builder.cluster["metadata"]["annotations"] = patch.body["metadata"]["annotations"]
        builder.cluster["spec"]["paused"] = True
        parts, _ = parts_of(builder)
        begun = restore_of(parts.cluster)
        assert begun == Restore(NAME, True, "cp-2", paused=not paused)
        (patch,) = finish(parts, begun, ()).patches
        assert patch.body["metadata"] == {"annotations": {ETCD_RESTORE_ANNOTATION: None}}
        assert patch.body.get("spec") == (None if paused else {"paused": False})


@pytest.mark.parametrize("text", ["", "cp-1", "[]", "{}", '{"snapshot": "a", "s3": 1}'])
def test_an_unreadable_record_is_refused(text: str) -> None:
    assert restore_of({"metadata": {}}) is None
    with pytest.raises(ChangeError, match="is no record of a restore"):
        restore_of({"metadata": {"annotations": {ETCD_RESTORE_ANNOTATION: text}}})


def test_a_restore_begins_only_with_a_good_snapshot_on_a_machine_with_an_address() -> None:
    parts, cluster = parts_of(three())
    good, copy = choose(cluster, NAME, "", copies())
    assert failed(begin_checks(parts, cluster, good, copy, "")) == []

    broken = snapshots_of([snapshot_file("cp-2", TAKEN, s3=True, error="full")], {"cp-2"})
    restore, copy = choose(cluster, NAME, "", broken)
    assert failed(begin_checks(parts, cluster, restore, copy, "")) == ["snapshot"]

    builder = three()
    builder.harvester_machines["cp-2"]["status"]["addresses"] = []
    parts, cluster = parts_of(builder)
    assert failed(begin_checks(parts, cluster, Restore(NAME, True, "cp-2"), None, "silent")) == ["machine"]
    assert failed(begin_checks(parts, cluster, Restore(NAME, True, "cp-1"), None, "silent")) == []


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"caphv.io/park": "true"}},
        {"annotations": {"caphv.io/moving-to": "x"}},
        {"deletionTimestamp": TAKEN},
    ],
)
def test_a_cluster_that_is_parked_moved_or_deleted_is_not_restored(metadata: Obj) -> None:
    builder = three()
    builder.cluster["metadata"] |= metadata
    parts, cluster = parts_of(builder)
    assert failed(begin_checks(parts, cluster, Restore(NAME, True, "cp-1"), None, "")) == ["cluster"]


def test_a_restore_is_complete_when_the_restored_node_is_ready() -> None:
    parts, cluster = parts_of(three())
    begun = Restore(NAME, True, "cp-2")
    nodes = dict.fromkeys(("cp-1", "cp-2", "cp-3", "worker-1"), True)
    assert all(check.result is Result.OK for check in finish_checks(parts, cluster, begun, nodes))
    assert failed(finish_checks(parts, cluster, begun, "no answer")) == ["api"]
    assert failed(finish_checks(parts, cluster, begun, nodes | {"cp-2": False})) == ["machine"]

    # Others may be replaced afterwards.
    del nodes["cp-1"]
    checks = finish_checks(parts, cluster, begun, nodes | {"worker-1": False, "old": True})
    assert failed(checks) == []
    warnings = {check.message: check.remedy for check in checks if check.result is Result.WARNING}
    assert [message.split()[1] for message in warnings] == ["cp-1", "worker-1", "old"]
    assert "kubectl delete machine cp-1 -n team" in warnings["Node cp-1 of Machine cp-1 does not exist"]
