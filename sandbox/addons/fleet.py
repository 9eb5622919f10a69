"""Fleet's agent in one cluster: bundles become Helm releases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from sandbox.addons.apply import NoSuchKind, Objects, differs, names
from sandbox.addons.bundles import Bundle, bundles_of
from sandbox.addons.charts import Chart, opaque

_POLICY = "helm.sh/resource-policy"
_RELEASE = "meta.helm.sh/release-name"
_CRD = "CustomResourceDefinition"


class OwnershipConflict(Exception):
    """Helm's `invalid ownership metadata`: an object exists, and the release may not take it over."""


@dataclass
class Release:
    """A deployed bundle, with the error of its last deployment."""

    bundle: Bundle
    error: str = ""
    upgrades: int = 0


@dataclass
class FleetCluster:
    """Fleet's agent in one cluster, with the releases that it deployed.

    `history` are releases that Helm knows: also those whose bundle was removed and whose objects were kept.
    """

    client: ApiClient
    chart: Chart = opaque
    releases: dict[str, Release] = field(default_factory=dict)
    history: dict[str, Bundle] = field(default_factory=dict)
    error: str = ""

    def __post_init__(self) -> None:
        self._objects = Objects(self.client, "fleetagent")

    async def sync(self, files: Mapping[str, bytes], git_repo: Obj | None) -> list[str]:
        """Read a commit through a GitRepo, or act on its deletion. Return the names of bundles that are ready."""
        bundles = {found.name: found for found in bundles_of(files, git_repo, self.chart)} if git_repo else {}
        for name in [name for name in self.releases if name not in bundles]:
            await self._uninstall(self.releases.pop(name).bundle)
        # Fleet removes bundles before it reports this.
        self.error = "no resource found at the following paths to deploy" if git_repo and not bundles else ""
        ready: set[str] = set()
        while True:
            waiting = [
                found
                for name, found in bundles.items()
                if name not in ready and {row["name"] for row in found.settings.get("dependsOn", ())} <= ready
            ]
            before = len(ready)
            ready |= {found.name for found in waiting if await self._deploy(found)}
            if len(ready) == before:
                return sorted(ready)

    async def detect_drift(self) -> list[str]:
        """Compare releases with live objects. Return modified bundles, after correcting those with `correctDrift`."""
        modified = []
        for name, release in self.releases.items():
            if await self._is_modified(release.bundle):
                if release.bundle.settings.get("correctDrift", {}).get("enabled"):
                    await self._apply(release.bundle)
                else:
                    modified.append(name)
        return modified

    async def _deploy(self, bundle: Bundle) -> bool:
        """Deploy a bundle if it changed; return whether it is ready."""
        known = self.releases.get(bundle.name)
        if known is None or known.error or known.bundle != bundle:
            before = self.history.get(bundle.release)
            try:
                await self._objects.check(bundle.objects)
                await self._check_ownership(bundle, installed=before is not None)
                # Fleet installs with Helm's CreateNamespace, which leaves an existing one alone.
                if await self._objects.read(_namespace(bundle.namespace), "") is None:
                    await self._objects.apply([_namespace(bundle.namespace)], "")
                await self._apply(bundle)
            except (NoSuchKind, OwnershipConflict, NotFound) as error:
                # NotFound: the namespace of an object does not exist yet.
                last = known.bundle if known else replace(bundle, objects=())
                self.releases[bundle.name] = Release(last, str(error), known.upgrades if known else 0)
                return False
            if before:
                await self._delete_dropped(before, bundle)
            self.history[bundle.release] = bundle
            self.releases[bundle.name] = Release(bundle, upgrades=known.upgrades + 1 if known else 0)
        corrected = bundle.settings.get("correctDrift", {}).get("enabled")
        return bool(corrected) or not await self._is_modified(bundle)

    async def _apply(self, bundle: Bundle) -> None:
        await self._objects.apply([_owned(obj, bundle.release) for obj in bundle.objects], bundle.namespace)

    async def _check_ownership(self, bundle: Bundle, *, installed: bool) -> None:
        """An upgrade takes objects over, an install only with `takeOwnership`."""
        if installed or bundle.helm.get("takeOwnership"):
            return
        for obj in bundle.objects:
            live = await self._objects.read(obj, bundle.namespace)
            if live and (live["metadata"].get("annotations") or {}).get(_RELEASE) != bundle.release:
                kind, name = next(names([obj]))
                raise OwnershipConflict(f"{kind} {name} exists and cannot be imported: invalid ownership metadata")

    async def _is_modified(self, bundle: Bundle) -> bool:
        for obj in bundle.objects:
            live = await self._objects.read(obj, bundle.namespace)
            ignored = [row for row in _patches(bundle) if _is_for(row, obj)]
            if live is None or differs(_normalized(obj, ignored), _normalized(live, ignored)):
                return True
        return False

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
            self.history.pop(bundle.release, None)
            removed = [obj for obj in reversed(bundle.objects) if not _is_kept(obj)]
            await self._objects.delete(removed, bundle.namespace)


def _patches(bundle: Bundle) -> Sequence[Mapping[str, Any]]:
    return (bundle.settings.get("diff") or {}).get("comparePatches") or ()


def _is_for(patch: Mapping[str, Any], obj: Obj) -> bool:
    metadata = obj["metadata"]
    return (
        patch.get("apiVersion") == obj["apiVersion"]
        and patch.get("kind") == obj["kind"]
        and patch.get("name", metadata["name"]) == metadata["name"]
        and patch.get("namespace", metadata.get("namespace")) == metadata.get("namespace")
    )


def _normalized(obj: Obj, patches: Iterable[Mapping[str, Any]]) -> Obj:
    """Return an object without the fields that patches remove or ignore."""
    found = deepcopy(obj)
    for patch in patches:
        removed = [str(row["path"]) for row in patch.get("operations") or () if row["op"] == "remove"]
        for path in (*removed, *patch.get("jsonPointers", ())):
            *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in path.strip("/").split("/"))
            place: Any = found
            for part in parents:
                place = place.get(part) if isinstance(place, dict) else None
            if isinstance(place, dict):
                place.pop(last, None)
    return found


def _owned(obj: Obj, release: str) -> Obj:
    metadata = obj["metadata"]
    labels = {**(metadata.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
    annotations = {**(metadata.get("annotations") or {}), _RELEASE: release}
    if obj["kind"] == _CRD:
        # Fleet keeps CRDs, unless `deleteCRDResources` is set.
        annotations[_POLICY] = "keep"
    return {**obj, "metadata": {**metadata, "labels": labels, "annotations": annotations}}


def _namespace(name: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _is_kept(obj: Obj) -> bool:
    return obj["kind"] == _CRD or bool((obj["metadata"].get("annotations") or {}).get(_POLICY) == "keep")
