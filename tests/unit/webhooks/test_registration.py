"""When deleted webhook configurations are recreated: not while an uninstallation is about to end the process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from webhooks.configuration import NAMES
from webhooks.registration import Registration

pytestmark = [pytest.mark.unit, pytest.mark.virtual_time]

NAME = NAMES["validate"]


class Server:
    """Stands for the `ApiClient`: the two configurations by their names."""

    name, budget, time = "fake", None, None

    def __init__(self) -> None:
        self.objects: dict[str, Obj] = {}
        self._version = 0
        self._watches: list[tuple[str, asyncio.Queue[tuple[str, Obj]]]] = []

    def delete(self, name: str) -> None:
        self._tell("DELETED", self.objects.pop(name))

    async def list(self, resource: Resource, *_: Any, **__: Any) -> Obj:
        items = [self._copy(obj) for obj in self.objects.values() if obj["kind"] == resource.kind]
        return {"metadata": {"resourceVersion": str(self._version)}, "items": items}

    async def watch(
        self, resource: Resource, *_: Any, on_open: Callable[[], None], **__: Any
    ) -> AsyncGenerator[tuple[str, Obj], None]:
        queue: asyncio.Queue[tuple[str, Obj]] = asyncio.Queue()
        self._watches.append((resource.kind, queue))
        on_open()
        while True:
            yield await queue.get()

    async def get(self, _: Resource, name: str) -> Obj:
        if name not in self.objects:
            raise NotFound(404, "NotFound", name)
        return self._copy(self.objects[name])

    async def apply(self, _: Resource, obj: Obj, **__: Any) -> Obj:
        self.objects[obj["metadata"]["name"]] = self._copy(obj)
        self._tell("ADDED", self.objects[obj["metadata"]["name"]])
        return self._copy(self.objects[obj["metadata"]["name"]])

    def _tell(self, kind: str, obj: Obj) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        for watched, queue in self._watches:
            if watched == obj["kind"]:
                queue.put_nowait((kind, self._copy(obj)))

    def _copy(self, obj: Obj) -> Obj:
        return {**obj, "metadata": dict(obj["metadata"])}


@contextlib.asynccontextmanager
async def registered(server: Server, folder: Path) -> AsyncIterator[Registration]:
    """The registration at work, which has made what was missing when it started."""
    registration = Registration(cast(ApiClient, server), {"url": "https://example.com"}, folder, lambda: True)
    task = asyncio.create_task(registration.run())
    try:
        await asyncio.sleep(2)
        assert sorted(server.objects) == sorted(NAMES.values()), "made at once"
        yield registration
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_deleted_configuration_is_recreated_if_the_process_still_serves_later(tmp_path: Path) -> None:
    server = Server()
    async with registered(server, tmp_path):
        for _ in range(2):
            server.delete(NAME)
            await asyncio.sleep(9)
            assert NAME not in server.objects
            await asyncio.sleep(3)
            assert NAME in server.objects


async def test_configuration_that_is_deleted_before_the_process_stops_stays_deleted(tmp_path: Path) -> None:
    """As `helm uninstall` does, which deletes the Deployment after the configurations."""
    server = Server()
    async with registered(server, tmp_path) as registration:
        for name in NAMES.values():
            server.delete(name)
        await asyncio.sleep(8)
        registration.stopping()
        await asyncio.sleep(60)
        assert not server.objects


async def test_configuration_that_another_replica_has_made_meanwhile_is_kept(tmp_path: Path) -> None:
    server = Server()
    async with registered(server, tmp_path):
        made = server.objects[NAME]
        server.delete(NAME)
        await asyncio.sleep(5)
        await server.apply(cast(Resource, None), made)
        version = server.objects[NAME]["metadata"]["resourceVersion"]
        await asyncio.sleep(60)
        assert server.objects[NAME]["metadata"]["resourceVersion"] == version
