"""The steps of a rotation: whatever fails, the message says which token is in use."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from caphv.api.names import PREVIOUS_TOKEN_ANNOTATION
from caphv.api.object import NAMESPACES, SECRETS, Key, Obj, Resource
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.api.tokenrenewal import SECRET_TYPE
from caphv.api.tokens import ServiceAccountToken
from caphv.runtime.errors import ApiError, Conflict, Forbidden, NotFound, ServerFault, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from commands.identity_rotate import token_issuer
from operations.change.rotation import run
from operations.change.rotation.identity import IdentityError, read_identity
from operations.change.rotation.plan import plan_rotation
from operations.change.rotation.run import LostConnectionError, Rotation, RotationError
from operations.doctor import rights
from tests.support.rotationserver import Server, failing, replace_servers

pytestmark = pytest.mark.unit

FORBIDDEN = Forbidden(403, "Forbidden", "may not do that")
SILENT = Unreachable("https://server: no answer")
BROKEN = ServerFault(500, "InternalError", "the leader changed")
FORMER = "the former token stays in use"
STILL = "the new token is in use, and the former one is still valid"
MAYBE = "the new token is in use, and the former one may still be valid"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return replace_servers(monkeypatch)


async def rotate(server: Server) -> str:
    """Rotate with the account's own rights; return the error, empty if there is none."""
    client: Any = server
    identity = await read_identity(client, Key("team-a", "identity"))
    plan = plan_rotation(identity, expires_in=None, keep_old=False)
    harvester: Any = identity.access.client()
    steps = Rotation(client, harvester, False, identity, plan, token_issuer(), print)
    before = server.connections
    try:
        await steps.run()
    except (RotationError, LostConnectionError) as error:
        return str(error)
    finally:
        assert server.connections == before, "the clients of the rotation are closed"
    return ""


@pytest.mark.parametrize(
    ("verb", "resource", "error", "expected"),
    [
        ("create", SECRETS, FORBIDDEN, f"{FORMER}: Harvester: may not do that; an administrator can"),
        ("get", NAMESPACES, SILENT, f"{FORMER}: Harvester: https://server: no answer"),
        ("get", NAMESPACES, Unauthorized(401, "", "expired"), f"{FORMER}: the token is no longer valid: expired"),
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
async def test_each_stage_says_which_token_is_in_use(
    verb: str, resource: Resource, error: ApiError | Unreachable, expected: str, server: Server
) -> None:
    server.fail = failing(verb, resource, error)
    message = await rotate(server)
    assert expected in message
    assert "administrator" not in message or "Harvester: " in message or "no longer valid" in message


async def test_a_token_that_the_provider_renews_is_not_rotated(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    original = server.get

    async def get(*words: Any, **options: Any) -> Obj:
        return {**await original(*words, **options), "type": SECRET_TYPE}

    monkeypatch.setattr(server, "get", get)
    with pytest.raises(IdentityError, match="token that the provider renews"):
        await rotate(server)


async def test_each_step_is_reported_in_order(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert await rotate(server) == ""
    assert capsys.readouterr().out.splitlines() == [
        "the new token works",
        "wrote Secret team-a/identity",
        "deleted the former token, Secret caphv-token",
    ]


@pytest.mark.parametrize("clusters", [0, 1])
async def test_clusters_get_time_to_connect_with_the_new_token(
    server: Server, monkeypatch: pytest.MonkeyPatch, clusters: int
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        assert server.deleted == []
        waits.append(seconds)

    monkeypatch.setattr(run, "asyncio", SimpleNamespace(sleep=sleep))
    if not clusters:
        server.cluster["spec"]["identitySecret"]["name"] = "another"
    assert (await rotate(server), len(waits)) == ("", clusters)


async def test_an_error_after_the_secret_was_written_says_so(server: Server) -> None:
    server.fail = failing("get", HARVESTER_CLUSTERS, SILENT)
    error = await rotate(server)
    assert f"{STILL}: management cluster: https://server: no answer. Run this again" in error
    assert server.deleted == []


async def test_a_cluster_that_was_deleted_meanwhile_needs_no_token(server: Server) -> None:
    server.fail = failing("get", HARVESTER_CLUSTERS, NotFound(404, "NotFound", "no such cluster"))
    error = await rotate(server)
    assert error == ""
    assert server.deleted == ["caphv-token"]


async def test_the_second_call_of_an_interrupted_rotation_knows_that_the_new_token_is_in_use(server: Server) -> None:
    server.fail = failing("delete", SECRETS, FORBIDDEN)
    assert await rotate(server)
    server.fail = failing("get", NAMESPACES, SILENT)
    assert f"{STILL}: Harvester: https://server: no answer" in await rotate(server)


async def test_lost_rights_after_an_interrupted_rotation_do_not_claim_that_nothing_was_written(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fail = failing("delete", SECRETS, FORBIDDEN)
    assert await rotate(server)

    async def denied(*_: object) -> list[object]:
        return rights.needed_rights([server.cluster])[:1]

    monkeypatch.setattr(rights, "find_denied", denied)
    assert f"{STILL}: the account may not" in await rotate(server)
    # A HarvesterCluster that is older than the rules of its CRD may name no namespace.
    del server.cluster["spec"]["targetNamespace"]
    assert "--target-namespace NAMESPACE" in await rotate(server)


async def test_an_interrupted_rotation_is_completed_without_another_token(server: Server) -> None:
    server.fail = failing("delete", SECRETS, FORBIDDEN)
    assert await rotate(server)
    written = server.identity["data"]["kubeconfig"]
    requests: list[tuple[str, Resource]] = []
    server.fail = lambda verb, resource, _: requests.append((verb, resource))
    assert (await rotate(server), server.deleted) == ("", ["caphv-token"])
    assert not {("write", SECRETS), ("create", SECRETS)} & {*requests}
    assert server.identity["data"]["kubeconfig"] == written


async def test_former_token_that_a_user_has_put_back_is_replaced_like_any_other(server: Server) -> None:
    """The annotation of the interrupted rotation stays on the Secret, and names the token that is in use."""
    before = dict(server.identity["data"])
    server.fail = failing("delete", SECRETS, FORBIDDEN)
    assert await rotate(server)
    server.identity["data"] = dict(before)
    assert server.identity["metadata"]["annotations"] == {PREVIOUS_TOKEN_ANNOTATION: "caphv-token"}
    server.fail = lambda *_: None
    assert (await rotate(server), server.deleted) == ("", ["caphv-token"])
    assert server.identity["data"] != before, "the token that was deleted is no longer in use"
    assert server.identity["metadata"]["annotations"] == {}


@pytest.mark.parametrize("interrupted", [False, True])
async def test_former_token_that_is_put_back_meanwhile_is_not_deleted(
    server: Server, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    before = dict(server.identity["data"])
    if interrupted:
        server.fail = failing("delete", SECRETS, FORBIDDEN)
        assert await rotate(server)

    async def put_back(_: float) -> None:
        server.identity["data"] = dict(before)

    server.fail = lambda *_: None
    monkeypatch.setattr(run, "asyncio", SimpleNamespace(sleep=put_back))
    assert "the former token stays valid, because Secret team-a/identity has it again" in await rotate(server)
    assert (server.deleted, server.identity["data"]) == ([], before)


async def test_former_token_stays_if_the_secret_cannot_be_read_again(server: Server) -> None:
    reads = iter([None, SILENT])

    def fail(verb: str, resource: Resource, name: str) -> None:
        error = next(reads) if (verb, resource, name) == ("get", SECRETS, "identity") else None
        if error:
            raise error

    server.fail = fail
    expected = "the former token stays valid: Secret team-a/identity cannot be read again: https://server: no answer"
    assert (await rotate(server), server.deleted) == (expected, [])


async def test_token_of_another_harvester_is_not_written(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Server()
    other.uid = "another"
    clients = [server, other]
    # The first client issues the token, the second one tests it.
    monkeypatch.setattr(Kubeconfig, "client", lambda *_, **__: clients.pop(0))
    before = server.identity["data"]["kubeconfig"]
    error = await rotate(server)
    assert (bool(error), clients) == (True, [])
    assert server.identity["data"]["kubeconfig"] == before
    assert server.deleted == []


async def test_token_with_fewer_rights_is_not_written(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def denied(*_: object) -> list[object]:
        return rights.needed_rights([server.cluster])[:1]

    monkeypatch.setattr(rights, "find_denied", denied)
    before = server.identity["data"]["kubeconfig"]
    assert await rotate(server)
    assert server.identity["data"]["kubeconfig"] == before
    assert server.deleted == []


IMAGE = {"name": "shared/sles", "url": "https://images.example.com/a.qcow2", "checksum": "a" * 128}


@pytest.mark.parametrize("former", ["lacks", "had", "is expired"])
async def test_right_to_import_images_is_only_demanded_if_the_former_token_had_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, former: str
) -> None:
    server.cluster["spec"]["images"] = [IMAGE]
    rights_to_import = rights.import_rights([server.cluster])
    assert rights_to_import
    asked: list[object] = []

    async def denied(_client: object, questions: list[rights.Right]) -> list[rights.Right]:
        if questions != rights_to_import:
            return []
        asked.append(questions)
        if len(asked) == 2 and former == "is expired":
            raise Unauthorized(401, "Unauthorized", "expired")
        return [] if len(asked) == 2 and former == "had" else questions

    monkeypatch.setattr(rights, "find_denied", denied)
    before = server.identity["data"]["kubeconfig"]
    error = await rotate(server)
    if former == "had":
        assert "may not create virtualmachineimages.harvesterhci.io in namespace shared" in error
        assert "--target-namespace shop --import-images shared" in error
        assert server.identity["data"]["kubeconfig"] == before
    else:
        assert (error, server.deleted) == ("", ["caphv-token"])


async def test_a_cluster_that_had_no_connection_is_not_waited_for(server: Server) -> None:
    server.cluster["status"] = {"conditions": [{"type": "HarvesterConnectionReady", "status": "False"}]}
    assert (await rotate(server), server.deleted) == ("", ["caphv-token"])


DAY = 24 * 3600


@pytest.mark.parametrize(
    ("token", "expires_in", "seconds"),
    [
        ({"secret": "s"}, None, 0),
        ({"secret": "s", "seconds": 60}, None, 0),
        ({"secret": "s"}, 2, 2 * DAY),
        ({"seconds": 60}, None, 60),
        ({"seconds": 60}, 1, DAY),
    ],
)
async def test_the_new_token_lives_as_long_as_the_former_one_unless_days_are_given(
    server: Server, token: dict[str, Any], expires_in: int | None, seconds: int
) -> None:
    client: Any = server
    identity = await read_identity(client, Key("team-a", "identity"))
    identity = replace(identity, token=ServiceAccountToken(identity.token.account, **token))
    assert plan_rotation(identity, expires_in=expires_in, keep_old=False).seconds == seconds


@pytest.mark.parametrize(
    ("keep_old", "changes", "deletes", "kept"),
    [
        (False, {}, "caphv-token", ""),
        (True, {}, "", "--keep-old was given"),
        (True, {"sharing": ["team/a"]}, "", "--keep-old was given"),
        (
            False,
            {"sharing": ["team/a", "team/b"], "unread": ["team/c"]},
            "",
            "the same token is in Secret team/a, team/b",
        ),
        (False, {"unread": ["team/c"]}, "", "Secret team/c cannot be read, and may have the same token"),
    ],
)
async def test_a_token_that_others_may_use_is_kept(
    server: Server, keep_old: bool, changes: dict[str, Any], deletes: str, kept: str
) -> None:
    client: Any = server
    identity = await read_identity(client, Key("team-a", "identity"))
    plan = plan_rotation(replace(identity, **changes), expires_in=None, keep_old=keep_old)
    assert (plan.deletes, plan.kept.startswith(kept), bool(plan.kept)) == (deletes, True, bool(kept))
    assert plan.issues
    assert plan.clusters == ("team-a/shop",)


async def test_the_token_that_an_interrupted_rotation_left_is_deleted(server: Server) -> None:
    server.identity["metadata"]["annotations"] = {PREVIOUS_TOKEN_ANNOTATION: "former"}
    client: Any = server
    identity = await read_identity(client, Key("team-a", "identity"))
    plan = plan_rotation(identity, expires_in=None, keep_old=False)
    assert (plan.issues, plan.deletes) == (False, "former")


async def test_clusters_that_share_a_secret_by_an_identity_are_its_users(server: Server) -> None:
    secret = {"name": "identity", "namespace": "team-a"}
    spec = {"secretRef": secret, "allowedNamespaces": {"list": ["team-a"]}}
    server.shared = [{"metadata": {"name": "shared"}, "spec": spec}]
    server.cluster["spec"] = {"identityRef": {"name": "shared"}, "targetNamespace": "shop"}
    client: Any = server
    identity = await read_identity(client, Key("team-a", "identity"))
    assert [obj["metadata"]["name"] for obj in identity.clusters] == ["shop"]
    assert (identity.sharing, identity.unread) == ([], [])


@pytest.mark.parametrize(
    ("allowed", "error", "names"),
    [
        ({"list": ["team-b"]}, None, []),
        ({"selector": {"matchLabels": {"team": "b"}}}, None, []),
        ({"selector": {"matchLabels": {"team": "b"}}}, FORBIDDEN, ["shop"]),
    ],
)
async def test_a_cluster_that_may_not_use_the_identity_that_it_names_is_no_user(
    server: Server, allowed: Obj, error: Exception | None, names: list[str]
) -> None:
    """What is not known about it counts: the former token must not end before its connection was verified."""
    secret = {"name": "identity", "namespace": "team-a"}
    server.shared = [{"metadata": {"name": "shared"}, "spec": {"secretRef": secret, "allowedNamespaces": allowed}}]
    server.cluster["spec"] = {"identityRef": {"name": "shared"}, "targetNamespace": "shop"}
    if error:
        server.fail = failing("get", NAMESPACES, error)
    identity = await read_identity(cast("Any", server), Key("team-a", "identity"))
    assert [obj["metadata"]["name"] for obj in identity.clusters] == names


async def test_a_cloud_credential_is_left_to_rancher(server: Server) -> None:
    data = server.identity["data"]
    data["harvestercredentialConfig-kubeconfigContent"] = data.pop("kubeconfig")
    client: Any = server
    with pytest.raises(IdentityError, match="edit the cloud credential in Rancher"):
        await read_identity(client, Key("team-a", "identity"))
    assert server.identity["data"] == data
