"""Read StorageClasses of a Harvester, for the question whether disks can grow."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from caphv.api.names import LONGHORN_DRIVER
from caphv.api.object import STORAGE_CLASSES, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound, RequestError

_FRESH_SECONDS = 300.0
# How long an answer serves while Harvester does not give another one.
_KEPT_SECONDS = 3600.0
# Longhorn grows volumes of its second engine unless they have this frontend (its manual, "Volume
# Expansion").
_FIXED_FRONTEND = "ublk"
_EXPAND_SECRET = "csi.storage.k8s.io/node-expand-secret-name"  # noqa: S105 - name of a parameter


def class_obstacle(storage_class: Obj) -> str:
    """Return why disks of a StorageClass cannot grow while a VM uses them; empty if they can."""
    name = storage_class["metadata"]["name"]
    parameters = storage_class.get("parameters") or {}
    # Setting `csi-online-expand-validation` of Harvester allows Longhorn alone by default.
    if storage_class.get("provisioner") != LONGHORN_DRIVER:
        return f"StorageClass {name} is not of {LONGHORN_DRIVER}"
    if not storage_class.get("allowVolumeExpansion"):
        return f"StorageClass {name} has no allowVolumeExpansion"
    if parameters.get("frontend") == _FIXED_FRONTEND:
        return f"StorageClass {name} has frontend {_FIXED_FRONTEND}"
    if parameters.get("encrypted") == "true" and not parameters.get(_EXPAND_SECRET):
        return f"StorageClass {name} is encrypted and lacks {_EXPAND_SECRET}"
    return ""


@dataclass(frozen=True, slots=True)
class StorageClass:
    """What is known of a StorageClass.

    :param obstacle: why its disks cannot grow; empty if they can
    :param exists: whether it exists, None if the account may not know
    """

    obstacle: str
    exists: bool | None = True


class _Answer(NamedTuple):
    """An answer of Harvester, and when it was read."""

    read_at: float
    storage_class: StorageClass


class StorageClasses:
    """What is known of StorageClasses, kept for five minutes."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], _Answer] = {}

    async def read(self, client: ApiClient, account: str, name: str) -> StorageClass:
        """Return what is known of a StorageClass; the last answer while Harvester gives none.

        Raises `RequestError` if Harvester gives no answer and the last one is too old.

        :param client: client of Harvester
        :param account: fingerprint of the account that the client uses
        :param name: name of the StorageClass
        """
        current_time = time.monotonic()
        self._answers = {
            key: answer
            for key, answer in self._answers.items()
            if current_time - answer.read_at < _KEPT_SECONDS
        }
        last = self._answers.get((account, name))
        if last and current_time - last.read_at < _FRESH_SECONDS:
            return last.storage_class

        try:
            storage_class = StorageClass(class_obstacle(await client.get(STORAGE_CLASSES, name)))
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
            if last is None:
                raise
            return last.storage_class
        self._answers[account, name] = _Answer(current_time, storage_class)
        return storage_class
