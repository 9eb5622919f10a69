"""Whose the entries of IPPools are, and what a release writes."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Key, Obj
from operations.capacity.addresspools import Entry, Owners, PoolReport, Verdict, audit, repair
from tests.support.clusters import ago

US, THEM = "0a1b2c3d-1111-2222-3333-444455556666", "ffffffff"
MARK = "addresses.caphv.io/"


def pool(*entries: tuple[str, str, str], available: int | None = None, marks: Obj | None = None, **status: Any) -> Obj:
    """A pool of ten addresses with entries: address, holder, mark."""
    annotations = {f"{MARK}{address}": mark for address, _, mark in entries if mark}
    return {
        "metadata": {"name": "machines", "resourceVersion": "7", "annotations": {**annotations, **(marks or {})}},
        "spec": {"ranges": [{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.19"}]},
        "status": {
            "allocated": {address: holder for address, holder, _ in entries},
            "available": 10 - len(entries) if available is None else available,
            "total": 10,
            **status,
        },
    }


def owners(**fields: Any) -> Owners:
    """Owners with one machine, `team/alive`."""
    machine = {"metadata": {"name": "alive", "namespace": "team", "creationTimestamp": ago(days=1)}}
    machine["status"] = {"allocatedIPAddress": "10.0.0.10"}  # type: ignore[assignment]
    return Owners(US, machines={Key("team", "alive"): machine}, **fields)


def report(obj: Obj, known: Owners | None = None) -> PoolReport:
    (found,) = audit([obj], known or owners(), "https://harvester:6443")
    return found


def entry(address: str, holder: str, mark: str, known: Owners | None = None) -> Entry:
    (found,) = report(pool((address, holder, mark)), known).entries
    return found


OURS = US[:8]


def test_an_address_of_a_machine_that_exists_is_held() -> None:
    found = entry("10.0.0.10", "team/alive", OURS)
    assert (found.verdict, found.owner, found.created) == (Verdict.HELD, "HarvesterMachine team/alive", ago(days=1))


def test_a_second_address_of_a_machine_is_shown_and_stays() -> None:
    found = entry("10.0.0.11", "team/alive", OURS)
    assert (found.verdict, found.detail) == (Verdict.HELD, "the machine uses 10.0.0.10")


def test_address_of_an_interface_is_held_by_its_machine() -> None:
    found = entry("10.0.0.12", "team/alive.1-0", OURS)
    assert (found.verdict, found.owner, found.detail) == (Verdict.HELD, "HarvesterMachine team/alive", "")
    machine = {"metadata": {"name": "alive", "namespace": "team"}}
    machine["status"] = {"interfaceAddresses": [{"address": "10.0.0.13"}]}  # type: ignore[dict-item]
    known = Owners(US, machines={Key("team", "alive"): machine})
    assert entry("10.0.0.13", "team/alive.1-0", OURS, known).detail == ""
    assert entry("10.0.0.12", "team/alive.1-0", OURS, known).detail == "the machine uses 10.0.0.13"
    assert entry("10.0.0.12", "team/dead.1-0", OURS).verdict is Verdict.LEAKED


def test_machine_whose_name_looks_like_an_interface_holds_its_address() -> None:
    known = Owners(US, machines={Key("team", "dead.1-0"): {"metadata": {"name": "dead.1-0", "namespace": "team"}}})
    found = entry("10.0.0.12", "team/dead.1-0", OURS, known)
    assert (found.verdict, found.owner) == (Verdict.HELD, "HarvesterMachine team/dead.1-0")


def test_an_address_of_a_load_balancer_or_service_is_held() -> None:
    balancer = {"metadata": {"name": "team-shop-lb", "namespace": "vms"}}
    assert entry("10.0.0.12", "vms/team-shop-lb", "", owners(load_balancers=[balancer])).verdict is Verdict.HELD
    assert entry("10.0.0.12", "vms/team-shop-lb", "", owners(services=[balancer])).verdict is Verdict.HELD


def test_an_address_is_held_by_its_cluster_before_the_load_balancer_exists() -> None:
    found = entry(
        "10.0.0.12", "vms/team-shop-lb", OURS, owners(balancers={Key("vms", "team-shop-lb"): Key("team", "shop")})
    )
    assert (found.verdict, found.owner) == (Verdict.HELD, "HarvesterCluster team/shop")
    assert entry("10.0.0.12", "vms/team-shop-lb", OURS).verdict is Verdict.LEAKED


def test_without_the_uid_of_this_management_cluster_nothing_is_foreign_or_leaked() -> None:
    unnamed = owners()
    unnamed.management_cluster = ""
    assert {entry("10.0.0.11", "team/dead", mark, unnamed).verdict for mark in (OURS, THEM)} == {Verdict.UNKNOWN}
    assert entry("10.0.0.10", "team/alive", OURS, unnamed).verdict is Verdict.HELD


def test_what_this_management_cluster_made_for_a_machine_that_does_not_exist_has_leaked() -> None:
    assert entry("10.0.0.11", "team/dead", OURS).verdict is Verdict.LEAKED


@pytest.mark.parametrize(
    ("mark", "known", "verdict"),
    [
        (THEM, owners(), Verdict.FOREIGN),
        (OURS, Owners(""), Verdict.UNKNOWN),
        ("", owners(), Verdict.UNRECORDED),
        (OURS, owners(namespaces=frozenset({"other"})), Verdict.UNKNOWN),
        (OURS, owners(vms_complete=False), Verdict.UNKNOWN),
    ],
)
def test_what_is_not_certain_stays(mark: str, known: Owners, verdict: Verdict) -> None:
    obj = pool(("10.0.0.11", "team/dead", mark))
    found = report(obj, known)
    assert found.entries[0].verdict is verdict
    assert repair(obj, found) is None


@pytest.mark.parametrize(
    "users",
    [
        {"vms": [{"metadata": {"name": "x", "annotations": {"caphv.io/owner": "HarvesterMachine/team/dead"}}}]},
        {"instances": [{"metadata": {"name": "x"}, "status": {"interfaces": [{"ipAddress": "10.0.0.11"}]}}]},
        {"services": [{"metadata": {"name": "x"}, "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.11"}]}}}]},
        {"services": [{"metadata": {"name": "x"}, "spec": {"loadBalancerIP": "10.0.0.11"}}]},
    ],
)
def test_an_address_that_something_still_uses_stays(users: Any) -> None:
    obj = pool(("10.0.0.11", "team/dead", OURS))
    found = report(obj, owners(**users))
    assert found.entries[0].verdict is Verdict.IN_USE
    assert repair(obj, found) is None


def test_a_release_is_one_guarded_write_of_entry_history_count_and_mark() -> None:
    obj = pool(("10.0.0.10", "team/alive", OURS), ("10.0.0.11", "team/dead", OURS))
    assert repair(obj, report(obj)) == {
        "metadata": {"resourceVersion": "7", "annotations": {f"{MARK}10.0.0.11": None}},
        "status": {
            "available": 9,
            "allocated": {"10.0.0.11": None},
            "allocatedHistory": {"10.0.0.11": "team/dead"},
        },
    }


def test_counts_that_an_edit_by_hand_left_wrong_are_corrected() -> None:
    obj = pool(("10.0.0.10", "team/alive", OURS), available=4)
    assert repair(obj, report(obj)) == {"metadata": {"resourceVersion": "7"}, "status": {"available": 9}}


def test_marks_of_free_addresses_are_removed_but_not_those_of_others() -> None:
    obj = pool(marks={f"{MARK}10.0.0.15": OURS, f"{MARK}10.0.0.16": THEM})
    patch = repair(obj, report(obj))
    assert patch is not None
    assert patch["metadata"]["annotations"] == {f"{MARK}10.0.0.15": None}


def test_a_total_that_harvester_counted_otherwise_holds() -> None:
    obj = pool(("10.0.0.10", "team/alive", OURS), available=7, total=8)
    assert not report(obj).wrong


def test_an_address_outside_of_the_ranges_counts_for_nothing() -> None:
    obj = pool(("10.0.9.9", "team/dead", OURS), available=10)
    patch = repair(obj, report(obj))
    assert patch is not None
    assert patch["status"]["available"] == 10


def test_a_pool_that_cannot_be_understood_is_reported_and_left_alone() -> None:
    obj = pool()
    obj["spec"]["ranges"] = [{"subnet": "nonsense"}]
    found = report(obj)
    assert "nonsense" in found.error
    assert found.wrong
    assert repair(obj, found) is None


def test_entries_are_in_the_order_of_addresses() -> None:
    obj = pool(("10.0.0.9", "a/b", ""), ("10.0.0.100", "a/b", ""), ("fd00::2", "a/b", ""), ("10.0.0.10", "a/b", ""))
    assert [each.address for each in report(obj).entries] == ["10.0.0.9", "10.0.0.10", "10.0.0.100", "fd00::2"]


@pytest.mark.parametrize("interface", [{"ipAddress": "10.0.0.12"}, {"ipAddresses": ["fd00::1", "10.0.0.12"]}])
def test_an_address_that_a_vm_left_behind_still_uses_is_in_use(interface: Obj) -> None:
    instance = {"metadata": {"name": "left", "namespace": "vms"}, "status": {"interfaces": [{}, interface]}}
    found = entry("10.0.0.12", "team/gone", OURS, owners(instances=[instance], vms_complete=True))
    assert (found.verdict, found.owner) == (Verdict.IN_USE, "VirtualMachineInstance vms/left")
