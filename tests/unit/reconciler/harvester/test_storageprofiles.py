"""Modes of claims that StorageClasses offer: read once a minute for each account, and none where they are not known."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from caphv.api.object import Obj, Resource
from caphv.runtime.errors import ApiError, Forbidden, NotFound, ServerFault, Unreachable
from reconciler.harvester.storageprofiles import ClaimModes, StorageProfiles, offered_modes

pytestmark = pytest.mark.unit

MANY, ONCE = "ReadWriteMany", "ReadWriteOnce"


def profile(*sets: Obj) -> Obj:
    return {"metadata": {"name": "fast"}, "status": {"claimPropertySets": list(sets)}}


@pytest.mark.parametrize(
    ("found", "modes"),
    [
        ({"metadata": {}}, ()),
        ({"status": None}, ()),
        ({"status": {"claimPropertySets": None}}, ()),
        (profile({"accessModes": None, "volumeMode": "Block"}), ()),
        (profile({"accessModes": [ONCE]}), (ClaimModes(ONCE, "Filesystem"),)),
        (
            profile({"accessModes": [MANY, ONCE], "volumeMode": "Block"}, {"accessModes": [ONCE]}),
            (ClaimModes(MANY, "Block"), ClaimModes(ONCE, "Block"), ClaimModes(ONCE, "Filesystem")),
        ),
    ],
)
def test_each_combination_of_a_profile_is_offered(found: Obj, modes: tuple[ClaimModes, ...]) -> None:
    assert offered_modes(found) == modes


class Server:
    def __init__(self) -> None:
        self.answer: Obj | ApiError | Unreachable = profile({"accessModes": [ONCE]})
        self.asked: list[str] = []

    async def get(self, _resource: Resource, name: str) -> Obj:
        self.asked.append(name)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def offered(profiles: StorageProfiles, server: Server, account: str = "a", name: str = "fast") -> Any:
    return await profiles.modes_of(cast("Any", server), account, name)


@pytest.mark.virtual_time
async def test_a_profile_is_read_once_a_minute_for_each_account() -> None:
    server, profiles = Server(), StorageProfiles()
    for _ in range(3):
        assert await offered(profiles, server) == (ClaimModes(ONCE, "Filesystem"),)
    assert server.asked == ["fast"]
    await offered(profiles, server, name="slow")
    await offered(profiles, server, account="b")
    assert server.asked == ["fast", "slow", "fast"]
    await asyncio.sleep(59)
    await offered(profiles, server)
    assert len(server.asked) == 3
    await asyncio.sleep(1)
    server.answer = profile({"accessModes": [MANY]})
    assert await offered(profiles, server) == (ClaimModes(MANY, "Filesystem"),)
    assert len(server.asked) == 4


@pytest.mark.virtual_time
@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "no"), NotFound(404, "NotFound", "no")])
async def test_what_may_not_be_read_is_not_known_for_a_minute(error: ApiError) -> None:
    server, profiles = Server(), StorageProfiles()
    server.answer = error
    for _ in range(2):
        assert await offered(profiles, server) == ()
    assert len(server.asked) == 1


@pytest.mark.parametrize("error", [ServerFault(500, "", "broken"), Unreachable("no answer")])
async def test_a_failure_is_raised_and_not_kept(error: ApiError | Unreachable) -> None:
    server, profiles = Server(), StorageProfiles()
    server.answer = error
    for _ in range(2):
        with pytest.raises(type(error)):
            await offered(profiles, server)
    assert len(server.asked) == 2
