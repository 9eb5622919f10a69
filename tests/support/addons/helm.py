"""The real Helm 4: installs, upgrades, rolls back and uninstalls releases of objects that are rendered already."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from caphv.api.object import Obj
from sandbox.processes import binaries

_SECONDS = 60.0
_CHART = {"apiVersion": "v2", "name": "objects", "version": "0.0.1"}
# Helm evaluates templates only, so that braces in a manifest stay what they are.
_TEMPLATE = '{{ .Files.Get "objects.yaml" }}'
# What the command line puts before the error of the library, which is what Fleet reports.
_FAILED = re.compile(r"\A(UPGRADE|INSTALLATION) FAILED: ")
_NOT_FOUND = "release: not found"


class HelmError(Exception):
    """Helm failed; the message is Helm's own."""


@dataclass(frozen=True)
class ReleaseStatus:
    """The newest revision of a release. `state` is for example `deployed` or `failed`."""

    revision: int
    state: str
    is_server_side: bool


class Helm:
    """The program `helm` for one cluster."""

    def __init__(self, kubeconfig: Obj) -> None:
        """Write the kubeconfig to a folder of its own, which is deleted with this object."""
        self._scratch = tempfile.TemporaryDirectory(prefix="caphv-helm-")
        self._folder = Path(self._scratch.name)
        self._program = binaries.binary("helm4")
        (self._folder / "kubeconfig").write_text(json.dumps(kubeconfig))

    async def status(self, release: str, namespace: str) -> ReleaseStatus | None:
        """Return the status of a release, None if there is none."""
        try:
            output = await self.run("status", release, "--output=json", namespace=namespace)
        except HelmError as error:
            if _NOT_FOUND in str(error):
                return None
            raise
        content = json.loads(output)
        return ReleaseStatus(content["version"], content["info"]["status"], content.get("apply_method") == "ssa")

    async def install(self, release: str, namespace: str, objects: Iterable[Obj], *flags: str) -> None:
        """Install objects as a release. Raises HelmError."""
        await self._apply("install", release, namespace, objects, flags)

    async def upgrade(self, release: str, namespace: str, objects: Iterable[Obj], *flags: str) -> None:
        """Upgrade a release to objects. Raises HelmError."""
        await self._apply("upgrade", release, namespace, objects, flags)

    async def rollback(self, release: str, namespace: str, revision: int, *flags: str) -> None:
        """Roll a release back to a revision. Raises HelmError."""
        await self.run("rollback", release, str(revision), *flags, namespace=namespace)

    async def uninstall(self, release: str, namespace: str) -> None:
        """Uninstall a release that may exist. Raises HelmError."""
        await self.run("uninstall", release, "--ignore-not-found", namespace=namespace)

    async def _apply(
        self, action: str, release: str, namespace: str, objects: Iterable[Obj], flags: Sequence[str]
    ) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            chart = Path(folder)
            (chart / "templates").mkdir()
            (chart / "Chart.yaml").write_text(json.dumps(_CHART))
            (chart / "templates" / "all.yaml").write_text(_TEMPLATE)
            (chart / "objects.yaml").write_text("\n---\n".join(map(json.dumps, objects)))
            await self.run(action, release, folder, *flags, namespace=namespace)

    async def run(self, *arguments: str, namespace: str) -> bytes:
        """Run a command in a namespace; return its output. Raises HelmError."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            *arguments,
            f"--namespace={namespace}",
            env={
                "HOME": str(self._folder),
                "KUBECONFIG": str(self._folder / "kubeconfig"),
                "HELM_CACHE_HOME": str(self._folder / "cache"),
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await asyncio.wait_for(process.communicate(), _SECONDS)
        if process.returncode:
            raise HelmError(_FAILED.sub("", errors.decode().rpartition("Error: ")[2].strip()))
        return output
