"""Publish the failure domains over which Cluster API spreads control plane machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, at
from reconciler.blocked import Blocked
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.topology import failure_domains, why_unavailable
from reconciler.triggers import Watched

_OLD_CORE = (
    "Cluster API core serves only v1beta1, which has no form for them: control plane machines are "
    "spread over hosts without regard to zones; upgrade it to 1.12 or newer"
)


def ensure_failure_domains(scope: ClusterScope) -> None:
    """Publish the failure domains of Harvester in the status. The spec may select some of them.

    Raises `Blocked` if Harvester has no selected domain, because machines would be placed anywhere.
    """
    selected = scope.obj["spec"].get("controlPlaneFailureDomains") or ()
    former = scope.draft.fields.get("failureDomains") or []

    # A machine that has not run yet has a domain only in its spec.
    used: dict[str, list[str]] = {}
    for machine in scope.context.caches.machines_of(scope.cluster):
        domain = at(machine, "status", "failureDomain") or at(machine, "spec", "failureDomain")
        if domain:
            used.setdefault(str(domain), []).append(machine["metadata"]["name"])
    hosts = list(scope.require_session().hosts.store)
    domains = failure_domains(hosts, control_plane=selected, published=former, used=used)

    # Contract v1beta1 has another form of failure domains, so such a core gets none.
    causes: Mapping[str, str] = {}
    if scope.context.caches.publishes_failure_domains:
        scope.draft.fields["failureDomains"] = domains
        causes = unavailable(domains, used, hosts)
        _report_unavailable(scope, used, causes)
    else:
        scope.draft.fields.pop("failureDomains", None)
        _report_without_effect(scope)
    # Do not report domains that the user has deselected, nor again those in use.
    remaining = [
        domain
        for domain in former
        if (not selected or domain["name"] in selected) and domain["name"] not in causes
    ]
    _report_lost(scope, remaining, domains, hosts)

    names = [domain["name"] for domain in domains]
    if selected and not set(selected) & set(names):
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"spec.controlPlaneFailureDomains is {', '.join(selected)}: choose from those of "
            f"Harvester: {', '.join(names) or 'none'}",
            Watched.HOSTS,
            Watched.SELF,
            warn=True,
        )


def unavailable(domains: list[Obj], used: Collection[str], hosts: list[Obj]) -> dict[str, str]:
    """Return the domains in use without a host that accepts new machines, with the cause."""
    causes = {
        domain["name"]: why_unavailable(domain, hosts)
        for domain in domains
        if domain["name"] in used
    }
    return {name: cause for name, cause in causes.items() if cause}


def _report_unavailable(
    scope: ClusterScope, used: Mapping[str, list[str]], causes: Mapping[str, str]
) -> None:
    """Report that machines could not be recreated in their domains.

    :param used: names of machines by domain
    :param causes: why a domain takes no new machines, for a while or permanently
    """
    condition, reason = ConditionType.FAILURE_DOMAINS_AVAILABLE, Reason.FAILURE_DOMAIN_UNAVAILABLE
    if not causes:
        scope.draft.set_true(condition)
        return

    domains = []
    for name, cause in causes.items():
        machines = used[name]
        users = f"machine {machines[0]}" if len(machines) == 1 else f"{len(machines)} machines"
        domains.append(f"{name} ({users}): {cause}")
    message = f"failure domains in use take no new machines: {'; '.join(domains)}"
    if not scope.draft.has_message(condition, message):
        scope.warning_event(reason, message)
    scope.draft.set_false(condition, reason, message)


def _report_without_effect(scope: ClusterScope) -> None:
    """Report that domains have no effect. This is a problem only if the spec names some."""
    condition = ConditionType.FAILURE_DOMAINS_AVAILABLE
    if "controlPlaneFailureDomains" in scope.obj["spec"]:
        message = f"spec.controlPlaneFailureDomains has no effect: {_OLD_CORE}"
        scope.draft.set_false(condition, Reason.FAILURE_DOMAIN_UNAVAILABLE, message)
    else:
        scope.draft.set_true(condition, f"failure domains are not published: {_OLD_CORE}")


def _report_lost(
    scope: ClusterScope, former: list[Obj], domains: list[Obj], hosts: list[Obj]
) -> None:
    """Emit an Event for domains that no longer take new control plane machines."""
    eligible = {domain["name"] for domain in domains if domain["controlPlane"]}
    lost = {
        domain["name"]: why_unavailable(domain, hosts)
        for domain in former
        if domain.get("controlPlane") and domain["name"] not in eligible
    }
    if lost:
        causes = "; ".join(f"{name}: {cause}" for name, cause in sorted(lost.items()))
        message = f"no new control plane machines in failure domain {causes}"
        scope.warning_event("FailureDomainUnavailable", message)
