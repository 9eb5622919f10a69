"""Read StorageClasses of a Harvester, for the question whether disks can grow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from caphv.api.object import STORAGE_CLASSES, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound, RequestError

_FRESH_SECONDS = 300.0
# How long an answer serves while Harvester does not give another one.
_KEPT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class StorageClass:
    """What is known of a StorageClass.

    :param obstacle: why its disks cannot grow; empty if they can
    :param exists: whether it exists, None if the account may not know
    """

    obstacle: str
    exists: bool | None = True


class StorageClasses:
    """What a function says of StorageClasses, kept for five minutes."""

    def __init__(self, obstacle: Callable[[Obj], str]) -> None:
        self._obstacle = obstacle
        self._read: dict[tuple[str, str], tuple[float, StorageClass]] = {}

    async def known(self, client: ApiClient, account: str, name: str) -> StorageClass:
        """Return what is known of a StorageClass, from before if Harvester fails just now.

        Raises `RequestError` for a failure if nothing is known from before.

        :param client: client of Harvester
        :param account: fingerprint of the account that the client uses
        :param name: name of the StorageClass
        """
        current_time = time.monotonic()
        self._read = {
            key: entry
            for key, entry in self._read.items()
            if current_time - entry[0] < _KEPT_SECONDS
        }
        before = self._read.get((account, name))
        if before and current_time - before[0] < _FRESH_SECONDS:
            return before[1]

        try:
            storage_class = StorageClass(self._obstacle(await client.get(STORAGE_CLASSES, name)))
        except Forbidden:
            storage_class = StorageClass(
                f"StorageClass {name} may not be read: give the account the right to get "
                "storageclasses",
                exists=None,
            )
        except NotFound:
            storage_class = StorageClass(f"StorageClass {name} does not exist", exists=False)
        except RequestError:
            # An answer that changes with each failure would replace machines without need.
            if before is None:
                raise
            return before[1]
        self._read[account, name] = (current_time, storage_class)
        return storage_class
