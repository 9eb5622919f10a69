"""The deploy controller of an RKE2 or K3s server: what becomes of the files in its manifests folder."""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from pathlib import PurePosixPath

from caphv.runtime.client import ApiClient
from sandbox.addons.apply import Objects, documents


class DeployController:
    """One server of a cluster; `files` is its disk by absolute path, which may change at any time.

    All servers of a cluster share `addons`: the checksums of applied files, as their Addon objects record them.
    """

    def __init__(
        self, client: ApiClient, folder: str, files: MutableMapping[str, bytes], addons: MutableMapping[str, str]
    ) -> None:
        self._objects = Objects(client, "deploy@server")
        self._folder, self._files, self._addons = folder, files, addons

    async def start(self) -> list[str]:
        """Start the server: apply every file that is not skipped, whatever its checksum. Return their names."""
        return await self._scan(force=True)

    async def poll(self) -> list[str]:
        """Apply files whose checksum changed. Return their names."""
        return await self._scan(force=False)

    async def _scan(self, *, force: bool) -> list[str]:
        applied = []
        for path, content in sorted(self._files.items()):
            name = PurePosixPath(path).name
            if not path.startswith(f"{self._folder}/") or not name.endswith((".yaml", ".yml", ".json")):
                continue
            checksum = hashlib.sha256(content).hexdigest()
            if f"{path}.skip" in self._files or (not force and self._addons.get(name) == checksum):
                continue
            await self._objects.apply(documents(content), "kube-system")
            self._addons[name] = checksum
            applied.append(name)
        return applied
