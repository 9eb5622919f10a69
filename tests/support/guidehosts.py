"""Stand-ins for the hosts that commands of the Go provider's guide reach: GitHub, Grafana, and a node with a Pod."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from caphv.api.object import DEPLOYMENTS, NODES, PODS, Obj, labels_of
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.processes import children, pki
from sandbox.processes.apiserver import private_file
from tests.support.clusterctl import released

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SYSTEM = "caphv-system"
_DOWNLOAD = re.compile(r"/rancher-sandbox/cluster-api-provider-harvester/releases/download/(v[\d.]+)/([\w.-]+)")


@asynccontextmanager
async def _serving(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    (port,) = children.free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        yield port
    finally:
        await runner.cleanup()


def _context(folder: Path, pair: pki.KeyPair) -> ssl.SSLContext:
    private_file(folder / "host.pem", pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "host.pem")
    return context


@asynccontextmanager
async def github(folder: Path) -> AsyncIterator[dict[str, str]]:
    """github.com with the files of our releases; yields variables with which programs reach it through a proxy."""

    async def download(request: web.Request) -> web.Response:
        found = _DOWNLOAD.fullmatch(request.path)
        content = released(found[1]).get(found[2]) if found else None
        return web.Response(body=content) if content else web.Response(status=404)

    ca = pki.CA.create("github")
    (folder / "github.crt").write_bytes(ca.certificate)
    async with _serving(download, _context(folder, ca.server(["github.com"]))) as port:

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"CONNECT github.com:443 "):
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                writer.close()
                return
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            inner, outer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, outer), _copy(inner, writer))

        proxy = await asyncio.start_server(connect, "127.0.0.1", 0)
        try:
            address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            yield {
                "HTTPS_PROXY": f"http://{address}",
                "NO_PROXY": "127.0.0.1",
                "SSL_CERT_FILE": str(folder / "github.crt"),
                # With a proxy for modules, clusterctl downloads from github.com and asks no API.
                "GOPROXY": "https://modules.example.com",
            }
        finally:
            proxy.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except ConnectionError:
        pass
    finally:
        target.close()


@asynccontextmanager
async def grafana() -> AsyncIterator[str]:
    """Grafana's API for dashboards; yields its URL."""

    async def import_dashboard(request: web.Request) -> web.Response:
        dashboard = (await request.json()).get("dashboard") or {}
        if request.headers.get("Authorization") != "Bearer token" or not dashboard.get("title"):
            return web.json_response({"message": "bad request data"}, status=400)
        return web.json_response({"status": "success"})

    async with _serving(import_dashboard) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def node(folder: Path, client: ApiClient, log: Callable[[], str]) -> AsyncIterator[None]:
    """A node that runs the Pod of the installed Deployment: a kubelet with the log, and what controllers write."""

    async def logs(request: web.Request) -> web.Response:
        lines = log().splitlines()
        return web.Response(text="".join(f"{line}\n" for line in lines[-int(request.query.get("tailLines", 0)) :]))

    pair = pki.CA.create("node").server(["127.0.0.1"])
    async with _serving(logs, _context(folder, pair)) as port:
        deployment = await client.get(DEPLOYMENTS, "caphv-controller-manager", SYSTEM)
        await manifests.apply(client, [_node(), _pod(deployment), *_written_by_controllers()])
        status: Obj = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        await client.patch(NODES, "node", "", {"status": status}, subresource="status")
        await client.patch(PODS, "caphv", SYSTEM, {"status": {"phase": "Running"}}, subresource="status")
        await available(client)
        yield


async def available(client: ApiClient) -> None:
    """Report that the Pod of the Deployment is available."""
    found = await client.get(DEPLOYMENTS, "caphv-controller-manager", SYSTEM)
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
    status = {**counts, "observedGeneration": found["metadata"]["generation"]}
    await client.patch(DEPLOYMENTS, "caphv-controller-manager", SYSTEM, {"status": status}, subresource="status")


def _node() -> Obj:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}}


def _pod(deployment: Obj) -> Obj:
    template = deployment["spec"]["template"]
    metadata = {"name": "caphv", "namespace": SYSTEM, "labels": labels_of(template)}
    spec = {**template["spec"], "nodeName": "node", "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _written_by_controllers() -> list[Obj]:
    """The Secret that cert-manager writes, and the Endpoints of the webhooks' Service."""
    secret = {"name": "caphv-webhook-tls", "namespace": SYSTEM}
    endpoints = {"name": "caphv-webhook-service", "namespace": SYSTEM}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret, "type": "Opaque"},
        {"apiVersion": "v1", "kind": "Endpoints", "metadata": endpoints, "subsets": []},
    ]
