"""Real API servers for tests, each with an etcd in a folder of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from caphv.api.object import Obj
from sandbox import manifests
from sandbox.processes import binaries, children, pki
from sandbox.processes.apiserver import ApiServer, Etcd, private_file


@contextmanager
def running_etcd(folder: Path) -> Iterator[Path]:
    """An etcd for API servers in this folder. All processes in it end with the block."""
    binaries.prepare()
    try:
        asyncio.run(Etcd(folder).start())
        yield folder
    finally:
        asyncio.run(children.stop_all(folder))


@contextmanager
def running_management(folder: Path, objects: Sequence[Obj] = ()) -> Iterator[ApiServer]:
    """An API server with these objects, and its `kubeconfig` in the folder."""
    with running_etcd(folder):
        yield asyncio.run(_start(folder, objects))


async def _start(folder: Path, objects: Sequence[Obj]) -> ApiServer:
    server = ApiServer(folder, "management")
    await server.start()
    private_file(folder / "kubeconfig", pki.to_yaml(server.kubeconfig()))
    async with server.client() as client:
        await manifests.apply(client, objects)
    return server
