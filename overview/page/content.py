"""What the live page shows, as plain data: the model without what the page does not use, and words for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from caphv.api.names import Reason
from caphv.api.object import Key, Obj
from overview.causes import own_problems
from overview.healthchecks import Replacement
from overview.model import Cluster, Machine, Overview, Problem, Severity, SharedCause, State, as_json

_EVENTS = 30
_ADDONS = {
    Reason.ADDON_BUNDLES_IN_PROGRESS: "add-ons in progress",
    Reason.ADDON_BUNDLES_SUSPENDED: "add-ons suspended",
    Reason.ADDON_BUNDLES_INVALID: "add-on settings invalid",
    Reason.ADDON_BUNDLES_NOT_PUSHED: "add-ons not pushed",
    Reason.ADDON_BUNDLES_NOT_APPLIED: "add-ons not applied",
    Reason.ADDON_BUNDLES_MISSING: "no add-ons",
}
# Letters that stay together, as in VMIPPoolExhausted.
_WORDS = re.compile(r"API|CIDR|CNI|CSI|DNS|IP|TLS|URL|VMs|VM|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def content_of(overview: Overview, events: Iterable[Obj], replacements: Mapping[Key, Replacement]) -> dict[str, Any]:
    """Return what the page shows.

    :param overview: the clusters, their Harvesters, and the provider
    :param events: Events of the clusters' objects
    :param replacements: what health checks do about Machines
    """
    return {
        "server": overview.server,
        "clusters": [_cluster(cluster, overview.causes, replacements) for cluster in overview.clusters],
        "causes": as_json(overview.causes),
        "pools": as_json(overview.pools),
        "provider": as_json(overview.provider),
        "unseen": list(dict.fromkeys(overview.unseen)),
        "events": latest_events(events),
    }


def events_of(events: Iterable[Obj], clusters: Iterable[Cluster]) -> list[Obj]:
    """Return the Events of some clusters and their machines."""
    about: set[tuple[str, Key]] = set()
    for cluster in clusters:
        infrastructure = Key(cluster.namespace, cluster.infrastructure)
        about |= {("Cluster", cluster.key), ("HarvesterCluster", infrastructure)}
        about |= {("HarvesterMachine", Key(cluster.namespace, machine.infrastructure)) for machine in cluster.machines}
    return [event for event in events if _about(event) in about]


def latest_events(events: Iterable[Obj]) -> list[dict[str, Any]]:
    """Return the last Events, newest first, in the form of the page."""
    rows: list[dict[str, Any]] = []
    for event in events:
        series, about = event.get("series") or {}, event.get("involvedObject") or {}
        times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
        created = str(event["metadata"].get("creationTimestamp") or "")
        reason = str(event.get("reason") or "")
        rows.append(
            {
                "time": next((str(time) for time in times if time), created),
                "type": str(event.get("type") or ""),
                "reason": reason,
                "words": words(reason),
                "namespace": str(about.get("namespace") or ""),
                "object": f"{about.get('kind')}/{about.get('name')}",
                "message": str(event.get("message") or ""),
                "count": int(series.get("count") or event.get("count") or 1),
            }
        )
    return sorted(rows, key=lambda row: row["time"], reverse=True)[:_EVENTS]


def words(reason: str) -> str:
    """Return a reason in camel case as words: `VMIPPoolExhausted` is `VM IP pool exhausted`."""
    parts = _WORDS.findall(reason)
    text = " ".join(part if part.upper() == part or part == "VMs" else part.lower() for part in parts)
    return text[:1].upper() + text[1:]


def _cluster(
    cluster: Cluster, shared: Sequence[SharedCause], replacements: Mapping[Key, Replacement]
) -> dict[str, Any]:
    """Return a cluster with the problems of its own: what it shares with others is reported once."""
    names = (
        *("namespace", "name", "state", "created", "version", "versions", "endpoint"),
        "infrastructure",
    )
    causes = {name: problem for problem in reversed(cluster.problems) for name in problem.objects}
    problems = own_problems(cluster, shared)
    worst = min((problem.severity for problem in problems), key=lambda each: each.rank, default="")
    return {
        **{name: as_json(getattr(cluster, name)) for name in names},
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
    if cluster.bundles is None:
        return ""
    if cluster.bundles.status == "True":
        return "add-ons ready"
    return next((text for reason, text in _ADDONS.items() if reason == cluster.bundles.reason), "")


def _problem(cluster: Cluster, problem: Problem, replacements: Mapping[Key, Replacement]) -> dict[str, Any]:
    concerned = set(problem.objects)
    acting = [
        replacement
        for machine in cluster.machines
        if (replacement := replacements.get(Key(cluster.namespace, machine.name)))
        and concerned.intersection(_names_of(machine))
    ]
    return {
        "severity": str(problem.severity),
        "objects": list(problem.objects),
        "cause": problem.cause,
        "nextStep": "" if problem.severity is Severity.WAITING else problem.next_step,
        "since": problem.since,
        "replacedAt": min((each.at for each in acting if each.at), default=""),
        "replaced": _acts(acting),
    }


def _acts(replacements: list[Replacement]) -> str:
    if any(replacement.under_way for replacement in replacements):
        return "being replaced"
    refused = any(replacement.refused for replacement in replacements)
    return "not replaced: too many machines are unhealthy" if refused else ""


def _machine(cluster: Cluster, machine: Machine, causes: Mapping[str, Problem]) -> dict[str, Any]:
    cause = next((causes[name] for name in _names_of(machine) if name in causes), None)
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


def _appearance(cluster: Cluster, machine: Machine, cause: Problem | None) -> tuple[str, str]:
    """Return colour and text of a machine: red only where the cluster's card reports an error of it."""
    if machine.deleting:
        return "busy", "being deleted"
    if cause is not None and cause.severity is Severity.ERROR:
        return "bad", cause.cause
    if cluster.state is State.UNREACHABLE:
        return "stale", "as last seen" if machine.ready else "not ready when last seen"
    if cause is not None and cause.severity is Severity.WARNING:
        return "warn", cause.cause
    if machine.ready:
        return "ok", "ready"
    return "busy", cause.cause if cause else machine.phase.lower() or "pending"


def _names_of(machine: Machine) -> Iterator[str]:
    """Yield how problems name a machine."""
    yield from machine.owners
    if machine.node:
        yield f"Node/{machine.node.name}"


def _about(event: Obj) -> tuple[str, Key]:
    about = event.get("involvedObject") or {}
    return str(about.get("kind")), Key(str(about.get("namespace") or ""), str(about.get("name") or ""))
