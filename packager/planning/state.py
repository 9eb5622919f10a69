"""Input and output of planning, the state of clusters and the plan, and the draft in between."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from caphv.api import names
from caphv.api.counting import and_more
from caphv.api.object import Key
from packager.addons.facts import ClusterFacts
from packager.addons.versions import Versions
from packager.definitions.buildresult import BuildResult
from packager.definitions.source import Source
from packager.git.changeplan import Plan
from packager.git.folder import Folder, Root
from packager.git.pruning import Pruning, Skipped
from packager.git.snapshot import Snapshot
from packager.planning.removals import Removals
from packager.rendering.bundler import Batch
from packager.tree import CLUSTERS
from packager.upgrade.decision import Decision, Observed

# The file of an upgrade holds the reasons of all clusters. The condition of a cluster lists all.
_MAX_REASONS = 5

Pins = Mapping[Key, Versions]
"""Versions that clusters get instead of those in their lockfile: an upgrade or a rollback."""


@dataclass(frozen=True)
class ManagementState:
    """The state of clusters besides their definitions.

    - `facts`: the clusters to render.
    - `keep`: other existing clusters, which stay as they are regardless of their definition.
    - `incomplete`: other existing clusters, which get the bundles of their definition only.
    - `moved`: clusters that were deleted while paused.
    - `confirmed`: clusters whose definition may be removed.
    - `protected`: clusters that Fleet keeps even without their manifest.
    - `uninstallable`: names of the Fleet bundles that Fleet would uninstall, None if unknown.
    - `waited`: removals of clusters and pools that have given Fleet the time to read that it may
      delete them, see `packager.contents.uninstall.Waiting`; None if a user decides about that.
    - `why`: the reason for a commit.
    - `live`: the facts come from the management cluster that applies the repository's manifests.
    - `deleted`: clusters that Cluster API deleted with their machines.
    - `pruning`: overrides the limits for removals.
    - `pins`: versions to use instead of those in lockfiles.
    - `upgrade`: observations for upgrades in waves, None if there are no such upgrades.
    """

    facts: tuple[ClusterFacts, ...] = ()
    keep: frozenset[Key] = frozenset()
    incomplete: frozenset[Key] = frozenset()
    moved: frozenset[Key] = frozenset()
    confirmed: frozenset[Key] = frozenset()
    protected: frozenset[Key] = frozenset()
    uninstallable: frozenset[str] | None = None
    waited: frozenset[str] | None = None
    why: str = ""
    live: bool = True
    deleted: frozenset[Key] = frozenset()
    pruning: Pruning | None = None
    pins: Pins = field(default_factory=dict)
    upgrade: Observed | None = None


@dataclass(frozen=True)
class Planned:
    """The plan, the rendered bundles of `ManagementState.facts`, and the built definitions.

    `built` is None without definitions. `waves` is the decision about an upgrade in waves; it has a
    step if the plan is a commit of the upgrade.
    """

    batch: Batch
    built: BuildResult | None
    plan: Plan
    waves: Decision = field(default_factory=Decision)


@dataclass
class Draft:
    """An unfinished plan. The first three fields are given, and each phase fills in others.

    - `built` and `removals`: the built definitions, and removals of clusters that are no longer
      defined; None without definitions.
    - `batch`: the rendered bundles.
    - `folders`: all folders that the repository should hold.
    - `pruning`: limits for removals.
    - `waiting`: removals that an earlier commit must prepare.
    - `moved`: bundle folders of clusters that may run elsewhere.
    - `plan`: the changes of files.
    """

    snapshot: Snapshot
    state: ManagementState
    source: Source | None
    built: BuildResult | None = None
    removals: Removals | None = None
    batch: Batch = field(default_factory=Batch)
    folders: dict[Root, dict[str, Folder]] = field(default_factory=dict)
    pruning: Pruning = field(default_factory=lambda: Pruning(complete=False, budget=0))
    waiting: list[Skipped] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)


def find_unfit(planned: Planned, keys: Collection[Key]) -> dict[Key, tuple[str, ...]]:
    """Return the given clusters whose bundles cannot be changed, each with the reasons."""
    # The last reason wins, and a refused folder says more than a suspended cluster.
    reasons: dict[Key, tuple[str, ...]] = {}
    for rendered in planned.batch.failed:
        errors = [str(finding) for finding in rendered.findings if not finding.advice]
        more = and_more(len(errors) - _MAX_REASONS).strip()
        reasons[rendered.cluster] = tuple(filter(None, [*errors[:_MAX_REASONS], more]))
    for key in planned.batch.suspended:
        reasons[key] = (f"suspended by annotation {names.SUSPEND_ADDONS_ANNOTATION}",)
    for skipped in planned.plan.refused:
        root, namespace, name = skipped.what.split("/")
        if root == CLUSTERS:
            reasons[Key(namespace, name)] = (f"{skipped.what}: {skipped.why}",)
    return {key: messages for key, messages in reasons.items() if key in keys}
