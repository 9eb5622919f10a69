"""Versions of charts and templates that belong together, and the versions of a cluster.

The table `fleet-bundles/versions.json` lists sets of charts that were released together, newest
first, with the versions of Kubernetes that they support. There is one set of templates, known by
its hash. A cluster gets the newest set when it is first rendered. Its lockfile keeps that set, and
the hash, until the user requests an upgrade, so that a new release of this program changes no
cluster by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from caphv import data
from caphv.validation.finding import Fault, Finding
from packager.addons.facts import minor_version

BUNDLES_FOLDER = "fleet-bundles"
TABLE = "versions.json"
_OCI = "oci://"
_REPOSITORY = re.compile(
    r"(?:https|oci)://[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?"
)


@dataclass(frozen=True)
class Versions:
    """A set of versions: name of the release, hash of shipped templates, version of each chart."""

    release: str
    templates: str
    charts: Mapping[str, str]

    def as_data(self) -> dict[str, Any]:
        """Return the fields as the lockfile holds them."""
        return {"release": self.release, "templates": self.templates, "charts": dict(self.charts)}


@dataclass(frozen=True)
class Chart:
    """The address of a chart; `repo` is empty if `name` is the address of an OCI artefact."""

    name: str
    repo: str
    version: str


@dataclass(frozen=True)
class Table:
    """All releases, newest first, with what each supports, and the repositories of the charts.

    `known` are the versions that the repositories of some charts have. An operator's table may
    leave it out.
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
        """Return the set of this name. Raises `ValueError` that lists the names of all sets."""
        for versions in self.releases:
            if versions.release == name:
                return versions
        names = ", ".join(versions.release for versions in self.releases)
        msg = f"there is no release {name!r} of the bundles: take one of {names}"
        raise ValueError(msg)

    def advise_on_kubernetes(self, versions: Versions, kubernetes_version: str) -> list[Finding]:
        """Return advice if a set does not support a version of Kubernetes.

        Any set supports an unknown version.
        """
        version = minor_version(kubernetes_version)
        supported = self.supports.get(versions.release, {}).get("kubernetes")
        if not version or not supported:
            return []
        lowest = minor_version(supported["from"])
        highest = minor_version(supported["to"])
        if lowest and highest and lowest <= version <= highest:
            return []

        detail = (
            f"release {versions.release} of the bundles is made for Kubernetes {supported['from']} "
            f"to {supported['to']}, not {kubernetes_version}: upgrade the bundles or set the "
            "versions of the charts"
        )
        path = ("spec", "topology", "version")
        rule = "bundles-kubernetes"
        return [
            Finding(path, Fault.UNSUPPORTED, detail, rule, kubernetes_version, advice=True),
        ]

    def lacks(self, chart: str, version: str) -> bool:
        """Return whether the repository of a chart is known not to have a version."""
        versions = self.known.get(chart)
        return versions is not None and version not in versions


@cache
def shipped_templates() -> str:
    """Return a hash over the shipped templates."""
    folder = data.folder(BUNDLES_FOLDER)
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*/*.j2")):
        content = file.read_bytes()
        # Include the length, so that no content can look like the head of the next file.
        digest.update(f"{file.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@cache
def load_table(path: Path | None = None) -> Table:
    """Return the table of versions, the shipped one without a path.

    Raises `FileNotFoundError` if the file does not exist, and `ValueError` if it does not have the
    form of the shipped one.
    """
    file = path or data.folder(BUNDLES_FOLDER) / TABLE
    text = file.read_text(encoding="utf-8")
    try:
        content = json.loads(text)  # noqa: TID251 - the operator's own table
        releases: list[Versions] = []
        supports: dict[str, Any] = {}
        for row in content["releases"]:
            charts = {str(chart): str(version) for chart, version in row["charts"].items()}
            releases.append(Versions(str(row["name"]), shipped_templates(), charts))
            supports[str(row["name"])] = row["supports"]

        # New clusters need a newest release, so `releases[0]` fails if the table has none.
        known = content.get("known", {})
        ordered = (releases[0], *releases[1:])
        return Table(
            releases=ordered, supports=supports, repositories=content["repositories"], known=known
        )
    except (KeyError, TypeError, AttributeError, IndexError, json.JSONDecodeError) as error:
        msg = f"{file.name} is not a table of versions: {type(error).__name__} {error}"
        raise ValueError(msg) from None


def parse_versions(content: Any) -> Versions:
    """Return the versions of a lockfile. Raises `ValueError` for an invalid one."""
    try:
        charts = {str(name): str(version) for name, version in content["charts"].items()}
        return Versions(str(content["release"]), str(content["templates"]), charts)
    except (KeyError, TypeError, AttributeError) as error:
        msg = "versions must be an object"
        if isinstance(error, KeyError):
            msg = f"versions without {error}"
        raise ValueError(msg) from None


def chart(name: str, version: str, *, table: Table, mirror: str = "") -> Chart:
    """Return the address of a chart in its own repository, or in an air-gapped site's mirror."""
    if name not in table.repositories:
        msg = (
            f"there is no chart {name!r} in the table of versions: write repo, chart and version "
            "of others out"
        )
        raise ValueError(msg)
    repository = mirror or table.repositories[name]
    if repository.startswith(_OCI):
        return Chart(f"{repository.rstrip('/')}/{name}", "", version)
    return Chart(name, repository, version)


def validate_repository(url: str) -> str:
    """Return a URL.

    Raises `ValueError` unless it begins with https:// or oci:// and has no credentials.
    """
    if not _REPOSITORY.fullmatch(url) or ".." in url:
        msg = (
            f"{url.partition('@')[2] or url!r} is not a chart repository: use "
            "https://<host>/<path> or oci://<host>/<path>"
        )
        raise ValueError(msg)
    return url
