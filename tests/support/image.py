"""The stages of the Dockerfile, and those that build run without a container engine: into empty folders."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support import wheels

# Folders and files of the stages that build.
BUILDING = ("build", "rootfs")
PLACES = ("/opt/caphv", "/requirements.txt", "/build-requirements.txt", "/build", "/dist", "/rootfs")
PLACE = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, PLACES))})(?![\w-])")


def stages(dockerfile: str) -> dict[str, list[str]]:
    """Instructions of each stage by its name, continuation lines joined, comments left out."""
    lines = [line for line in dockerfile.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    found: dict[str, list[str]] = {}
    for line in filter(str.strip, joined):
        if line.startswith("FROM "):
            found[line.rpartition(" AS ")[2]] = []
        elif found:
            found[next(reversed(found))].append(line)
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
    """Run the stages that build in a folder; answers the folder with the packages, next to that of the controller."""
    source = folder / "src"
    copied(checkout, source)
    (folder / "opt").mkdir()
    found = stages((checkout / "Dockerfile").read_text())
    programs = folder / "programs"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    environment = wheels.environment()
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    lines = [line for name in BUILDING for line in found[name]]
    for step in (line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")):
        command = PLACE.sub(lambda found: f"{folder}{found[1]}", step)
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


def controller(prefix: Path) -> Path:
    """The root file system of the controller, built with a folder of packages."""
    return prefix.parent.parent / "rootfs"
