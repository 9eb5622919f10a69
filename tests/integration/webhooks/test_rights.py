"""Which rights the webhook process needs to recreate its configurations."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import manifests
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer
from tests.support.waiting import until
from tests.support.webhooks import write_certificate
from webhooks import registration as registration_module
from webhooks.configuration import NAMES, RESOURCES
from webhooks.registration import Registration

pytestmark = pytest.mark.integration

RESOURCE, NAME = RESOURCES["validate"], NAMES["validate"]
RBAC = "rbac.authorization.k8s.io"
OWN_NAMES = list(NAMES.values())


def _role(user: str, *rules: Obj) -> list[Obj]:
    where = {"apiGroups": [RESOURCE.group], "resources": [resource.plural for resource in RESOURCES.values()]}
    read = {"verbs": ["get", "list", "watch"]}
    return [
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": user},
            "rules": [{**where, **rule} for rule in (*rules, read)],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": user},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": user},
            "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
        },
    ]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted configurations are recreated within the seconds for which a test waits."""
    monkeypatch.setattr(registration_module, "_RESTORE_SECONDS", 0.5)


async def _exists(client: ApiClient) -> bool:
    try:
        return bool(await client.get(RESOURCE, NAME))
    except NotFound:
        return False


@contextlib.asynccontextmanager
async def _cleared(client: ApiClient) -> AsyncIterator[None]:
    """Leaves no configuration behind."""
    try:
        yield
    finally:
        for webhook, resource in RESOURCES.items():
            with contextlib.suppress(NotFound):
                await client.delete(resource, NAMES[webhook])


@contextlib.asynccontextmanager
async def _registration(server: ApiServer, user: str, folder: Path) -> AsyncIterator[Registration]:
    """Keeps both configurations with the rights of a user."""
    write_certificate(folder, pki.CA.create("webhooks"))
    client = parse_kubeconfig(pki.to_yaml(server.kubeconfig(user, ()))).client(name="management")
    registration = Registration(client, {"url": "https://127.0.0.1:1"}, folder, lambda: True)
    task = asyncio.create_task(registration.run())
    try:
        yield registration
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


@pytest.mark.usefixtures("runner")
@pytest.mark.parametrize(
    ("user", "rule", "expected"),
    [
        ("by-name", {"verbs": ["create", "patch"], "resourceNames": OWN_NAMES}, True),
        ("without-create", {"verbs": ["patch"], "resourceNames": OWN_NAMES}, False),
        ("another-name", {"verbs": ["create", "patch"], "resourceNames": ["other"]}, False),
    ],
)
async def test_right_to_create_configurations_is_limited_to_their_names(
    api_server: ApiServer, tmp_path: Path, user: str, rule: Obj, expected: bool
) -> None:
    async with api_server.client() as client, _cleared(client):
        await manifests.apply(client, _role(user, rule))
        async with _registration(api_server, user, tmp_path / "certificates"):
            if expected:
                await until(lambda: _exists(client), "it is made")
                await client.delete(RESOURCE, NAME)
                await until(lambda: _exists(client), "it is restored")
            else:
                await asyncio.sleep(3)
                assert not await _exists(client)


@pytest.mark.usefixtures("runner")
async def test_configuration_that_is_deleted_while_the_process_stops_is_not_recreated(
    api_server: ApiServer, tmp_path: Path
) -> None:
    """Nothing would serve it, and the API server would refuse every change of the kinds."""
    async with api_server.client() as client, _cleared(client):
        await manifests.apply(client, _role("stopping", {"verbs": ["create", "patch"], "resourceNames": OWN_NAMES}))
        async with _registration(api_server, "stopping", tmp_path / "certificates") as registration:
            await until(lambda: _exists(client), "it is made")
            registration.stopping()
            await client.delete(RESOURCE, NAME)
            await asyncio.sleep(3)
            assert not await _exists(client)
