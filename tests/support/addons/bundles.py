"""What Fleet reads from a commit: bundles."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caphv.api.object import Obj
from tests.support.addons.apply import documents
from tests.support.addons.charts import Chart

_FLEET_YAML = "fleet.yaml"
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Bundle:
    """A folder that a GitRepo reads."""

    folder: str
    settings: Mapping[str, Any]
    objects: Sequence[Obj]
    keep_resources: bool

    @property
    def name(self) -> str:
        """Its own name, or one made of its path."""
        return str(self.settings.get("name") or self.folder.replace("/", "-"))

    @property
    def namespace(self) -> str:
        """Namespace of objects that name none."""
        return str(self.settings.get("defaultNamespace") or self.settings.get("namespace") or "default")

    @property
    def helm(self) -> Mapping[str, Any]:
        """Section `helm` of its fleet.yaml."""
        return self.settings.get("helm") or {}

    @property
    def release(self) -> str:
        """Name of its Helm release."""
        return str(self.helm.get("releaseName") or self.name)


def bundles_of(files: Mapping[str, bytes], git_repo: Obj, chart: Chart) -> list[Bundle]:
    """Return the bundles of a commit that a GitRepo reads, in the order of their folders."""
    folders = {path.rpartition("/")[0] for path in files}
    parents = {"/".join(folder.split("/")[:end]) for folder in folders for end in range(1, folder.count("/") + 2)}
    spec = git_repo["spec"]
    roots = {parent for parent in parents for pattern in spec["paths"] if _matches(parent, pattern)}
    found = {
        folder for folder in folders if _has(files, folder) for root in roots if f"{folder}/".startswith(f"{root}/")
    }
    found |= {root for root in roots if any(_without_fleet_yaml(files, root, folders))}
    bundles = [_bundle(files, folder, spec, chart) for folder in sorted(found)]
    return [bundle for bundle in bundles if bundle.objects or bundle.helm.get("chart") or bundle.helm.get("repo")]


def _matches(folder: str, pattern: str) -> bool:
    parts, wanted = folder.split("/"), pattern.strip("/").split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _has(files: Mapping[str, bytes], folder: str) -> bool:
    return f"{folder}/{_FLEET_YAML}" in files


def _without_fleet_yaml(files: Mapping[str, bytes], root: str, folders: set[str]) -> Iterator[str]:
    """Folders with manifests from a root on that no fleet.yaml covers: the root itself is a bundle for them."""
    for folder in folders:
        if not f"{folder}/".startswith(f"{root}/"):
            continue
        inner = folder.removeprefix(root).strip("/").split("/") if folder != root else []
        chain = [root, *("/".join([root, *inner[:end]]) for end in range(1, len(inner) + 1))]
        manifests = any(path.rpartition("/")[0] == folder and path.endswith(_SUFFIXES) for path in files)
        if manifests and not any(_has(files, parent) for parent in chain):
            yield folder


def _bundle(files: Mapping[str, bytes], folder: str, spec: Mapping[str, Any], chart: Chart) -> Bundle:
    inner = {
        path.removeprefix(f"{folder}/"): content for path, content in files.items() if path.startswith(f"{folder}/")
    }
    settings = documents(inner.pop(_FLEET_YAML, b"{}"))
    found = settings[0] if settings else {}
    helm = found.get("helm") or {}
    if helm.get("chart") or helm.get("repo"):
        # Templates of a chart in the folder are no manifests.
        objects = list(chart({"releaseName": found.get("name"), **helm}))
    else:
        objects = [obj for name, content in sorted(inner.items()) if _is_manifest(name) for obj in documents(content)]
    # The flag of a GitRepo only ever sets it.
    keep = bool(found.get("keepResources")) or bool(spec.get("keepResources"))
    return Bundle(folder, found, objects, keep)


def _is_manifest(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not any(part.startswith(".") for part in name.split("/"))
