"""A control plane's next step keeps its quorum, changes one machine at a time, and comes to an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.capi.plan import Create, Delete, Member, Wait, next_step

pytestmark = pytest.mark.unit

ZONES = ("zone-1", "zone-2", "zone-3")


def names(members: list[Member]) -> set[str]:
    return {member.name for member in members}


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
