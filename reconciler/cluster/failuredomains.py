"""Publishes the failure domains over which Cluster API spreads control plane machines."""

from __future__ import annotations

from caphv.api.names import ConditionType, Reason
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.failuredomains import failure_domains
from reconciler.status import Blocked


def ensure_failure_domains(scope: ClusterScope) -> None:
    """Publish the domains. Raises `Blocked` if the spec names none of them: machines would be placed anywhere."""
    wanted = scope.obj["spec"].get("controlPlaneFailureDomains") or ()
    found = failure_domains(scope.connected().hosts.store, wanted)
    scope.draft.fields["failureDomains"] = found
    if wanted and not any(domain["controlPlane"] for domain in found):
        there = ", ".join(domain["name"] for domain in found) or "none"
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"spec.controlPlaneFailureDomains is {', '.join(wanted)}: choose from those of Harvester: {there}",
            warn=True,
        )
