"""`caphv identity create` against a real API server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from caphv.api.object import NAMESPACES, SECRETS
from caphv.runtime.kubeconfig import parse_kubeconfig
from commands.identity import identity
from sandbox import rights
from sandbox.manifests import apply
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer

pytestmark = pytest.mark.integration

DAY = 24 * 3600


def claims(kubeconfig: str) -> dict[str, int]:
    """The claims of the token in a kubeconfig."""
    token = yaml.safe_load(kubeconfig)["users"][0]["user"]["token"]
    payload = token.split(".")[1]
    found: dict[str, int] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


async def test_each_call_issues_a_new_token_that_expires(
    new_api_server: Callable[..., Awaitable[ApiServer]], tmp_path: Path
) -> None:
    server = await new_api_server()
    admin = tmp_path / "admin.yaml"
    admin.write_bytes(pki.to_yaml(server.kubeconfig()))
    async with server.client() as client:
        # The namespace of Harvester's own Deployment.
        await apply(client, [obj for obj in rights.of_identity() if obj["kind"] == "Namespace"])
    arguments = ["create", "--harvester-kubeconfig", str(admin), "-o", "kubeconfig", "--expires-in", "30"]
    found = []
    for _ in range(2):
        result = await asyncio.to_thread(CliRunner().invoke, identity, arguments)
        assert result.exit_code == 0, result.output
        found.append(result.stdout)
    lifetimes = [claims(text)["exp"] - claims(text)["iat"] for text in found]
    assert all(abs(lifetime - 30 * DAY) < 60 for lifetime in lifetimes)
    assert found[0] != found[1]
    async with server.client() as client:
        assert (await client.list(SECRETS, "caphv-system"))["items"] == []
    account = parse_kubeconfig(found[1].encode()).client(name="account")
    assert await account.get(NAMESPACES, "kube-system")
    await account.close()
