"""Vendored charts, which the repository holds with digests so that Fleet downloads none.

Fleet reads a chart only from the folder of its bundle, so each bundle gets a copy. Git stores equal
files once. The release keeps its name, chart and values, so an existing cluster keeps its release.
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
_MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class VendoredChart:
    """A chart in the repository, with its files by path in the chart and its original address."""

    name: str
    version: str
    repository: str
    files: Tree

    @property
    def folder(self) -> str:
        """Its folder below `TOP`."""
        return f"{self.name}-{self.version}"


_TOO_LARGE = (
    f"charts in {TOP} have more than {_MAX_BYTES:,} bytes: remove the folder, and vendor those in "
    "use again"
)


Charts = Mapping[tuple[str, str], VendoredChart]
"""Vendored charts by name and version."""


def folder_of(charts: Iterable[VendoredChart]) -> dict[Root, dict[str, Folder]]:
    """Return the folder of a repository that holds these charts and their index.

    Raises `ValueError` if a file cannot be written, or if they have more bytes than `read` accepts.
    """
    rows: list[dict[str, object]] = []
    files: dict[str, bytes] = {}
    total = 0
    for chart in sorted(charts, key=lambda chart: chart.folder):
        rows.append(
            {
                "name": chart.name,
                "version": chart.version,
                "repository": chart.repository,
                "digest": content_hash(chart.files),
                "files": sorted(chart.files),
            }
        )
        files |= {f"{chart.folder}/{path}": content for path, content in chart.files.items()}
        total += sum(map(len, chart.files.values()))
    if total > _MAX_BYTES:
        raise ValueError(_TOO_LARGE)

    files["index.yaml"] = yaml.dump({"charts": rows}).encode()
    return {ROOT: {_FOLDER: Folder(files)}}


def read(tree: Tree) -> dict[tuple[str, str], VendoredChart]:
    """Return the charts of a repository by name and version.

    Raises `ValueError` if the index or a chart was changed by hand.
    """
    content = tree.get(INDEX)
    if content is None:
        return {}
    charts = []
    budget = _MAX_BYTES
    try:
        rows: Any = load_yaml(content, _LIMITS)["charts"]
        for row in rows:
            chart = _chart(row, tree, budget)
            charts.append(chart)
            budget -= sum(map(len, chart.files.values()))
    except (TextError, KeyError, TypeError) as error:
        message = f"{INDEX} is not an index of charts: {type(error).__name__} {error}"
        raise ValueError(message) from None
    return {(chart.name, chart.version): chart for chart in charts}


def _chart(row: Mapping[str, Any], tree: Tree, budget: int) -> VendoredChart:
    """Return a chart of at most `budget` bytes, as a row of the index describes it.

    The bytes are limited because a few objects of Git can be many files. Raises `ValueError` if the
    chart is too large or was changed by hand, and `KeyError` or `TypeError` for another row.
    """
    top = f"{TOP}/{row['name']}-{row['version']}"
    files: dict[str, bytes] = {}
    size = 0
    for path in map(str, row["files"]):
        files[path] = tree.get(f"{top}/{path}", b"")
        size += len(files[path])
        if size > budget:
            raise ValueError(_TOO_LARGE)

    if content_hash(files) != row["digest"]:
        raise ValueError(
            f"{top} does not match its digest: restore it, or run caphv bundles vendor again"
        )
    repository = str(row.get("repository", ""))
    return VendoredChart(
        name=str(row["name"]), version=str(row["version"]), repository=repository, files=files
    )


def embed(files: Mapping[str, bytes], charts: Charts) -> dict[str, bytes]:
    """Return the files of bundles with vendored charts instead of addresses of charts.

    Paths are `<bundle>/<name>`.
    """
    result = dict(files)
    for path, content in files.items():
        bundle, _, name = path.partition("/")
        if name != FLEET_YAML:
            continue
        # The packager itself rendered this file, so it has the field.
        document = load_yaml(content, _LIMITS)
        helm = document["helm"]
        address = str(helm.get("chart") or helm.get("repo") or "")
        chart = charts.get((address.rpartition("/")[2], str(helm.get("version"))))
        if chart is None:
            continue

        settings = {key: value for key, value in helm.items() if key not in ("chart", "repo")}
        document["helm"] = {"chart": CHART_FOLDER, **settings}
        result[path] = yaml.dump(document).encode()
        top = f"{bundle}/{CHART_FOLDER}"
        result |= {f"{top}/{file}": text for file, text in chart.files.items()}
    return result


def changed_chart_finding(error: ValueError) -> Finding:
    """Return the finding of a repository whose charts were changed."""
    return Finding((ROOT.name,), Fault.INVALID, str(error), RULE)
