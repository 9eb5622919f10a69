"""The stages of the Dockerfile, and its first one run without a container engine: into empty folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# Folders and files of the build stage.
PLACES = ("/opt/caphv", "/requirements.txt", "/build-requirements.txt", "/build", "/dist")
PLACE = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, PLACES))})(?![\w-])")


def stages(dockerfile: str) -> list[list[str]]:
    """Instructions of each stage, continuation lines joined, comments left out."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    found: list[list[str]] = []
    for line in filter(str.strip, joined):
        if line.startswith("FROM "):
            found.append([])
        elif found:
            found[-1].append(line)
    return found


def copied(checkout: Path, target: Path) -> None:
    """What .dockerignore lets into the build."""
    rules = (checkout / ".dockerignore").read_text().splitlines()
    for rule in (rule.removeprefix("!") for rule in rules if rule.startswith("!")):
        source = checkout / rule
        if source.is_dir():
            shutil.copytree(source, target / rule, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (target / rule).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target / rule)


def build(checkout: Path, folder: Path) -> Path:
    """Run the build stage in a folder; answers the folder that the final stage takes from it."""
    source = folder / "src"
    copied(checkout, source)
    (folder / "opt").mkdir()
    build, _ = stages((checkout / "Dockerfile").read_text())
    programs = folder / "programs"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    for step in (line.removeprefix("RUN ") for line in build if line.startswith("RUN ")):
        # Packages that pip has at hand are not downloaded again: the hashes of the lock are compared all the same.
        command = PLACE.sub(lambda found: f"{folder}{found[1]}", step.replace("--no-cache-dir ", ""))
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=source,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return folder / "opt" / "caphv"
