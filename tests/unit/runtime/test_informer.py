"""What an informer promises: its copy becomes that of the server, and handlers hear each change once."""

import asyncio
import logging
from typing import cast

import pytest
from prometheus_client import REGISTRY

from caphv.api.object import Key, Obj, key_of
from caphv.runtime.budget import MemoryBudget
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, Gone, TooLarge, TooManyRequests, Unreachable
from tests.support.fake_collection import THINGS, Collection, Watched, watched
from tests.support.virtualtime import settle

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]


async def test_all_pages_of_the_first_list_are_reported_once() -> None:
    server = Collection()
    for name in "abcde":
        server.write(name)
    async with watched(server) as it:
        assert it.hearing() == ["+a", "+b", "+c", "+d", "+e"]
        assert it.versions() == server.versions()
        assert server.lists == 1


async def test_not_synced_before_the_last_page() -> None:
    server = Collection()
    for name in "abc":
        server.write(name)
    it = Watched(server)
    server.between_pages = lambda: seen.append(it.informer.synced)
    seen: list[bool] = []
    task = it.informer.start()
    await it.informer.wait_synced()
    assert seen == [False]
    task.cancel()


async def test_watch_brings_every_kind_of_change() -> None:
    server = Collection()
    async with watched(server, indexes={"color": lambda obj: obj["metadata"]["labels"].values()}) as it:
        server.write("a", color="red")
        server.write("a", color="blue")
        server.write("b", color="blue")
        server.delete("b")
        await settle()
        assert it.hearing() == ["+a", "~a", "+b", "-b"]
        assert [key_of(obj).name for obj in it.informer.store.by_index("color", "blue")] == ["a"]


async def test_watch_continues_where_the_last_one_or_its_bookmark_ended_without_a_list() -> None:
    server = Collection()
    async with watched(server) as it:
        await asyncio.sleep(5)
        server.write("a")
        server.bookmark()
        server.end_watches()
        await settle()
        assert server.watched_from == [10, server.version]
        assert server.lists == 1
        assert it.hearing() == ["+a"]


async def test_nothing_is_lost_between_two_watches() -> None:
    server = Collection()
    server.write("a")
    async with watched(server) as it:
        server.end_watches(Unreachable("connection reset"))
        await settle()
        server.write("b")
        server.delete("a")
        await asyncio.sleep(5)
        assert it.hearing() == ["+a", "+b", "-a"]
        assert server.lists == 1


async def test_after_410_a_list_finds_what_was_deleted_meanwhile() -> None:
    server = Collection()
    for name in "abc":
        server.write(name)
    async with watched(server) as it:
        it.hearing()
        server.end_watches(Gone(410, "Expired", "too old resource version"))
        server.delete("b")
        server.write("c")
        server.write("d")
        server.compact()
        await asyncio.sleep(5)
        assert it.hearing() == ["~c", "+d", "-b"]
        assert server.lists == 2
        assert it.informer.last_error is None, "410 is no failure"


@pytest.mark.parametrize(("bookmarks", "lists"), [(True, 1), (False, 2)])
async def test_only_a_server_without_contact_for_minutes_is_listed_again(bookmarks: bool, lists: int) -> None:
    server = Collection()
    server.write("a")
    async with watched(server):
        for _ in range(6):
            await asyncio.sleep(55)
            if bookmarks:
                server.bookmark()
        server.end_watches(Unreachable("the server closed the connection"))
        await asyncio.sleep(5)
        assert server.lists == lists


async def test_410_again_and_again_is_not_answered_in_a_circle() -> None:
    server = Collection()
    async with watched(server):
        server.failures.extend([Gone(410, "Expired", "")] * 1000)
        server.end_watches()
        before = len(server.attempts)
        await asyncio.sleep(60)
        assert len(server.attempts) - before < 30


async def test_watches_that_end_at_once_are_not_opened_in_a_circle() -> None:
    server = Collection()
    async with watched(server, max_backoff=10.0):
        for _ in range(6000):
            server.end_watches()
            await asyncio.sleep(0.01)
        assert len(server.watched_from) < 40


async def test_restarts_before_their_time_are_counted_by_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "caphv.runtime.cache")

    def counted() -> dict[str, float]:
        reasons = ("expired", "refused", "unreachable", "broken", "closed")
        labels = {"server": "fake", "resource": str(THINGS)}
        values = {
            r: REGISTRY.get_sample_value("caphv_watch_restarts_total", {**labels, "reason": r}) or 0 for r in reasons
        }
        return {reason: value - before.get(reason, 0) for reason, value in values.items()}

    before: dict[str, float] = {}
    before = counted()
    server = Collection()
    async with watched(server, max_backoff=2.0):
        await asyncio.sleep(5)
        server.end_watches()  # it has lasted: that is how servers end them
        await asyncio.sleep(5)
        server.end_watches(Gone(410, "Expired", ""))
        server.failures.extend([Unreachable("away"), Unreachable("away"), Forbidden(403, "", ""), TypeError("odd")])
        await asyncio.sleep(30)
        server.end_watches(TooLarge("more than allowed"))
        await asyncio.sleep(5)
        server.end_watches()
        await asyncio.sleep(0.1)
        server.end_watches()
        await asyncio.sleep(5)
    assert counted() == {"expired": 1, "unreachable": 2, "refused": 1, "broken": 2, "closed": 1}
    restarts = [text for text in caplog.messages if " restarts: " in text]
    assert restarts == [f"watch of things.example.io on fake restarts: {reason}" for reason in ("expired", "closed")]


async def test_attempts_come_at_growing_intervals_up_to_the_maximum_and_everybody_hears_why() -> None:
    errors: list[Exception] = []
    contacts: list[bool] = []

    server = Collection()
    server.failures.extend(Unreachable(f"attempt {number}") for number in range(12))
    async with watched(
        server, max_backoff=10.0, on_error=errors.append, on_contact=lambda: contacts.append(True)
    ) as it:
        waits = [after - before for before, after in zip(server.attempts, server.attempts[1:12], strict=False)]
        for number, wait in enumerate(waits, 1):
            limit = min(0.2 * 2**number, 10)
            assert limit / 4 <= wait <= limit + 0.001
        assert [str(error) for error in errors] == [f"attempt {number}" for number in range(12)]
        assert contacts == [True]
        assert it.informer.last_error is None


async def test_a_watch_that_lasted_makes_the_next_back_off_small_again() -> None:
    server = Collection()
    server.failures.extend([Unreachable("down")] * 10)
    async with watched(server, max_backoff=60.0):
        await asyncio.sleep(5)
        server.end_watches(Unreachable("reset"))
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(0.5)
        assert server.attempts[-1] - before <= 0.41


async def test_error_is_known_until_the_server_takes_a_watch_again() -> None:
    server = Collection()
    async with watched(server) as it:
        refusal = Forbidden(403, "Forbidden", "no")
        server.end_watches(refusal)
        await settle()
        assert it.informer.last_error is refusal
        assert it.informer.synced, "what was read stays usable"
        await asyncio.sleep(5)
        assert it.informer.last_error is None


async def test_retry_now_ends_a_long_wait() -> None:
    server = Collection()
    async with watched(server, max_backoff=1000.0) as it:
        server.failures.extend([Unreachable("down")] * 20)
        server.end_watches(Unreachable("down"))
        await asyncio.sleep(1000)
        before = len(server.attempts)
        server.failures.clear()
        await settle()
        assert not server.open_watches, "the wait must be a long one"
        it.informer.retry_now()
        await asyncio.sleep(0.1)
        assert len(server.attempts) == before + 2, "after so long it lists, and watches"
        assert server.open_watches


async def test_retry_now_counts_while_an_attempt_is_still_hanging() -> None:
    server = Collection()
    async with watched(server, max_backoff=1000.0) as it:
        server.failures.extend([Unreachable("down")] * 20)
        server.end_watches(Unreachable("down"))
        await asyncio.sleep(3000)
        server.failures.clear()
        server.hangs = 15.0
        it.informer.retry_now()
        await asyncio.sleep(1)
        it.informer.retry_now()
        server.hangs = 0.0
        await asyncio.sleep(20)
        assert server.open_watches, "after the hanging attempt it must not sleep again"


async def test_while_its_probe_fails_an_informer_leaves_the_server_alone() -> None:
    probed, server = Collection(), Collection()
    async with watched(probed, max_backoff=4.0) as probe, watched(server, max_backoff=60.0, probe=probe.informer):
        for collection in (probed, server):
            collection.failures.extend([Unreachable("down")] * 1000)
            collection.end_watches(Unreachable("down"))
        await asyncio.sleep(600)
        assert len(probed.attempts) > 150
        assert len(server.attempts) < 60, "one attempt in 15 to 60 s"


async def test_a_server_that_asks_to_wait_is_left_alone_so_long() -> None:
    server = Collection()
    async with watched(server):
        await asyncio.sleep(5)
        server.end_watches(TooManyRequests(429, "TooManyRequests", "", {"retryAfterSeconds": 17}))
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(20)
        assert server.attempts[-1] - before == pytest.approx(17)


async def test_faulty_handler_keeps_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def faulty(_change: Change) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        server = Collection()
        it = Watched(server)
        informer = Informer(cast(ApiClient, server), THINGS)
        informer.add_handler(faulty)
        informer.add_handler(it._hear)
        task = informer.start()
        await informer.wait_synced()
        server.write("a")
        server.write("a")
        await asyncio.sleep(1)
        assert it.hearing() == ["+a", "~a"]
        task.cancel()
    assert "handler of things.example.io failed for ns/a" in caplog.text


async def test_handler_may_leave_while_it_is_reported() -> None:
    server = Collection()
    async with watched(server) as it:

        def once(_change: Change) -> None:
            it.informer.remove_handler(once)
            calls.append(1)

        calls: list[int] = []
        it.informer.remove_handler(it._hear)
        it.informer.add_handler(once)
        it.informer.add_handler(it._hear)
        server.write("a")
        server.write("b")
        await settle()
        assert calls == [1]
        assert it.hearing() == ["+a", "+b"]


async def test_late_handler_hears_of_what_is_there_already() -> None:
    server = Collection()
    server.write("a")
    async with watched(server) as it:
        heard: list[Change] = []
        it.informer.add_handler(heard.append)
        assert [(change.key.name, change.old) for change in heard] == [("a", None)]


async def test_what_the_transform_leaves_out_is_not_there_and_is_deleted_when_it_changes_so() -> None:
    def red_only(obj: Obj) -> Obj | None:
        return obj if "red" in obj["metadata"]["labels"] else None

    server = Collection()
    server.write("a")
    async with watched(server, transform=red_only) as it:
        server.write("b", red="")
        server.write("b")
        await settle()
        assert it.hearing() == ["+b", "-b"]


async def test_an_object_that_cannot_be_taken_over_is_an_error_and_not_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def picky(obj: Obj) -> Obj:
        return {**obj, "color": obj["metadata"]["labels"]["color"]}

    with caplog.at_level(logging.ERROR):
        server = Collection()
        async with watched(server, transform=picky) as it:
            server.write("a")
            await asyncio.sleep(1)
            assert isinstance(it.informer.last_error, KeyError)
            assert it.informer.last_error.__traceback__ is None, "it would keep the whole list"
            server.write("b", color="red")
            server.write("a", color="red")
            await asyncio.sleep(60)
            assert it.informer.last_error is None
            assert it.versions() == server.versions()
    assert "cannot process the objects of things.example.io on fake" in caplog.text


async def test_cache_that_no_longer_fits_when_it_runs_again_is_listed_and_reported() -> None:
    server = Collection()
    server.budget = MemoryBudget(100_000, "fake")
    server.write("a", text="x" * 40_000)
    it = Watched(server)
    task = it.informer.start()
    await it.informer.wait_synced()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    server.budget.charge(80_000)  # other caches of the connection have grown meanwhile

    task = it.informer.start()
    await asyncio.sleep(5)
    assert not task.done()
    assert isinstance(it.informer.last_error, TooLarge)
    assert not it.informer.synced, "what it lacks may exist"
    assert it.versions() == it.replayed == {}

    server.budget.release(80_000)
    await it.informer.wait_synced()
    assert it.versions() == it.replayed == server.versions()
    assert it.hearing() == ["+a", "-a", "+a"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert server.budget.used == 0


async def test_cache_that_exceeded_its_memory_recovers_once_objects_are_deleted() -> None:
    server = Collection()
    server.budget = MemoryBudget(100_000, "fake")
    for name in "ab":
        server.write(name, text="x" * 40_000)
    async with watched(server) as it:
        server.write("c", text="x" * 40_000)
        await asyncio.sleep(60)
        assert isinstance(it.informer.last_error, TooLarge)
        server.delete("a")
        await asyncio.sleep(60)
        assert it.informer.last_error is None
        assert it.versions() == server.versions()
        assert it.hearing() == ["+a", "+b", "-a", "+c"]
    assert server.budget.used == 0


async def test_list_that_replaces_objects_may_need_the_memory_of_both_for_a_moment() -> None:
    server = Collection()
    server.budget = MemoryBudget(100_000, "fake")
    for name in "ab":
        server.write(name, text="x" * 40_000)
    async with watched(server) as it:
        server.end_watches(Gone(410, "Expired", "too old resource version"))
        for old, new in ("a", "0"), ("b", "1"):
            server.delete(old)
            server.write(new, text="x" * 40_000)
        server.compact()
        await asyncio.sleep(60)
        assert it.versions() == server.versions()
        assert it.informer.last_error is None


async def test_cache_that_exceeded_its_memory_recovers_once_objects_shrink() -> None:
    server = Collection()
    server.budget = MemoryBudget(100_000, "fake")
    for name in "bc":
        server.write(name, text="x" * 40_000)
    async with watched(server) as it:
        server.write("a", text="x" * 40_000)
        await asyncio.sleep(60)
        assert isinstance(it.informer.last_error, TooLarge)
        server.write("c", text="")
        await asyncio.sleep(60)
        assert it.informer.last_error is None
        assert it.versions() == server.versions()


Backup = tuple[int, dict[Key, Obj]]


def with_backup(server: Collection) -> Backup:
    """Take a backup of an object, which is changed since, and next to which there is another one."""
    server.write("kept")
    backup = server.backup()
    for _ in range(20):
        server.write("kept", state="newer")
    server.write("made-since")
    return backup


async def restore_after(server: Collection, backup: Backup, seconds: float, informer: Informer) -> None:
    """Restore a backup while the server is down for that time, and let the informer notice that it is back."""
    server.failures.extend([Unreachable("down")] * 100)
    server.end_watches(Unreachable("down"))
    await asyncio.sleep(seconds)
    server.restore(backup)
    server.failures.clear()
    informer.retry_now()
    await asyncio.sleep(1)


async def test_a_server_that_went_back_to_a_backup_is_believed() -> None:
    server = Collection()
    backup = with_backup(server)
    async with watched(server) as it:
        await restore_after(server, backup, 400, it.informer)
        assert it.versions() == server.versions()


async def test_a_backup_that_is_restored_within_minutes_is_noticed_by_its_silence() -> None:
    server = Collection()
    server.patience = 150.0
    backup = with_backup(server)
    async with watched(server) as it:
        await restore_after(server, backup, 60, it.informer)
        server.write("new")
        assert it.informer.current, "the server accepts a watch from its future"
        await asyncio.sleep(160)
        assert it.versions() == server.versions()
        server.write("kept", state="restored")
        await settle()
        assert it.versions() == server.versions()


async def test_a_quiet_server_without_bookmarks_is_not_listed_again() -> None:
    server = Collection()
    server.patience = 150.0
    server.write("a")
    async with watched(server) as it:
        server.write("b")
        await asyncio.sleep(3600)
        assert it.informer.current
        assert server.lists == 1


async def test_a_server_that_is_found_unreachable_after_silence_is_reported() -> None:
    server = Collection()
    server.patience = 150.0
    async with watched(server, max_backoff=10.0) as it:
        server.failures.extend([Unreachable("down")] * 4)
        await asyncio.sleep(151)
        assert isinstance(it.informer.last_error, Unreachable)
        await asyncio.sleep(20)
        assert it.informer.current
        assert server.lists == 1
