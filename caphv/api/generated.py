"""Write generated files, or check that they are fresh: what all generators have in common."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[Path, str | None]
"""Texts of generated files by path, None for a file that must not exist."""


def main(arguments: list[str] | None, module: str, files: Files) -> int:
    """Write stale files, or with `--check` only name them. Return the exit status.

    :param arguments: those of the command line; None for the process's own
    :param module: the module of the generator
    :param files: what the generator makes
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    add_check(parser)
    return write(module, files, check=parser.parse_args(arguments).check)


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add option `--check`."""
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 and name stale files"
    )


def write(module: str, files: Files, *, check: bool) -> int:
    """Write stale files, or only name them. Return the exit status.

    :param module: the module of the generator
    :param files: what the generator makes
    :param check: whether to write nothing
    """
    paths = stale(files)
    for path in paths:
        text = files[path]
        name = os.path.relpath(path)
        if check:
            sys.stderr.write(f"{name} is stale: run python -m {module}\n")
            continue

        sys.stdout.write(f"{name}\n")
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if check and paths else 0


def stale(files: Files) -> list[Path]:
    """Return the sorted paths of files that are missing, different or too many."""

    def read(path: Path) -> str | None:
        return path.read_text(encoding="utf-8") if path.is_file() else None

    return sorted(path for path, text in files.items() if read(path) != text)
