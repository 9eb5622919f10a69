"""A person at a shell with a management cluster and the programs that users have."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from caphv.api.object import Obj
from sandbox.processes import binaries


class Shell:
    """Runs commands in a folder that is HOME, too, and has a `kubeconfig`; `programs` are on the PATH."""

    def __init__(self, folder: Path, *programs: str, at: Path | None = None) -> None:
        self.folder = folder
        self.at = at or folder
        self.programs = folder / "programs"
        self.programs.mkdir()
        for name in programs:
            (self.programs / name).symlink_to(binaries.binary(name))
        own = {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(folder / "kubeconfig"),
            "HOME": str(folder),
        }
        self.environment = {**os.environ, **own}

    def __call__(self, script: str, text: str = "") -> str:
        """The output of a script that succeeds."""
        done = self.run(script, text)
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run(self, script: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a script, whatever its status is."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.at, env=self.environment, input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def refuses(self, script: str, why: str) -> None:
        """Run a script that fails with a message."""
        with pytest.raises(AssertionError, match=why):
            self(script)

    def read(self, arguments: str) -> Obj:
        """What `kubectl get` answers."""
        return dict(json.loads(self(f"kubectl get {arguments} -o json")))

    def program(self, name: str, script: str) -> None:
        """Put a program on the PATH, in place of one that needs a host."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
