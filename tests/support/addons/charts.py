"""Charts: rendered by the real `helm` where a chart is available, opaque otherwise."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from caphv.api.object import Obj
from sandbox import manifests

Chart = Callable[[Mapping[str, Any]], Sequence[Obj]]
"""Renders a chart: section `helm` of a fleet.yaml in (`chart`, `version`, `values`, `releaseName`), objects out."""
_SECONDS = 60


def chart_name(helm: Mapping[str, Any]) -> str:
    """Return the name of a chart, without the address of a registry."""
    return str(helm.get("chart") or helm["repo"]).rpartition("/")[2]


def opaque(helm: Mapping[str, Any]) -> list[Obj]:
    """Return one ConfigMap that stands for all objects of a chart: it shows version and values."""
    # Fleet takes the whole address of an OCI chart from `repo`.
    name = chart_name(helm)
    data = {"version": str(helm.get("version", "")), "values": yaml.safe_dump(helm.get("values") or {})}
    metadata = {"name": f"chart-{name}"}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}]


class Charts:
    """Renders charts that are in a folder, as `<name>-<version>.tgz` or `<name>/`, with the program `helm`."""

    def __init__(self, folder: Path, helm: Path, otherwise: Chart = opaque) -> None:
        self._folder, self._helm, self._otherwise = folder, helm, otherwise

    def __call__(self, helm: Mapping[str, Any]) -> Sequence[Obj]:
        """Return the objects of a chart, also its CRDs. Raises CalledProcessError when it cannot be rendered."""
        name = chart_name(helm)
        places = (self._folder / f"{name}-{helm.get('version', '')}.tgz", self._folder / name)
        place = next((found for found in places if found.exists()), None)
        if place is None:
            return self._otherwise(helm)
        arguments = ["template", str(helm.get("releaseName") or name), str(place), "--include-crds", "--values", "-"]
        done = subprocess.run(
            [self._helm, *arguments],
            input=json.dumps(helm.get("values") or {}).encode(),
            stdout=subprocess.PIPE,
            check=True,
            timeout=_SECONDS,
        )
        return manifests.parse(done.stdout)
