"""`caphv identity create` against a real API server."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.object import CLUSTER_ROLE_BINDINGS, NAMESPACES, ROLE_BINDINGS, SECRETS, SERVICE_ACCOUNTS, Key
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from commands.identity import identity
from reconciler.harvester.accountobjects import token_secret
from reconciler.harvester.identityaccount import expiring_token
from sandbox import rights
from sandbox.manifests import apply
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer
from tests.support.waiting import until

pytestmark = pytest.mark.integration

DAY = 24 * 3600


def claims(kubeconfig: str) -> dict[str, int]:
    """The claims of the token in a kubeconfig."""
    token = yaml.safe_load(kubeconfig)["users"][0]["user"]["token"]
    payload = token.split(".")[1]
    found: dict[str, int] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return found


@pytest.fixture
def server(runner: asyncio.Runner, api_server: ApiServer, tmp_path: Path) -> Iterator[ApiServer]:
    """An API server with the namespace of Harvester itself; `admin.yaml` is its administrator's kubeconfig."""

    async def furnish() -> None:
        async with api_server.client() as client:
            await apply(client, [obj for obj in rights.identity_objects() if obj["kind"] == "Namespace"])

    (tmp_path / "admin.yaml").write_bytes(pki.to_yaml(api_server.kubeconfig()))
    runner.run(furnish())
    yield api_server
    runner.run(clear(api_server))


async def clear(server: ApiServer) -> None:
    """Forget the account: the next test finds a Harvester without one."""
    async with server.client() as client:
        for kind in (CLUSTER_ROLE_BINDINGS, ROLE_BINDINGS, SERVICE_ACCOUNTS, SECRETS):
            for obj in (await client.list(kind))["items"]:
                name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
                if namespace == "caphv-system" or name.startswith("caphv-") or name.endswith(":caphv-system:caphv"):
                    await client.delete(kind, name, namespace)


async def create(tmp_path: Path, *options: str, status: int = 0) -> Result:
    arguments = ["create", "--harvester-kubeconfig", str(tmp_path / "admin.yaml"), "-o", "kubeconfig", *options]
    result = await asyncio.to_thread(CliRunner().invoke, identity, arguments)
    assert result.exit_code == status, result.output
    return result


async def test_each_call_issues_a_new_token_that_expires(server: ApiServer, tmp_path: Path) -> None:
    found = [(await create(tmp_path, "--expires-in", "30")).stdout for _ in range(2)]
    lifetimes = [claims(text)["exp"] - claims(text)["iat"] for text in found]
    assert all(abs(lifetime - 30 * DAY) < 60 for lifetime in lifetimes)
    assert found[0] != found[1]
    async with server.client() as client:
        assert (await client.list(SECRETS, "caphv-system"))["items"] == []
    account = parse_kubeconfig(found[1].encode()).client(name="account")

    async def may_read() -> bool:
        # The API server hears of new bindings a moment later.
        try:
            await account.get(NAMESPACES, "kube-system")
        except Forbidden:
            return False
        return True

    await until(may_read, "the account may read the namespace")
    await account.close()


async def test_account_keeps_its_limits_when_it_gets_more_rights(server: ApiServer, tmp_path: Path) -> None:
    """Its target namespaces, and that it has no lasting token."""
    await create(tmp_path, "--target-namespace", "team-a", "--expires-in", "30")
    async with server.client() as client:
        result = await create(tmp_path, "--create-ip-pools")
        assert "keeps its target namespaces (team-a)" in result.stderr
        assert "no lasting token" in result.stderr
        assert result.stdout == ""
        assert await everywhere(client) == {"caphv-account", "caphv-account-pools", "caphv-guests:team-a"}
        assert (await client.list(SECRETS, "caphv-system"))["items"] == []
    file = tmp_path / "identity.yaml"
    result = await create(tmp_path, "--file", str(file), status=1)
    assert "add --expires-in DAYS, or --lasting-token" in result.stderr
    assert not file.exists()


async def test_limits_of_an_account_are_lifted_on_request(server: ApiServer, tmp_path: Path) -> None:
    await create(tmp_path, "--target-namespace", "team-a", "--expires-in", "30")
    async with server.client() as client:
        result, _ = await asyncio.gather(
            create(tmp_path, "--all-namespaces", "--lasting-token"), fill(server, client, "caphv-token")
        )
        assert yaml.safe_load(result.stdout)["kind"] == "Config"
        assert "caphv-account-namespace" in await everywhere(client)


async def test_lasting_token_of_a_rotation_is_used_again(server: ApiServer, tmp_path: Path) -> None:
    await create(tmp_path, "--target-namespace", "team-a", "--expires-in", "30")
    async with server.client() as client:
        await client.create(SECRETS, token_secret("caphv-system", "caphv", "caphv-token-2"))
        token = await fill(server, client, "caphv-token-2")
        result = await create(tmp_path, "--target-namespace", "team-b")
        assert yaml.safe_load(result.stdout)["users"][0]["user"]["token"] == token
        secrets = (await client.list(SECRETS, "caphv-system"))["items"]
    assert [obj["metadata"]["name"] for obj in secrets] == ["caphv-token-2"]


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "admin.yaml").write_text("{}")
    arguments = ["create", "--harvester-kubeconfig", str(tmp_path / "admin.yaml")]
    for options in (["--all-namespaces", "--target-namespace", "a"], ["--lasting-token", "--expires-in", "30"]):
        result = CliRunner().invoke(identity, [*arguments, *options])
        assert (result.exit_code, "are mutually exclusive" in result.output) == (2, True)


async def fill(server: ApiServer, client: ApiClient, name: str) -> str:
    """Write a token into a Secret as kube-controller-manager does, which does not run here; return the token."""
    while True:
        try:
            await client.get(SECRETS, name, "caphv-system")
            break
        except NotFound:
            await asyncio.sleep(0.1)
    token = await expiring_token(client, Key("caphv-system", "caphv"), DAY)
    data = {"token": token, "ca.crt": server.ca.certificate.decode()}
    await client.patch(SECRETS, name, "caphv-system", {"stringData": data})
    return token


async def everywhere(client: ApiClient) -> set[str]:
    """Roles that the account has in all namespaces."""
    return {
        obj["roleRef"]["name"]
        for obj in (await client.list(CLUSTER_ROLE_BINDINGS))["items"]
        if obj["metadata"]["name"].endswith(":caphv-system:caphv")
    }
