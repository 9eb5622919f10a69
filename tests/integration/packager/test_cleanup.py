"""A server that several tests use one after the other is empty for each of them."""

from __future__ import annotations

import asyncio

import pytest

from caphv.api.object import CONFIG_MAPS
from tests.support.packager.cleanup import Contents

pytestmark = pytest.mark.integration


async def _names(contents: Contents) -> list[str]:
    async with contents.server.client() as client:
        return [obj["metadata"]["name"] for obj in (await client.list(CONFIG_MAPS, "default"))["items"]]


async def _leave(contents: Contents, *finalizers: str) -> None:
    async with contents.server.client() as client:
        metadata = {"name": "left", "namespace": "default", "finalizers": list(finalizers)}
        await client.create(CONFIG_MAPS, {"metadata": metadata})


def test_what_a_test_leaves_is_deleted(contents: Contents) -> None:
    server = contents.server
    asyncio.run(_leave(contents))

    asyncio.run(contents.restore())

    assert contents.server is server
    assert "left" not in asyncio.run(_names(contents))


def test_a_server_that_keeps_an_object_is_replaced(contents: Contents) -> None:
    server = contents.server
    asyncio.run(_leave(contents, "caphv.io/never-removed"))

    with pytest.warns(UserWarning, match="ConfigMap default/left"):
        asyncio.run(contents.restore(seconds=1))

    assert contents.server is not server
    assert "left" not in asyncio.run(_names(contents))
