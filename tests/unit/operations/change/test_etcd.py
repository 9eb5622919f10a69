"""Which members of etcd have a machine, and which may be removed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from caphv.runtime.etcd import Member
from operations.change.changes import ChangeError
from operations.change.clusterparts import cluster_and_parts
from operations.change.etcd import (
    EtcdMember,
    choose_members,
    members_with_machines,
    removal_checks,
    unreleased_machines,
)
from operations.status.check import Result
from operations.status.model import Cluster
from tests.support import observed
from tests.support.clusters import Builder, ago, condition

pytestmark = pytest.mark.unit


def cluster(builder: Builder | None = None) -> Cluster:
    return cluster_and_parts((builder or Builder()).objects(), Key("team", "shop"))[2]


def states(found: list[Member], builder: Builder | None = None) -> dict[str, tuple[str, str]]:
    return {each.name: (each.state, each.machine) for each in members_with_machines(cluster(builder), found)}


def test_members_are_matched_with_machines_by_the_name_of_the_node() -> None:
    found = [Member(0xA1, "cp-1-0a1b2c3d"), Member(0xB2, "cp-2-0a1b2c3d"), Member(3, "cp-3-0a1b2c3d", learner=True)]
    assert states(found) == {
        "cp-1-0a1b2c3d": ("healthy", "cp-1"),
        "cp-2-0a1b2c3d": ("stale", ""),
        "cp-3-0a1b2c3d": ("learner", ""),
    }
    assert states([Member(1, "cp-1"), Member(2, "")]) == {"cp-1": ("healthy", "cp-1"), "": ("unstarted", "")}


def test_a_machine_without_a_node_is_matched_by_its_infrastructure() -> None:
    builder = Builder()
    del builder.machines["cp-1"]["status"]["nodeRef"]
    builder.machines["cp-1"]["spec"]["infrastructureRef"]["name"] = "shop-x7k2p"
    builder.harvester_machines["cp-1"]["metadata"]["name"] = "shop-x7k2p"
    assert states([Member(1, "shop-x7k2p-0a1b2c3d")], builder) == {"shop-x7k2p-0a1b2c3d": ("unhealthy", "cp-1")}


def test_a_node_of_another_name_is_matched_too() -> None:
    builder = Builder()
    builder.machines["cp-1"]["status"]["nodeRef"]["name"] = "ip-10-0-0-9"
    assert states([Member(1, "ip-10-0-0-9-0a1b2c3d")], builder) == {"ip-10-0-0-9-0a1b2c3d": ("healthy", "cp-1")}


def test_a_member_that_joined_just_now_is_matched_by_the_harvester_machine() -> None:
    builder = joined_just_now(Builder(), "shop-infra-1")
    assert states([Member(1, "shop-infra-1-0a1b2c3d")], builder) == {"shop-infra-1-0a1b2c3d": ("unhealthy", "cp-1")}


def test_a_member_does_not_belong_to_a_machine_that_only_has_the_name_of_its_node() -> None:
    builder = Builder()
    builder.machines["cp-1"]["status"]["nodeRef"]["name"] = "shop-infra-1"
    own = builder.harvester_machines["cp-1"]
    own["metadata"]["name"] = builder.machines["cp-1"]["spec"]["infrastructureRef"]["name"] = "shop-infra-1"
    found = [Member(1, "shop-infra-1-0a1b2c3d"), Member(2, "cp-1-0a1b2c3d")]
    assert states(found, builder) == {
        "shop-infra-1-0a1b2c3d": ("healthy", "cp-1"),
        "cp-1-0a1b2c3d": ("stale", ""),
    }


def joined_just_now(builder: Builder, infrastructure: str) -> Builder:
    """Have a control plane machine whose HarvesterMachine has another name, and no `nodeRef` yet."""
    own = builder.harvester_machines["cp-1"]
    own["metadata"]["name"] = builder.machines["cp-1"]["spec"]["infrastructureRef"]["name"] = infrastructure
    del builder.machines["cp-1"]["status"]["nodeRef"]
    return builder


def test_a_member_whose_node_is_not_ready_is_unhealthy() -> None:
    builder = Builder()
    builder.machines["cp-1"]["status"]["conditions"][1]["status"] = "Unknown"
    assert states([Member(1, "cp-1-0a1b2c3d")], builder)["cp-1-0a1b2c3d"][0] == "unhealthy"


def member(number: int, state: str) -> EtcdMember:
    return EtcdMember(f"{number:x}", f"m{number}", state, "" if state == "stale" else f"machine-{number}")


def test_stale_members_are_removed_by_default_and_others_by_name_or_id() -> None:
    found = [member(10, "healthy"), member(11, "stale")]
    assert [each.name for each in choose_members(found, ())] == ["m11"]
    assert [each.name for each in choose_members(found, ["a"])] == ["m10"]
    assert [each.name for each in choose_members(found, ["m10", "b"])] == ["m10", "m11"]
    with pytest.raises(ChangeError, match=r"etcd has no member m12; there are m10 \(a\), m11 \(b\)"):
        choose_members(found, ["m12"])


def errors(found: list[EtcdMember], *removed: int) -> set[str]:
    gone = [found[number] for number in removed]
    return {check.id for check in removal_checks(Key("team", "shop"), found, gone) if check.result is Result.ERROR}


def test_a_member_with_a_machine_is_kept() -> None:
    found = [member(1, "healthy"), member(2, "healthy"), member(3, "healthy")]
    assert errors(found, 2) == {"machine"}


def test_the_rest_must_have_a_quorum() -> None:
    assert errors([member(1, "healthy"), member(2, "healthy"), member(3, "stale")], 2) == set()
    assert errors([member(1, "healthy"), member(2, "unhealthy"), member(3, "stale")], 2) == {"quorum"}
    assert errors([member(1, "stale")], 0) == {"quorum"}


@pytest.mark.parametrize(
    ("states", "result", "message"),
    [
        (["healthy", "healthy", "unhealthy", "stale"], Result.OK, "2 of 3 remaining members are healthy"),
        (["healthy", "unhealthy", "stale"], Result.ERROR, "1 of 2 remaining members are healthy: etcd would have no"),
        (["healthy", "learner", "stale"], Result.OK, "1 of 1 remaining members are healthy"),
        (["stale"], Result.ERROR, "0 of 0 remaining members are healthy: etcd would have no quorum"),
    ],
)
def test_the_members_that_remain_are_counted(states: list[str], result: Result, message: str) -> None:
    found = [member(number, state) for number, state in enumerate(states)]
    (check,) = removal_checks(Key("team", "shop"), found, [found[-1]])
    assert (check.id, check.result, check.message.startswith(message)) == ("quorum", result, True)


@given(st.lists(st.sampled_from(["healthy", "unhealthy", "stale"]), min_size=1, max_size=7))
def test_removing_stale_members_never_costs_a_quorum_that_there_was(kinds: list[str]) -> None:
    found = [member(number, state) for number, state in enumerate(kinds)]
    stale = [number for number, state in enumerate(kinds) if state == "stale"]
    had_quorum = 2 * kinds.count("healthy") > len(kinds)
    if had_quorum and stale:
        assert errors(found, *stale) == set()


def waiting_for_rke2(builder: Builder) -> Obj:
    """Return a Machine whose Node was deleted before it, as CAPRKE2 v0.25.0 leaves it."""
    (record,) = (
        record
        for record in observed.records("rancher-cluster-api-provider-rke2/deletion.yaml")
        if record.name == "node-deleted-before-the-machine"
    )
    machine = builder.machines["cp-1"]
    machine["metadata"] |= {"deletionTimestamp": ago(minutes=10), "annotations": dict(record.outcome["annotations"])}
    machine["status"]["conditions"] = [condition(**each) for each in record.outcome["conditions"].values()]
    return machine


def test_a_machine_is_released_only_when_node_and_member_do_not_exist() -> None:
    machine = waiting_for_rke2(Builder())
    others = [EtcdMember("a", "cp-2-0a1b2c3d", "healthy", "cp-2")]
    assert unreleased_machines([machine], {"cp-2"}, others) == ("cp-1",)
    assert unreleased_machines([machine], {"cp-1", "cp-2"}, others) == ()
    assert unreleased_machines([machine], {"cp-2"}, [*others, EtcdMember("b", "cp-1-1", "unhealthy", "cp-1")]) == ()


@pytest.mark.parametrize("absent", ["deletionTimestamp", "annotations"])
def test_a_machine_that_is_not_deleted_or_has_no_hook_is_left_alone(absent: str) -> None:
    machine = waiting_for_rke2(Builder())
    del machine["metadata"][absent]
    assert unreleased_machines([machine], {"cp-2"}, []) == ()


def test_a_machine_without_a_known_node_is_left_alone() -> None:
    machine = waiting_for_rke2(Builder())
    del machine["status"]["nodeRef"]
    assert unreleased_machines([machine], {"cp-2"}, []) == ()
