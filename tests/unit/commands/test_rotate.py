"""`caphv identity rotate`: whatever fails, the message says which token is in use."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.api.object import NAMESPACES, SECRETS, Obj, Resource
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.runtime.errors import ApiError, Conflict, Forbidden, NotFound, ServerFault, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from commands import rotate as command
from commands.main import cli
from overview.doctor import rights
from tests.support import kubeconfigs

pytestmark = pytest.mark.unit

FORBIDDEN = Forbidden(403, "Forbidden", "may not do that")
SILENT = Unreachable("https://server: no answer")
BROKEN = ServerFault(500, "InternalError", "the leader changed")
FORMER = "the former token stays in use"
STILL = "the new token is in use, and the former one is still valid"
MAYBE = "the new token is in use, and the former one may still be valid"


def token(secret: str) -> str:
    claims = {"sub": "system:serviceaccount:caphv-system:caphv", "kubernetes.io/serviceaccount/secret.name": secret}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims)]
    return ".".join([*parts, "c2ln"])


def identity() -> Obj:
    config = kubeconfigs.valid()
    config["users"][0]["user"]["token"] = token("caphv-token")
    content = base64.b64encode(yaml.safe_dump(config).encode()).decode()
    metadata = {"name": "identity", "namespace": "team-a", "resourceVersion": "1"}
    return {"kind": "Secret", "metadata": metadata, "data": {"kubeconfig": content}}


class Server:
    """A management cluster and a Harvester in one; `fail` raises what a request meets."""

    server = "https://harvester.example.com:6443"
    budget = None

    def __init__(self) -> None:
        condition = {"type": "HarvesterConnectionReady", "status": "True"}
        self.cluster: Obj = {
            "kind": "HarvesterCluster",
            "metadata": {"name": "shop", "namespace": "team-a"},
            "spec": {"identitySecret": {"namespace": "team-a", "name": "identity"}, "targetNamespace": "shop"},
            "status": {"conditions": [condition]},
        }
        self.identity = identity()
        self.deleted: list[str] = []
        self.uid = "u"
        self.fail: Callable[[str, Resource, str], None] = lambda *_: None

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Obj:
        self.fail("get", resource, name)
        if resource is SECRETS and namespace == "team-a":
            return self.identity
        if resource is SECRETS:
            note = {"kubernetes.io/service-account.name": "caphv"}
            value = base64.b64encode(token(name).encode()).decode()
            metadata = {"name": name, "namespace": namespace, "uid": name, "annotations": note}
            data = {"token": value, "ca.crt": value}
            return {"metadata": metadata, "type": "kubernetes.io/service-account-token", "data": data}
        return self.cluster if resource is HARVESTER_CLUSTERS else {"metadata": {"name": name, "uid": self.uid}}

    async def list(self, resource: Resource, *_: object, **__: object) -> Obj:
        return {"metadata": {}, "items": [self.cluster] if resource is HARVESTER_CLUSTERS else []}

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        self.fail("create", resource, obj["metadata"]["name"])
        return obj

    async def patch(self, resource: Resource, name: str, _namespace: str, patch: Obj) -> Obj:
        self.fail("write" if "data" in patch else "note", resource, name)
        annotations = self.identity["metadata"].get("annotations", {}) | patch["metadata"]["annotations"]
        self.identity["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value}
        self.identity["data"] |= patch.get("data", {})
        return self.identity

    async def delete(self, resource: Resource, name: str, *_: object, **__: object) -> None:
        self.fail("delete", resource, name)
        self.deleted.append(name)

    async def close(self) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    both = Server()

    @asynccontextmanager
    async def client(*_: object, **__: object) -> AsyncIterator[Any]:
        yield both

    async def nothing(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(command, "management_client", client)
    monkeypatch.setattr(command, "_SETTLE_SECONDS", 0)
    monkeypatch.setattr(Kubeconfig, "client", lambda *_, **__: both)
    monkeypatch.setattr(rights, "denied", nothing)
    return both


def rotate() -> Result:
    return CliRunner().invoke(cli, ["identity", "rotate", "team-a/identity", "--yes"], prog_name="caphv")


def failing(verb: str, resource: Resource, error: Exception, name: str = "") -> Callable[[str, Resource, str], None]:
    def fail(asked: str, of: Resource, named: str) -> None:
        if (asked, of) == (verb, resource) and name in ("", named):
            raise error

    return fail


def test_a_rotation_without_an_error(server: Server) -> None:
    result = rotate()
    assert result.exit_code == 0, result.output
    assert server.deleted == ["caphv-token"]
    assert server.identity["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    ("verb", "resource", "error", "expected"),
    [
        ("create", SECRETS, FORBIDDEN, f"{FORMER}: Harvester: may not do that; an administrator can"),
        ("get", NAMESPACES, SILENT, f"{FORMER}: Harvester: https://server: no answer"),
        ("write", SECRETS, FORBIDDEN, f"{FORMER}: Secret team-a/identity cannot be written on the management cluster"),
        ("write", SECRETS, Conflict(409, "Conflict", "changed"), f"{FORMER}: Secret team-a/identity was changed"),
        ("write", SECRETS, SILENT, "the Secret has the new token or the former one; both are valid"),
        ("write", SECRETS, BROKEN, "the Secret has the new token or the former one; both are valid"),
        ("delete", SECRETS, FORBIDDEN, f"{STILL}: Harvester: may not do that. Run this again; an administrator can"),
        ("delete", SECRETS, SILENT, f"{MAYBE}: Harvester: https://server: no answer. Run this again"),
        ("note", SECRETS, FORBIDDEN, "the new token is in use, and the former one is deleted"),
        ("note", SECRETS, SILENT, "the new token is in use, and the former one is deleted"),
    ],
)
def test_each_stage_says_which_token_is_in_use(
    verb: str, resource: Resource, error: ApiError | Unreachable, expected: str, server: Server
) -> None:
    server.fail = failing(verb, resource, error)
    result = rotate()
    assert result.exit_code == 1
    assert expected in result.output
    assert "administrator" not in result.output or "Harvester: " in result.output


def test_an_error_after_the_secret_was_written_says_so(server: Server) -> None:
    server.fail = failing("get", HARVESTER_CLUSTERS, SILENT)
    result = rotate()
    assert result.exit_code == 1
    assert f"{STILL}: management cluster: https://server: no answer. Run this again" in result.output
    assert server.deleted == []


def test_a_cluster_that_was_deleted_meanwhile_needs_no_token(server: Server) -> None:
    server.fail = failing("get", HARVESTER_CLUSTERS, NotFound(404, "NotFound", "no such cluster"))
    result = rotate()
    assert result.exit_code == 0, result.output
    assert server.deleted == ["caphv-token"]


def test_a_lost_answer_to_the_write_is_completed_by_the_next_call(server: Server) -> None:
    patch = server.patch

    async def patched(*arguments: Any) -> Obj:
        await patch(*arguments)
        raise SILENT

    server.patch = patched  # type: ignore[method-assign]
    assert "Run this again" in rotate().output
    server.patch = patch  # type: ignore[method-assign]
    result = rotate()
    assert result.exit_code == 0, result.output
    assert "completes a rotation that was interrupted" in result.output
    assert server.deleted == ["caphv-token"]


def test_the_second_call_of_an_interrupted_rotation_knows_that_the_new_token_is_in_use(server: Server) -> None:
    server.fail = failing("delete", SECRETS, FORBIDDEN)
    assert rotate().exit_code == 1
    server.fail = failing("get", NAMESPACES, SILENT)
    assert f"{STILL}: Harvester: https://server: no answer" in rotate().output


def test_token_of_another_harvester_is_not_written(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Server()
    other.uid = "another"
    clients = [server, other]
    # The first client issues the token, the second one tests it.
    monkeypatch.setattr(Kubeconfig, "client", lambda *_, **__: clients.pop(0))
    before = server.identity["data"]["kubeconfig"]
    result = rotate()
    assert (result.exit_code, clients) == (1, [])
    assert server.identity["data"]["kubeconfig"] == before
    assert server.deleted == []


def test_token_with_fewer_rights_is_not_written(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def denied(*_: object) -> list[object]:
        return rights.needed([server.cluster])[:1]

    monkeypatch.setattr(rights, "denied", denied)
    before = server.identity["data"]["kubeconfig"]
    assert rotate().exit_code == 1
    assert server.identity["data"]["kubeconfig"] == before
    assert server.deleted == []


def test_a_token_is_not_replaced_without_a_confirmation(server: Server) -> None:
    before = server.identity["data"]["kubeconfig"]
    result = CliRunner().invoke(cli, ["identity", "rotate", "team-a/identity"], prog_name="caphv")
    assert (result.exit_code, server.deleted) == (2, [])
    assert server.identity["data"]["kubeconfig"] == before
