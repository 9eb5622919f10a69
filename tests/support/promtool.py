"""promtool, and the rules that it reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from caphv.api.object import Obj
from sandbox.processes import binaries


def promtool(*arguments: str | Path, given: str = "") -> str:
    command = [binaries.binary("promtool"), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def written(path: Path, groups: list[Obj]) -> Path:
    path.write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    return path
