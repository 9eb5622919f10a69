"""Folders as archives that are reproducible: the Helm chart, and the Headlamp plugin."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path


def archive(folder: Path, name: str = "caphv") -> bytes:
    """Return a gzipped tar of a folder, with symbolic links resolved to files.

    :param folder: the folder
    :param name: its name in the archive
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(_files(folder)):
            data = path.read_bytes()
            member = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
            member.size = len(data)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(data))

    # Without times and owners, the same files are the same archive.
    return gzip.compress(content.getvalue(), mtime=0)


def _files(folder: Path) -> Iterator[Path]:
    # Path.rglob does not follow links to folders before Python 3.13.
    for directory, _, names in os.walk(folder, followlinks=True):
        yield from (Path(directory) / name for name in names)
