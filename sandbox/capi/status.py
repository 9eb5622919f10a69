"""The status of a control plane, which the core's topology controller waits for. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from caphv.api.object import Obj, being_deleted
from sandbox.capi.plan import Create, Delete, Member, Step, Wait
from sandbox.capi.resources import condition, merged_conditions


def status_of(
    control_plane: Obj, machines: Sequence[Obj], members: Sequence[Member], step: Step, joinable: bool
) -> Obj:
    """The status, merged into the previous one; `joinable`: a control plane Node is ready."""
    before = control_plane.get("status") or {}
    was = before.get("initialized") or (before.get("initialization") or {}).get("controlPlaneInitialized")
    initialized = joinable or bool(was)
    found: Obj = {
        "replicas": len(machines),
        "readyReplicas": _count(machines, "Ready"),
        "availableReplicas": _count(machines, "Available"),
        "upToDateReplicas": sum(member.current for member in members),
        "observedGeneration": control_plane["metadata"].get("generation", 0),
        "conditions": merged_conditions(
            control_plane, _conditions(control_plane, members, step, initialized=initialized)
        ),
    }
    if initialized:
        found["initialization"] = {"controlPlaneInitialized": True}
        versions = [machine["spec"]["version"] for machine in machines]
        if versions:
            found["version"] = min(versions, key=version_order)
    return {**before, **found}


def in_contract_v1beta1(status: Obj) -> Obj:
    """The same status with the fields of contract v1beta1."""
    found = dict(status)
    initialization = found.pop("initialization", None) or {}
    available, up_to_date = found.pop("availableReplicas"), found.pop("upToDateReplicas")
    return {
        **found,
        "initialized": bool(initialization.get("controlPlaneInitialized")),
        "ready": any(c["type"] == "Available" and c["status"] == "True" for c in found["conditions"]),
        "updatedReplicas": up_to_date,
        "unavailableReplicas": max(0, found["replicas"] - available),
    }


def version_order(version: str) -> tuple[int, ...]:
    """Orders `v1.36.3+rke2r1` and the like."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _conditions(control_plane: Obj, members: Sequence[Member], step: Step, *, initialized: bool) -> list[Obj]:
    desired = control_plane["spec"].get("replicas", 1)
    waiting = step.reason if isinstance(step, Wait) else ""
    outdated = sum(not member.current for member in members)
    working = sum(member.ready for member in members)
    available = initialized and working > len(members) // 2
    remediating = any(member.unhealthy for member in members) or (isinstance(step, Delete) and step.remediation)
    deleting = being_deleted(control_plane)
    size = f"{len(members)} of {desired} machines"
    return [
        _condition("Available", available, f"{working} of {len(members)} machines are ready"),
        _condition("Initialized", initialized, "" if initialized else "no control plane Node is ready yet"),
        _condition("RollingOut", outdated > 0, f"{outdated} machines are not up to date" if outdated else ""),
        _condition("ScalingUp", len(members) < desired or isinstance(step, Create), f"{size}; {waiting}"),
        _condition("ScalingDown", len(members) > desired or deleting, f"{size}; {waiting}"),
        _condition("Remediating", remediating, waiting if remediating else ""),
        _condition("Deleting", deleting, waiting if deleting else ""),
        _condition("Paused", False, ""),
    ]


def _count(machines: Sequence[Obj], kind: str) -> int:
    return sum(condition(machine, kind) == "True" for machine in machines)


def _condition(kind: str, holds: bool, message: str) -> Obj:
    reason = kind if holds else f"Not{kind}"
    return {"type": kind, "status": str(holds), "reason": reason, "message": message.rstrip("; ")}
