"""Read StorageClasses of a Harvester, for the question whether disks can grow."""

from __future__ import annotations

import time
from collections.abc import Callable

from caphv.api.object import STORAGE_CLASSES, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, RequestError

_KEPT_SECONDS = 300.0


class StorageClasses:
    """What a function says of StorageClasses, kept for five minutes."""

    def __init__(self, obstacle: Callable[[Obj], str]) -> None:
        self._obstacle = obstacle
        self._read: dict[tuple[str, str], tuple[float, str]] = {}

    async def obstacle_of(self, client: ApiClient, account: str, name: str) -> str:
        """Return what the function says of a StorageClass, or why it cannot be read.

        A failure is text, too, because no machine depends on whether its disks can grow.

        :param client: client of Harvester
        :param account: fingerprint of the account that the client uses
        :param name: name of the StorageClass
        """
        current_time = time.monotonic()
        fresh = {
            key: entry
            for key, entry in self._read.items()
            if current_time - entry[0] < _KEPT_SECONDS
        }
        self._read = fresh
        if known := fresh.get((account, name)):
            return known[1]

        try:
            obstacle = self._obstacle(await client.get(STORAGE_CLASSES, name))
        except Forbidden:
            obstacle = (
                f"StorageClass {name} may not be read: give the account the right to get "
                "storageclasses"
            )
        except RequestError as error:
            return f"StorageClass {name} cannot be read: {error}"
        fresh[account, name] = (current_time, obstacle)
        return obstacle
