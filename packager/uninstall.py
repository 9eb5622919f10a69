"""Uninstalls add-ons on purpose, and never by accident.

Fleet uninstalls a bundle that it no longer finds, unless it was deployed with `keepResources`. A lost GitRepo, branch
or path looks to Fleet like a removed bundle, so every bundle has `keepResources`. Removing an add-on takes two commits:
one that drops it, and, after Fleet has deployed that, one without the bundle. Fleet's agent decides by what it deployed
last (`helmdeployer/delete.go`), so removing both at once would leave the add-on installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.runtime.text import Limits, TextError, load_yaml
from packager.git.prune import Plan, Removal, Skipped, Stay
from packager.git.snapshot import Snapshot
from packager.rendering import yaml
from packager.rendering.bundles import FLEET_YAML, bundle_name
from packager.rendering.renderer import Rendered
from packager.tree import CLUSTERS

CNI = "cni"
_CRDS = "-crds"
_BLIND_SECONDS = 900.0
"""Time for Fleet to deploy a commit, where its status is not visible: its default interval to resync a GitRepo."""
_LIMITS = Limits(size=1024 * 1024, nodes=100_000, seconds=5)


@dataclass(frozen=True)
class UninstallPolicy:
    """What happens to removed add-ons of a cluster.

    `keep`: they stay installed. `network`: the user asked a second time for changes that break the network.
    """

    keep: bool = False
    network: bool = False


def policy_of(rendered: Rendered) -> UninstallPolicy:
    """Return the policy of a rendered cluster."""
    keep = bool(rendered.settings and rendered.settings.fleet.keep_removed)
    return UninstallPolicy(keep, rendered.forced)


def policies_of(rendered: Iterable[Rendered]) -> dict[str, UninstallPolicy]:
    """Return the policies of all clusters that could be rendered, by `<namespace>/<cluster>`."""
    return {str(one.cluster): policy_of(one) for one in rendered if one.ok}


def staging(
    policies: Mapping[str, UninstallPolicy], snapshot: Snapshot, applied: Collection[str] | None
) -> Callable[[Removal], Stay | None]:
    """Return a function that says why a removal must wait, None if it need not.

    `policies` are by `<namespace>/<cluster>`. `applied` are names of Fleet bundles that Fleet would uninstall, None if
    that is unknown. A bundle that only a branch for review releases is not released yet.
    """

    def stage(removal: Removal) -> Stay | None:
        root, _, name = removal.folder.partition("/")
        policy = policies.get(name) if root == CLUSTERS else None
        path = f"{removal.bundle}/{FLEET_YAML}"
        if policy is None or path not in removal.files:
            return None
        file = f"{removal.folder}/{path}"
        found = _parsed(snapshot.merged.read(file))
        if found is None or policy.keep or removal.bundle.endswith(_CRDS):
            return None
        if removal.bundle == CNI and not policy.network:
            return Stay(
                "without it Pods have no network: to uninstall it, set annotation "
                f"{names.ALLOW_NETWORK_CHANGE_ANNOTATION}=true on the Cluster; to leave it installed without its "
                "bundle, set fleet.keepResources to true"
            )
        if found.get("keepResources", False) is not False:
            released = yaml.dump(_released(found)).encode()
            why = "Fleet may uninstall it now: the next commit removes its bundle once Fleet has deployed this one"
            return Stay(why, {} if snapshot.read(file) == released else {path: released})
        if applied is not None and bundle_name(Key(*name.split("/")), removal.bundle) not in applied:
            return Stay(
                "waiting until Fleet has deployed the bundle with keepResources: false; its GitRepo must not set "
                "keepResources"
            )
        return None

    return stage


def with_released(plan: Plan, snapshot: Snapshot) -> Plan:
    """Return a plan that names, for each bundle that is held back, the file by which Fleet may uninstall it already."""

    def released(what: str) -> str:
        parts, path = what.split("/"), f"{what}/{FLEET_YAML}"
        found = _parsed(snapshot.merged.read(path)) if parts[0] == CLUSTERS and len(parts) == 4 else None
        entry = snapshot.merged.entry(path) if found and found.get("keepResources", False) is False else None
        return entry.id if entry else ""

    return replace(plan, held=tuple(replace(one, released=released(one.what)) for one in plan.held))


class Waiting:
    """Removals that wait for Fleet. Where its status is not visible, they wait for a fixed time.

    The time begins when Fleet can read that it may uninstall the bundle, and again when that changes.
    """

    def __init__(self, uninstallable: Callable[[], frozenset[str] | None]) -> None:
        """`uninstallable` returns the bundles that Fleet would uninstall; None when Fleet is not visible."""
        self._uninstallable = uninstallable
        self._since: dict[str, tuple[str, float]] = {}

    def over(self) -> frozenset[str]:
        """Return the names of the Fleet bundles that need not wait any longer."""
        visible = self._uninstallable()
        if visible is not None:
            return visible
        now = time.monotonic()
        return frozenset(name for name, (_, since) in self._since.items() if now - since >= _BLIND_SECONDS)

    def note(self, held: Iterable[Skipped]) -> None:
        """Remember since when Fleet may uninstall the bundles that are held back."""
        before, now, self._since = self._since, time.monotonic(), {}
        for one in held:
            if one.released:
                _, namespace, cluster, bundle = one.what.split("/")
                name = bundle_name(Key(namespace, cluster), bundle)
                released, since = before.get(name, ("", now))
                self._since[name] = one.released, since if released == one.released else now


def _released(fleet_yaml: Obj) -> Obj:
    # Bundles that it depends on may be removed or never become ready.
    kept = {name: value for name, value in fleet_yaml.items() if name != "dependsOn"}
    return {**kept, "keepResources": False}


def _parsed(content: bytes | None) -> Obj | None:
    try:
        found = load_yaml(content or b"", _LIMITS)
    except TextError:
        return None
    return found if isinstance(found, dict) else None
