"""What stops a move, and what `--force` overrides."""

from __future__ import annotations

import copy

import pytest

from caphv.api.names import PARK_ANNOTATION, PARKED_SINCE_ANNOTATION
from caphv.api.object import Key, Obj, key_of
from caphv.api.objectid import id_of
from operations.backup.adoption import VirtualMachines, VirtualMachineState
from operations.backup.files import Backup, Origin
from operations.backup.movedobjects import backup_of_move, unpaused_objects
from operations.backup.preflight import blocking_errors, checks
from operations.backup.writing import Restore
from operations.read.graph import belongings
from tests.support.backup import whole_cluster

pytestmark = pytest.mark.unit

FOUND = VirtualMachines({"team/shop-0": VirtualMachineState("source", "vm", "instance")})


def backup_of(objs: list[Obj], uid: str = "source") -> Backup:
    chosen = belongings([Key("team", "shop")], objs).objects
    return Backup(Origin("move", "", "https://source", uid), ("team/shop",), chosen)


def target_of(backup: Backup, *existing: Obj, uid: str = "target") -> Restore:
    return Restore(backup, "https://target", uid, {}, {id_of(obj): obj for obj in existing})


def stopped(backup: Backup, target: Restore, vms: VirtualMachines = FOUND, *, force: bool = True) -> list[str]:
    return [check.message for check in blocking_errors(checks(backup, target, vms), force=force)]


def changed(objs: list[Obj], kind: str) -> Obj:
    """A copy of the first object of a kind, with another content."""
    found = copy.deepcopy(next(obj for obj in objs if obj["kind"] == kind))
    found["data" if kind in ("Secret", "ConfigMap") else "spec"] = {"other": "eA=="}
    return found


def test_nothing_stops_a_move_of_which_everything_is_known() -> None:
    backup = backup_of(whole_cluster())
    assert stopped(backup, target_of(backup), force=False) == []


@pytest.mark.parametrize("name", [PARK_ANNOTATION, PARKED_SINCE_ANNOTATION])
def test_a_parked_cluster_is_not_moved(name: str) -> None:
    """Its VMs would stay stopped: the target adopts none while the cluster is paused."""
    objs = whole_cluster()
    cluster = next(obj for obj in objs if obj["kind"] == "Cluster")
    cluster["metadata"]["annotations"] = {name: "true"}
    backup = backup_of(objs)
    assert "Cluster team/shop is parked: the target would not start its VMs" in stopped(backup, target_of(backup))


def test_a_cluster_that_rancher_provisions_is_not_moved() -> None:
    """Its control plane and bootstrap objects are Rancher's. Force does not change that."""
    objs = whole_cluster()
    cluster = next(obj for obj in objs if obj["kind"] == "Cluster")
    cluster["spec"]["controlPlaneRef"] = {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "shop"}
    backup = backup_of(objs)
    (message,) = stopped(backup, target_of(backup))
    assert message.startswith("Rancher provisions Cluster team/shop")

    others = backup_of(whole_cluster())
    others.left_out = ("team/other",)
    (message,) = stopped(others, target_of(others))
    assert message.startswith("Rancher provisions Cluster team/other"), "a namespace is moved as a whole"


def test_unknown_and_equal_management_clusters_stop_it() -> None:
    backup, nameless = backup_of(whole_cluster()), backup_of(whole_cluster(), uid="")
    unknown = "the uid of namespace kube-system of the {} cannot be read"
    assert stopped(nameless, target_of(nameless)) == [unknown.format("source")]
    assert stopped(backup, target_of(backup, uid="")) == [unknown.format("management cluster https://target")]
    assert stopped(backup, target_of(backup, uid="source")) == ["source and target are the same"]


def test_what_was_not_read_and_what_is_not_installed_stops_it() -> None:
    backup = backup_of(whole_cluster())
    backup.unseen = ("secrets of namespace team: forbidden",)
    target = target_of(backup)
    target.problems = ["Machine of cluster.x-k8s.io is not installed there: install its provider first"]
    assert stopped(backup, target) == [*target.problems, "not read: secrets of namespace team: forbidden"]


def test_vms_that_are_unknown_stop_it_and_force_overrides_absent_ones() -> None:
    backup = backup_of(whole_cluster())
    target = target_of(backup)
    unknown = VirtualMachines(unread={"team/shop-0"})
    assert stopped(backup, target, unknown) == ["the VM of team/shop-0 cannot be read"]
    absent = VirtualMachines(absent={"team/shop-0"})
    assert stopped(backup, target, absent, force=False) == ["the VM of team/shop-0 does not exist on Harvester"]
    assert stopped(backup, target, absent) == []
    for vms, fine in ((FOUND, 1), (unknown, 0), (absent, 0)):
        found = [check for check in checks(backup, target, vms) if check.message.startswith("Harvester shows the VMs")]
        assert len(found) == fine


@pytest.mark.parametrize("kind", ["Secret", "ClusterClass", "HarvesterMachineTemplate", "RKE2ControlPlane"])
def test_force_does_not_override_a_difference_of_what_machines_depend_on(kind: str) -> None:
    objs = whole_cluster()
    next(obj for obj in objs if obj["kind"] == kind).setdefault("spec", {"size": "small"})
    backup, other = backup_of(objs), changed(objs, kind)
    different = [f"{id_of(other)} exists there and is different"]
    assert stopped(backup, target_of(backup, other)) == different


def test_force_overrides_the_difference_of_a_config_map_that_stays_on_the_source() -> None:
    objs = whole_cluster()
    backup, other = backup_of(objs), changed(objs, "ConfigMap")
    assert stopped(backup, target_of(backup, other), force=False) == [f"{id_of(other)} exists there and is different"]
    assert stopped(backup, target_of(backup, other)) == []


def test_a_move_is_continued_once_a_cluster_runs_on_the_target() -> None:
    objs = whole_cluster()
    backup = backup_of(objs)
    cluster = copy.deepcopy(next(obj for obj in objs if obj["kind"] == "Cluster"))
    cluster["metadata"]["annotations"] = {"caphv.io/restored-from": "move"}
    assert "resumed" in [check.id for check in checks(backup, target_of(backup, cluster), FOUND)]
    cluster["spec"]["paused"] = True
    assert "resumed" not in [check.id for check in checks(backup, target_of(backup, cluster), FOUND)]


def left_paused(objs: list[Obj], name: str, *moved: str) -> Obj:
    """The Cluster of a name as a move of some clusters left it on the target."""
    chosen = backup_of_move(backup_of(objs), [Key("team", each) for each in moved])
    assert chosen.origin is not None
    cluster = copy.deepcopy(next(obj for obj in objs if obj["kind"] == "Cluster" and key_of(obj).name == name))
    cluster["metadata"]["annotations"] = {"caphv.io/restored-from": chosen.origin.identity}
    cluster["spec"]["paused"] = True
    return cluster


@pytest.mark.parametrize(
    ("there", "remedy"),
    [
        (["shop", "blog"], "Complete that move first: caphv move team/blog team/shop --to-kubeconfig FILE"),
        (["shop"], "Complete that move first: caphv move with exactly its clusters"),
    ],
)
def test_an_interrupted_move_of_other_clusters_stops_it_with_their_names(there: list[str], remedy: str) -> None:
    objs = [*whole_cluster("shop"), *whole_cluster("blog"), *whole_cluster("new")]
    backup = backup_of_move(backup_of(objs), [Key("team", name) for name in ("shop", "blog", "new")])
    target = target_of(backup, *(left_paused(objs, name, "shop", "blog") for name in there))
    found = {check.id: check for check in blocking_errors(checks(backup, target, FOUND), force=True)}
    names = ", ".join(sorted(f"team/{name}" for name in there))
    assert found["interrupted"].message.endswith(f"left {names} paused there")
    assert found["interrupted"].remedy == remedy


def test_the_same_move_continues_what_it_left_paused() -> None:
    objs = [*whole_cluster("shop"), *whole_cluster("blog")]
    backup = backup_of_move(backup_of(objs), [Key("team", "shop"), Key("team", "blog")])
    target = target_of(backup, *(left_paused(objs, name, "blog", "shop") for name in ("shop", "blog")))
    assert "interrupted" not in {check.id for check in checks(backup, target, FOUND)}


def test_what_a_user_has_paused_stops_it_with_the_command_that_resumes_it() -> None:
    objs = {obj["kind"]: obj for obj in whole_cluster(machines=1)}
    objs["Cluster"]["spec"]["paused"] = True
    for kind in ("HarvesterCluster", "HarvesterMachine"):
        objs[kind]["metadata"]["annotations"] = {"cluster.x-k8s.io/paused": ""}
    backup = backup_of(list(objs.values()))
    found = blocking_errors(checks(backup, target_of(backup), FOUND), force=True)
    assert [(check.id, check.remedy) for check in found] == [
        ("paused", 'Resume it: kubectl patch cluster shop -n team --type=merge -p \'{"spec":{"paused":false}}\''),
        ("paused", "Resume it: kubectl annotate harvestercluster shop-x7k2p -n team cluster.x-k8s.io/paused-"),
        ("paused", "Resume it: kubectl annotate harvestermachine shop-0 -n team cluster.x-k8s.io/paused-"),
    ]


def test_the_pause_of_this_move_does_not_stop_it() -> None:
    objs = whole_cluster()
    cluster = next(obj for obj in objs if obj["kind"] == "Cluster")
    cluster["spec"]["paused"] = True
    cluster["metadata"]["annotations"] = {"caphv.io/moving-to": "target"}
    backup = backup_of_move(backup_of(objs), [])
    assert stopped(backup, target_of(backup), force=False) == []


def test_a_harvestercluster_that_another_controller_manages_is_only_a_warning() -> None:
    objs = whole_cluster()
    managed = next(obj for obj in objs if obj["kind"] == "HarvesterCluster")
    managed["metadata"]["annotations"] = {"cluster.x-k8s.io/managed-by": "crossplane"}
    backup = backup_of(objs)
    found = checks(backup, target_of(backup), FOUND)
    assert [check.id for check in found if check.wrong] == ["managed"]
    assert blocking_errors(found, force=False) == []
    waiting = unpaused_objects(objs[3:4] + objs[-2:-1])
    assert waiting == ["HarvesterMachine team/shop-1"]
