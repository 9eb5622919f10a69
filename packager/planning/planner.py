"""Plans the content of a repository, for the command line and the controller alike.

A plan is a pure function of the repository (`Snapshot`), the state of clusters (`ManagementState`)
and the cluster definitions (`Source`). The planner writes nothing, so that a plan can be shown,
committed, or computed again after another client's push. Who commits a plan, and why an empty plan
makes no commit, says `packager.planning.commitplan`.

A cluster has bundles as soon as it has a manifest. They follow from its definition until the
Cluster exists, and from then on from the live Cluster as it will be once its manifest has been
applied. So a changed definition changes manifest and bundles in one commit, and the Cluster that
follows later renders to the same bytes and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from packager.contents import move_marker
from packager.contents.folders import compare_folders
from packager.contents.uninstall import add_release_ids, policies_of, staging
from packager.definitions import files, ownership, statusfile
from packager.definitions.builder import Builder
from packager.definitions.source import Source
from packager.git.pruning import Pruning
from packager.git.snapshot import Snapshot
from packager.planning import commit_summary
from packager.planning.appliedclusters import AppliedClusters
from packager.planning.removals import Removals
from packager.planning.state import Draft, ManagementState, Planned, find_unfit
from packager.rendering.bundler import Bundler
from packager.tree import CLUSTER_ROOT, CLUSTERS
from packager.upgrade import rollout, rolloutfile
from packager.upgrade.decision import Observed, decide


class Planner:
    """Plans commits, and remembers rendered and built clusters, so that only changes cost time.

    Not thread-safe. `namespace` limits the clusters to plan for, empty for all.
    """

    def __init__(
        self,
        bundler: Bundler,
        builder: Builder | None = None,
        max_prune: int = 0,
        namespace: str = "",
    ) -> None:
        self._bundler = bundler
        self._builder = builder
        self._max_prune = max_prune
        self._namespace = namespace
        self._applied_clusters = AppliedClusters()

        # Each phase needs the results of earlier phases in the draft.
        self._phases: tuple[Callable[[Draft], None], ...] = (
            self._build_definitions,
            self._render_bundles,
            self._collect_folders,
            self._limit_removals,
            self._lift_protection,
            self._keep_moved_clusters,
            self._compare_files,
            self._report_removals,
            self._summarize,
        )

    def plan(
        self, snapshot: Snapshot, state: ManagementState, source: Source | None = None
    ) -> Planned:
        """Return the plan that makes a repository follow state and source. Raises `CorruptClone`.

        Without a source the definitions are unknown, and manifests stay as they are. The commit of
        a wave has no other change, so it is planned when nothing else is to be committed.
        """
        planned = self._plan(snapshot, state, source)
        if state.upgrade is None:
            return planned
        if not planned.plan.is_empty:
            # Report how far the upgrade is, and leave its next step to a later commit.
            decision = decide(snapshot, state.upgrade, state.facts, self._bundler.renderer.table)
            return replace(planned, waves=replace(decision, step=None))
        return self._plan_upgrade(planned, snapshot, state, state.upgrade, source)

    def _plan_upgrade(
        self,
        planned: Planned,
        snapshot: Snapshot,
        state: ManagementState,
        observed: Observed,
        source: Source | None,
    ) -> Planned:
        """Return the commit of the upgrade in waves, or `planned` with a decision.

        :param planned: the plan without the upgrade, which is empty
        :param snapshot: the repository
        :param state: state of clusters
        :param observed: observations that the upgrade depends on
        :param source: the cluster definitions, None if they are unknown
        """
        table = self._bundler.renderer.table

        def plan_step(left_out: rollout.LeftOut) -> Planned:
            """Return the plan of the next step, without the clusters in `left_out`."""
            decision = decide(snapshot, observed, state.facts, table, left_out)
            step = decision.step
            if step is None:
                return replace(planned, waves=decision)

            upgraded = self._plan(snapshot, replace(state, pins=step.pins), source)
            if not step.rollout.is_active:
                # The step reverts a wave. Clusters whose bundles cannot be changed keep the new
                # versions, and are noted.
                step = rollout.note_unreverted(step, find_unfit(upgraded, step.pins))

            status = {observed.status_file: rolloutfile.serialize(step.rollout)}
            request = (observed.file,) if decision.ends_request else ()
            plan = replace(
                upgraded.plan,
                write={**upgraded.plan.write, **status},
                delete=(*upgraded.plan.delete, *request),
                why=step.why,
            )
            return replace(upgraded, plan=plan, waves=replace(decision, step=step))

        def unfit_for_step(upgraded: Planned) -> rollout.LeftOut:
            """Return the clusters of a planned wave that cannot be upgraded."""
            step = upgraded.waves.step
            if step is None or not step.rollout.is_active:
                # A revert gives back as many versions as possible, and leaves out no cluster.
                return {}
            return find_unfit(upgraded, step.pins)

        return rollout.leave_out_unfit(plan_step, unfit_for_step)

    def _plan(self, snapshot: Snapshot, state: ManagementState, source: Source | None) -> Planned:
        """Run all phases, and return the plan without a new wave."""
        draft = Draft(snapshot, state, source)
        for phase in self._phases:
            phase(draft)
        return Planned(draft.batch, draft.built, draft.plan)

    # Phases, in this order

    def _build_definitions(self, draft: Draft) -> None:
        """Build the objects of the definitions. Leaves `built` and `removals`."""
        if self._builder is None or draft.source is None:
            return
        state = draft.state
        draft.built = self._builder.build(draft.source, draft.snapshot)
        draft.removals = Removals(
            built=draft.built,
            source=draft.source,
            snapshot=draft.snapshot,
            live=state.live,
            confirmed=state.confirmed,
            protected=state.protected,
            waited=state.waited,
            namespace=self._namespace,
        )

    def _render_bundles(self, draft: Draft) -> None:
        """Render the clusters of the state; `built` changes live ones. Leaves `batch`."""
        facts = draft.state.facts
        if draft.state.live:
            facts = tuple(
                self._applied_clusters.predict(cluster, draft.snapshot, draft.built)
                for cluster in facts
            )
        draft.batch = self._bundler.render(facts, draft.snapshot.tree, draft.state.pins)
        if draft.state.live:
            live = {cluster.key for cluster in draft.state.facts}
            self._bundler.forget(live)
            self._applied_clusters.forget(live)

    def _collect_folders(self, draft: Draft) -> None:
        """Collect all folders that the repository should hold, from `built` and `batch`.

        The bundles of an existing cluster follow from the Cluster, not from its definition. Leaves
        `folders`, which are copied from `built` because later phases change them.
        """
        state = draft.state
        built = draft.built
        if built:
            draft.folders = {root: dict(folders) for root, folders in built.wanted.items()}
        if built and not state.live:
            return

        existing_names = {str(key) for key in (*state.keep, *(facts.key for facts in state.facts))}
        prefix = f"{self._namespace}/" if self._namespace else ""
        defined_only = {
            name: folder
            for name, folder in draft.folders.get(CLUSTER_ROOT, {}).items()
            if name not in existing_names and name.startswith(prefix)
        }
        draft.folders[CLUSTER_ROOT] = defined_only | self._bundler.folders(draft.batch)

    def _limit_removals(self, draft: Draft) -> None:
        """Limit removals according to `removals` and `batch`. Leaves `pruning`.

        The caller's limits take precedence, then the limits that follow from the definitions. If
        the state is live, `_limit_bundle_removals` adds what live clusters need.
        """
        state = draft.state
        unchanged = draft.batch.unchanged_folders
        if state.pruning:
            draft.pruning = replace(state.pruning, keep={*state.pruning.keep, *unchanged})
            return

        pruning = Pruning(complete=True, budget=self._max_prune)
        if draft.removals:
            pruning = draft.removals.pruning(self._max_prune)
        draft.pruning = self._limit_bundle_removals(draft, pruning) if state.live else pruning

    def _limit_bundle_removals(self, draft: Draft, pruning: Pruning) -> Pruning:
        """Return limits that also allow the removal of bundles of deleted live clusters.

        Bundles stay while their Cluster exists, and while the repository has a manifest of the
        cluster whose removal is not confirmed.
        """
        state = draft.state
        # Manifests are in scope as before. Bundles are in scope even without a definition, because
        # clusters that were created without one have bundles, too.
        manifests = {
            folder for folder in pruning.scope or () if folder.startswith(f"{files.MANIFESTS}/")
        }
        with_object = {f"{CLUSTERS}/{key}" for key in state.keep | state.incomplete}
        with_manifest = {
            f"{CLUSTERS}/{name}"
            for name in ownership.clusters(draft.snapshot)
            if f"{files.MANIFESTS}/{name}" not in pruning.confirmed
        }
        unchanged = draft.batch.unchanged_folders
        return replace(
            pruning,
            scope=manifests | self._bundles(draft.snapshot),
            keep={*pruning.keep, *with_object, *with_manifest, *unchanged},
            deleted={f"{CLUSTERS}/{key}" for key in state.deleted},
        )

    def _lift_protection(self, draft: Draft) -> None:
        """Put manifests without protection into `folders` for removals. Leaves `waiting`.

        Needs `built` and `removals`. Without definitions, no protection is lifted. `waiting` also
        has the removals that must not happen: of pools with machines, and of clusters that no
        source has claimed.
        """
        if draft.built is None or draft.removals is None:
            return
        draft.waiting += draft.built.staying_pools
        draft.waiting += draft.removals.release_pools(draft.folders)
        draft.waiting += draft.removals.unclaimed_manifests()
        # If a file cannot be read, a missing definition need not be a removed one.
        if draft.removals.source.complete:
            draft.waiting += draft.removals.release_clusters(draft.folders)

    def _keep_moved_clusters(self, draft: Draft) -> None:
        """Keep bundles of clusters that may run elsewhere. Leaves `moved`, and adds to `pruning`.

        Needs all `folders`, because a cluster that has bundles again is not moved.
        """
        if not draft.state.live:
            return
        removable = self._bundles(draft.snapshot) - {*draft.pruning.keep}
        removable -= {f"{CLUSTERS}/{name}" for name in draft.folders[CLUSTER_ROOT]}
        marked_now = {f"{CLUSTERS}/{key}" for key in draft.state.moved}
        draft.moved = move_marker.moved_folders(removable, marked_now, draft.snapshot)
        draft.pruning = replace(draft.pruning, keep={*draft.pruning.keep, *draft.moved})

    def _compare_files(self, draft: Draft) -> None:
        """Compare `folders` with the snapshot. Leaves `plan`. Raises `CorruptClone`.

        The plan has only removals that `pruning` allows, and of no bundle that Fleet cannot
        uninstall yet.
        """
        policies = {}
        if draft.built:
            policies = {str(key): policy for key, policy in draft.built.uninstall.items()}
        policies |= policies_of(draft.batch.rendered)

        stage = staging(policies, draft.snapshot, draft.state.uninstallable)
        plan = compare_folders(draft.snapshot, draft.folders, draft.pruning, stage)
        draft.plan = add_release_ids(plan, draft.snapshot)

    def _report_removals(self, draft: Draft) -> None:
        """Add the marks of `moved`, the status file, and all skipped removals to `plan`."""
        plan = move_marker.add_marks(draft.plan, draft.moved, draft.snapshot)
        plan = replace(plan, held=(*plan.held, *draft.waiting))
        if draft.built and draft.removals:
            source = draft.removals.source
            plan = statusfile.add_status(plan, draft.built, draft.snapshot, source.name)
            # These come after the status file, which does not list clusters of other sources.
            plan = replace(plan, held=(*plan.held, *draft.removals.confirmed_elsewhere()))
        draft.plan = plan

    def _summarize(self, draft: Draft) -> None:
        """Give `plan` the subject and details of its commit."""
        draft.plan = commit_summary.summarize(draft.plan, draft.snapshot)

    def _bundles(self, snapshot: Snapshot) -> set[str]:
        """Return the bundle folders of all clusters in the planner's namespace."""
        folders = set()
        for namespace, outer in snapshot.entries(CLUSTERS).items():
            if not outer.is_folder or namespace != (self._namespace or namespace):
                continue
            for name in snapshot.entries(f"{CLUSTERS}/{namespace}"):
                folders.add(f"{CLUSTERS}/{namespace}/{name}")
        return folders
