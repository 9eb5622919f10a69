"""What the StorageClasses of a Harvester provide: access and volume modes, from CDI's StorageProfiles.

CDI has a profile for each StorageClass, with the modes that it knows of the driver, or that the class's annotation
`cdi.harvesterhci.io/storageProfileVolumeModeAccessModes` names. A Harvester before 1.5 has none, and an account of an
earlier version may not read them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from caphv.api import resources
from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound

READ_WRITE_MANY = "ReadWriteMany"
_KEPT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ClaimModes:
    """Access mode and volume mode of a claim."""

    access_mode: str = READ_WRITE_MANY
    volume_mode: str = "Block"


class StorageProfiles:
    """The modes that StorageClasses offer, read when a VM is created and kept for a minute."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], tuple[float, Sequence[ClaimModes]]] = {}

    async def offered(self, client: ApiClient, account: str, storage_class: str) -> Sequence[ClaimModes]:
        """Return the modes of a StorageClass, empty if they are not known. Raises `ApiError`, `Unreachable`.

        :param account: fingerprint of the account that the client uses
        """
        key, now = (account, storage_class), time.monotonic()
        read_at, modes = self._read.get(key, (-_KEPT_SECONDS, ()))
        if now - read_at < _KEPT_SECONDS:
            return modes

        try:
            modes = offered_modes(await client.get(resources.STORAGE_PROFILES, storage_class))
        except (Forbidden, NotFound):
            modes = ()
        self._read = {key: entry for key, entry in self._read.items() if now - entry[0] < _KEPT_SECONDS}
        self._read[key] = (now, modes)
        return modes


def offered_modes(profile: Obj) -> Sequence[ClaimModes]:
    """Return the combinations of modes that a StorageProfile lists."""
    sets = (profile.get("status") or {}).get("claimPropertySets") or ()
    return tuple(
        ClaimModes(str(access_mode), str(entry.get("volumeMode") or "Filesystem"))
        for entry in sets
        for access_mode in entry.get("accessModes") or ()
    )
