"""Own writes put into the copy at once, in a race with lists and watches: the copy still becomes the truth."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from caphv.runtime.cache import Informer
from caphv.runtime.errors import Gone, Unreachable
from tests.support.fake_collection import Collection, watched
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


async def test_own_write_is_there_at_once_and_reported_once() -> None:
    server = Collection()
    async with watched(server) as it:
        answer = server.write("a")
        it.informer.observe(answer)
        assert it.informer.get("ns", "a") is not None
        await settle()
        assert it.hearing() == ["+a"]
        server.write("a")
        await settle()
        assert it.hearing() == ["~a"]


async def test_answer_to_an_own_write_stays_the_callers() -> None:
    server = Collection()
    async with watched(server) as it:
        answer = server.write("a")
        it.informer.observe(answer)
        assert "managedFields" in answer["metadata"]
        stored = it.informer.get("ns", "a")
        assert stored is not None
        assert "managedFields" not in stored["metadata"]


async def test_late_deletion_does_not_remove_the_object_recreated() -> None:
    server = Collection()
    server.write("a")
    async with watched(server) as it:
        server.delete("a")
        it.informer.observe(server.write("a"))
        it.hearing()
        await settle()
        assert it.hearing() == []
        assert it.versions() == server.versions()


async def test_late_answer_does_not_bring_back_what_the_watch_saw_go() -> None:
    server = Collection()
    async with watched(server) as it:
        late = server.write("a")
        server.delete("a")
        await settle()
        it.informer.observe(late)
        assert it.versions() == {}
        assert it.hearing() == ["+a", "-a"]


async def test_late_answer_does_not_bring_back_what_a_list_did_not_have() -> None:
    server = Collection()
    async with watched(server) as it:
        server.end_watches(Gone(410, "Expired", ""))
        late = server.write("a")
        server.delete("a")
        server.compact()
        await asyncio.sleep(5)
        it.informer.observe(late)
        assert it.versions() == {}
        assert it.hearing() == []


async def test_own_write_made_while_a_list_is_read_is_not_taken_for_deleted() -> None:
    server = Collection()
    for name in "bcd":
        server.write(name)
    async with watched(server) as it:
        it.hearing()
        server.between_pages = lambda: it.informer.observe(server.write("a"))
        server.compact()
        server.end_watches()
        await asyncio.sleep(5)
        assert server.lists == 2
        assert it.hearing() == ["+a"]
        assert it.versions() == server.versions()


async def test_forgotten_object_no_longer_exists_at_once_and_its_deletion_not_reported_again() -> None:
    server = Collection()
    server.write("a")
    async with watched(server) as it:
        server.delete("a")
        it.informer.forget("ns", "a")
        it.informer.forget("ns", "a")
        assert it.informer.get("ns", "a") is None
        await settle()
        assert it.hearing() == ["+a", "-a"]


class Server(Collection):
    """A collection to which anything may happen, with answers to own writes that arrive late."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Obj] = []

    def happen(self, what: str, name: str, informer: Informer) -> None:
        exists = Key("ns", name) in self.objects
        if what == "write":
            self.late.append(self.write(name))
        elif what == "own write":
            informer.observe(self.write(name))
        elif what == "late answer" and self.late:
            informer.observe(self.late.pop(0))
        elif what == "delete" and exists:
            self.delete(name)
        elif what == "own delete" and exists:
            self.delete(name)
            informer.forget("ns", name)

    def disturb(self, what: str) -> None:
        if what == "break":
            self.end_watches(Unreachable("reset"))
        elif what == "end":
            self.end_watches()
        elif what == "compact":
            self.compact()
            self.end_watches(Gone(410, "Expired", ""))
        elif what == "bookmark":
            self.bookmark()
        elif what == "fail":
            self.failures.append(Unreachable("down"))


WRITES = st.sampled_from(["write", "own write", "late answer", "delete", "own delete"])
STEPS = st.one_of(
    st.tuples(WRITES, st.sampled_from("abcd")),
    st.sampled_from(["break", "end", "compact", "bookmark", "fail"]),
    st.sampled_from([0.0, 0.015, 1.0, 5.0]),
)


@given(st.lists(STEPS, max_size=40), st.lists(WRITES, max_size=8))
async def test_copy_and_reported_changes_become_the_truth_whatever_happens(
    steps: list[tuple[str, str] | str | float], between: list[str]
) -> None:
    server = Server()
    async with watched(server) as it:
        server.between_pages = lambda: between and server.happen(between.pop(), "a", it.informer)
        for step in steps:
            if isinstance(step, tuple):
                server.happen(*step, it.informer)
            elif isinstance(step, str):
                server.disturb(step)
            else:
                await asyncio.sleep(step)
        await asyncio.sleep(600)
        assert it.versions() == server.versions()
        assert it.replayed == server.versions()
