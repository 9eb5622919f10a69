"""Where charts for a check come from: a folder, or the repositories that bundles name; and what a chart declares."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caphv.runtime.text import Limits, TextError, load_yaml
from packager.addons.merge import merged
from packager.checks.contents import ChartRef
from packager.checks.helm import Helm, HelmError
from packager.tree import Tree, content_hash

_LIMITS = Limits(size=4 * 1024 * 1024)
_LARGEST = 64 * 1024 * 1024
_DEEPEST = 4


@dataclass(frozen=True)
class Chart:
    """An available chart: a folder or an archive, and its documented values with those of its subcharts."""

    path: Path
    version: str
    values: Mapping[str, Any]
    app_version: str = ""


class Charts:
    """Finds charts in `folder`, else pulls them if `download`; each is read once. Safe to use from several threads."""

    def __init__(self, helm: Helm, folder: Path | None = None, *, download: bool = False) -> None:
        self._helm, self._folder, self._download = helm, folder, download
        self._known: dict[ChartRef, Chart | None] = {}
        self._written: dict[str, Chart] = {}
        self._lock = threading.Lock()

    @property
    def are_given(self) -> bool:
        """Whether there is any source of charts."""
        return self._download or self._folder is not None

    def of_bundle(self, files: Tree) -> Chart:
        """Return a chart that a bundle holds itself. Raises HelmError: it cannot be read."""
        digest = content_hash(files)
        with self._lock:
            if digest not in self._written:
                self._written[digest] = _read(self._helm.write(files, digest))
            return self._written[digest]

    def find(self, ref: ChartRef) -> Chart | None:
        """Return a chart, None without one. Raises HelmError: it cannot be pulled or read."""
        with self._lock:
            if ref not in self._known:
                self._known[ref] = self._find(ref)
            return self._known[ref]

    def _find(self, ref: ChartRef) -> Chart | None:
        if self._folder:
            found = [_read(path) for path in _candidates(self._folder, ref.name)]
            fitting = [chart for chart in found if not ref.version or _same(chart.version, ref.version)]
            if fitting:
                return max(fitting, key=lambda chart: _ordered(chart.version))
        # RKE2's own charts have no address.
        return _read(self._helm.pull(ref)) if self._download and ref.repo else None


def files_of(chart: Chart) -> dict[str, bytes]:
    """Return all files of a chart by path in it, without hidden ones. Raises HelmError."""
    if chart.path.is_dir():
        paths = [path for path in sorted(chart.path.rglob("*")) if path.is_file() and not path.is_symlink()]
        found = {path.relative_to(chart.path).as_posix(): path.read_bytes() for path in paths}
    else:
        found = _of_archive(chart.path, ())
    return {path: text for path, text in found.items() if not any(part.startswith(".") for part in path.split("/"))}


def _candidates(folder: Path, name: str) -> list[Path]:
    folders = [path for path in (folder / name, folder) if (path / "Chart.yaml").is_file()]
    archives = [
        path for path in sorted(folder.glob(f"{name}-*.tgz")) if path.name[len(name) + 1 :].lstrip("v")[:1].isdigit()
    ]
    return [path for path in (*folders, *archives) if path.is_dir() is False or _name(path) == name]


def _name(folder: Path) -> str:
    return str(_yaml((folder / "Chart.yaml").read_bytes(), "Chart.yaml").get("name"))


def _read(path: Path) -> Chart:
    files = _of_folder(path) if path.is_dir() else _of_archive(path)
    metadata = _yaml(files.get("Chart.yaml", b""), f"{path.name}: Chart.yaml")
    return Chart(
        path,
        str(metadata.get("version") or ""),
        _values(files, "", metadata),
        str(metadata.get("appVersion") or ""),
    )


def _values(files: Mapping[str, bytes], top: str, metadata: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
    """Return the documented values of a chart, with those of its subcharts under their names."""
    own = _yaml(files.get(f"{top}values.yaml", b""), f"{top}values.yaml")
    names = {path.removeprefix(f"{top}charts/").partition("/")[0] for path in files if path.startswith(f"{top}charts/")}
    dependencies = [row for row in metadata.get("dependencies") or () if isinstance(row, dict)]
    for name in sorted(names) if depth < _DEEPEST else ():
        inner = f"{top}charts/{name}/"
        chart = _yaml(files.get(f"{inner}Chart.yaml", b""), f"{inner}Chart.yaml")
        aliases = [
            str(row["alias"]) for row in dependencies if row.get("name") == chart.get("name") and row.get("alias")
        ]
        values = _values(files, inner, chart, depth + 1)
        for alias in aliases or [str(chart.get("name") or name)]:
            own = merged({alias: values}, own)
        own = merged({"global": values.get("global") or {}}, own)
    return own


def _of_folder(folder: Path) -> dict[str, bytes]:
    """Files with metadata and values of a chart and its subcharts, which may be archives."""
    files: dict[str, bytes] = {}
    for path in sorted((*folder.rglob("Chart.yaml"), *folder.rglob("values.yaml"), *folder.glob("charts/*.tgz"))):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".tgz":
            files |= {f"charts/{path.stem}/{inner}": content for inner, content in _of_archive(path).items()}
        elif path.stat().st_size <= _LIMITS.size:
            files[name] = path.read_bytes()
    return files


def _of_archive(path: Path, names: Sequence[str] = ("Chart.yaml", "values.yaml")) -> dict[str, bytes]:
    """Read the same from an archive, all files without `names`, in memory: nothing is unpacked."""
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            left = _LARGEST
            for member in archive:
                left -= member.size
                if left < 0:
                    raise HelmError(f"{path.name} unpacks to more than {_LARGEST >> 20} MiB")
                content = archive.extractfile(member) if member.isfile() else None
                name = member.name.removeprefix("./").partition("/")[2]
                if content and name and (not names or name.rpartition("/")[2] in names):
                    files[name] = content.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise HelmError(f"{path.name} is not an archive of a chart: {error}") from None
    return files


def _yaml(content: bytes, name: str) -> dict[str, Any]:
    try:
        found = load_yaml(content, _LIMITS)
    except TextError as error:
        raise HelmError(f"{name} {error}") from None
    return found if isinstance(found, dict) else {}


def _same(one: str, other: str) -> bool:
    return one.lstrip("v") == other.lstrip("v")


def _ordered(version: str) -> list[tuple[int, str]]:
    parts = version.lstrip("v").replace("+", ".").replace("-", ".").split(".")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
