"""Separate causes from consequences: conditions and problems that only repeat another one.

An outage of Harvester, or an expired token, appears in the HarvesterCluster, in each machine, and
in each cluster that uses the same identity. It is one cause, and is reported once. So is a Git
repository that the packager cannot write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from caphv.api.identities import secret_name
from caphv.api.names import Reason
from operations.status.model import Cluster, Condition, Overview, Problem, Severity, SharedCause

# A machine reports one of these reasons instead of its own state while its HarvesterCluster has
# the problem.
OUTAGES = frozenset(
    {
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        Reason.HARVESTER_UNREACHABLE,
        Reason.HARVESTER_CONNECTION_FAILED,
        Reason.HARVESTER_AUTHENTICATION_FAILED,
    }
)
_OF_IDENTITIES = frozenset(
    {Reason.HARVESTER_AUTHENTICATION_FAILED, Reason.IDENTITY_EXPIRED, Reason.IDENTITY_EXPIRING}
)
HOSTS_NOT_READY = "HostsNotReady"
"""Reason of a note on hosts of a Harvester that run no machine of the cluster."""
_OF_HARVESTERS = frozenset({Reason.HARVESTER_UNREACHABLE, HOSTS_NOT_READY})
# A packager writes the bundles of many clusters into one repository.
_PACKAGER = "packager"
_HARVESTER = "Harvester "
_PARKED = frozenset({"Parked", Reason.PARKING, Reason.RESUMING})
# The message of an outage ends with this text, which is about a single cluster.
_LAST_KNOWN = "; last known to be ready"


class ObjectConditions(NamedTuple):
    """The conditions of an object, and the names by which problems refer to it.

    The first name is the one that is reported.
    """

    names: tuple[str, ...]
    conditions: tuple[Condition, ...]


class _CauseKey(NamedTuple):
    """What problems of several clusters have in common if they have one cause.

    `text` is empty except for a packager: a management cluster may have several packagers, each
    with a repository of its own.
    """

    subject: str
    reason: str
    text: str


class _Occurrence(NamedTuple):
    """A shared problem in one of its clusters."""

    cluster: Cluster
    problem: Problem


def standstill(problems: Iterable[Problem]) -> Problem | None:
    """Return the problem that a cluster is parked or paused; None for one that is reconciled.

    Its conditions are those of the time before, so they say nothing about the cluster now.
    """
    for problem in problems:
        is_paused = problem.reason == "Paused" and problem.severity is Severity.NOTE
        # If only the HarvesterCluster is paused, the machines are still reconciled.
        if is_paused and any(name.startswith("Cluster/") for name in problem.objects):
            return problem
        if problem.reason in _PARKED:
            return problem
    return None


def repeats(problem: Problem, condition: Condition) -> bool:
    """Whether a condition, of any object of the same cluster, says the same as a problem."""
    if condition.good:
        return False
    if standstill((problem,)):
        return True
    # In an outage, machines report one of these reasons instead of their own state.
    if problem.reason in OUTAGES | _OF_IDENTITIES and condition.reason in OUTAGES:
        return True
    # The core quotes messages of other objects within its own.
    message = " ".join(condition.message.split())
    return problem.cause != "" and problem.cause in message


def visible_conditions(
    conditions: Iterable[Condition], owners: frozenset[str], problems: Sequence[Problem]
) -> list[Condition]:
    """Return the conditions of an object without those that repeat a problem of another object.

    :param conditions: the conditions of the object, and of objects shown with it
    :param owners: the names by which problems refer to these objects
    :param problems: the problems of the cluster
    """
    cause = standstill(problems)
    if cause is None:
        return _without_repetitions(tuple(conditions), owners, problems)

    # What was wrong before the standstill is still reported; all else follows from the standstill.
    wrong = [problem for problem in problems if problem is not cause and problem.severity.wrong]
    relevant = [
        condition
        for condition in conditions
        if condition.good or any(repeats(problem, condition) for problem in wrong)
    ]
    return _without_repetitions(relevant, owners, wrong)


def _without_repetitions(
    conditions: Sequence[Condition], owners: frozenset[str], problems: Sequence[Problem]
) -> list[Condition]:
    """Return the conditions that do not only repeat a problem.

    Hide a condition if each problem that it repeats belongs to another object, or was shown by an
    earlier condition. A condition with the exact text of a problem counts as earlier than others,
    so that this text stays visible.
    """
    hidden: set[int] = set()
    shown: set[Problem] = set()
    exact_first = sorted(
        enumerate(conditions), key=lambda numbered: not _is_exact(numbered[1], problems)
    )
    for index, condition in exact_first:
        repeated = {problem for problem in problems if repeats(problem, condition)}
        owned = {problem for problem in repeated if owners.intersection(problem.objects)}
        if repeated and owned <= shown:
            hidden.add(index)
        shown |= repeated
    return [condition for index, condition in enumerate(conditions) if index not in hidden]


def with_consequences(
    problems: Iterable[Problem], objects: Sequence[ObjectConditions]
) -> tuple[Problem, ...]:
    """Return the problems of a cluster with the objects of the cluster that only repeat them."""

    def find_consequences(problem: Problem) -> Iterator[str]:
        for obj in objects:
            if set(obj.names).intersection(problem.objects):
                continue
            if any(repeats(problem, condition) for condition in obj.conditions):
                yield obj.names[0]

    return tuple(
        replace(problem, consequences=tuple(find_consequences(problem))) for problem in problems
    )


def with_causes(overview: Overview) -> Overview:
    """Return an overview with the causes that several of its clusters have in common."""
    occurrences: dict[_CauseKey, list[_Occurrence]] = {}
    for cluster in overview.clusters:
        for problem in cluster.problems:
            if key := _shared_key(cluster, problem):
                occurrences.setdefault(key, []).append(_Occurrence(cluster, problem))

    causes = tuple(_cause(key, shared) for key, shared in occurrences.items() if len(shared) > 1)
    return replace(overview, causes=causes)


def own_problems(cluster: Cluster, causes: Iterable[SharedCause]) -> tuple[Problem, ...]:
    """Return the problems that a cluster does not share with other clusters."""
    reported = {
        _CauseKey(cause.subject, cause.reason, cause.cause if cause.subject == _PACKAGER else "")
        for cause in causes
    }
    return tuple(
        problem for problem in cluster.problems if _shared_key(cluster, problem) not in reported
    )


def _shared_key(cluster: Cluster, problem: Problem) -> _CauseKey | None:
    """Return the key by which problems of several clusters are grouped; None if not shared."""
    if problem.reason == Reason.ADDON_BUNDLES_NOT_PUSHED:
        return _CauseKey(_PACKAGER, problem.reason, problem.cause)
    subject = shared_subject(cluster, problem)
    return _CauseKey(subject, problem.reason, "") if subject else None


def _cause(key: _CauseKey, occurrences: Sequence[_Occurrence]) -> SharedCause:
    """Return the cause that these problems of clusters have in common."""
    problems = [occurrence.problem for occurrence in occurrences]
    first = min(problems, key=lambda problem: problem.since)
    order = list(Severity)
    cause = first.cause.partition(_LAST_KNOWN)[0]
    if key.subject.startswith(_HARVESTER):
        # The subject already names the server.
        cause = cause.replace(f"{key.subject.removeprefix(_HARVESTER)}: ", "", 1)

    return SharedCause(
        severity=min((problem.severity for problem in problems), key=order.index),
        subject=key.subject,
        reason=key.reason,
        cause=cause,
        next_step=first.next_step,
        since=first.since,
        clusters=tuple(str(occurrence.cluster.key) for occurrence in occurrences),
    )


def shared_subject(cluster: Cluster, problem: Problem) -> str:
    """Return the identity or Harvester of a problem; empty if clusters cannot share the problem."""
    if problem.reason in _OF_IDENTITIES and cluster.identity:
        return f"Secret {secret_name(cluster.identity)}"
    if problem.reason in _OF_HARVESTERS and cluster.harvester:
        return f"{_HARVESTER}{cluster.harvester}"
    return ""


def _is_exact(condition: Condition, problems: Iterable[Problem]) -> bool:
    """Whether a condition has the text of a problem, perhaps with advice at its end."""
    message = " ".join(condition.message.split())
    return any(
        condition.reason == problem.reason and message.startswith(problem.cause)
        for problem in problems
    )
