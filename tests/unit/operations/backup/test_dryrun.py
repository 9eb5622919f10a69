"""What a target refuses is known before a move, as far as dry runs can tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from caphv.api.object import Obj, Resource
from caphv.api.objectid import id_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, ApiError, Forbidden, Invalid, ServerFault, TooManyRequests, Unreachable
from operations.backup.dryrun import DryRun, try_creation
from operations.backup.files import Backup, Origin
from operations.backup.preflight import blocking_errors, creation_checks
from operations.backup.writing import Restore
from tests.support.backup import made, whole_cluster

pytestmark = pytest.mark.unit


class Target:
    """A server that answers dry runs; `errors` are those of single kinds."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        self.errors = errors
        self.sent: list[Obj] = []

    async def create(self, resource: Resource, obj: Obj, *, dry_run: bool = False) -> Obj:
        assert dry_run
        self.sent.append(obj)
        if error := self.errors.get(resource.kind):
            raise error
        return obj


def restore_of(objs: list[Obj], *existing: Obj) -> Restore:
    backup = Backup(Origin("move", "", "https://source", "source"), ("team/shop",), {id_of(obj): obj for obj in objs})
    kinds = {id_of(obj)[:2]: Resource(id_of(obj).group, "v1", obj["kind"].lower(), obj["kind"]) for obj in objs}
    found = {id_of(obj): obj for obj in existing}
    return Restore(backup, "https://target", "target", {tuple(key): each for key, each in kinds.items()}, found)


async def tried(restore: Restore, **errors: Exception) -> tuple[DryRun, list[Obj]]:
    target = Target(errors)
    return await try_creation(cast("ApiClient", target), restore), target.sent


async def test_each_new_object_is_tried_paused_and_without_absent_owners() -> None:
    objs = whole_cluster(machines=1)
    result, sent = await tried(restore_of(objs, objs[0]))
    assert result == DryRun()
    assert len(sent) == len(objs) - 1
    (cluster,) = (obj for obj in sent if obj["kind"] == "Cluster")
    assert cluster["spec"]["paused"] is True
    assert {obj["kind"] for obj in sent if obj["metadata"]["ownerReferences"]} == {"HarvesterMachineTemplate"}


@pytest.mark.parametrize(
    "error",
    [
        Invalid(422, "Invalid", "spec.version: Required value"),
        Forbidden(403, "Forbidden", "exceeded quota"),
        ServerFault(500, "InternalError", "failed calling webhook"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_refusal_stops_the_move_unless_it_is_forced(error: ApiError) -> None:
    restore = restore_of(whole_cluster(machines=1))
    result, _ = await tried(restore, Machine=error)
    found = creation_checks(restore, result)
    (check,) = blocking_errors(found, force=False)
    assert f"Machine team/shop-0: {error}" in check.message
    assert blocking_errors(found, force=True) == []


@pytest.mark.parametrize(
    "error",
    [
        AlreadyExists(409, "AlreadyExists", "exists"),
        TooManyRequests(429, "TooManyRequests", "later"),
        Invalid(400, "BadRequest", 'admission webhook "x.example.com" does not support dry run'),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_says_nothing_about_the_creation_is_no_refusal(error: ApiError) -> None:
    assert (await tried(restore_of(whole_cluster()), Machine=error))[0].refused == ()


async def test_objects_of_new_namespaces_are_named_instead_of_tried() -> None:
    namespace = made("v1", "Namespace", "team")
    namespace["metadata"].pop("namespace")
    restore = restore_of([namespace, *whole_cluster()])
    result, sent = await tried(restore)
    assert result.namespaces == ("team",)
    assert {obj["metadata"].get("namespace") for obj in sent} == {None, "classes"}
    (check,) = creation_checks(restore, result)
    assert "creates namespace team" in check.message
    assert blocking_errors([check], force=False) == []


async def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(Unreachable):
        await tried(restore_of(whole_cluster()), Machine=Unreachable("no answer"))
