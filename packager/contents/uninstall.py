"""Uninstalls add-ons on purpose, and never by accident.

Fleet uninstalls a bundle that it no longer finds, unless it was deployed with `keepResources`. A
lost GitRepo, branch or path looks to Fleet like a removed bundle, so every bundle has
`keepResources`. Removing an add-on takes two commits. The first drops `keepResources`, and after
Fleet has deployed it, the second removes the bundle. Fleet's agent decides by its last deployment
(`helmdeployer/delete.go`), so one commit for both would leave the add-on installed.
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
from packager.rendering.rendered import Rendered
from packager.tree import CLUSTERS

CNI = "cni"
_CRDS = "-crds"
# Time for Fleet to deploy a commit if its status is not visible. It is Fleet's default interval to
# resync a GitRepo.
_BLIND_SECONDS = 900.0
_LIMITS = Limits(size=1024 * 1024, nodes=100_000, seconds=5)


@dataclass(frozen=True)
class UninstallPolicy:
    """Policy for removed add-ons of a cluster.

    `keep`: they stay installed. `network`: the user confirmed changes that break the network.
    """

    keep: bool = False
    network: bool = False


def policy_of(rendered: Rendered) -> UninstallPolicy:
    """Return the policy of a rendered cluster."""
    keep = bool(rendered.settings and rendered.settings.fleet.keep_removed)
    return UninstallPolicy(keep, rendered.forced)


def policies_of(rendered: Iterable[Rendered]) -> dict[str, UninstallPolicy]:
    """Return the policies of all clusters that could be rendered, by `<namespace>/<cluster>`."""
    return {str(result.cluster): policy_of(result) for result in rendered if result.ok}


def staging(
    policies: Mapping[str, UninstallPolicy], snapshot: Snapshot, applied: Collection[str] | None
) -> Callable[[Removal], Stay | None]:
    """Return a function that returns why a removal must wait, None if it need not.

    The keys of `policies` are `<namespace>/<cluster>`. `applied` are names of Fleet bundles that
    Fleet would uninstall, None if that is unknown. A bundle that only a branch for review releases
    is not released yet.
    """

    def stage(removal: Removal) -> Stay | None:
        root, _, name = removal.folder.partition("/")
        policy = policies.get(name) if root == CLUSTERS else None
        path = f"{removal.bundle}/{FLEET_YAML}"
        if policy is None or path not in removal.files:
            return None

        file = f"{removal.folder}/{path}"
        # Read the branch that Fleet reads, not the proposal of a review.
        options = _parse(snapshot.merged.read(file))
        if options is None or policy.keep or removal.bundle.endswith(_CRDS):
            return None
        if removal.bundle == CNI and not policy.network:
            return Stay(
                "without it Pods have no network: to uninstall it, set annotation "
                f"{names.ALLOW_NETWORK_CHANGE_ANNOTATION}=true on the Cluster; to leave it "
                "installed without its bundle, set fleet.keepResources to true"
            )

        if not _is_released(options):
            content = yaml.dump(_release(options)).encode()
            reason = (
                "Fleet may uninstall it now: the next commit removes its bundle once Fleet has "
                "deployed this one"
            )
            return Stay(reason, {} if snapshot.read(file) == content else {path: content})

        # Fleet's status tells whether its agent has deployed the released bundle.
        bundle = bundle_name(Key(*name.split("/")), removal.bundle)
        if applied is not None and bundle not in applied:
            return Stay(
                "waiting until Fleet has deployed the bundle with keepResources: false; its "
                "GitRepo must not set keepResources"
            )
        return None

    return stage


def add_release_ids(plan: Plan, snapshot: Snapshot) -> Plan:
    """Add the ids of files that let Fleet uninstall held-back bundles to a plan."""

    def released_file(what: str) -> str:
        parts = what.split("/")
        if parts[0] != CLUSTERS or len(parts) != 4:
            return ""
        path = f"{what}/{FLEET_YAML}"
        options = _parse(snapshot.merged.read(path))
        if not options or not _is_released(options):
            return ""
        entry = snapshot.merged.entry(path)
        return entry.id if entry else ""

    held = (replace(skipped, released=released_file(skipped.what)) for skipped in plan.held)
    return replace(plan, held=tuple(held))


class Waiting:
    """Removals that wait for Fleet. If its status is not visible, they wait for a fixed time.

    The time begins when Fleet can read that it may uninstall the bundle, and begins again when the
    bundle's file changes.
    """

    def __init__(self, uninstallable: Callable[[], frozenset[str] | None]) -> None:
        """Take a function that returns bundles that Fleet would uninstall, None if not visible."""
        self._uninstallable = uninstallable
        self._since: dict[str, tuple[str, float]] = {}

    def uninstallable_bundles(self) -> frozenset[str]:
        """Return the names of the Fleet bundles that no longer have to wait."""
        visible = self._uninstallable()
        if visible is not None:
            return visible
        latest = time.monotonic() - _BLIND_SECONDS
        return frozenset(name for name, (_, since) in self._since.items() if since <= latest)

    def note(self, held: Iterable[Skipped]) -> None:
        """Remember since when Fleet may uninstall the bundles that are held back."""
        time_of_call = time.monotonic()
        before = self._since
        self._since = {}
        for skipped in held:
            if not skipped.released:
                continue
            _, namespace, cluster, bundle = skipped.what.split("/")
            name = bundle_name(Key(namespace, cluster), bundle)
            released, since = before.get(name, ("", time_of_call))
            # Another version of the file starts the wait again.
            if released != skipped.released:
                since = time_of_call
            self._since[name] = (skipped.released, since)


def _is_released(options: Obj) -> bool:
    return options.get("keepResources", False) is False


def _release(options: Obj) -> Obj:
    """Return the options that let Fleet uninstall a bundle."""
    # Drop dependencies, because those bundles may be removed or never become ready.
    others = {name: value for name, value in options.items() if name != "dependsOn"}
    return {**others, "keepResources": False}


def _parse(content: bytes | None) -> Obj | None:
    """Return the options of a bundle (`fleet.yaml`), None if they cannot be parsed."""
    try:
        options = load_yaml(content or b"", _LIMITS)
    except TextError:
        return None
    return options if isinstance(options, dict) else None
