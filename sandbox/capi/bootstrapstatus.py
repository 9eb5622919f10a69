"""The status of bootstrap objects, as the providers of RKE2 and K3s report it. Pure.

The conditions of RKE2 follow contract v1beta2, in which a condition that was not reported yet is
unknown. The conditions of K3s have a severity, and no reason if they are true. Neither provider
reports settings that it cannot use. Only the log of the provider has them.
"""

from __future__ import annotations

from collections.abc import Sequence

from caphv.api.object import Obj, at
from sandbox.capi.nodeconfig import Role
from sandbox.capi.resources import with_transition_times

_DATA = "DataSecretAvailable"
_CERTIFICATES = "CertificatesAvailable"
_INFRASTRUCTURE = "Waiting for Cluster status.initialization.infrastructureProvisioned to be true"


def is_done(config: Obj) -> bool:
    """Return whether a bootstrap object has its data."""
    return bool(at(config, "status", "dataSecretName"))


def waiting_status(config: Obj, cluster: Obj, contract: str) -> Obj:
    """Return the status of an object that waits for its cluster."""
    is_provisioned = at(cluster, "status", "initialization", "infrastructureProvisioned")
    if contract == "v1beta1":
        reason = "WaitingForClusterInfrastructure"
        if is_provisioned:
            reason = "WaitingForControlPlaneAvailable"
        return _v1beta1_status(config, [_condition(_DATA, "False", reason, severity="Info")])

    # RKE2's provider has no condition for the time until the control plane is initialized.
    if is_provisioned:
        return _v1beta2_status(config, [])
    return _v1beta2_status(config, [_condition(_DATA, "False", "NotAvailable", _INFRASTRUCTURE)])


def failed_status(config: Obj, role: Role, contract: str) -> Obj:
    """Return the status of an object whose settings cannot be used."""
    certificates = [_true_condition(_CERTIFICATES, contract)] if role is Role.FIRST else []
    if contract == "v1beta1":
        failure = _condition(_DATA, "False", "DataSecretGenerationFailed", severity="Warning")
        return _v1beta1_status(config, [*certificates, failure])
    return _v1beta2_status(config, certificates)


def done_status(config: Obj, role: Role, contract: str) -> Obj:
    """Return the status of an object that has its data."""
    data = _true_condition(_DATA, contract)
    certificates = _true_condition(_CERTIFICATES, contract)
    fields = {
        "dataSecretName": config["metadata"]["name"],
        "observedGeneration": config["metadata"].get("generation", 1),
    }

    if contract == "v1beta1":
        conditions = [certificates, data] if role is Role.FIRST else [data]
        return {**_v1beta1_status(config, conditions), **fields, "ready": True}
    initialization = {"dataSecretCreated": True}
    return {
        **_v1beta2_status(config, [certificates, data]),
        **fields,
        "initialization": initialization,
    }


def _v1beta2_status(config: Obj, conditions: Sequence[Obj]) -> Obj:
    """Return the conditions with their summary. A missing condition counts as unknown."""
    by_type = {entry["type"]: entry for entry in conditions}
    messages = []
    for kind in (_DATA, _CERTIFICATES):
        if kind not in by_type:
            messages.append(f"* {kind}: Condition not yet reported")
        elif by_type[kind]["status"] != "True":
            messages.append(f"* {kind}: {by_type[kind]['message']}")

    if any(entry["status"] == "False" for entry in conditions):
        ready = _condition("Ready", "False", "NotReady", "\n".join(messages))
    elif messages:
        ready = _condition("Ready", "Unknown", "ReadyUnknown", "\n".join(messages))
    else:
        ready = _condition("Ready", "True", "Ready")
    return {"conditions": with_transition_times(config, [ready, *conditions])}


def _v1beta1_status(config: Obj, conditions: Sequence[Obj]) -> Obj:
    """Return the conditions with their summary, which copies the first false condition."""
    ready = {"type": "Ready", "status": "True"}
    for condition in conditions:
        if condition["status"] != "True":
            ready = {**condition, "type": "Ready"}
            break
    return {"conditions": with_transition_times(config, [ready, *conditions])}


def _true_condition(kind: str, contract: str) -> Obj:
    if contract == "v1beta1":
        return {"type": kind, "status": "True"}
    return _condition(kind, "True", "Available")


def _condition(
    kind: str, status: str, reason: str, message: str = "", *, severity: str = ""
) -> Obj:
    extra = {"severity": severity} if severity else {}
    return {"type": kind, "status": status, "reason": reason, "message": message, **extra}
