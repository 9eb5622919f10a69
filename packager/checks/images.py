"""Charts and images that clusters need, for mirroring: from rendered charts, else from their documented values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj
from packager.addons.merge import at, merged
from packager.addons.settings import AddonSettings
from packager.checks.check import Checker
from packager.checks.contents import ChartRef, Release, bundles_of
from packager.checks.helm import HelmError
from packager.checks.references import POD_TEMPLATES
from packager.checks.values import without
from packager.tree import Tree

_REGISTRIES = [("global", "systemDefaultRegistry"), ("global", "cattle", "systemDefaultRegistry")]
"""Values with the registry of a site: images are listed as they are named at their origin."""
_DEEPEST = 12


@dataclass
class ChartImages:
    """A chart and its images; `source` is `rendered`, `documented`, or empty where the chart is not available."""

    chart: ChartRef
    images: set[str] = field(default_factory=set)
    source: str = ""
    fault: str = ""


def charts_of(clusters: Iterable[tuple[Tree, AddonSettings]], checker: Checker) -> list[ChartImages]:
    """Return all charts of clusters, by name and version, without those that RKE2 brings itself.

    Raises ValueError with the path of a file that is not YAML.
    """
    found: dict[ChartRef, ChartImages] = {}
    for tree, settings in clusters:
        for bundle in bundles_of(tree):
            for release in bundle.releases:
                if release.chart.version:
                    _add(found.setdefault(release.chart, ChartImages(release.chart)), release, settings, checker)
    return sorted(found.values(), key=lambda one: (one.chart.name, one.chart.version, one.chart.repo))


def _add(known: ChartImages, release: Release, settings: AddonSettings, checker: Checker) -> None:
    try:
        chart = checker.find(release)
        if chart is None:
            return
        values = without(release.values, _REGISTRIES)
        images = set(images_of(obj for _, obj in checker.render(release, values, settings)))
        known.source = "rendered" if images else known.source or "documented"
        known.images |= images or set(documented_images(merged(chart.values, values), chart.app_version))
    except HelmError as error:
        known.fault = str(error)


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
    """Yield images that values name as objects with `repository` and `tag`; `version` is that of an empty tag."""
    if depth > _DEEPEST or not isinstance(values, Mapping):
        return
    repository = values.get("repository")
    if isinstance(repository, str) and repository:
        registry = values.get("registry")
        name = f"{registry}/{repository}" if isinstance(registry, str) and registry else repository
        tag = str(values.get("tag") or version)
        yield f"{name}:{tag}" if tag else name
    for value in values.values():
        yield from documented_images(value, version, depth + 1)
