"""The Helm chart as an archive, like `helm package` but reproducible."""

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path


def archive(chart: Path) -> bytes:
    """Return a gzipped tar of the chart's folder, with symbolic links resolved to files."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(_files(chart)):
            data = path.read_bytes()
            member = tarfile.TarInfo(f"caphv/{path.relative_to(chart).as_posix()}")
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))

    # Without times and owners, the same files are the same archive.
    return gzip.compress(content.getvalue(), mtime=0)


def _files(folder: Path) -> Iterator[Path]:
    # Path.rglob does not follow links to folders before Python 3.13.
    for directory, _, names in os.walk(folder, followlinks=True):
        yield from (Path(directory) / name for name in names)
