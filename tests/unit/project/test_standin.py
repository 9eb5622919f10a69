"""The stand-in of workload X does what the provider waits for."""

from __future__ import annotations

import asyncio

import pytest

from reconciler.machine.images import resolve_image
from tools.bench.standin import World

pytestmark = pytest.mark.unit


async def test_disk_can_use_an_image_soon_after_it_was_created() -> None:
    server = World().server("harvester/0")
    metadata = {"name": "sles-15", "namespace": "default"}
    server.create("virtualmachineimages", "default", {"metadata": metadata, "spec": {"displayName": "SLES"}})
    await asyncio.sleep(0)
    image = resolve_image("default/sles-15", server.collection("virtualmachineimages").objects.values(), "")
    assert image is not None
    assert (image.pending, image.storage_class) == ("", "longhorn-sles-15")
