"""Finds charts in a folder or in repositories, and reads their metadata and values."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caphv.runtime.text import Limits, TextError, load_yaml
from packager.addons.merge import merge
from packager.checks.contents import ChartRef
from packager.checks.helm import Helm, HelmError
from packager.tree import Tree, content_hash

_LIMITS = Limits(size=4 * 1024 * 1024)
_MAX_BYTES = 64 * 1024 * 1024
_MAX_DEPTH = 4


@dataclass(frozen=True)
class Chart:
    """An available chart, a folder or an archive; `values` includes the values of its subcharts."""

    path: Path
    version: str
    values: Mapping[str, Any]
    app_version: str = ""


class Charts:
    """Finds charts in `folder`, else pulls them if `download`; reads each once. Thread-safe."""

    def __init__(self, helm: Helm, folder: Path | None = None, *, download: bool = False) -> None:
        self._helm = helm
        self._folder = folder
        self._download = download
        self._charts: dict[ChartRef, Chart | None] = {}
        self._written: dict[str, Chart] = {}
        self._lock = threading.Lock()

    @property
    def are_given(self) -> bool:
        """Whether there is any source of charts."""
        return self._download or self._folder is not None

    def bundled_chart(self, files: Tree) -> Chart:
        """Return a chart that a bundle holds itself. Raises `HelmError` if it cannot be read."""
        digest = content_hash(files)
        with self._lock:
            if digest not in self._written:
                self._written[digest] = _read(self._helm.write(files, digest))
            return self._written[digest]

    def find(self, ref: ChartRef) -> Chart | None:
        """Return a chart or None. Raises `HelmError` if it cannot be pulled or read."""
        with self._lock:
            if ref not in self._charts:
                self._charts[ref] = self._find(ref)
            return self._charts[ref]

    def _find(self, ref: ChartRef) -> Chart | None:
        if self._folder:
            charts = [_read(path) for path in _candidates(self._folder, ref.name)]
            if ref.version:
                # Charts write their version with or without a leading v.
                version = ref.version.lstrip("v")
                charts = [chart for chart in charts if chart.version.lstrip("v") == version]
            if charts:
                return max(charts, key=lambda chart: _sort_key(chart.version))
        # RKE2's own charts have no address, and cannot be pulled.
        if self._download and ref.repo:
            return _read(self._helm.pull(ref))
        return None


def files_of(chart: Chart) -> dict[str, bytes]:
    """Return all files of a chart that are not hidden, by path in the chart. Raises `HelmError`."""
    if chart.path.is_dir():
        # Skip links, because they could bring in files from outside the chart.
        paths = [
            path
            for path in sorted(chart.path.rglob("*"))
            if path.is_file() and not path.is_symlink()
        ]
        files = {path.relative_to(chart.path).as_posix(): path.read_bytes() for path in paths}
    else:
        files = _read_archive(chart.path, ())

    return {
        path: text
        for path, text in files.items()
        if not any(part.startswith(".") for part in path.split("/"))
    }


def _candidates(folder: Path, name: str) -> list[Path]:
    folders = [path for path in (folder / name, folder) if (path / "Chart.yaml").is_file()]
    # A version must follow the name, because `cilium-crds` is not a version of `cilium`.
    archives = [
        path
        for path in sorted(folder.glob(f"{name}-*.tgz"))
        if path.name[len(name) + 1 :].lstrip("v")[:1].isdigit()
    ]
    return [path for path in (*folders, *archives) if not path.is_dir() or _name(path) == name]


def _name(folder: Path) -> str:
    return str(_yaml((folder / "Chart.yaml").read_bytes(), "Chart.yaml").get("name"))


def _read(path: Path) -> Chart:
    files = _read_folder(path) if path.is_dir() else _read_archive(path)
    metadata = _yaml(files.get("Chart.yaml", b""), f"{path.name}: Chart.yaml")
    return Chart(
        path=path,
        version=str(metadata.get("version") or ""),
        values=_values(files, "", metadata),
        app_version=str(metadata.get("appVersion") or ""),
    )


def _values(
    files: Mapping[str, bytes], top: str, metadata: Mapping[str, Any], depth: int = 0
) -> Mapping[str, Any]:
    """Return the documented values of a chart; the values of a subchart are under its name."""
    values = _yaml(files.get(f"{top}values.yaml", b""), f"{top}values.yaml")
    subcharts = {
        path.removeprefix(f"{top}charts/").partition("/")[0]
        for path in files
        if path.startswith(f"{top}charts/")
    }
    dependencies = [row for row in metadata.get("dependencies") or () if isinstance(row, dict)]

    for name in sorted(subcharts) if depth < _MAX_DEPTH else ():
        inner = f"{top}charts/{name}/"
        chart = _yaml(files.get(f"{inner}Chart.yaml", b""), f"{inner}Chart.yaml")
        aliases = [
            str(row["alias"])
            for row in dependencies
            if row.get("name") == chart.get("name") and row.get("alias")
        ]

        # Helm passes a subchart its part of the values, and merges all values named `global`.
        subchart_values = _values(files, inner, chart, depth + 1)
        for alias in aliases or [str(chart.get("name") or name)]:
            values = merge({alias: subchart_values}, values)
        values = merge({"global": subchart_values.get("global") or {}}, values)
    return values


def _read_folder(folder: Path) -> dict[str, bytes]:
    """Read the files with metadata and values from the folder of a chart and from its subcharts.

    Subcharts may be archives.
    """
    paths = [path for name in ("Chart.yaml", "values.yaml") for path in folder.rglob(name)]
    files: dict[str, bytes] = {}
    for path in sorted((*paths, *folder.glob("charts/*.tgz"))):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".tgz":
            for inner, content in _read_archive(path).items():
                files[f"charts/{path.stem}/{inner}"] = content
        elif path.stat().st_size <= _LIMITS.size:
            files[name] = path.read_bytes()
    return files


def _read_archive(
    path: Path, names: Sequence[str] = ("Chart.yaml", "values.yaml")
) -> dict[str, bytes]:
    """Read the files of these names from the archive of a chart; without `names`, read all files.

    The archive is read in memory and never unpacked to disk.
    """
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            remaining = _MAX_BYTES
            for member in archive:
                remaining -= member.size
                if remaining < 0:
                    raise HelmError(f"{path.name} unpacks to more than {_MAX_BYTES >> 20} MiB")

                # All paths in the archive of a chart begin with the chart's name.
                content = archive.extractfile(member) if member.isfile() else None
                name = member.name.removeprefix("./").partition("/")[2]
                if content and name and (not names or name.rpartition("/")[2] in names):
                    files[name] = content.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise HelmError(f"{path.name} is not an archive of a chart: {error}") from None
    return files


def _yaml(content: bytes, name: str) -> dict[str, Any]:
    try:
        value = load_yaml(content, _LIMITS)
    except TextError as error:
        raise HelmError(f"{name} {error}") from None
    return value if isinstance(value, dict) else {}


def _sort_key(version: str) -> tuple[object, ...]:
    """Return a key that sorts versions as Semantic Versioning does.

    A pre-release comes before its release. Build metadata only decides between equal versions.
    """
    numbers, _, build = version.lstrip("v").partition("+")
    release, _, prerelease = numbers.partition("-")
    is_release = not prerelease
    return _identifiers(release), is_release, _identifiers(prerelease), _identifiers(build)


def _identifiers(text: str) -> list[tuple[bool, int, str]]:
    """Return keys for identifiers between dots, which sort numbers as numbers and before words."""
    identifiers = text.split(".") if text else []
    return [
        (False, int(identifier), "") if identifier.isdecimal() else (True, 0, identifier)
        for identifier in identifiers
    ]
