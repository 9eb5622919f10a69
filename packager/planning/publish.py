"""Commits plans, and logs their changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from packager.definitions.source import Source
from packager.git.commit import Reason
from packager.git.history import Change
from packager.git.prune import Plan
from packager.git.result import Result
from packager.git.snapshot import Snapshot
from packager.planning.planner import Planner
from packager.planning.state import ManagementState, Planned
from packager.rendering.bundler import Batch

log = logging.getLogger(__name__)

_MAX_SUBJECT_LENGTH = 100


class Store(Protocol):
    """A place to write plans to: a `Repository` or a `Directory`."""

    def sync(self) -> Snapshot: ...  # noqa: D102
    def commit(self, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result: ...  # noqa: D102
    def last_change(self, path: str) -> Change | None: ...  # noqa: D102


def publish(
    store: Store,
    planner: Planner,
    state: ManagementState,
    source: Source | None = None,
    *,
    reason: Reason | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Planned, Result]:
    """Make a repository match the plan in one commit, or none if it matches. Raises `GitError`.

    Plans again for the newer snapshot when another client pushed first.

    :param store: the place to write the plan to
    :param planner: computes the plan
    :param state: state of clusters
    :param source: the cluster definitions, None if they are unknown
    :param reason: the reason for the commit, by default the reason in the state
    :param check: called before each plan; stops the commit by raising
    """
    # Each attempt replaces the plan, and the last plan is committed.
    planned = Planned(Batch(), None, Plan())

    def plan(snapshot: Snapshot) -> Plan:
        nonlocal planned
        check()
        planned = planner.plan(snapshot, state, source)
        return planned.plan

    result = log_result(store.commit(plan, reason or Reason(state.why)))
    return planned, result


def definitions_reason(origin: str, message: str = "") -> Reason:
    """Return the reason for a commit that follows definitions.

    `origin` is the commit of the definitions, and `message` its message.
    """
    # Take only the subject of that message, because its body may be long.
    subject = message.strip().partition("\n")[0].strip()
    if len(subject) > _MAX_SUBJECT_LENGTH:
        subject = f"{subject[:_MAX_SUBJECT_LENGTH]}…"
    why = "Clusters follow their definitions" + (f": {subject}" if subject else ".")
    return Reason(why, {"Source": origin})


def log_result(result: Result) -> Result:
    """Log the changes of a commit, and the skipped ones, and return the result."""
    for removal in result.plan.removed:
        log.warning("removed %s", removal)
    for held in (*result.plan.held, *result.plan.refused):
        log.warning("skipped %s: %s", held.what, held.why)
    for path in result.plan.foreign:
        log.warning("%s was not written by caphv, and Fleet deploys it", path)
    if result.commit:
        log.info(
            "pushed %s to %s: %d added, %d changed, %d removed", result.commit[:12], result.branch,
            len(result.plan.added), len(result.plan.changed), len(result.plan.removed),
        )  # fmt: skip
        if result.merge_request:
            log.info("%s", result.merge_request)
    return result
