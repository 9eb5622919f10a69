"""Commits plans to a repository or a folder, and logs their changes.

Three steps decide whether there is a commit:

1. `Planner.plan` compares the content that the clusters need with the content of the repository.
   `Plan.is_empty` is true if nothing differs.
2. `commit_plan` hands that plan to the store.
3. The store (`Repository.commit`) commits each plan that is not empty, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from packager.definitions.source import Source
from packager.git.changeplan import Plan
from packager.git.commit import Reason
from packager.git.history import Change
from packager.git.result import Result
from packager.git.snapshot import Snapshot
from packager.planning.planner import Planner
from packager.planning.state import ManagementState, Planned
from packager.rendering.bundler import Batch

log = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_SUBJECT_LENGTH = 100


class Store(Protocol):
    """A place to write plans to: a `Repository` or a `Directory`."""

    def sync(self) -> Snapshot: ...  # noqa: D102
    def read(self, call: Callable[[Snapshot], T]) -> T: ...  # noqa: D102
    def commit(self, plan: Callable[[Snapshot], Plan], reason: Reason) -> Result: ...  # noqa: D102
    def last_change(self, path: str) -> Change | None: ...  # noqa: D102


class Committed(NamedTuple):
    """The plan that a store committed, with everything it was computed from, and the commit."""

    planned: Planned
    result: Result


def commit_plan(
    store: Store,
    planner: Planner,
    state: ManagementState,
    source: Source | None = None,
    *,
    reason: Reason | None = None,
    check: Callable[[], None] = lambda: None,
) -> Committed:
    """Plan the content of a store, and commit the plan unless it is empty. Raises `GitError`.

    When another client pushes first, the store calls the planner again for the newer snapshot.

    :param store: the place to write the plan to
    :param planner: computes the plan
    :param state: state of clusters
    :param source: the cluster definitions, None if they are unknown
    :param reason: the reason for the commit, by default the reason in the state
    :param check: called before each plan; stops the commit by raising
    """
    # The store takes only the changes of files, so keep the rest of its last plan here.
    # The initial value is never returned, because each store plans at least once.
    planned = Planned(Batch(), None, Plan())

    def plan(snapshot: Snapshot) -> Plan:
        nonlocal planned
        check()
        planned = planner.plan(snapshot, state, source)
        return planned.plan

    result = store.commit(plan, reason or Reason(state.why))
    return Committed(planned, log_result(result))


def definitions_reason(origin: str, message: str = "") -> Reason:
    """Return the reason for a commit that follows definitions.

    :param origin: the commit of the source that changed the definitions
    :param message: the message of that commit, of which the reason quotes the subject
    """
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
