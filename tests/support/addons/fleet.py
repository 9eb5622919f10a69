"""Fleet's agent in one cluster: bundles become releases of the real Helm, with the options that Fleet gives it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api.object import SECRETS, Obj
from caphv.runtime.client import ApiClient
from tests.support.addons.apply import Objects, differs
from tests.support.addons.bundles import Bundle, bundles_of
from tests.support.addons.charts import Chart, opaque
from tests.support.addons.helm import Helm, HelmError

_POLICY = "helm.sh/resource-policy"
_CRD = "CustomResourceDefinition"
HASH_LABEL = "objectset.rio.cattle.io/hash"
_HISTORY = "--history-max=2"
_CLIENT_SIDE, _SERVER_SIDE, _AS_BEFORE = (
    "--server-side=false",
    "--server-side=true",
    "--server-side=auto",
)


@dataclass
class Release:
    """A deployed bundle, with the error of its last deployment."""

    bundle: Bundle
    error: str = ""
    upgrades: int = 0


@dataclass
class FleetCluster:
    """Fleet's agent in one cluster, with the releases that it deployed.

    `orphans` are releases that it neither uninstalls nor forgets, and that stop its garbage collection.
    """

    client: ApiClient
    helm: Helm
    chart: Chart = opaque
    releases: dict[str, Release] = field(default_factory=dict)
    orphans: set[str] = field(default_factory=set)
    error: str = ""

    def __post_init__(self) -> None:
        self._objects = Objects(self.client, "fleetagent")

    async def sync(self, files: Mapping[str, bytes], git_repo: Obj | None) -> list[str]:
        """Read a commit through a GitRepo, or act on its deletion. Return the names of bundles that are ready."""
        bundles = {bundle.name: bundle for bundle in bundles_of(files, git_repo, self.chart)} if git_repo else {}
        for name in [name for name in self.releases if name not in bundles]:
            await self.remove(self.releases.pop(name).bundle)
        # Fleet removes bundles before it reports this.
        self.error = "no resource found at the following paths to deploy" if git_repo and not bundles else ""
        ready: set[str] = set()
        while True:
            waiting = [
                bundle
                for name, bundle in bundles.items()
                if name not in ready and {row["name"] for row in bundle.settings.get("dependsOn", ())} <= ready
            ]
            before = len(ready)
            ready |= {bundle.name for bundle in waiting if await self._deploy(bundle)}
            if len(ready) == before:
                return sorted(ready)

    async def detect_drift(self) -> list[str]:
        """Compare releases with live objects, and correct those with `correctDrift`. Return bundles still modified."""
        return [
            name
            for name, release in self.releases.items()
            if await self.modified(release.bundle) and not await self.correct(release)
        ]

    async def modified(self, bundle: Bundle) -> list[str]:
        """Return kind and name of the objects of a bundle that are missing, changed, or not labelled as the agent's."""
        names = []
        for obj in _labelled(bundle):
            live = await self._objects.read(obj, bundle.namespace)
            ignored = [row for row in _patches(bundle) if _is_for(row, obj)]
            if (
                live is None
                or differs(_labels(obj), _labels(live))
                or differs(_normalized(obj, ignored), _normalized(live, ignored))
            ):
                names.append(f"{obj['kind']} {obj['metadata']['name']}")
        return names

    async def _deploy(self, bundle: Bundle) -> bool:
        """Deploy a bundle if it changed; return whether it is ready."""
        known = self.releases.get(bundle.name)
        is_new = known is None or bool(known.error) or known.bundle != bundle
        if is_new and await self.install_or_upgrade(bundle):
            return False
        release = self.releases[bundle.name]
        return not await self.modified(bundle) or await self.correct(release)

    async def install_or_upgrade(self, bundle: Bundle) -> str:
        """Deploy a bundle; return the error, empty for none. After a failure, the previous release stays."""
        known = self.releases.get(bundle.name)
        upgrades = known.upgrades if known else 0
        try:
            await self._apply(bundle)
        except HelmError as error:
            last = known.bundle if known else replace(bundle, objects=())
            self.releases[bundle.name] = Release(last, str(error), upgrades)
            return str(error)
        self.orphans.discard(bundle.release)
        self.releases[bundle.name] = Release(bundle, upgrades=upgrades + 1 if known else 0)
        return ""

    async def _apply(self, bundle: Bundle) -> None:
        """Install a release that Helm does not know, else upgrade it, whatever its state."""
        status = await self.helm.status(bundle.release, bundle.namespace)
        force = bool(bundle.helm.get("force")) or _corrects(bundle, "force")
        objects = _labelled(bundle)
        forced = ["--force-replace"] if force else []
        if status is None:
            take = bool(bundle.helm.get("takeOwnership"))
            side = _CLIENT_SIDE if take or force else _SERVER_SIDE
            flags = ["--create-namespace", side, *forced, *(["--take-ownership"] if take else [])]
            await self.helm.install(bundle.release, bundle.namespace, objects, *flags)
        else:
            side = _CLIENT_SIDE if force else _AS_BEFORE
            flags = [_HISTORY, "--take-ownership", side, *forced]
            await self.helm.upgrade(bundle.release, bundle.namespace, objects, *flags)

    async def correct(self, release: Release) -> bool:
        """Roll a modified release back to its own revision, if it corrects drift. Return whether that helped."""
        bundle = release.bundle
        if not _corrects(bundle, "enabled"):
            return False
        status = await self.helm.status(bundle.release, bundle.namespace)
        if status is None:
            return False

        flags = [_HISTORY, _CLIENT_SIDE, *(["--force-replace"] if _corrects(bundle, "force") else [])]
        try:
            await self.helm.rollback(bundle.release, bundle.namespace, status.revision, *flags)
        except HelmError as error:
            release.error = str(error)
            return False
        return not await self.modified(bundle)

    async def remove(self, bundle: Bundle) -> None:
        """Uninstall a bundle that is not kept, else forget its release, if that has the name of the bundle."""
        if not bundle.keep_resources:
            await self.helm.uninstall(bundle.release, bundle.namespace)
        elif bundle.release == bundle.name:
            await self._forget(bundle)
        else:
            self.orphans.add(bundle.release)

    async def _forget(self, bundle: Bundle) -> None:
        selector = f"owner=helm,name={bundle.release}"
        for secret in (await self.client.list(SECRETS, bundle.namespace, label_selector=selector))["items"]:
            await self.client.delete(SECRETS, secret["metadata"]["name"], bundle.namespace)


def _corrects(bundle: Bundle, field: str) -> bool:
    return bool((bundle.settings.get("correctDrift") or {}).get(field))


def _labelled(bundle: Bundle) -> list[Obj]:
    """Return the objects of a bundle as the agent gives them to Helm: with its label, CRDs to be kept."""
    digest = hashlib.sha1(f"default-{bundle.name}".encode(), usedforsecurity=False).hexdigest()
    return [_owned(obj, digest) for obj in bundle.objects]


def _owned(obj: Obj, digest: str) -> Obj:
    metadata = obj["metadata"]
    labels = {**(metadata.get("labels") or {}), HASH_LABEL: digest}
    annotations = dict(metadata.get("annotations") or {})
    if obj["kind"] == _CRD:
        # Fleet keeps CRDs, unless `deleteCRDResources` is set.
        annotations[_POLICY] = "keep"
    return {**obj, "metadata": {**metadata, "labels": labels, "annotations": annotations}}


def _labels(obj: Obj) -> Obj:
    """Return the label by which the agent finds its objects; another value hides them from it."""
    return {HASH_LABEL: (obj["metadata"].get("labels") or {}).get(HASH_LABEL)}


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
