"""Publishes the failure domains over which Cluster API spreads control plane machines."""

from __future__ import annotations

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.topology import failure_domains
from reconciler.status import Blocked
from reconciler.triggers import Watched


def ensure_failure_domains(scope: ClusterScope) -> None:
    """Publish the domains. Raises `Blocked` if the spec names none of them: machines would be placed anywhere."""
    wanted = scope.obj["spec"].get("controlPlaneFailureDomains") or ()
    before = scope.draft.fields.get("failureDomains") or []
    used = {name for machine in scope.context.caches.machines_of(scope.cluster) if (name := _domain_of(machine))}
    found = failure_domains(list(scope.connected().hosts.store), wanted, published=before, used=used)
    scope.draft.fields["failureDomains"] = found
    _report_lost(scope, [domain for domain in before if not wanted or domain["name"] in wanted], found)
    names = [domain["name"] for domain in found]
    if wanted and not set(wanted) & set(names):
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"spec.controlPlaneFailureDomains is {', '.join(wanted)}: choose from those of Harvester: "
            f"{', '.join(names) or 'none'}",
            Watched.HOSTS,
            Watched.SELF,
            warn=True,
        )


def _domain_of(machine: Obj) -> str:
    status, spec = machine.get("status") or {}, machine.get("spec") or {}
    return str(status.get("failureDomain") or spec.get("failureDomain") or "")


def _report_lost(scope: ClusterScope, before: list[Obj], found: list[Obj]) -> None:
    """Emit an Event for domains that take no new control plane machines any more."""
    eligible = {domain["name"] for domain in found if domain["controlPlane"]}
    lost = sorted(domain["name"] for domain in before if domain.get("controlPlane") and domain["name"] not in eligible)
    if lost and eligible:
        message = (
            f"no new control plane machines in {', '.join(lost)}: its hosts are cordoned, in maintenance or removed"
        )
        scope.warning_event("FailureDomainUnavailable", message)
