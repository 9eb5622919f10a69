"""Which versions of charts and templates go together, and which of them a cluster has.

There is one table, `fleet-bundles/versions.json`: sets that were released together, newest first, with what they
support. A cluster gets the newest set when it is first rendered; its lockfile keeps that set until
the user requests an upgrade, so that a new release of this program changes no cluster by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from caphv import data
from caphv.validation.finding import Fault, Finding
from packager.addons.rules import minor_version

BUNDLES_FOLDER = "fleet-bundles"
_OCI = "oci://"
_REPOSITORY = re.compile(r"(?:https|oci)://[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")


@dataclass(frozen=True)
class Versions:
    """A set of versions: name of the release, folder of its templates, version of each chart."""

    release: str
    templates: str
    charts: Mapping[str, str]

    def as_data(self) -> dict[str, Any]:
        """As written to the lockfile."""
        return {"release": self.release, "templates": self.templates, "charts": dict(self.charts)}


@dataclass(frozen=True)
class Chart:
    """Where a chart comes from; `repo` is empty where `name` is the address of an OCI artefact."""

    name: str
    repo: str
    version: str


@dataclass(frozen=True)
class Table:
    """All releases, newest first, with what each supports, and the repositories of the charts.

    `known` are the versions that the repositories of some charts have; a table of an operator may leave it out.
    """

    releases: tuple[Versions, ...]
    supports: Mapping[str, Mapping[str, Mapping[str, str]]]
    repositories: Mapping[str, str]
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def newest(self) -> Versions:
        """The set that a new cluster gets."""
        return self.releases[0]

    def release(self, name: str) -> Versions:
        """Return the set of a name. Raises ValueError that says which there are."""
        for found in self.releases:
            if found.release == name:
                return found
        known = ", ".join(found.release for found in self.releases)
        msg = f"there is no release {name!r} of the bundles: take one of {known}"
        raise ValueError(msg)

    def unsupported(self, versions: Versions, kubernetes_version: str) -> list[Finding]:
        """Advice where a set was not made for a version of Kubernetes; empty where nothing is known."""
        wanted = minor_version(kubernetes_version)
        supported = self.supports.get(versions.release, {}).get("kubernetes")
        if not wanted or not supported:
            return []
        lowest, highest = minor_version(supported["from"]), minor_version(supported["to"])
        if lowest and highest and lowest <= wanted <= highest:
            return []
        detail = (
            f"release {versions.release} of the bundles is made for Kubernetes {supported['from']} to "
            f"{supported['to']}, not {kubernetes_version}: upgrade the bundles or set the versions of the charts"
        )
        path = ("spec", "topology", "version")
        return [Finding(path, Fault.UNSUPPORTED, detail, "bundles-kubernetes", kubernetes_version, advice=True)]

    def missing(self, chart: str, version: str) -> bool:
        """Whether the repository of a chart does not have a version, as far as the table knows."""
        versions = self.known.get(chart)
        return versions is not None and version not in versions


@cache
def table(path: Path | None = None) -> Table:
    """Return the table of versions, the shipped one without a path.

    Raises:
        FileNotFoundError: the file is not there.
        ValueError: it has not the form of the shipped one.
    """
    file = path or data.folder(BUNDLES_FOLDER) / "versions.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))  # noqa: TID251 - the operator's own table
        releases = [
            Versions(str(row["name"]), str(row["templates"]), {str(k): str(v) for k, v in row["charts"].items()})
            for row in content["releases"]
        ]
        supports = {str(row["name"]): row["supports"] for row in content["releases"]}
        return Table((releases[0], *releases[1:]), supports, content["repositories"], content.get("known", {}))
    except (KeyError, TypeError, AttributeError, IndexError, json.JSONDecodeError) as error:
        msg = f"{file.name} is not a table of versions: {type(error).__name__} {error}"
        raise ValueError(msg) from None


def pinned(content: Any) -> Versions:
    """Return the versions of a lockfile. Raises ValueError for an invalid one."""
    try:
        charts = {str(name): str(version) for name, version in content["charts"].items()}
        return Versions(str(content["release"]), str(content["templates"]), charts)
    except (KeyError, TypeError, AttributeError) as error:
        msg = f"versions without {error}" if isinstance(error, KeyError) else "versions must be an object"
        raise ValueError(msg) from None


def chart(name: str, version: str, *, table: Table, mirror: str = "") -> Chart:
    """Return where to get a chart: from its own repository, or from the mirror of an air-gapped site."""
    if name not in table.repositories:
        msg = f"there is no chart {name!r} in the table of versions: write repo, chart and version of others out"
        raise ValueError(msg)
    repository = mirror or table.repositories[name]
    if repository.startswith(_OCI):
        return Chart(f"{repository.rstrip('/')}/{name}", "", version)
    return Chart(name, repository, version)


def checked_repository(url: str) -> str:
    """Return the URL of a chart repository. Raises ValueError for any but https:// and oci://, or with credentials."""
    if not _REPOSITORY.fullmatch(url) or ".." in url:
        msg = f"{url.partition('@')[2] or url!r} is not a chart repository: use https://<host>/<path> or oci://<host>/<path>"
        raise ValueError(msg)
    return url
