"""The simulator creates the objects of its settings that are missing."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caphv.api.object import DEPLOYMENTS, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, ApiError, Invalid, NotFound
from sandbox.harvester import kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.fixtures import seed

pytestmark = pytest.mark.unit

CONFIG = SimulatorConfig.from_settings("127.64.0.0/16")
DENIED = Invalid(500, "InternalError", "the ranges overlap those of other pools")


class Harvester:
    """An API server with these objects, by kind and name, that answers some creations with an error."""

    def __init__(self, *existing: tuple[str, str], error: ApiError | None = None) -> None:
        self.objects = set(existing)
        self.error = error

    async def get(self, resource: Resource, name: str, _namespace: str) -> None:
        if (resource.kind, name) not in self.objects:
            raise NotFound(404, "NotFound", name)

    async def create(self, resource: Resource, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        assert (resource.kind, name) not in self.objects, "a webhook may refuse this"
        if self.error and resource == kinds.IP_POOLS and name == "machines-b":
            raise self.error
        self.objects.add((resource.kind, name))

    async def patch(self, *_: Any, **__: Any) -> None: ...

    async def seed(self) -> set[str]:
        await seed(cast(ApiClient, self), CONFIG)
        return {name for kind, name in self.objects if kind == kinds.IP_POOLS.kind}


POOLS = {pool.name for pool in CONFIG.pools}
STARTED_BEFORE = (DEPLOYMENTS.kind, "harvester")


async def test_objects_are_created_once() -> None:
    harvester = Harvester()
    assert await harvester.seed() == POOLS
    await harvester.seed()


async def test_wrong_setting_ends_the_first_start() -> None:
    with pytest.raises(Invalid, match="overlap"):
        await Harvester(error=DENIED).seed()


async def test_later_start_leaves_out_what_objects_of_users_exclude(caplog: pytest.LogCaptureFixture) -> None:
    assert await Harvester(STARTED_BEFORE, error=DENIED).seed() == POOLS - {"machines-b"}
    assert "IPPool machines-b is missing: the ranges overlap" in caplog.text


async def test_object_that_another_program_creates_meanwhile_stays() -> None:
    assert await Harvester(error=AlreadyExists(409, "AlreadyExists", "")).seed() == POOLS - {"machines-b"}
