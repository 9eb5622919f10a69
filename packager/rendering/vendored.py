"""Charts in the repository itself, so that Fleet downloads none: read once, and checked by digest.

Fleet reads a chart of its own folder only, so each bundle gets a copy; Git stores equal files once. The release keeps
its name, chart and values, so an existing cluster takes a vendored chart as the same release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from caphv.runtime.text import Limits, TextError, load_yaml
from caphv.validation.finding import Fault, Finding
from packager.git.folder import Folder, Root, Tree
from packager.rendering import yaml
from packager.rendering.bundles import FLEET_YAML
from packager.tree import VENDOR, content_hash

ROOT = Root(VENDOR)
_FOLDER = "fleet/charts"
TOP = f"{ROOT.name}/{_FOLDER}"
INDEX = f"{TOP}/index.yaml"
CHART_FOLDER = "chart"
"""Folder of a bundle with its chart."""
CHART_FILE = f"{CHART_FOLDER}/Chart.yaml"
RULE = "bundles-vendored-chart"
_LIMITS = Limits(size=4 * 1024 * 1024)
_MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class VendoredChart:
    """A chart in the repository: its files by path in the chart, and where it came from."""

    name: str
    version: str
    repository: str
    files: Tree

    @property
    def folder(self) -> str:
        """Its folder below `TOP`."""
        return f"{self.name}-{self.version}"


_TOO_LARGE = f"charts in {TOP} have more than {_MOST_BYTES:,} bytes: remove the folder, and vendor those in use again"


Charts = Mapping[tuple[str, str], VendoredChart]
"""Vendored charts by name and version."""


def folder_of(charts: Iterable[VendoredChart]) -> dict[Root, dict[str, Folder]]:
    """Return what the repository holds for charts.

    Raises ValueError for a file that cannot be written, and for more than can be read again.
    """
    found = sorted(charts, key=lambda one: one.folder)
    if sum(len(content) for one in found for content in one.files.values()) > _MOST_BYTES:
        raise ValueError(_TOO_LARGE)
    rows = [
        {
            "name": one.name,
            "version": one.version,
            "repository": one.repository,
            "digest": content_hash(one.files),
            "files": sorted(one.files),
        }
        for one in found
    ]
    files = {f"{one.folder}/{path}": content for one in found for path, content in one.files.items()}
    return {ROOT: {_FOLDER: Folder({**files, "index.yaml": yaml.dump({"charts": rows}).encode()})}}


def read(tree: Tree) -> dict[tuple[str, str], VendoredChart]:
    """Return the charts of a repository by name and version. Raises ValueError: the index or a chart was changed."""
    content = tree.get(INDEX)
    if content is None:
        return {}
    try:
        rows: Any = load_yaml(content, _LIMITS)["charts"]
        found, left = [], _MOST_BYTES
        for row in rows:
            found.append(_chart(row, tree, left))
            left -= sum(map(len, found[-1].files.values()))
    except (TextError, KeyError, TypeError) as error:
        raise ValueError(f"{INDEX} is not an index of charts: {type(error).__name__} {error}") from None
    return {(one.name, one.version): one for one in found}


def _chart(row: Mapping[str, Any], tree: Tree, left: int) -> VendoredChart:
    """Return a chart of at most `left` bytes; a few of Git's objects can be any number of files."""
    top = f"{TOP}/{row['name']}-{row['version']}"
    files: dict[str, bytes] = {}
    for path in map(str, row["files"]):
        files[path] = tree.get(f"{top}/{path}", b"")
        left -= len(files[path])
        if left < 0:
            raise ValueError(_TOO_LARGE)
    if content_hash(files) != row["digest"]:
        raise ValueError(f"{top} does not match its digest: restore it, or run caphv bundles vendor again")
    return VendoredChart(str(row["name"]), str(row["version"]), str(row.get("repository", "")), files)


def embed(made: Mapping[str, bytes], charts: Charts) -> dict[str, bytes]:
    """Return the files of bundles, `<bundle>/<name>`, with vendored charts instead of addresses of charts."""
    result = dict(made)
    for path, content in made.items():
        bundle, _, name = path.partition("/")
        if name != FLEET_YAML:
            continue
        document = load_yaml(content, _LIMITS)
        helm = document["helm"]
        address = str(helm.get("chart") or helm.get("repo") or "")
        chart = charts.get((address.rpartition("/")[2], str(helm.get("version"))))
        if chart:
            kept = {key: value for key, value in helm.items() if key not in ("chart", "repo")}
            document["helm"] = {"chart": CHART_FOLDER, **kept}
            result[path] = yaml.dump(document).encode()
            result |= {f"{bundle}/{CHART_FOLDER}/{file}": text for file, text in chart.files.items()}
    return result


def finding(error: ValueError) -> Finding:
    """Return the finding of a repository whose charts were changed."""
    return Finding((ROOT.name,), Fault.INVALID, str(error), RULE)
