"""The one place that plans what a repository should hold, for the command line and the controller alike.

A plan is a pure function of the repository (`Snapshot`), of what is known of clusters (`ManagementState`) and of the
cluster definitions (`Source`): nothing is written here, so that a plan can be shown, committed, or computed again
after another client's push.

A cluster has bundles as soon as it has a manifest. They follow from its definition until the Cluster exists, and from
then on from the live Cluster as it will be once its manifest has been applied. So a changed definition changes manifest
and bundles in one commit, and the Cluster that follows later renders to the same bytes and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from caphv.api import names
from caphv.api.object import Key, Obj
from packager import commit_summary, move_marker, rollout
from packager.addons.gather import ClusterFacts
from packager.addons.versions import Versions
from packager.bundler import Batch, Bundler
from packager.definitions import files, ownership, protection, statusfile
from packager.definitions.applied import applied
from packager.definitions.builder import MANIFEST_ROOT, Builder, BuildResult, existing, manifest_path, pool_path
from packager.definitions.dropped import is_pool
from packager.definitions.source import Source
from packager.git.commit import Reason
from packager.git.folder import Folder, Root
from packager.git.history import Change
from packager.git.prune import Plan, Pruning, Skipped
from packager.git.publish import changes, log_result
from packager.git.result import Result
from packager.git.snapshot import Snapshot
from packager.tree import CLUSTER_ROOT, CLUSTERS
from packager.uninstall import policies_of, staging, with_released

Pins = Mapping[Key, Versions]
"""Versions that clusters get instead of those in their lockfile: an upgrade or a rollback."""

_LONGEST_SUBJECT = 100


class Store(Protocol):
    """Where plans are written: a `Repository`, or a `Directory`."""

    def sync(self) -> Snapshot: ...  # noqa: D102
    def commit(self, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result: ...  # noqa: D102
    def commits(self) -> set[str]: ...  # noqa: D102
    def stale(self) -> list[str]: ...  # noqa: D102
    def last_change(self, path: str) -> Change | None: ...  # noqa: D102
    def branch_of(self, group: str) -> tuple[str, str]: ...  # noqa: D102


@dataclass(frozen=True)
class ManagementState:
    """What is known of clusters besides their definitions.

    `facts` are the clusters to render. Of the other existing clusters, those in `incomplete` get the bundles of their
    definition only, and those in `keep` stay as they are, whatever their definition says. `moved` are clusters that
    were deleted while paused, `deleted` those that Cluster API deleted with their machines, `confirmed` those whose
    definition may be removed, `protected` those that Fleet keeps even without their manifest. `why` explains a commit.

    `uninstallable` are names of the Fleet bundles that Fleet would uninstall, None if that is unknown.

    `live`: the facts come from the management cluster that applies the repository's manifests. `pruning` overrides
    what may be removed. `upgrade` is what an upgrade in waves depends on, None where none is made.
    """

    facts: tuple[ClusterFacts, ...] = ()
    keep: frozenset[Key] = frozenset()
    incomplete: frozenset[Key] = frozenset()
    moved: frozenset[Key] = frozenset()
    confirmed: frozenset[Key] = frozenset()
    protected: frozenset[Key] = frozenset()
    uninstallable: frozenset[str] | None = None
    why: str = ""
    live: bool = True
    deleted: frozenset[Key] = frozenset()
    pruning: Pruning | None = None
    pins: Pins = field(default_factory=dict)
    upgrade: rollout.Observed | None = None


@dataclass(frozen=True)
class Planned:
    """Rendered bundles of `ManagementState.facts`, what the definitions build to (if there are any), and the plan.

    `upgrade` is the upgrade in waves that the repository holds with this plan; `step` is its commit if the plan is one.
    `problem` is why a requested one cannot start.
    """

    batch: Batch
    built: BuildResult | None
    plan: Plan
    upgrade: rollout.Rollout | None = None
    step: rollout.Step | None = None
    problem: str = ""


class Planner:
    """Plans; remembers what it rendered and built, so that only what changed costs time. Not thread-safe.

    `namespace` limits the clusters to plan for, empty for all.
    """

    def __init__(
        self, bundler: Bundler, builder: Builder | None = None, max_prune: int = 0, namespace: str = ""
    ) -> None:
        self._bundler, self._builder = bundler, builder
        self._max_prune, self._namespace = max_prune, namespace
        self._manifests: dict[Key, tuple[str, Sequence[Obj]]] = {}
        self._expected: dict[Key, tuple[ClusterFacts, Sequence[Obj], ClusterFacts]] = {}

    def plan(self, snapshot: Snapshot, state: ManagementState, source: Source | None = None) -> Planned:
        """Return what state and source make of a repository. Raises CorruptClone.

        Without a source the definitions are unknown: then manifests stay as they are. The commit of a wave has no other
        change: it is planned when nothing else is to be committed.
        """
        planned = self._plan(snapshot, state, source)
        if state.upgrade is None:
            return planned
        if not planned.plan.is_empty:
            decision = rollout.decide(snapshot, state.upgrade, state.facts, self._bundler.renderer.table)
            return replace(planned, upgrade=decision.current, problem=decision.problem)
        return self._upgrading(planned, snapshot, state, state.upgrade, source)

    def _upgrading(
        self,
        planned: Planned,
        snapshot: Snapshot,
        state: ManagementState,
        observed: rollout.Observed,
        source: Source | None,
    ) -> Planned:
        """Return the commit of the upgrade in waves if there is one to make."""
        table = self._bundler.renderer.table

        def find(left_out: rollout.LeftOut) -> Planned:
            found = rollout.decide(snapshot, observed, state.facts, table, left_out)
            step = found.step
            if step is None:
                return replace(planned, upgrade=found.current, problem=found.problem)
            own = self._plan(snapshot, replace(state, pins=step.pins), source)
            if not step.rollout.is_active:
                step = rollout.keeping(step, unfit(own, step.pins))
            write = {**own.plan.write, observed.file: rollout.write(step.rollout)}
            plan = replace(own.plan, write=write, why=step.why)
            return replace(own, plan=plan, upgrade=step.rollout, step=step, problem=found.problem)

        def unfit_of(found: Planned) -> rollout.LeftOut:
            # A revert gives back as many versions as possible.
            return unfit(found, found.step.pins) if found.step and found.step.rollout.is_active else {}

        return rollout.fitting(find, unfit_of)

    def _plan(self, snapshot: Snapshot, state: ManagementState, source: Source | None) -> Planned:
        built = self._builder.build(source, snapshot) if self._builder and source else None
        facts = state.facts
        if state.live:
            facts = tuple(self._as_applied(one, built, snapshot) for one in facts)
        batch = self._bundler.render(facts, snapshot.tree, state.pins)
        wanted = self._wanted(built, batch, state)
        pruning = self._pruning(built, batch, state, source, snapshot)
        waiting = [*built.kept] if built else []
        if built:
            waiting += _release_pools(wanted, built, state, snapshot)
        if built and source:
            waiting += _unclaimed(built, source, snapshot)
        if built and source and source.complete:
            waiting += _release(wanted, built, state, snapshot, source)
        moved: list[str] = []
        if state.live:
            self._forget(state)
            removable = self._bundles(snapshot) - {*pruning.keep}
            removable -= {f"{CLUSTERS}/{name}" for name in wanted[CLUSTER_ROOT]}
            moved = move_marker.moved(removable, {f"{CLUSTERS}/{key}" for key in state.moved}, snapshot)
        policies = {str(key): policy for key, policy in built.uninstall.items()} if built else {}
        policies |= policies_of(batch.rendered)
        pruning = replace(pruning, keep={*pruning.keep, *moved})
        plan = changes(snapshot, wanted, pruning, staging(policies, snapshot, state.uninstallable))
        plan = with_released(plan, snapshot)
        plan = move_marker.with_marks(plan, moved, snapshot)
        plan = replace(plan, held=(*plan.held, *waiting))
        if built and source:
            plan = statusfile.with_status(plan, built, snapshot, source.name)
            plan = replace(plan, held=(*plan.held, *_asked(built, source, state, snapshot)))
        return Planned(batch, built, commit_summary.summarized(plan, snapshot))

    def _wanted(self, built: BuildResult | None, batch: Batch, state: ManagementState) -> dict[Root, dict[str, Folder]]:
        if built and not state.live:
            return {root: dict(folders) for root, folders in built.wanted.items()}
        existing_names = {str(key) for key in (*state.keep, *(facts.key for facts in state.facts))}
        wanted = {root: dict(folders) for root, folders in built.wanted.items()} if built else {}
        defined_only = {
            name: folder
            for name, folder in wanted.get(CLUSTER_ROOT, {}).items()
            if name not in existing_names and name.startswith(f"{self._namespace}/" if self._namespace else "")
        }
        return {**wanted, CLUSTER_ROOT: defined_only | self._bundler.folders(batch)}

    def _pruning(
        self, built: BuildResult | None, batch: Batch, state: ManagementState, source: Source | None, snapshot: Snapshot
    ) -> Pruning:
        """Return what may be removed: confirmed definitions, and bundles of clusters without object and manifest."""
        if state.pruning:
            return replace(state.pruning, keep={*state.pruning.keep, *batch.kept})
        pruning = Pruning(complete=True, budget=self._max_prune)
        if built and source:
            pruning = _definition_pruning(built, source, state, self._max_prune, snapshot)
        if not state.live:
            return pruning
        defined = set(ownership.clusters(snapshot))
        scope = {folder for folder in pruning.scope or () if folder.startswith(f"{files.MANIFESTS}/")}
        scope |= self._bundles(snapshot)
        staying = {f"{CLUSTERS}/{key}" for key in state.keep | state.incomplete} | batch.kept
        staying |= {f"{CLUSTERS}/{name}" for name in defined if f"{files.MANIFESTS}/{name}" not in pruning.confirmed}
        deleted = {f"{CLUSTERS}/{key}" for key in state.deleted}
        return replace(pruning, scope=scope, keep={*pruning.keep, *staying}, deleted=deleted)

    def _bundles(self, snapshot: Snapshot) -> set[str]:
        """Return the bundle folders of all clusters in the planner's namespace."""
        return {
            f"{CLUSTERS}/{namespace}/{name}"
            for namespace, outer in snapshot.entries(CLUSTERS).items()
            if outer.is_folder and namespace == (self._namespace or namespace)
            for name in snapshot.entries(f"{CLUSTERS}/{namespace}")
        }

    # Clusters as they will be

    def _as_applied(self, facts: ClusterFacts, built: BuildResult | None, snapshot: Snapshot) -> ClusterFacts:
        """Return facts of a live Cluster as they will be once its manifest has been applied."""
        objects = self._objects(facts.key, built, snapshot)
        if not objects:
            return facts
        known = self._expected.get(facts.key)
        if known is None or known[1] is not objects or not _same(known[0], facts):
            known = self._expected[facts.key] = facts, objects, applied(facts, objects)
        return known[2]

    def _objects(self, key: Key, built: BuildResult | None, snapshot: Snapshot) -> Sequence[Obj]:
        """Return the manifest that the repository will hold; that of an invalid definition stays as it is."""
        if built and key in built.objects:
            return built.objects[key]
        entry = snapshot.entry(manifest_path(key))
        if entry is None:
            return ()
        known = self._manifests.get(key)
        if known is None or known[0] != entry.id:
            known = self._manifests[key] = entry.id, existing(snapshot, key)
        return known[1]

    def _forget(self, state: ManagementState) -> None:
        """Forget deleted clusters: they would stay in memory."""
        live = {facts.key for facts in state.facts}
        self._bundler.forget(live)
        for remembered in (self._manifests, self._expected):
            for key in remembered.keys() - live:
                del remembered[key]


def unfit(planned: Planned, keys: Collection[Key]) -> dict[Key, tuple[str, ...]]:
    """Return those of the clusters whose bundles stay as they are, each with the reasons."""
    found = {bad.cluster: tuple(str(one) for one in bad.findings if not one.advice) for bad in planned.batch.failed}
    found |= dict.fromkeys(planned.batch.suspended, (f"suspended by annotation {names.SUSPEND_ADDONS_ANNOTATION}",))
    for skipped in planned.plan.refused:
        root, namespace, name = skipped.what.split("/")
        if root == CLUSTERS:
            found[Key(namespace, name)] = (f"{skipped.what}: {skipped.why}",)
    return {key: why for key, why in found.items() if key in keys}


def publish(
    store: Store,
    planner: Planner,
    state: ManagementState,
    source: Source | None = None,
    *,
    reason: Reason | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Planned, Result]:
    """Make a repository match the plan in one commit, or none when it matches already. Raises GitErrors.

    When another client pushed first, it plans again for the newer snapshot; `check` may stop that.
    """
    planned = Planned(Batch(), None, Plan())

    def plan(snapshot: Snapshot) -> Plan:
        nonlocal planned
        check()
        planned = planner.plan(snapshot, state, source)
        return planned.plan

    result = log_result(store.commit(plan, reason or Reason(state.why)))
    return planned, result


def definitions_changed(origin: str, message: str = "") -> Reason:
    """Return the reason for a commit that follows the definitions of `origin`, whose commit has this message."""
    subject = message.strip().partition("\n")[0].strip()
    if len(subject) > _LONGEST_SUBJECT:
        subject = f"{subject[:_LONGEST_SUBJECT]}…"
    why = "Clusters follow their definitions" + (f": {subject}" if subject else ".")
    return Reason(why, {"Source": origin})


def _definition_pruning(
    built: BuildResult, source: Source, state: ManagementState, budget: int, snapshot: Snapshot
) -> Pruning:
    """Return what may be removed: only clusters of this source whose definition was removed and confirmed."""
    gone = _gone(built, source, snapshot)
    # Those of other sources are neither removed nor reported.
    present = gone | {*ownership.clusters(snapshot)} & built.wanted[MANIFEST_ROOT].keys()
    confirmed = {name for name in _confirmed(gone, state, snapshot) if not _is_waiting(name, state, snapshot)}
    # Clusters without new files that stay: invalid and suspended ones, and those whose removal is not confirmed.
    staying = {str(key) for key in (*built.invalid, *built.suspended)} | (gone - confirmed)
    return Pruning(
        complete=source.complete,
        budget=budget,
        scope={f"{root}/{name}" for root in (files.MANIFESTS, CLUSTERS) for name in present},
        keep={f"{CLUSTERS}/{name}" for name in staying} | {f"{files.MANIFESTS}/{key}" for key in built.invalid},
        confirmed={f"{files.MANIFESTS}/{name}" for name in confirmed},
    )


def _gone(built: BuildResult, source: Source, snapshot: Snapshot) -> set[str]:
    """Return the clusters of a source, `<namespace>/<name>`, that it no longer defines."""
    return _undefined(built, ownership.Owners(snapshot, source.name).own)


def _undefined(built: BuildResult, clusters: Collection[str]) -> set[str]:
    return {*clusters} - built.wanted[MANIFEST_ROOT].keys() - {str(key) for key in built.invalid}


def _unclaimed(built: BuildResult, source: Source, snapshot: Snapshot) -> list[Skipped]:
    """Return manifests that no source has claimed: in a shared repository nothing tells whose they are."""
    why = (
        "several sources write this repository, and none of them has claimed this cluster: define it in its source, or "
        f"name that source in {ownership.FILE} of this folder"
    )
    found = _undefined(built, ownership.Owners(snapshot, source.name).unclaimed)
    return [Skipped(f"{files.MANIFESTS}/{name}", why) for name in sorted(found)]


def _asked(built: BuildResult, source: Source, state: ManagementState, snapshot: Snapshot) -> list[Skipped]:
    """Return the clusters of other sources that a user asks this one to remove: Clusters confirm it to any source."""
    owners = ownership.Owners(snapshot, source.name)
    asked = () if state.live else _undefined(built, {str(key) for key in state.confirmed}) - owners.own
    return [
        Skipped(f"{files.MANIFESTS}/{name}", f"cluster is defined by another source, {other}: remove it there")
        for name in sorted(asked)
        if (other := owners.recorded(name))
    ]


def _confirmed(removed: Iterable[str], state: ManagementState, snapshot: Snapshot) -> set[str]:
    """Return the clusters whose removal the user confirmed, here or by annotation in the repository."""
    known = {str(key) for key in state.confirmed}
    return {
        name
        for name in removed
        if name in known or any(protection.is_confirmed(obj) for obj in _manifest(snapshot, name, "Cluster"))
    }


def _manifest(snapshot: Snapshot, name: str, kind: str = "") -> list[Obj]:
    return [obj for obj in existing(snapshot, Key(*name.split("/"))) if kind in ("", obj.get("kind"))]


def _is_waiting(name: str, state: ManagementState, snapshot: Snapshot) -> bool:
    """Whether what Fleet reads, or the live Cluster, still protects a cluster from the removal of its folder."""
    objects = _manifest(snapshot.merged, name)
    return any(map(protection.is_protected, objects)) or Key(*name.split("/")) in state.protected


def _release(
    wanted: Mapping[Root, dict[str, Folder]],
    built: BuildResult,
    state: ManagementState,
    snapshot: Snapshot,
    source: Source,
) -> list[Skipped]:
    """Release clusters whose removal is confirmed: lift their protection, and report that the removal follows.

    A change that is not merged lifts nothing: it must not carry the removal, too.
    """
    snapshot = snapshot.merged
    removed = _gone(built, source, snapshot)
    released = []
    for name in sorted(_confirmed(removed, state, snapshot)):
        if _is_waiting(name, state, snapshot):
            namespace, _, _ = name.partition("/")
            released_files = files.released_files(_manifest(snapshot, name), namespace)
            wanted[MANIFEST_ROOT][name] = ownership.folder(released_files, source.name)
            why = "its protection is lifted; confirm again and sync once Fleet has applied that"
            if state.live:
                why = "its protection is lifted; it is removed once Fleet has applied that"
            released.append(Skipped(f"{files.MANIFESTS}/{name}", why))
    return released


def _release_pools(
    wanted: Mapping[Root, dict[str, Folder]], built: BuildResult, state: ManagementState, snapshot: Snapshot
) -> list[Skipped]:
    """Release MachineDeployments without machines that are no longer defined, while what Fleet reads protects them."""
    why = "its protection is lifted; sync again once that is applied"
    if state.live:
        why = "its protection is lifted; the next commit removes it"
    released = []
    for key, emptied in sorted(built.emptied.items()):
        guarded = {
            obj["metadata"]["name"]
            for obj in filter(is_pool, existing(snapshot.merged, key))
            if protection.is_protected(obj)
        }
        waiting = [pool for pool in emptied.pools if pool["metadata"]["name"] in guarded]
        if waiting:
            wanted[MANIFEST_ROOT][str(key)] = emptied.release
            released += [Skipped(pool_path(key, pool), why) for pool in waiting]
    return released


def _same(one: ClusterFacts, other: ClusterFacts) -> bool:
    """Whether facts are made of the very same objects; caches replace an object when it changes."""
    return (
        one.cluster is other.cluster
        and one.harvester_cluster is other.harvester_cluster
        and one.control_plane is other.control_plane
        and one.fleet_clusters == other.fleet_clusters
    )
