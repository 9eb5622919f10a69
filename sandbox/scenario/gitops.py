"""GitOps in a sandbox, with a repository of cluster definitions and a repository for Fleet.

`caphv packager sync` renders the first into the second, in a separate process as in a pipeline.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from caphv.api.object import Obj

_BRANCH = "main"
_SOURCE = "clusters.git"
_FLEET = "fleet.git"


class SyncError(Exception):
    """`caphv packager sync` failed. The message is its standard error."""


class GitOps:
    """The two bare repositories in the sandbox's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kubeconfig = folder / "management.kubeconfig"

    def create(self) -> None:
        """Create the repositories."""
        for name in (_SOURCE, _FLEET):
            path = self._folder / name
            path.mkdir()
            self._git(name, "init", "--quiet", "--bare", f"--initial-branch={_BRANCH}", ".")

    def push(self, definition: Obj, message: str) -> None:
        """Commit a definition to the repository of definitions, like a user."""
        content = yaml.safe_dump(definition, sort_keys=False).encode()
        path = f"{definition['metadata']['name']}.yaml"
        has_branch = self._git(_SOURCE, "for-each-ref", f"refs/heads/{_BRANCH}").strip()

        # fast-import commits to a bare repository, without a work tree to check out.
        lines = [
            f"commit refs/heads/{_BRANCH}",
            "committer user <user@example.com> now",
            f"data {len(message)}",
            message,
            *([f"from refs/heads/{_BRANCH}^0"] if has_branch else ()),
            f"M 100644 inline {path}",
            f"data {len(content)}",
            "",
        ]
        stream = "\n".join(lines).encode() + content + b"\ndone\n"
        self._git(_SOURCE, "fast-import", "--quiet", "--done", "--date-format=now", stdin=stream)

    async def sync(self) -> Obj:
        """Render the definitions into manifests and bundles, and apply the manifests.

        Returns the result of the command. Raises `SyncError`.
        """
        remotes = [
            f"--{option}=file://{self._folder / name}"
            for option, name in (("source-repo", _SOURCE), ("repo", _FLEET))
        ]
        command = [
            "packager",
            "sync",
            *remotes,
            "--apply",
            f"--kubeconfig={self._kubeconfig}",
            "--output=json",
        ]

        # -P keeps the sandbox's folder, the working directory, off sys.path.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "caphv", *command),
            cwd=self._folder,
            env=self._environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, stderr = await process.communicate()

        if process.returncode != 0:
            raise SyncError(
                stderr.decode(errors="replace").strip() or f"exit status {process.returncode}"
            )
        answer: Obj = json.loads(out)
        return answer

    def changes(self, commit: str) -> dict[str, int]:
        """Return the number of lines that a commit to Fleet's repository changes, by path."""
        changes = {}
        for row in self._git(_FLEET, "show", "--numstat", "--format=", commit).splitlines():
            added, removed, path = row.split("\t")
            changes[path] = int(added) + int(removed)
        return changes

    def count(self) -> int:
        """Return the number of commits in Fleet's repository."""
        return int(self._git(_FLEET, "rev-list", "--count", _BRANCH))

    def _environment(self) -> dict[str, str]:
        """Return the environment of the command, with caches in the sandbox."""
        path = os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        # These variables set options of the user's commands, such as credentials for Git.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("CAPHV_")
        }
        return inherited | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(self._folder / "cache")}

    def _git(self, name: str, *arguments: str, stdin: bytes = b"") -> str:
        # Ignore the user's Git configuration.
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        command: Sequence[str] = ["git", *arguments]

        result = subprocess.run(
            command,
            cwd=self._folder / name,
            env=environment,
            input=stdin,
            capture_output=True,
            check=True,
        )
        return result.stdout.decode()
