"""A control plane's next step keeps its quorum, changes one machine at a time, and comes to an end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.capi.plan import Create, Delete, Member, Wait, next_step

pytestmark = pytest.mark.unit

ZONES = ("zone-1", "zone-2", "zone-3")


def three(**first: object) -> list[Member]:
    members = [Member(f"cp-{n}", created=f"2026-01-0{n}", failure_domain=f"zone-{n}") for n in (1, 2, 3)]
    return [replace(members[0], **first), *members[1:]]  # type: ignore[arg-type]


def names(members: list[Member]) -> set[str]:
    return {member.name for member in members}


def test_the_first_machine_is_made_at_once_and_the_second_when_it_is_ready() -> None:
    assert next_step([], 3, 1, ZONES) == Create("zone-1")
    starting = Member("cp-1", failure_domain="zone-1", joined=False, ready=False, settled=False)
    assert next_step([starting], 3, 1, ZONES) == Wait("cp-1 is not ready")
    # The core comes later; who waited for it would come up slowly.
    assert next_step([replace(starting, joined=True, ready=True)], 3, 1, ZONES) == Create("zone-2")


def test_nothing_is_to_do_for_what_is_as_wanted() -> None:
    assert next_step(three(), 3, 1, ZONES) == Wait()


def test_nothing_is_done_while_a_machine_is_deleted() -> None:
    assert next_step(three(deleting=True), 5, 1, ZONES) == Wait("cp-1 is being deleted")


def test_scaling_down_takes_the_oldest_of_the_fullest_zone() -> None:
    members = [*three(), Member("cp-4", "2026-01-04", "zone-2"), Member("cp-5", "2026-01-05", "zone-3")]
    assert next_step(members, 3, 1, ZONES) == Delete("cp-2")


def test_a_machine_in_a_zone_that_is_no_more_is_deleted_first() -> None:
    members = [*three(), Member("cp-4", "2026-01-04", "closed")]
    assert next_step(members, 3, 1, ZONES) == Delete("cp-4")


def test_no_machine_is_deleted_before_the_core_sees_the_others_ready() -> None:
    members = [*three(), Member("cp-4", "2026-01-04", "zone-1", settled=False)]
    assert next_step(members, 3, 1, ZONES) == Wait("the core has not seen cp-4 ready")


def test_an_unhealthy_machine_is_deleted_while_the_others_are_a_quorum() -> None:
    assert next_step(three(unhealthy=True, ready=False), 3, 1, ZONES) == Delete("cp-1", remediation=True)


def test_an_unhealthy_machine_stays_when_the_others_are_no_quorum() -> None:
    members = three(unhealthy=True, ready=False)
    members[1] = replace(members[1], ready=False)
    step = next_step(members, 3, 1, ZONES)
    assert isinstance(step, Wait)
    assert "quorum" in step.reason


def test_the_only_member_of_etcd_is_never_remediated_but_one_that_never_joined_is() -> None:
    alone = Member("cp-1", unhealthy=True, ready=False)
    assert isinstance(next_step([alone], 1, 1, ()), Wait)
    assert next_step([replace(alone, joined=False)], 1, 1, ()) == Delete("cp-1", remediation=True)


def test_without_surge_a_machine_is_deleted_before_another_comes_but_never_of_fewer_than_three() -> None:
    outdated = [replace(member, current=False) for member in three()]
    assert isinstance(next_step(outdated, 3, 0, ZONES), Delete)
    assert isinstance(next_step(outdated, 3, 1, ZONES), Create)
    assert isinstance(next_step(outdated[:1], 1, 0, ZONES), Create)


def test_a_new_machine_takes_the_zone_that_has_least_of_what_stays() -> None:
    members = three()
    members[1] = replace(members[1], current=False)
    assert next_step(members, 3, 1, ZONES) == Create("zone-2")


@given(
    count=st.integers(0, 7),
    outdated=st.sets(st.integers(0, 6)),
    replicas=st.sampled_from((1, 3, 5)),
    surge=st.sampled_from((0, 1)),
    zones=st.sampled_from(((), ZONES[:1], ZONES)),
)
def test_every_control_plane_comes_to_what_is_wanted_one_step_at_a_time(
    count: int, outdated: set[int], replicas: int, surge: int, zones: tuple[str, ...]
) -> None:
    members = [Member(f"old-{n}", f"{n:03}", "zone-1", current=n not in outdated) for n in range(count)]
    fewest = min(count, replicas if surge or replicas < 3 else replicas - 1)
    for number in range(40):
        step = next_step(members, replicas, surge, zones)
        match step:
            case Create(failure_domain):
                assert failure_domain in zones or not zones
                members.append(Member(f"new-{number}", f"{100 + number}", failure_domain))
            case Delete(name):
                assert name in names(members)
                members = [member for member in members if member.name != name]
            case Wait():
                break
        assert len(members) >= fewest
        assert len(members) <= max(count, replicas + 1)
    assert isinstance(step, Wait)
    assert len(members) == replicas
    assert all(member.current for member in members)


@given(st.lists(st.tuples(*[st.booleans()] * 5), max_size=5))
def test_no_step_takes_a_working_member_when_others_do_not_work(flags: list[tuple[bool, ...]]) -> None:
    members = [
        Member(
            f"cp-{n}",
            joined=joined,
            ready=ready and joined,
            unhealthy=unhealthy and not (ready and joined),
            current=current,
            deleting=deleting,
        )
        for n, (joined, ready, unhealthy, current, deleting) in enumerate(flags)
    ]
    step = next_step(members, 3, 1, ())
    if not isinstance(step, Delete):
        return
    assert not any(member.deleting for member in members)
    left = [member for member in members if member.name != step.name]
    working = sum(member.ready for member in left)
    joined = sum(member.joined for member in left)
    assert working * 2 > joined or not any(member.joined for member in members if member.name == step.name)
