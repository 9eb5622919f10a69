"""Accounts that may or may not read metrics, and scraping with their tokens."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiohttp

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from sandbox import manifests
from tests.support.authorization import allows
from tests.support.paths import CHECKOUT
from tests.support.waiting import until

ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")


RBAC = "rbac.authorization.k8s.io"


BINDINGS = Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)


READER = "caphv-metrics-reader"


SHIPPED = CHECKOUT / "deploy" / "kustomize" / "base" / "metrics-rbac.yaml"


async def token(client: ApiClient, name: str, *audiences: str) -> str:
    """A token of a ServiceAccount, which is created if it does not exist."""
    if name not in [obj["metadata"]["name"] for obj in (await client.list(ACCOUNTS, "default"))["items"]]:
        await client.create(ACCOUNTS, {"metadata": {"name": name, "namespace": "default"}})
    path = f"/api/v1/namespaces/default/serviceaccounts/{name}/token"
    answer = await client.request("POST", path, body={"spec": {"audiences": list(audiences) or None}})
    return str(answer["status"]["token"])


async def bind(client: ApiClient, name: str) -> None:
    """Let a ServiceAccount read metrics. A process remembers a refusal, so that none may ask before."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": READER}
    await client.create(BINDINGS, {"metadata": {"name": name}, "subjects": [subject], "roleRef": role})
    await until(lambda: may_read(client, name), f"{name} may read metrics")


async def unbind(client: ApiClient, name: str) -> None:
    """Take the right back."""
    await client.delete(BINDINGS, name)

    async def is_refused() -> bool:
        return not await may_read(client, name)

    await until(is_refused, f"{name} may no longer read metrics")


async def may_read(client: ApiClient, name: str) -> bool:
    """Whether a ServiceAccount may read metrics."""
    account = f"system:serviceaccount:default:{name}"
    return await allows(client, {"user": account, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}})


async def scrape(port: int, bearer: str = "", tls: ssl.SSLContext | None = None) -> tuple[int, str]:
    """Status and text of an answer, as soon as the port is open; the certificate is verified when `tls` says how."""
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
    async with asyncio.timeout(20), aiohttp.ClientSession(f"https://127.0.0.1:{port}") as session:
        while True:
            try:
                async with session.get("/metrics", headers=headers, ssl=tls or False) as answer:
                    return answer.status, await answer.text()
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)


def roles() -> list[Obj]:
    return [obj for obj in manifests.parse(SHIPPED.read_text(encoding="utf-8")) if obj["kind"] == "ClusterRole"]


def label_names(metric: Any) -> list[str]:
    """Names of a metric's labels, which the library has no public name for."""
    return list(metric._labelnames)
