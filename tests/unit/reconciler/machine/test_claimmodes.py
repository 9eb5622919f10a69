"""The modes of a disk's claim: those of the spec, else the best of its StorageClass, else as Longhorn has them."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.runtime.errors import Forbidden, NotFound, ServerFault
from reconciler.harvester.storageprofiles import ClaimModes, StorageProfiles, offered_modes
from reconciler.machine.disks import claim_modes

pytestmark = pytest.mark.unit

LONGHORN = [("ReadWriteMany", "Block"), ("ReadWriteOnce", "Block")]
LOCAL = [("ReadWriteOnce", "Filesystem"), ("ReadWriteOnce", "Block")]
NFS = [("ReadWriteOnce", "Filesystem"), ("ReadOnlyMany", "Filesystem"), ("ReadWriteMany", "Filesystem")]


@pytest.mark.parametrize(
    ("spec", "offered", "modes"),
    [
        ({}, [], ("ReadWriteMany", "Block")),
        ({}, LONGHORN, ("ReadWriteMany", "Block")),
        ({}, LOCAL, ("ReadWriteOnce", "Block")),
        ({}, NFS, ("ReadWriteMany", "Filesystem")),
        ({}, [("ReadWriteOncePod", "Block")], ("ReadWriteMany", "Block")),
        ({"accessMode": "ReadWriteOnce"}, LONGHORN, ("ReadWriteOnce", "Block")),
        ({"accessMode": "ReadWriteOnce"}, NFS, ("ReadWriteOnce", "Filesystem")),
        ({"accessMode": "ReadWriteOnce"}, [], ("ReadWriteOnce", "Block")),
        ({"volumeMode": "Filesystem"}, LOCAL, ("ReadWriteOnce", "Filesystem")),
        ({"volumeMode": "Filesystem"}, [], ("ReadWriteMany", "Filesystem")),
        ({"volumeMode": "Filesystem"}, LONGHORN, ("ReadWriteMany", "Filesystem")),
        ({"accessMode": "ReadWriteOnce", "volumeMode": "Filesystem"}, LONGHORN, ("ReadWriteOnce", "Filesystem")),
    ],
)
def test_modes(spec: dict[str, str], offered: list[tuple[str, str]], modes: tuple[str, str]) -> None:
    assert claim_modes(spec, [ClaimModes(*each) for each in offered]) == ClaimModes(*modes)


def test_profile_lists_each_combination() -> None:
    sets = [
        {"accessModes": ["ReadWriteMany", "ReadWriteOnce"], "volumeMode": "Block"},
        {"accessModes": ["ReadOnlyMany"]},
    ]
    assert offered_modes({"status": {"claimPropertySets": sets}}) == (
        ClaimModes("ReadWriteMany", "Block"),
        ClaimModes("ReadWriteOnce", "Block"),
        ClaimModes("ReadOnlyMany", "Filesystem"),
    )
    assert offered_modes({}) == offered_modes({"status": {}}) == ()


class FakeClient:
    """Answers with a profile or raises."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests = 0

    async def get(self, *_request: object) -> Any:
        self.requests += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_profile_is_read_once_a_minute_for_each_account() -> None:
    sets = [{"accessModes": ["ReadWriteOnce"], "volumeMode": "Block"}]
    client: Any = FakeClient({"status": {"claimPropertySets": sets}})
    profiles = StorageProfiles()
    for account in ("one", "one", "other"):
        assert await profiles.modes_of(client, account, "local") == (ClaimModes("ReadWriteOnce", "Block"),)
    assert client.requests == 2


@pytest.mark.parametrize("error", [NotFound(404, "NotFound", "no CDI"), Forbidden(403, "Forbidden", "no right")])
async def test_modes_are_unknown_without_cdi_or_the_right_to_read_it(error: Exception) -> None:
    client: Any = FakeClient(error)
    assert await StorageProfiles().modes_of(client, "one", "local") == ()


async def test_other_failures_are_for_a_retry() -> None:
    client: Any = FakeClient(ServerFault(500, "InternalError", "later"))
    profiles = StorageProfiles()
    with pytest.raises(ServerFault):
        await profiles.modes_of(client, "one", "local")
    client.answer = {"status": {}}
    assert await profiles.modes_of(client, "one", "local") == ()
