"""The Makefile leaves an environment alone that belongs to another checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

STAMPS = ("requirements.stamp", "project.stamp")
CAUSES = ("requirements.lock", "pyproject.toml")


def make(folder: Path) -> subprocess.CompletedProcess[str]:
    # `make` may run this test itself.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "setup", "PYTHON=false"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("newer", CAUSES)
def test_a_linked_environment_is_neither_emptied_nor_given_another_project(
    checkout: Path, tmp_path: Path, newer: str
) -> None:
    other, worktree = tmp_path / "other", tmp_path / "worktree"
    for folder in (other, worktree):
        folder.mkdir()
    shutil.copy(checkout / "Makefile", worktree)
    (worktree / ".venv").symlink_to(other)
    for name in (*(worktree / cause for cause in CAUSES), *(other / stamp for stamp in STAMPS)):
        name.touch()
        os.utime(name, (1000, 1000))
    assert make(worktree).returncode == 0

    os.utime(worktree / newer, (2000, 2000))
    done = make(worktree)
    assert done.returncode != 0
    assert ".venv is a symbolic link" in done.stderr
    assert "delete the link" in done.stderr
    assert sorted(path.name for path in other.iterdir()) == sorted(STAMPS)
