"""The Dockerfile keeps the rules of hadolint."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit


def lint(dockerfile: str) -> subprocess.CompletedProcess[str]:
    hadolint = Path(sys.executable).parent / "hadolint"
    return subprocess.run([hadolint, "-"], input=dockerfile, capture_output=True, text=True, check=False, cwd="/")


def test_dockerfile_passes_lint(checkout: Path) -> None:
    done = lint((checkout / "Dockerfile").read_text())
    assert done.returncode == 0, done.stdout


def test_lint_finds_what_is_wrong() -> None:
    done = lint("FROM debian:13\nRUN apt-get install git\nUSER root\n")
    assert done.returncode == 1
    assert "DL3002" in done.stdout
