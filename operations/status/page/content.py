"""Prepare the content of the live page: the part of the model that it shows, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from caphv.api.names import Reason
from caphv.api.object import Key, Obj, at
from operations.status.causes import own_problems, standstill
from operations.status.healthchecks import Replacement
from operations.status.model import (
    Cluster,
    Machine,
    Overview,
    Problem,
    Severity,
    SharedCause,
    State,
    as_json,
)

_EVENTS = 30
_ADDONS: dict[str, str] = {
    Reason.ADDON_BUNDLES_IN_PROGRESS: "add-ons in progress",
    Reason.ADDON_BUNDLES_SUSPENDED: "add-ons suspended",
    Reason.ADDON_BUNDLES_INVALID: "add-on settings invalid",
    Reason.ADDON_BUNDLES_NOT_PUSHED: "add-ons not pushed",
    Reason.ADDON_BUNDLES_NOT_APPLIED: "add-ons not applied",
    Reason.ADDON_BUNDLES_MISSING: "no add-ons",
}
_CLUSTER_FIELDS = (
    "namespace",
    "name",
    "state",
    "created",
    "version",
    "versions",
    "endpoint",
    "harvester",
    "infrastructure",
)
# Words of a reason such as VMIPPoolExhausted, whose abbreviations stay together.
_WORDS = re.compile(r"API|CIDR|CNI|CSI|DNS|IP|TLS|URL|VMs|VM|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def content_of(
    overview: Overview, events: Iterable[Obj], replacements: Mapping[Key, Replacement]
) -> dict[str, Any]:
    """Return the content of the page.

    :param overview: the clusters, their Harvesters, and the provider
    :param events: Events of the clusters' objects
    :param replacements: the reactions of health checks to Machines
    """
    return {
        "server": overview.server,
        "clusters": [
            _cluster(cluster, overview.causes, replacements) for cluster in overview.clusters
        ],
        "causes": as_json(overview.causes),
        "pools": as_json(overview.pools),
        "provider": as_json(overview.provider),
        "unseen": list(dict.fromkeys(overview.unseen)),
        "events": latest_events(events),
    }


def events_of(events: Iterable[Obj], clusters: Iterable[Cluster]) -> list[Obj]:
    """Return the Events of some clusters and their machines."""
    subjects: set[tuple[str, Key]] = set()
    for cluster in clusters:
        infrastructure = Key(cluster.namespace, cluster.infrastructure)
        subjects |= {("Cluster", cluster.key), ("HarvesterCluster", infrastructure)}
        for machine in cluster.machines:
            subjects.add(("HarvesterMachine", Key(cluster.namespace, machine.infrastructure)))
    return [event for event in events if _about(event) in subjects]


def latest_events(events: Iterable[Obj]) -> list[dict[str, Any]]:
    """Return the last Events, newest first, in the form of the page."""
    rows = sorted(map(_event_row, events), key=lambda row: row["time"], reverse=True)
    return rows[:_EVENTS]


def _event_row(event: Obj) -> dict[str, Any]:
    """Return an Event as a row of the page."""
    about = event.get("involvedObject") or {}
    reason = str(event.get("reason") or "")
    # The API and the client that recorded the Event decide which of these fields are set.
    time = (
        at(event, "series", "lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
    )

    return {
        "time": str(time or ""),
        "type": str(event.get("type") or ""),
        "reason": reason,
        "words": words(reason),
        "namespace": str(about.get("namespace") or ""),
        "object": f"{about.get('kind')}/{about.get('name')}",
        "message": str(event.get("message") or ""),
        "count": int(at(event, "series", "count") or event.get("count") or 1),
    }


def words(reason: str) -> str:
    """Return a reason in camel case as words: `VMIPPoolExhausted` is `VM IP pool exhausted`."""
    parts = _WORDS.findall(reason)
    # Abbreviations keep their upper case.
    lowered = [part if part.isupper() or part == "VMs" else part.lower() for part in parts]
    text = " ".join(lowered)
    return text[:1].upper() + text[1:]


def _cluster(
    cluster: Cluster, shared: Sequence[SharedCause], replacements: Mapping[Key, Replacement]
) -> dict[str, Any]:
    """Return a cluster with the problems that it does not share with other clusters."""
    # An object that several problems name shows the first problem.
    causes = {name: problem for problem in reversed(cluster.problems) for name in problem.objects}
    problems = own_problems(cluster, shared)
    severities = [problem.severity for problem in problems]
    worst = min(severities, key=lambda severity: severity.rank, default="")

    return {
        **{name: as_json(getattr(cluster, name)) for name in _CLUSTER_FIELDS},
        "wrong": cluster.wrong,
        "worst": str(worst),
        "addons": _addons(cluster),
        "controlPlane": as_json(cluster.control_plane),
        "workers": as_json(cluster.workers),
        "problems": [_problem(cluster, problem, replacements) for problem in problems],
        "groups": [
            {"name": group.name, "version": group.version, "replicas": as_json(group.replicas)}
            for group in cluster.groups
        ],
        "machines": [_machine(cluster, machine, causes) for machine in cluster.machines],
    }


def _addons(cluster: Cluster) -> str:
    """Return the state of a cluster's add-ons in words; empty if it is unknown."""
    if cluster.bundles is None:
        return ""
    if cluster.bundles.status == "True":
        return "add-ons ready"
    return _ADDONS.get(cluster.bundles.reason, "")


def _problem(
    cluster: Cluster, problem: Problem, replacements: Mapping[Key, Replacement]
) -> dict[str, Any]:
    """Return a problem, and the reactions of health checks to the affected machines."""
    objects = set(problem.objects)
    acting = []
    for machine in cluster.machines:
        replacement = replacements.get(Key(cluster.namespace, machine.name))
        if replacement and objects.intersection(_problem_names(machine)):
            acting.append(replacement)

    return {
        "severity": str(problem.severity),
        "objects": list(problem.objects),
        "cause": problem.cause,
        "nextStep": "" if problem.severity is Severity.WAITING else problem.next_step,
        "since": problem.since,
        "replacedAt": min((action.at for action in acting if action.at), default=""),
        "replaced": _replacement_text(acting),
    }


def _replacement_text(replacements: list[Replacement]) -> str:
    """Describe the current reactions of health checks; empty if they only wait."""
    if any(replacement.under_way for replacement in replacements):
        return "being replaced"
    refused = any(replacement.refused for replacement in replacements)
    return "not replaced: too many machines are unhealthy" if refused else ""


def _machine(cluster: Cluster, machine: Machine, causes: Mapping[str, Problem]) -> dict[str, Any]:
    """Return a machine with the colour and the text of its box.

    :param cluster: the cluster of the machine
    :param machine: the machine
    :param causes: problems by the names of affected objects
    """
    machine_causes = [causes[name] for name in _problem_names(machine) if name in causes]
    cause = machine_causes[0] if machine_causes else None
    kind, text = _appearance(cluster, machine, cause)

    return {
        "name": machine.name,
        "infrastructure": machine.infrastructure,
        "controlPlane": machine.control_plane,
        "kind": kind,
        "text": text,
        "version": machine.version,
        "addresses": list(machine.addresses),
        "host": machine.host,
        "zone": machine.zone,
    }


class _Appearance(NamedTuple):
    """The kind of a machine, which decides on its colour, and its text."""

    kind: str
    text: str


def _appearance(cluster: Cluster, machine: Machine, cause: Problem | None) -> _Appearance:
    """Return how a machine is shown: red only where the cluster's card reports its error.

    The order of the rules matters: a machine that is being deleted is not broken, and while
    Harvester does not answer, no warning about a machine is up to date.
    """
    if machine.deleting:
        return _Appearance("busy", "being deleted")
    if cause is not None and cause.severity is Severity.ERROR:
        return _Appearance("bad", cause.cause)
    if cluster.state is State.UNREACHABLE or standstill(cluster.problems):
        last_seen = "as last seen" if machine.ready else "not ready when last seen"
        return _Appearance("stale", "parked" if cluster.state is State.PARKED else last_seen)
    if cause is not None and cause.severity is Severity.WARNING:
        return _Appearance("warn", cause.cause)
    if machine.ready:
        return _Appearance("ok", "ready")
    phase = machine.phase.lower() or "pending"
    return _Appearance("busy", cause.cause if cause else phase)


def _problem_names(machine: Machine) -> Iterator[str]:
    """Yield the names by which problems refer to a machine."""
    yield from machine.owners
    if machine.node:
        yield f"Node/{machine.node.name}"


def _about(event: Obj) -> tuple[str, Key]:
    """Return kind and key of the object that an Event is about."""
    about = event.get("involvedObject") or {}
    key = Key(str(about.get("namespace") or ""), str(about.get("name") or ""))
    return str(about.get("kind")), key
