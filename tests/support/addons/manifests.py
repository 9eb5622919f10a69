"""The deploy controller of an RKE2 or K3s server: what happens to the files in its manifests folder."""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from tests.support.addons.apply import Objects, documents, names

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Addon:
    """What an Addon object records of a file: its checksum, and what was applied from it."""

    checksum: str
    objects: Sequence[Obj] = ()


class DeployController:
    """One server of a cluster; `folder` is its manifests folder, which may change at any time.

    All servers of a cluster share `addons`, the Addon objects by name.
    """

    def __init__(self, client: ApiClient, folder: Path, addons: MutableMapping[str, Addon]) -> None:
        self._objects = Objects(client, "deploy@server")
        self._folder, self._addons = folder, addons

    async def start(self) -> list[str]:
        """Start the server: apply every file that is not skipped, whatever its checksum. Return their names."""
        return await self._scan(force=True)

    async def poll(self) -> list[str]:
        """Apply files whose checksum changed. Return their names."""
        return await self._scan(force=False)

    async def _scan(self, *, force: bool) -> list[str]:
        applied = []
        skipped = {path.name.removesuffix(".skip") for path in self._folder.rglob("*.skip")}
        for path in sorted(self._folder.rglob("*")):
            if path.suffix not in _SUFFIXES or path.name.startswith(".") or path.name in skipped:
                continue
            content = path.read_bytes()
            checksum = hashlib.sha256(content).hexdigest()
            # Files whose names differ after the first dot only share an Addon.
            name = path.name.partition(".")[0]
            known = self._addons.get(name)
            if force or known is None or known.checksum != checksum:
                objects = documents(content)
                await self._objects.apply(objects, "kube-system")
                if known:
                    current = set(names(objects))
                    dropped = [obj for obj in known.objects if next(names([obj])) not in current]
                    await self._objects.delete(dropped, "kube-system")
                self._addons[name] = Addon(checksum, objects)
                applied.append(path.name)
        return applied
