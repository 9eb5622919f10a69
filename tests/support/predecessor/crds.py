"""CRDs of the Go provider, with its conversion webhook and a server for that."""

from __future__ import annotations

import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from caphv.api.object import Obj
from sandbox.processes import children, pki
from tests.support import doccommands

GROUP, CORE = "infrastructure.cluster.x-k8s.io", "cluster.x-k8s.io"
# What the guide says to do first.
WITHOUT_WEBHOOK = doccommands.patch_of("migration.md", "crd")
# kind -> short names
KINDS = {
    "HarvesterCluster": [],
    "HarvesterClusterTemplate": ["hvct"],
    "HarvesterMachine": [],
    "HarvesterMachineTemplate": [],
}


def custom_resource_definitions(client_config: Obj, *, stored: str = "v1beta1") -> list[Obj]:
    """Its CRDs, with any content in spec and status; `client_config` leads to the conversion webhook.

    Early releases stored v1alpha1: `storedVersions` of clusters that began with one names both.
    """
    field = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": field, "status": field}}}
    conversion = {
        "strategy": "Webhook",
        "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client_config},
    }
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"{kind.lower()}s.{GROUP}",
                "annotations": {"cert-manager.io/inject-ca-from": "caphv-system/caphv-serving-cert"},
                "labels": {
                    f"{CORE}/provider": "infrastructure-harvester",
                    f"{CORE}/v1beta1": "v1alpha1",
                    f"{CORE}/v1beta2": "v1alpha1",
                },
            },
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {
                    "kind": kind,
                    "listKind": f"{kind}List",
                    "plural": f"{kind.lower()}s",
                    "singular": kind.lower(),
                    **({"shortNames": short, "categories": ["cluster-api"]} if short else {}),
                },
                "conversion": conversion,
                "versions": [
                    {
                        "name": version,
                        "served": True,
                        "storage": version == stored,
                        "schema": schema,
                        **({} if kind.endswith("Template") else {"subresources": {"status": {}}}),
                    }
                    for version in ("v1alpha1", "v1beta1")
                ],
            },
        }
        for kind, short in KINDS.items()
    ]


@contextlib.asynccontextmanager
async def conversion_webhook(folder: Path) -> AsyncIterator[Obj]:
    """Its conversion webhook, for as long as the block lasts; yields the `clientConfig` for the CRDs."""
    ca = pki.CA.create("caphv-serving-cert")
    server = ca.server(["127.0.0.1"])
    (folder / "convert.crt").write_bytes(server.certificate)
    (folder / "convert.key").write_bytes(server.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "convert.crt", folder / "convert.key")
    application = web.Application(client_max_size=64 * 2**20)
    application.router.add_post("/convert", _convert)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    (port,) = children.free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    try:
        bundle = base64.b64encode(ca.certificate).decode()
        yield {"url": f"https://127.0.0.1:{port}/convert", "caBundle": bundle}
    finally:
        await runner.cleanup()


async def _convert(request: web.Request) -> web.Response:
    review = await request.json()
    asked = review["request"]
    converted = [{**obj, "apiVersion": asked["desiredAPIVersion"]} for obj in asked["objects"]]
    answer = {"uid": asked["uid"], "result": {"status": "Success"}, "convertedObjects": converted}
    return web.json_response({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": answer})
