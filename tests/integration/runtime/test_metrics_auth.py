"""Who gets metrics, as a real API server with the shipped roles validates it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from caphv.runtime.manager import BindAddresses, Manager
from caphv.runtime.metrics_auth import MetricsAuth
from sandbox import manifests
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, private_file
from sandbox.processes.children import free_ports
from tests.support.metrics import ACCOUNTS, bind, roles, scrape, token, unbind
from tests.support.reconciler.environment import core_crds
from tests.support.webhooks import Server, install_crds, write_certificate

pytestmark = pytest.mark.integration


async def test_metrics_are_for_accounts_with_the_shipped_role(api_server: ApiServer) -> None:
    (port,) = free_ports(1)
    stop = asyncio.Event()
    async with api_server.client() as client:
        await manifests.apply(client, roles())
        manager = Manager(addresses=BindAddresses(f"127.0.0.1:{port}", ""), metrics_auth=MetricsAuth(client))
        process = asyncio.create_task(manager.run(stop))
        await bind(client, "prometheus")
        assert (await scrape(port))[0] == 401
        assert (await scrape(port, "nonsense"))[0] == 401
        assert (await scrape(port, await token(client, "prometheus", "https://other.example.com")))[0] == 401
        assert (await scrape(port, await token(client, "stranger")))[0] == 403
        status, text = await scrape(port, await token(client, "prometheus"))
        assert (status, "caphv_leader" in text) == (200, True)
        await client.delete(ACCOUNTS, "prometheus", "default")
        await unbind(client, "prometheus")
        assert (await scrape(port, await token(client, "prometheus")))[0] == 403
        stop.set()
        await process


@pytest.mark.parametrize("command", ["run", "webhook"])
async def test_processes_serve_them_with_the_certificate_of_a_folder(
    api_server: ApiServer, etcd_folder: Path, tmp_path: Path, command: str
) -> None:
    kubeconfig, ca = tmp_path / "kubeconfig", pki.CA.create("metrics")
    private_file(kubeconfig, pki.to_yaml(api_server.kubeconfig()))
    write_certificate(tmp_path / "metrics", ca)
    server = Server(etcd_folder, f"protected-{command}", command=command)
    server.options = (
        f"--kubeconfig={kubeconfig}",
        "--metrics-secure",
        f"--metrics-cert-dir={tmp_path / 'metrics'}",
    )
    await install_crds(api_server)
    async with api_server.client() as client:
        await manifests.apply(client, [*roles(), *core_crds("v1beta2")])
        await bind(client, command)
        try:
            await server.start()
            tls = ssl.create_default_context(cadata=ca.certificate.decode())
            assert (await scrape(server.metrics_port, tls=tls))[0] == 401
            status, text = await scrape(server.metrics_port, await token(client, command), tls)
            assert (status, "process_cpu_seconds_total" in text) == (200, True)
        finally:
            await server.stop()
