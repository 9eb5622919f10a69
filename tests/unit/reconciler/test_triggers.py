"""Every stop has a trigger: no machine waits for an address while one is free, in whatever order things happen."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import resources
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner
from caphv.runtime.cache import Change
from caphv.runtime.controller import Controller
from caphv.runtime.errors import Conflict
from caphv.runtime.queue import WorkQueue
from reconciler.blocked import Blocked
from reconciler.context import Context
from reconciler.harvester.allocator import AddressAllocator
from reconciler.harvesterhandlers import HarvesterHandlers
from reconciler.machine.addresses.entries import release_addresses
from reconciler.machine.addresses.pool import ensure_address
from reconciler.machine.scope import MachineScope
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics
from tests.support.virtualtime import run, settle

pytestmark = pytest.mark.unit

HARVESTER = "fingerprint"
MACHINES = 5
# Toggle a machine, correct or break the pool's selector, or let some turns of the event loop go by.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("machine"), st.integers(0, MACHINES - 1)),
        st.tuples(st.just("selector"), st.booleans()),
        st.tuples(st.just("turns"), st.integers(0, 6)),
    ),
    min_size=5,
    max_size=60,
)


def pool(size: int) -> Obj:
    ranges = [{"subnet": "10.0.0.0/16", "rangeStart": "10.0.1.1", "rangeEnd": f"10.0.1.{size}"}]
    status = {"total": size, "available": size, "lastAllocated": "", "allocated": {}}
    spec = {"ranges": ranges, "selector": {"network": "default/net"}}
    return {"metadata": {"name": "pool", "resourceVersion": "1"}, "spec": spec, "status": status}


class World:
    """A pool on an API server that takes its time, its cache, and machines that want an address or none."""

    def __init__(self, size: int, delays: list[int]) -> None:
        self.obj = pool(size)
        self.cached = self.obj
        self.delays = delays
        self.wanting: set[str] = set()
        self.queue: WorkQueue[Key] = WorkQueue("test")
        self.topics = Topics()
        self.drafts: dict[str, StatusDraft] = {}
        cache = SimpleNamespace(get=self.known, store=self, observe=self.observe)
        self.allocator = AddressAllocator(cast(Any, self), lambda: cast(Any, cache), lambda _: False)
        queues = SimpleNamespace(clusters=None, machines=self.queue, templates=None, identities=None)
        caches = SimpleNamespace(harvester_machines=SimpleNamespace(get=lambda *_: None))
        sessions = SimpleNamespace(users=lambda *_: ())
        context = cast(Context, SimpleNamespace(caches=caches, queues=queues, sessions=sessions, topics=self.topics))
        self.harvester = HarvesterHandlers(context)
        self.session = SimpleNamespace(fingerprint=HARVESTER, allocator=self.allocator, pools=cache)

    # The API server

    async def patch(self, _resource: object, _name: str, _namespace: str, patch: Obj) -> Obj:
        await self._delay()
        if patch["metadata"]["resourceVersion"] != self.obj["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "modified")
        held = {**self.obj["status"]["allocated"], **patch["status"].get("allocated", {})}
        annotations = {**self.obj["metadata"].get("annotations", {}), **patch["metadata"].get("annotations", {})}
        self.write({name: holder for name, holder in held.items() if holder}, annotations)
        answer = copy.deepcopy(self.obj)
        await self._delay()
        return answer

    async def get(self, *_where: str) -> Obj:
        await self._delay()
        return self.obj

    def write(self, allocated: dict[str, str], annotations: dict[str, Any], network: str = "") -> None:
        new = copy.deepcopy(self.obj)
        new["status"]["allocated"] = allocated
        new["metadata"]["annotations"] = {name: value for name, value in annotations.items() if value}
        new["metadata"]["resourceVersion"] = str(int(new["metadata"]["resourceVersion"]) + 1)
        if network:
            new["spec"]["selector"] = {"network": network}
        self.obj = new

    async def _delay(self) -> None:
        for _ in range(self.delays.pop() if self.delays else 0):
            await asyncio.sleep(0)

    # The cache of a watch that may be late

    def __iter__(self) -> Iterator[Obj]:
        return iter([self.cached])

    def known(self, _namespace: str, _name: str) -> Obj:
        return self.cached

    def observe(self, obj: Obj) -> None:
        before = self.cached
        if int(obj["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"]):
            self.cached = obj
            self.harvester.handle(cast(Any, [self.session]), Change(resources.IP_POOLS, before, obj))

    # Machines

    def scope(self, name: str) -> MachineScope:
        key = Key("team", name)
        draft = self.drafts.setdefault(name, StatusDraft({"metadata": {}}))
        found = SimpleNamespace(
            key=key,
            obj={"metadata": {"namespace": "team", "name": name}},
            name=name,
            spec={"networks": ["default/net"]},
            cluster_spec={"vmNetworkConfig": {"ipPoolRef": "pool"}},
            reservation=f"team/{name}",
            owner=Owner("HarvesterMachine", "team", name, name, "management"),
            draft=draft,
            session=lambda: self.session,
            subscribe=lambda *topics: self.topics.subscribe(self.queue, key, *topics),
        )
        return cast(MachineScope, found)

    async def reconcile(self, key: Key) -> None:
        scope = self.scope(key.name)
        if key.name in self.wanting:
            with contextlib.suppress(Blocked):
                await ensure_address(scope)
        else:
            await release_addresses(scope, foreign_vm=False)
            self.drafts.pop(key.name, None)

    async def play(self, steps: list[tuple[str, Any]]) -> None:
        controller = Controller("test", self.reconcile, concurrency=3, queue=self.queue)
        task = asyncio.create_task(controller.run())
        for step, value in steps:
            if step == "machine":
                self.wanting ^= {f"m{value}"}
                self.queue.add(Key("team", f"m{value}"))
            elif step == "selector":
                network = "default/net" if value else "default/other"
                self.write(self.obj["status"]["allocated"], self.obj["metadata"].get("annotations", {}), network)
                asyncio.get_running_loop().call_soon(self.observe, self.obj)
            else:
                await settle(value)
        self.write(self.obj["status"]["allocated"], self.obj["metadata"].get("annotations", {}), "default/net")
        self.observe(self.obj)
        # Back-off after conflicts is a second at most; nothing else may depend on time.
        await asyncio.sleep(30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@given(size=st.integers(1, 3), steps=STEPS, delays=st.lists(st.integers(0, 5), max_size=60))
def test_no_machine_waits_for_an_address_while_one_is_free(
    size: int, steps: list[tuple[str, Any]], delays: list[int]
) -> None:
    world = World(size, delays)
    run(world.play(steps))
    holders = set(world.obj["status"]["allocated"].values())
    wanting = {f"team/{name}" for name in world.wanting}
    assert holders <= wanting
    assert len(holders) == min(size, len(wanting))


def test_reconcile_begins_without_the_subscriptions_of_the_last_one() -> None:
    """Each reconcile that waits subscribes, and only the last one of them ends its subscription."""
    topics, queue, key = Topics(), WorkQueue[Key]("test"), Key("team", "waits")
    for _ in range(3):
        topics.unsubscribe_all(queue, key)
        with pytest.raises(ValueError, match="refused"), topics.subscribe(queue, key, "topic", "other"):
            raise ValueError("refused")
    topics.subscribe(queue, Key("team", "another"), "topic")

    topics.unsubscribe_all(queue, key)
    with topics.subscribe(queue, key, "topic"):
        with topics.subscribe(queue, key, "topic"):
            pass
        topics.notify("topic")
        assert len(queue) == 2, "a subscription of the same reconcile stays"
    topics.notify("topic")
    topics.notify("other")
    assert len(queue) == 2
    topics.unsubscribe_all(queue, key)


def test_subscription_ends_with_its_block_unless_the_object_depends_on_it() -> None:
    topics, queue = Topics(), WorkQueue[Key]("test")
    with topics.subscribe(queue, Key("team", "served"), "topic"):
        pass
    with pytest.raises(ValueError, match="refused"), topics.subscribe(queue, Key("team", "waits"), "topic"):
        raise ValueError("refused")
    topics.notify("topic")
    assert len(queue) == 1
