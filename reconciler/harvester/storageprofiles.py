"""Read the access and volume modes that StorageClasses of a Harvester provide.

CDI has a profile for each StorageClass. The profile lists the modes that CDI knows of the driver,
or the modes in the class's annotation
`cdi.harvesterhci.io/storageProfileVolumeModeAccessModes`. Harvester before 1.5 has no profiles, and
an account without the shipped roles may not read them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from caphv.api import resources
from caphv.api.object import Obj, list_at
from caphv.api.virtualmachine import READ_WRITE_MANY
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound

_KEPT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ClaimModes:
    """Access mode and volume mode of a claim."""

    access_mode: str = READ_WRITE_MANY
    volume_mode: str = "Block"


class _Answer(NamedTuple):
    """An answer of Harvester, and when it was read."""

    read_at: float
    modes: Sequence[ClaimModes]


class StorageProfiles:
    """The modes that StorageClasses offer, read when a VM is created and kept for a minute."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], _Answer] = {}

    async def modes_of(
        self, client: ApiClient, account: str, storage_class: str
    ) -> Sequence[ClaimModes]:
        """Return the modes of a StorageClass, empty if they are not known.

        Raises `ApiError`, `Unreachable`.

        :param client: client of Harvester
        :param account: fingerprint of the account that the client uses
        """
        key = account, storage_class
        current_time = time.monotonic()
        # Drop entries that are too old to be used, so that the memory stays small.
        self._answers = {
            key: answer
            for key, answer in self._answers.items()
            if current_time - answer.read_at < _KEPT_SECONDS
        }
        if last := self._answers.get(key):
            return last.modes

        modes: Sequence[ClaimModes] = ()
        with suppress(Forbidden, NotFound):
            modes = offered_modes(await client.get(resources.STORAGE_PROFILES, storage_class))
        self._answers[key] = _Answer(current_time, modes)
        return modes


def offered_modes(profile: Obj) -> Sequence[ClaimModes]:
    """Return the combinations of modes that a StorageProfile lists."""
    sets = list_at(profile, "status", "claimPropertySets")
    return tuple(
        ClaimModes(str(access_mode), str(entry.get("volumeMode") or "Filesystem"))
        for entry in sets
        for access_mode in entry.get("accessModes") or ()
    )
