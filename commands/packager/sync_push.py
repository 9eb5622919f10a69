"""Push the commit of `caphv packager sync`, and delete removed clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from commands.errors import InputError
from commands.packager import management

if TYPE_CHECKING:
    from commands.packager.sync import SyncOptions
    from packager.definitions.apply import ApplyFailure
    from packager.definitions.source import Source
    from packager.git.changeplan import Plan
    from packager.git.commit import Reason
    from packager.git.result import Result
    from packager.git.snapshot import Snapshot
    from packager.planning.commitplan import Store
    from packager.planning.planner import Planner
    from packager.planning.state import Planned


def push(
    source: Source, reason: Reason, store: Store, planner: Planner, options: SyncOptions
) -> tuple[Planned, Result, list[ApplyFailure]]:
    """Push the files that the definitions produce.

    With `--apply`, clusters whose definition was removed are deleted after the push. Return the
    plan, the commit, and refusals of the management cluster. Raises `InputError`.

    A removed definition is forgotten after the push, so it must stay in the repository while its
    Cluster cannot be deleted. That is why the server is asked by a dry run before the push. The
    deletion itself follows the push, because a push may be rejected.
    """
    from packager.git.errors import GitError
    from packager.git.result import Result
    from packager.planning.commitplan import log_result
    from packager.planning.state import ManagementState

    state = ManagementState(confirmed=options.confirmed, live=False)
    if options.message:
        reason = replace(reason, why=options.message)

    if options.dry_run:
        planned = planner.plan(store.sync(), state, source)
        return planned, Result(planned.plan, "", ""), []
    # A push that finds other commits plans again, so that only the last plan is pushed.
    plans: list[Planned] = []
    failures: list[ApplyFailure] = []

    def removed_clusters() -> list[str]:
        return _removed_clusters(plans[-1].plan) if plans and options.applied else []

    def plan(snapshot: Snapshot) -> Plan:
        planned = planner.plan(snapshot, state, source)
        plans.append(planned)
        failures[:] = management.delete(options, removed_clusters(), dry_run=True)
        if failures:
            without = planner.plan(snapshot, state, replace(source, complete=False))
            plans.append(replace(without, plan=_hold(without.plan, planned.plan)))

        if options.applied:
            remaining, refused = management.drop(options, plans[-1].plan, snapshot)
            plans.append(replace(plans[-1], plan=remaining))
            failures.extend(refused)
        return plans[-1].plan

    try:
        result = log_result(store.commit(plan, reason))
    except GitError as error:
        outcome = management.after_failure(options, store, removed_clusters())
        raise InputError(*str(error).split("\n"), *outcome) from None
    return plans[-1], result, failures + management.delete_lost(options, removed_clusters())


def _removed_clusters(plan: Plan) -> list[str]:
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
