"""The status of bootstrap objects, as the providers of RKE2 and K3s report it over their life. Pure.

RKE2's conditions are those of contract v1beta2: what was not reported yet is unknown. K3s's have a severity, and no
reason when true. Neither reports settings that cannot be used: that is in a provider's log only.
"""

from __future__ import annotations

from collections.abc import Sequence

from caphv.api.object import Obj
from sandbox.capi.nodeconfig import Role
from sandbox.capi.resources import merged_conditions

_DATA, _CERTIFICATES = "DataSecretAvailable", "CertificatesAvailable"
_INFRASTRUCTURE = "Waiting for Cluster status.initialization.infrastructureProvisioned to be true"


def is_done(config: Obj) -> bool:
    """Whether a bootstrap object has its data."""
    return bool((config.get("status") or {}).get("dataSecretName"))


def waiting(config: Obj, cluster: Obj, contract: str) -> Obj:
    """Status of an object that waits for its cluster."""
    provisioned = ((cluster.get("status") or {}).get("initialization") or {}).get("infrastructureProvisioned")
    if contract == "v1beta1":
        reason = "WaitingForControlPlaneAvailable" if provisioned else "WaitingForClusterInfrastructure"
        return _v1beta1(config, [_condition(_DATA, "False", reason, severity="Info")])
    return _v1beta2(config, [] if provisioned else [_condition(_DATA, "False", "NotAvailable", _INFRASTRUCTURE)])


def failed(config: Obj, role: Role, contract: str) -> Obj:
    """Status of an object whose settings cannot be used."""
    certificates = [_true(_CERTIFICATES, contract)] if role is Role.FIRST else []
    if contract == "v1beta1":
        failure = _condition(_DATA, "False", "DataSecretGenerationFailed", severity="Warning")
        return _v1beta1(config, [*certificates, failure])
    return _v1beta2(config, certificates)


def done(config: Obj, role: Role, contract: str) -> Obj:
    """Status of an object that has its data."""
    data = _true(_DATA, contract)
    generation = {"observedGeneration": config["metadata"].get("generation", 1)}
    own = {"dataSecretName": config["metadata"]["name"], **generation}
    if contract == "v1beta1":
        certificates = [_true(_CERTIFICATES, contract)] if role is Role.FIRST else []
        return {**_v1beta1(config, [*certificates, data]), **own, "ready": True}
    conditions = _v1beta2(config, [_true(_CERTIFICATES, contract), data])
    return {**conditions, **own, "initialization": {"dataSecretCreated": True}}


def _v1beta2(config: Obj, conditions: Sequence[Obj]) -> Obj:
    known = {entry["type"]: entry for entry in conditions}
    messages = []
    for kind in (_DATA, _CERTIFICATES):
        if kind not in known:
            messages.append(f"* {kind}: Condition not yet reported")
        elif known[kind]["status"] != "True":
            messages.append(f"* {kind}: {known[kind]['message']}")
    if any(entry["status"] == "False" for entry in conditions):
        ready = _condition("Ready", "False", "NotReady", "\n".join(messages))
    elif messages:
        ready = _condition("Ready", "Unknown", "ReadyUnknown", "\n".join(messages))
    else:
        ready = _condition("Ready", "True", "Ready")
    return {"conditions": merged_conditions(config, [ready, *conditions])}


def _v1beta1(config: Obj, conditions: Sequence[Obj]) -> Obj:
    worst = next((entry for entry in conditions if entry["status"] != "True"), None)
    ready = {**worst, "type": "Ready"} if worst else {"type": "Ready", "status": "True"}
    return {"conditions": merged_conditions(config, [ready, *conditions])}


def _true(kind: str, contract: str) -> Obj:
    if contract == "v1beta1":
        return {"type": kind, "status": "True"}
    return _condition(kind, "True", "Available")


def _condition(kind: str, status: str, reason: str, message: str = "", *, severity: str = "") -> Obj:
    extra = {"severity": severity} if severity else {}
    return {"type": kind, "status": status, "reason": reason, "message": message, **extra}
