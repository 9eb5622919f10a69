"""Definitions of 20 clusters, and the repository that caphv 0.11 made of them.

Release 0.11 wrote the archive itself, by `caphv packager sync definitions/ --repo …`: clusters of each distribution and
CNI, with a ClusterClass and without, with all ways of delivery and import. It is a tar.xz in base64.
"""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path

_ARCHIVE = Path(__file__).with_name("repository-0.11.txt")
URL = "https://git.example.com/fleet.git"
"""Where Fleet finds the repository, as its GitRepos say."""


def extract(folder: Path) -> tuple[Path, Path]:
    """Unpack into a folder; return the folders with definitions and with the repository."""
    content = base64.b64decode(_ARCHIVE.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "definitions", folder / "repository"


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder by relative path."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}
