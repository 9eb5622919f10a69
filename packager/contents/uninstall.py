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
from typing import NamedTuple

from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.runtime.text import Limits, TextError, load_yaml
from packager.git.changeplan import Plan
from packager.git.pruning import Delay, Removal, Skipped, Staging
from packager.git.snapshot import Snapshot
from packager.rendering import yaml
from packager.rendering.bundles import FLEET_YAML, bundle_name
from packager.rendering.rendered import Rendered
from packager.tree import CLUSTERS

CNI = "cni"
_CRDS = "-crds"
BLIND_SECONDS = 900.0
"""Time for Fleet to deploy a commit if its status is not visible.

It is Fleet's default interval to resync a GitRepo.
"""
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
) -> Staging:
    """Return a function that returns why a removal must wait, None if it need not.

    :param policies: policies by `<namespace>/<cluster>`; without a policy no removal waits
    :param snapshot: the repository
    :param applied: names of Fleet bundles that Fleet would uninstall, None if that is unknown
    """

    def stage(removal: Removal) -> Delay | None:
        root, _, cluster = removal.folder.partition("/")
        has_options = f"{removal.bundle}/{FLEET_YAML}" in removal.files
        if root != CLUSTERS or cluster not in policies or not has_options:
            return None
        return _delay(removal, cluster, policies[cluster], snapshot, applied)

    return stage


def _delay(
    removal: Removal,
    cluster: str,
    policy: UninstallPolicy,
    snapshot: Snapshot,
    applied: Collection[str] | None,
) -> Delay | None:
    """Return why the removal of a bundle must wait, None if it need not.

    A bundle waits twice: for the commit that drops `keepResources`, and until Fleet has deployed
    that commit. A bundle that stays installed does not wait.

    :param removal: the removal of the bundle
    :param cluster: the cluster, `<namespace>/<cluster>`
    :param policy: policy for removed add-ons of the cluster
    :param snapshot: the repository
    :param applied: names of Fleet bundles that Fleet would uninstall, None if that is unknown
    """
    path = f"{removal.bundle}/{FLEET_YAML}"
    file = f"{removal.folder}/{path}"
    # A proposal that is not merged releases nothing, so read the branch that Fleet reads.
    options = _parse(snapshot.merged.read(file))
    if options is None or policy.keep or removal.bundle.endswith(_CRDS):
        return None
    if removal.bundle == CNI and not policy.network:
        return Delay(
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
        return Delay(reason, {} if snapshot.read(file) == content else {path: content})

    # Fleet's status tells whether its agent has deployed the released bundle.
    bundle = bundle_name(Key(*cluster.split("/")), removal.bundle)
    if applied is not None and bundle not in applied:
        return Delay(
            "waiting until Fleet has deployed the bundle with keepResources: false; its "
            "GitRepo must not set keepResources"
        )
    return None


def add_release_ids(plan: Plan, snapshot: Snapshot) -> Plan:
    """Add to held-back removals of bundles the id of the file that lets Fleet uninstall them."""

    def released_file(what: str) -> str:
        # Only bundles have four parts: `clusters/<namespace>/<cluster>/<bundle>`.
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


class _Wait(NamedTuple):
    """A wait for Fleet, which began when the file with this id was seen; `since` is monotonic."""

    released: str
    since: float


class Waiting:
    """Removals that wait for Fleet. If its status is not visible, they wait for a fixed time.

    The time begins when Fleet can read that it may uninstall a bundle, or delete a cluster or pool,
    and begins again when the file that says so changes.
    """

    def __init__(self, uninstallable: Callable[[], frozenset[str] | None]) -> None:
        """Take a function that returns bundles that Fleet would uninstall, None if not visible."""
        self._uninstallable = uninstallable
        self._waits: dict[str, _Wait] = {}

    def uninstallable_bundles(self) -> frozenset[str]:
        """Return the names of the Fleet bundles that no longer have to wait."""
        visible = self._uninstallable()
        if visible is not None:
            return visible
        bundles = [what.split("/") for what in self.waited() if what.startswith(f"{CLUSTERS}/")]
        return frozenset(
            bundle_name(Key(namespace, cluster), bundle)
            for _, namespace, cluster, bundle in bundles
        )

    def waited(self) -> frozenset[str]:
        """Return the removals that have waited for the fixed time."""
        latest = time.monotonic() - BLIND_SECONDS
        return frozenset(what for what, wait in self._waits.items() if wait.since <= latest)

    def note(self, held: Iterable[Skipped]) -> None:
        """Remember since when Fleet may act on the removals that are held back."""
        before = self._waits
        self._waits = {}
        for skipped in held:
            if not skipped.released:
                continue
            wait = before.get(skipped.what)
            # Another version of the file starts the wait again.
            if wait is None or wait.released != skipped.released:
                wait = _Wait(skipped.released, time.monotonic())
            self._waits[skipped.what] = wait


def _is_released(options: Obj) -> bool:
    return options.get("keepResources", False) is False


def _release(options: Obj) -> Obj:
    """Return the options that let Fleet uninstall a bundle."""
    # Drop dependencies, because those bundles may be removed or never become ready.
    others = {name: value for name, value in options.items() if name != "dependsOn"}
    return {**others, "keepResources": False}


def _parse(content: bytes | None) -> Obj | None:
    """Return the options of a bundle (`fleet.yaml`) to change and write; None for other content."""
    try:
        options = load_yaml(content or b"", _LIMITS)
    except TextError:
        return None
    return yaml.writable(options) if isinstance(options, dict) else None
