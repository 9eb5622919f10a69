"""`caphv identity rotate`: what it plans, says and returns."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from click.testing import CliRunner, Result

from caphv.api.object import SECRETS, Obj, Resource
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.runtime.errors import Forbidden, Unauthorized, Unreachable
from commands import identity_rotate as command
from commands.main import cli
from operations.doctor import rights
from tests.support.rotationserver import Server, failing, identity, replace_servers

pytestmark = pytest.mark.unit

FORBIDDEN = Forbidden(403, "Forbidden", "may not do that")
SILENT = Unreachable("https://server: no answer")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    both = replace_servers(monkeypatch)

    @asynccontextmanager
    async def client(*_: object, **__: object) -> AsyncIterator[Any]:
        yield both

    monkeypatch.setattr(command, "management_client", client)
    return both


def rotate(*options: str) -> Result:
    return CliRunner().invoke(cli, ["identity", "rotate", "team-a/identity", "--yes", *options], prog_name="caphv")


def test_a_rotation_without_an_error(server: Server) -> None:
    result = rotate()
    assert result.exit_code == 0, result.output
    assert server.deleted == ["caphv-token"]
    assert server.identity["metadata"]["annotations"] == {}


def test_a_lost_answer_to_the_write_is_completed_by_the_next_call(server: Server) -> None:
    patch = server.patch

    async def patched(*arguments: Any) -> Obj:
        await patch(*arguments)
        raise SILENT

    server.patch = patched  # type: ignore[method-assign]
    interrupted = rotate()
    assert (interrupted.exit_code, "Run this again" in interrupted.output) == (1, True)
    server.patch = patch  # type: ignore[method-assign]
    result = rotate()
    assert result.exit_code == 0, result.output
    assert "completes an interrupted rotation" in result.output
    assert server.deleted == ["caphv-token"]


def test_a_token_is_not_replaced_without_a_confirmation(server: Server) -> None:
    before = server.identity["data"]["kubeconfig"]
    result = CliRunner().invoke(cli, ["identity", "rotate", "team-a/identity"], prog_name="caphv")
    assert (result.exit_code, server.deleted) == (2, [])
    assert server.identity["data"]["kubeconfig"] == before


# What is planned


def planned(*options: str) -> dict[str, Any]:
    result = rotate("--dry-run", "-o", "json", *options)
    assert result.exit_code == 0, result.output
    plan: dict[str, Any] = json.loads(result.stdout)["items"][0]
    assert plan["applied"] is False
    return {"seconds": 0, "deletes": "", "kept": "", **plan}


def test_a_dry_run_changes_nothing_and_says_what_would_be(server: Server) -> None:
    before = server.identity["data"]["kubeconfig"]
    plan = planned()
    assert (plan["secret"], plan["account"], plan["clusters"]) == (
        "team-a/identity",
        "caphv-system/caphv",
        ["team-a/shop"],
    )
    assert (plan["issues"], plan["seconds"], plan["deletes"], plan["kept"]) == (True, 0, "caphv-token", "")
    text = rotate("--dry-run").stdout
    assert "used by 1 cluster: team-a/shop" in text
    assert "issues a new token, valid as long as its Secret on Harvester exists, and tests it" in text
    assert "deletes the former token, Secret caphv-token" in text
    assert (server.identity["data"]["kubeconfig"], server.deleted) == (before, [])


@pytest.mark.parametrize(
    ("denied", "options", "problem"),
    [
        (
            ("patch", "secrets", "team-a"),
            (),
            "you may not patch secrets identity in namespace team-a on the management cluster",
        ),
        (
            ("create", "secrets", "caphv-system"),
            (),
            "the account may not create secrets in namespace caphv-system on Harvester",
        ),
        (
            ("delete", "secrets", "caphv-system"),
            (),
            "the account may not delete secrets caphv-token in namespace caphv-system",
        ),
        (
            ("create", "serviceaccounts/token", "caphv-system"),
            ("--expires-in", "1"),
            "may not create serviceaccounts/token caphv in",
        ),
        (
            ("create", "virtualmachines", "shop"),
            (),
            "may not create virtualmachines.kubevirt.io in namespace shop. Grant it: ",
        ),
    ],
)
def test_a_dry_run_says_which_rights_are_missing(
    server: Server, monkeypatch: pytest.MonkeyPatch, denied: tuple[str, ...], options: tuple[str, ...], problem: str
) -> None:
    async def find_denied(_: object, needed: Iterable[rights.Right]) -> list[rights.Right]:
        return [right for right in needed if (right.verb, right.resource, right.namespace) == denied]

    monkeypatch.setattr(rights, "find_denied", find_denied)
    result = rotate("--dry-run", *options)
    assert (result.exit_code, problem in result.stderr) == (1, True)
    assert (server.deleted, server.connections) == ([], 0)
    (data,) = json.loads(rotate("--dry-run", "-o", "json", *options).stdout)["items"]
    assert (len(data["problems"]), problem in data["problems"][0], data["applied"]) == (1, True, False)


def test_a_dry_run_asks_for_no_right_that_it_does_not_need(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[rights.Right] = []

    async def find_denied(_: object, needed: Iterable[rights.Right]) -> list[rights.Right]:
        asked.extend(needed)
        return []

    monkeypatch.setattr(rights, "find_denied", find_denied)
    assert rotate("--dry-run", "--keep-old", "--expires-in", "1").exit_code == 0
    on_harvester = [right for right in asked if right.namespace == "caphv-system"]
    assert [(right.resource, right.verb) for right in on_harvester] == [("serviceaccounts/token", "create")]


@pytest.mark.parametrize("error", [SILENT, Unauthorized(401, "Unauthorized", "expired")])
def test_a_dry_run_says_that_harvester_does_not_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def find_denied(_: object, needed: Iterable[rights.Right]) -> list[rights.Right]:
        if any(right.namespace == "caphv-system" for right in needed):
            raise error
        return []

    monkeypatch.setattr(rights, "find_denied", find_denied)
    result = rotate("--dry-run")
    assert result.exit_code == 1
    assert f"caphv: Harvester: {error}; an administrator can: --harvester-kubeconfig FILE" in result.stderr


def test_a_rotation_prints_what_it_did_as_data(server: Server) -> None:
    result = rotate("-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["items"][0]["applied"] is True
    assert "wrote Secret team-a/identity" in result.stderr
    assert "deleted the former token, Secret caphv-token" in result.stderr


def test_the_former_token_stays_valid_on_request(server: Server) -> None:
    assert (planned("--keep-old")["deletes"], planned("--keep-old")["kept"]) == ("", "--keep-old was given")
    result = rotate("--keep-old")
    assert (result.exit_code, server.deleted) == (0, [])
    assert "the former token stays valid: --keep-old was given" in result.stdout
    assert server.identity["metadata"].get("annotations", {}) == {}


def test_a_token_that_another_identity_has_stays_valid(server: Server) -> None:
    server.others = {"second": identity()}
    assert planned()["kept"] == "the same token is in Secret team-a/second: rotate it there, too"
    assert (rotate().exit_code, server.deleted) == (0, [])


def test_a_token_that_an_unread_identity_may_have_stays_valid(server: Server) -> None:
    server.others = {"second": identity()}
    server.fail = failing("get", SECRETS, FORBIDDEN, "second")
    assert planned()["kept"] == "Secret team-a/second cannot be read, and may have the same token"
    assert (rotate().exit_code, server.deleted) == (0, [])


def test_an_identity_with_another_token_is_no_reason_to_keep_it(server: Server) -> None:
    server.others = {"second": identity("another-token")}
    assert planned()["kept"] == ""


@pytest.mark.parametrize(
    ("claims", "options", "seconds", "text"),
    [
        ({}, (), 0, "valid as long as its Secret on Harvester exists"),
        ({}, ("--expires-in", "90"), 90 * 86400, "valid for 90 days"),
        ({"iat": 0, "exp": 3600}, (), 3600, "valid for 3600 seconds"),
        ({"iat": 0, "exp": 86400}, (), 86400, "valid for 1 day"),
        ({"iat": 0, "exp": 3600}, ("--expires-in", "1"), 86400, "valid for 1 day"),
    ],
)
def test_the_new_token_lives_as_long_as_the_former_one_by_default(
    server: Server, claims: dict[str, int], options: tuple[str, ...], seconds: int, text: str
) -> None:
    server.identity = identity("" if claims else "caphv-token", **claims)
    assert planned(*options)["seconds"] == seconds
    assert f"issues a new token, {text}, and tests it" in rotate("--dry-run", *options).stdout


def test_a_token_without_a_secret_expires_by_itself(server: Server) -> None:
    server.identity = identity("", iat=0, exp=3600)
    text = rotate("--dry-run").stdout
    assert "the former token stays valid: no Secret holds it, it expires by itself" in text


def test_a_cluster_that_loses_its_connection_keeps_the_former_token_valid(server: Server) -> None:
    get = server.get

    async def changing(resource: Resource, name: str, namespace: str = "") -> Obj:
        answer = await get(resource, name, namespace)
        if resource is not HARVESTER_CLUSTERS:
            return answer
        return answer | {"status": {"conditions": [{"type": "HarvesterConnectionReady", "status": "False"}]}}

    server.get = changing  # type: ignore[method-assign]
    result = rotate()
    assert (result.exit_code, server.deleted) == (1, [])
    assert "The former token stays valid: team-a/shop lost the connection" in result.stderr


def test_a_secret_without_a_token_of_an_account_is_named(server: Server) -> None:
    server.identity = identity(sub="alice")
    result = rotate()
    assert (result.exit_code, "has no token of a ServiceAccount" in result.output) == (2, True)
    server.identity = {**identity(), "data": {"kubeconfig": "e30="}}
    result = rotate()
    assert (result.exit_code, "Secret team-a/identity, key kubeconfig: " in result.output) == (2, True)


def test_clusters_of_one_namespace_are_enough_for_an_account_of_one_namespace(server: Server) -> None:
    list_ = server.list

    async def listed(resource: Resource, namespace: str = "", **options: Any) -> Obj:
        if not namespace:
            raise FORBIDDEN
        assert namespace == "team-a"
        return await list_(resource, namespace, **options)

    server.list = listed  # type: ignore[method-assign]
    assert planned()["clusters"] == ["team-a/shop"]
