"""Lists charts and images of clusters, for mirroring, from rendered charts or documented values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj, at
from packager.addons.merge import merge
from packager.addons.settings import AddonSettings
from packager.checks.check import Checker
from packager.checks.contents import ChartRef, Release, bundles_of
from packager.checks.helm import HelmError
from packager.checks.references import POD_TEMPLATES
from packager.checks.values import copy_without
from packager.tree import Tree

# Values with the registry of a site. Images are rendered without them, so that they have the names
# of their origin.
_REGISTRIES = [("global", "systemDefaultRegistry"), ("global", "cattle", "systemDefaultRegistry")]
_MAX_DEPTH = 12


@dataclass
class ChartImages:
    """A chart and its images.

    `source` is `rendered` or `documented`, and empty if the chart is not available.
    """

    chart: ChartRef
    images: set[str] = field(default_factory=set)
    source: str = ""
    fault: str = ""


def charts_of(
    clusters: Iterable[tuple[Tree, AddonSettings]], checker: Checker
) -> list[ChartImages]:
    """Return all charts of clusters, by name and version, without those that RKE2 brings itself.

    Raises `ValueError` with the path of a file that is not YAML.
    """
    charts: dict[ChartRef, ChartImages] = {}
    for tree, settings in clusters:
        releases = [release for bundle in bundles_of(tree) for release in bundle.releases]
        for release in releases:
            # RKE2's own charts have no version here, because they come with RKE2.
            if release.chart.version:
                entry = charts.setdefault(release.chart, ChartImages(release.chart))
                _add(entry, release, settings, checker)

    return sorted(
        charts.values(), key=lambda entry: (entry.chart.name, entry.chart.version, entry.chart.repo)
    )


def _add(entry: ChartImages, release: Release, settings: AddonSettings, checker: Checker) -> None:
    try:
        chart = checker.find(release)
        if chart is None:
            return

        values = copy_without(release.values, _REGISTRIES)
        images = set(images_of(obj for _, obj in checker.render(release, values, settings)))
        if images:
            entry.source = "rendered"
        else:
            entry.source = entry.source or "documented"
            images = {*documented_images(merge(chart.values, values), chart.app_version)}
        entry.images |= images
    except HelmError as error:
        entry.fault = str(error)


def images_of(objects: Iterable[Obj]) -> Iterator[str]:
    """Yield the images of all containers."""
    for obj in objects:
        pod = at(obj, *POD_TEMPLATES.get(str(obj.get("kind")), ("none",)))
        for field_name in ("initContainers", "containers"):
            rows = at(pod, field_name)
            for row in rows if isinstance(rows, list) else ():
                if isinstance(image := at(row, "image"), str) and image:
                    yield image


def documented_images(values: Any, version: str, depth: int = 0) -> Iterator[str]:
    """Yield images (`repository` and `tag`) in values; `version` replaces an empty tag."""
    if depth > _MAX_DEPTH or not isinstance(values, Mapping):
        return
    # Most charts follow this convention. Others name an image in one text, and only rendering finds
    # it.
    repository = values.get("repository")
    if isinstance(repository, str) and repository:
        registry = values.get("registry")
        name = f"{registry}/{repository}" if isinstance(registry, str) and registry else repository
        tag = str(values.get("tag") or version)
        yield f"{name}:{tag}" if tag else name
    for value in values.values():
        yield from documented_images(value, version, depth + 1)
