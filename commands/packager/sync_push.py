"""Push the commit of `caphv packager sync`, and delete removed clusters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from commands.errors import InputError
from commands.packager import management

if TYPE_CHECKING:
    from commands.packager.sync import SyncOptions
    from packager.contents.uninstall import Waiting
    from packager.definitions.apply import ApplyFailure
    from packager.definitions.source import Source
    from packager.git.changeplan import Plan
    from packager.git.commit import Reason
    from packager.git.result import Result
    from packager.git.snapshot import Snapshot
    from packager.planning.commitplan import Store
    from packager.planning.planner import Planner
    from packager.planning.state import ManagementState, Planned


@dataclass(frozen=True)
class Pushed:
    """The plan that was pushed, the commit, and what the management cluster refused."""

    planned: Planned
    result: Result
    failures: list[ApplyFailure]


def push(
    source: Source,
    reason: Reason,
    store: Store,
    planner: Planner,
    options: SyncOptions,
    *,
    waiting: Waiting | None = None,
) -> Pushed:
    """Push the files that the definitions produce.

    With `--apply`, clusters whose definition was removed are deleted after the push. Without
    `waiting`, the user decides when Fleet has applied what the last sync wrote. Raises
    `InputError`.

    A removed definition is forgotten after the push, so it must stay in the repository while its
    Cluster cannot be deleted. That is why the server is asked by a dry run before the push. The
    deletion itself follows the push, because a push may be rejected.
    """
    from packager.git.errors import GitError
    from packager.git.result import Result
    from packager.planning.commitplan import log_result
    from packager.planning.state import ManagementState

    state = ManagementState(
        confirmed=options.confirmed,
        live=False,
        uninstallable=waiting.uninstallable_bundles() if waiting else None,
        waited=waiting.waited() if waiting else None,
    )
    if options.dry_run:
        planned = store.read(lambda snapshot: planner.plan(snapshot, state, source))
        return Pushed(planned, Result(planned.plan, "", ""), [])

    why = replace(reason, why=options.message) if options.message else reason
    attempt = _Attempt(source, state, planner, options)
    try:
        result = log_result(store.commit(attempt.plan, why))
    except GitError as error:
        outcome = management.after_failure(options, store, attempt.removed_clusters)
        raise InputError(*str(error).split("\n"), *outcome) from None

    if attempt.planned is None:
        raise AssertionError("a commit was made without a plan")
    lost = management.delete_lost(options, attempt.removed_clusters)
    return Pushed(attempt.planned, result, attempt.failures + lost)


@dataclass
class _Attempt:
    """The planning of a push. A push that finds other commits plans again: the last plan counts.

    :param planned: the last plan; None before the first
    :param failures: what the management cluster refuses of the last plan
    """

    source: Source
    state: ManagementState
    planner: Planner
    options: SyncOptions
    planned: Planned | None = None
    failures: list[ApplyFailure] = field(default_factory=list)

    @property
    def removed_clusters(self) -> list[str]:
        """The clusters that the last plan removes, and that are to be deleted."""
        return _removed_clusters(self.planned.plan) if self.planned and self.options.applied else []

    def plan(self, snapshot: Snapshot) -> Plan:
        """Plan the commit on top of a snapshot, as far as the management cluster accepts it."""
        self.planned = self.planner.plan(snapshot, self.state, self.source)
        self.failures = management.delete(self.options, self.removed_clusters, dry_run=True)
        if self.failures:
            # An incomplete source removes no definition.
            incomplete = replace(self.source, complete=False)
            without = self.planner.plan(snapshot, self.state, incomplete)
            self.planned = replace(without, plan=_hold(without.plan, self.planned.plan))

        if self.options.applied:
            dropped = management.drop(self.options, self.planned.plan, snapshot)
            self.planned = replace(self.planned, plan=dropped.plan)
            self.failures = [*self.failures, *dropped.refused]
        return self.planned.plan


def _removed_clusters(plan: Plan) -> list[str]:
    """Return the namespaces and names of clusters whose definition a plan removes."""
    from packager.definitions.files import MANIFESTS

    removed = (removal for removal in plan.removed if removal.definition and not removal.bundle)
    return [removal.folder.removeprefix(f"{MANIFESTS}/") for removal in removed]


def _hold(plan: Plan, before: Plan) -> Plan:
    """Return a plan without removals, whose held removals have a reason."""
    removals = {str(removal) for removal in before.removed}
    reason = (
        "not all Clusters of removed definitions can be deleted: confirm again and sync once that "
        "is possible"
    )
    held = [replace(item, why=reason) if item.what in removals else item for item in plan.held]
    return replace(plan, held=tuple(held))
