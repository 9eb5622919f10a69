"""Fixtures of the webhook tests: an API server of their own, because webhooks concern all who use a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, private_file
from tests.support.webhooks import Server, install_crds


@pytest.fixture(scope="package")
def management(etcd_folder: Path) -> Iterator[ApiServer]:
    """An API server with our CRDs; its kubeconfig is `webhooks.kubeconfig` in the folder."""
    server = ApiServer(etcd_folder, "webhooks")
    asyncio.run(server.start())
    asyncio.run(install_crds(server))
    private_file(etcd_folder / "webhooks.kubeconfig", pki.to_yaml(server.kubeconfig()))
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="package")
def webhook(etcd_folder: Path, management: ApiServer) -> Iterator[Server]:
    """A `caphv webhook` that has registered itself on the API server."""
    server = Server(etcd_folder, "webhook")
    server.options = (f"--kubeconfig={etcd_folder / 'webhooks.kubeconfig'}", f"--webhook-url={server.url}")
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())
