"""Causes and their consequences: which conditions and problems only repeat another one. Pure, for all commands.

An outage of Harvester, or a token that expired, shows in the HarvesterCluster, in each machine, and in each cluster
that uses the same identity. It is one cause, and is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from caphv.api.names import Reason
from overview.model import Cluster, Condition, Overview, Problem, Severity, SharedCause

# What a machine reports in place of its own state while its HarvesterCluster has one of these problems.
OUTAGES = frozenset(
    {
        Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
        Reason.HARVESTER_UNREACHABLE,
        Reason.HARVESTER_CONNECTION_FAILED,
        Reason.HARVESTER_AUTHENTICATION_FAILED,
    }
)
_OF_IDENTITIES = frozenset({Reason.HARVESTER_AUTHENTICATION_FAILED, Reason.IDENTITY_EXPIRED, Reason.IDENTITY_EXPIRING})
_OF_HARVESTERS = frozenset({Reason.HARVESTER_UNREACHABLE})
# What the message of an outage says of one cluster.
_LAST_KNOWN = "; last known to be ready"


def repeats(problem: Problem, condition: Condition) -> bool:
    """Whether a condition, of whichever object of the same cluster, says the same as a problem."""
    if condition.good:
        return False
    if problem.reason in OUTAGES | _OF_IDENTITIES and condition.reason in OUTAGES:
        return True
    message = " ".join(condition.message.split())
    return bool(problem.cause and problem.cause in message) or (message != "" and message == problem.cause)


def visible_conditions(
    conditions: Iterable[Condition], owners: frozenset[str], problems: Sequence[Problem]
) -> list[Condition]:
    """Return the conditions of an object that say something: those that repeat a problem only where it is.

    :param conditions: of the object, and of what is shown with it
    :param owners: the names of these objects, as problems have them
    :param problems: of the cluster
    """
    found = list(conditions)
    hidden: set[int] = set()
    reported: set[int] = set()
    for place in sorted(range(len(found)), key=lambda place: not _is_exact(found[place], problems)):
        same = {index for index, problem in enumerate(problems) if repeats(problem, found[place])}
        here = {index for index in same if owners.intersection(problems[index].objects)}
        if same and not here - reported:
            hidden.add(place)
        reported |= same
    return [condition for place, condition in enumerate(found) if place not in hidden]


def with_consequences(
    problems: Iterable[Problem], objects: Sequence[tuple[tuple[str, ...], Sequence[Condition]]]
) -> tuple[Problem, ...]:
    """Return problems with the objects that only repeat them.

    :param problems: of a cluster
    :param objects: names of objects, of which the first counts, with their conditions
    """
    return tuple(
        replace(
            problem,
            consequences=tuple(
                names[0]
                for names, conditions in objects
                if not set(names).intersection(problem.objects)
                and any(repeats(problem, condition) for condition in conditions)
            ),
        )
        for problem in problems
    )


def with_causes(overview: Overview) -> Overview:
    """Return an overview with the causes that several of its clusters have in common."""
    found: dict[tuple[str, str], list[tuple[Cluster, Problem]]] = {}
    for cluster in overview.clusters:
        for problem in cluster.problems:
            if subject := subject_of(cluster, problem):
                found.setdefault((subject, problem.reason), []).append((cluster, problem))
    return replace(overview, causes=tuple(_cause(*key, places) for key, places in found.items() if len(places) > 1))


def own_problems(cluster: Cluster, causes: Iterable[SharedCause]) -> tuple[Problem, ...]:
    """Return the problems of a cluster that are not reported as a cause which it shares with others."""
    reported = {(cause.subject, cause.reason) for cause in causes}
    return tuple(
        problem for problem in cluster.problems if (subject_of(cluster, problem), problem.reason) not in reported
    )


def _cause(subject: str, reason: str, places: Sequence[tuple[Cluster, Problem]]) -> SharedCause:
    problems = [problem for _, problem in places]
    first = min(problems, key=lambda problem: problem.since)
    order = list(Severity)
    return SharedCause(
        min((problem.severity for problem in problems), key=order.index),
        subject,
        reason,
        first.cause.partition(_LAST_KNOWN)[0],
        first.next_step,
        first.since,
        tuple(str(cluster.key) for cluster, _ in places),
    )


def subject_of(cluster: Cluster, problem: Problem) -> str:
    """What a problem is about if clusters can have it in common: an identity or a Harvester. Otherwise empty."""
    if problem.reason in _OF_IDENTITIES and cluster.identity:
        return f"Secret {cluster.identity}"
    if problem.reason in _OF_HARVESTERS and cluster.harvester:
        return f"Harvester {cluster.harvester}"
    return ""


def _is_exact(condition: Condition, problems: Iterable[Problem]) -> bool:
    return any(
        condition.reason == problem.reason and " ".join(condition.message.split()) == problem.cause
        for problem in problems
    )
