"""Fleet: GitRepos become bundles, bundles become Helm releases in one cluster."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from sandbox.addons.apply import NoSuchKind, Objects, differs, documents, names

_POLICY = "helm.sh/resource-policy"
_FLEET_YAML = "fleet.yaml"
Chart = Callable[[Mapping[str, Any]], Sequence[Obj]]
"""Renders a chart: `helm` section of a fleet.yaml in, objects out. By default a chart has no objects."""


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


@dataclass
class Release:
    """An installed bundle."""

    bundle: Bundle
    error: str = ""
    upgrades: int = 0


@dataclass
class FleetCluster:
    """Fleet's agent in one cluster, with the releases that it installed."""

    client: ApiClient
    chart: Chart = lambda _helm: ()
    releases: dict[str, Release] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._objects = Objects(self.client, "fleetagent")

    async def sync(self, files: Mapping[str, bytes], git_repo: Obj | None) -> list[str]:
        """Read a commit through a GitRepo, or act on its deletion. Return the names of bundles that are ready."""
        bundles = {found.name: found for found in bundles_of(files, git_repo, self.chart)} if git_repo else {}
        for name in [name for name in self.releases if name not in bundles]:
            await self._uninstall(self.releases.pop(name).bundle)
        ready: set[str] = set()
        while True:
            waiting = [
                found
                for name, found in bundles.items()
                if name not in ready and {row["name"] for row in found.settings.get("dependsOn", ())} <= ready
            ]
            before = len(ready)
            ready |= {found.name for found in waiting if await self._install(found)}
            if len(ready) == before:
                return sorted(ready)

    async def detect_drift(self) -> list[str]:
        """Compare releases with live objects. Return modified bundles, after correcting those with `correctDrift`."""
        modified = []
        for name, release in self.releases.items():
            bundle = release.bundle
            live = [await self._objects.read(obj, bundle.namespace) for obj in bundle.objects]
            if any(one is None or differs(obj, one) for obj, one in zip(bundle.objects, live, strict=True)):
                if bundle.settings.get("correctDrift", {}).get("enabled"):
                    await self._objects.apply(bundle.objects, bundle.namespace)
                else:
                    modified.append(name)
        return modified

    async def _install(self, bundle: Bundle) -> bool:
        known = self.releases.get(bundle.name)
        try:
            await self._objects.check(bundle.objects)
        except NoSuchKind as error:
            self.releases[bundle.name] = Release(known.bundle if known else replace(bundle, objects=()), str(error))
            return False
        if known is None or known.error or known.bundle != bundle:
            # Fleet installs with Helm's CreateNamespace.
            await self._objects.apply([_namespace(bundle.namespace)], "")
            await self._objects.apply(bundle.objects, bundle.namespace)
            if known:
                await self._delete_dropped(known.bundle, bundle)
            self.releases[bundle.name] = Release(bundle, upgrades=known.upgrades + 1 if known else 0)
        return True

    async def _delete_dropped(self, before: Bundle, now: Bundle) -> None:
        wanted = set(names(now.objects))
        for obj in before.objects:
            if next(names([obj])) in wanted:
                continue
            live = await self._objects.read(obj, before.namespace)
            if live and not _is_kept(live):
                await self._objects.delete([live], before.namespace)

    async def _uninstall(self, bundle: Bundle) -> None:
        if not bundle.keep_resources:
            removed = [obj for obj in reversed(bundle.objects) if not _is_kept(obj)]
            await self._objects.delete(removed, bundle.namespace)


def bundles_of(files: Mapping[str, bytes], git_repo: Obj, chart: Chart) -> list[Bundle]:
    """Return the bundles of a commit: folders that match a path of the GitRepo, and those below with a fleet.yaml."""
    folders = {path.rpartition("/")[0] for path in files}
    parents = {"/".join(folder.split("/")[:end]) for folder in folders for end in range(1, folder.count("/") + 2)}
    spec = git_repo["spec"]
    roots = {parent for parent in parents for pattern in spec["paths"] if _matches(parent, pattern)}
    nested = {folder for folder in folders for root in roots if _is_nested(folder, root, files)}
    return [_bundle(files, folder, spec, chart) for folder in sorted(roots | nested)]


def _is_nested(folder: str, root: str, files: Mapping[str, bytes]) -> bool:
    return folder.startswith(f"{root}/") and f"{folder}/{_FLEET_YAML}" in files


def _matches(folder: str, pattern: str) -> bool:
    parts, wanted = folder.split("/"), pattern.strip("/").split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _bundle(files: Mapping[str, bytes], folder: str, spec: Mapping[str, Any], chart: Chart) -> Bundle:
    inner = {
        path.removeprefix(f"{folder}/"): content for path, content in files.items() if path.startswith(f"{folder}/")
    }
    settings = documents(inner.pop(_FLEET_YAML, b"{}"))
    found = settings[0] if settings else {}
    objects = [obj for name, content in sorted(inner.items()) if _is_manifest(name) for obj in documents(content)]
    helm = found.get("helm", {})
    if helm.get("chart") or helm.get("repo"):
        objects = list(chart(helm))
    # The flag of a GitRepo only ever sets it.
    keep = bool(found.get("keepResources")) or bool(spec.get("keepResources"))
    return Bundle(folder, found, objects, keep)


def _namespace(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _is_manifest(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and not any(part.startswith(".") for part in name.split("/"))


def _is_kept(obj: Obj) -> bool:
    return bool((obj["metadata"].get("annotations") or {}).get(_POLICY) == "keep")
