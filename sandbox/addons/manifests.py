"""The deploy controller of an RKE2 or K3s server: what happens to the files in its manifests folder."""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from pathlib import Path

from caphv.runtime.client import ApiClient
from sandbox.addons.apply import Objects, documents


class DeployController:
    """One server of a cluster; `folder` is its manifests folder, which may change at any time.

    All servers of a cluster share `addons`: the checksums of applied files, as their Addon objects record them.
    """

    def __init__(self, client: ApiClient, folder: Path, addons: MutableMapping[str, str]) -> None:
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
        for path in sorted(self._folder.iterdir()):
            if path.suffix not in (".yaml", ".yml", ".json") or path.with_name(f"{path.name}.skip").exists():
                continue
            content = path.read_bytes()
            checksum = hashlib.sha256(content).hexdigest()
            if force or self._addons.get(path.stem) != checksum:
                await self._objects.apply(documents(content), "kube-system")
                self._addons[path.stem] = checksum
                applied.append(path.name)
        return applied
