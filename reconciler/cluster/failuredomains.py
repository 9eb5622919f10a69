"""Publishes the failure domains over which Cluster API spreads control plane machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.topology import failure_domains, why_unavailable
from reconciler.status import Blocked
from reconciler.triggers import Watched

_OLD_CORE = (
    "Cluster API core serves only v1beta1, which has no form for them: control plane machines are spread over hosts "
    "without regard to zones; upgrade it to 1.12 or newer"
)


def ensure_failure_domains(scope: ClusterScope) -> None:
    """Publish the domains. Raises `Blocked` if the spec names none of them: machines would be placed anywhere."""
    wanted = scope.obj["spec"].get("controlPlaneFailureDomains") or ()
    before = scope.draft.fields.get("failureDomains") or []
    used: dict[str, list[str]] = {}
    for machine in scope.context.caches.machines_of(scope.cluster):
        if name := _domain_of(machine):
            used.setdefault(name, []).append(machine["metadata"]["name"])
    hosts = list(scope.connected().hosts.store)
    found = failure_domains(hosts, wanted, published=before, used=used)
    if scope.context.caches.failure_domains_published:
        scope.draft.fields["failureDomains"] = found
        _report_unavailable(scope, used, unavailable(found, used, hosts))
    else:
        scope.draft.fields.pop("failureDomains", None)
        _report_unpublished(scope)
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


def unavailable(domains: list[Obj], used: Collection[str], hosts: list[Obj]) -> dict[str, str]:
    """Domains in use of which no host accepts new machines, with the cause."""
    causes = {domain["name"]: why_unavailable(domain, hosts) for domain in domains if domain["name"] in used}
    return {name: cause for name, cause in causes.items() if cause}


def _report_unavailable(scope: ClusterScope, used: Mapping[str, list[str]], causes: Mapping[str, str]) -> None:
    """Report that machines could not be recreated where they are: a maintenance passes, a lost label stays."""
    condition, reason = ConditionType.FAILURE_DOMAINS_AVAILABLE, Reason.FAILURE_DOMAIN_UNAVAILABLE
    if not causes:
        scope.draft.set_true(condition)
        return
    domains = [f"{name} ({_count(used[name])}): {cause}" for name, cause in causes.items()]
    message = f"failure domains in use take no new machines: {'; '.join(domains)}"
    if not scope.draft.has_message(condition, message):
        scope.warning_event(reason, message)
    scope.draft.set_false(condition, reason, message)


def _report_unpublished(scope: ClusterScope) -> None:
    """Report that domains have no effect, as a problem only to whom they matter."""
    condition = ConditionType.FAILURE_DOMAINS_AVAILABLE
    if "controlPlaneFailureDomains" in scope.obj["spec"]:
        message = f"spec.controlPlaneFailureDomains has no effect: {_OLD_CORE}"
        scope.draft.set_false(condition, Reason.FAILURE_DOMAIN_UNAVAILABLE, message)
    else:
        scope.draft.set_true(condition, f"failure domains are not published: {_OLD_CORE}")


def _count(machines: list[str]) -> str:
    return f"machine {machines[0]}" if len(machines) == 1 else f"{len(machines)} machines"


def _domain_of(machine: Obj) -> str:
    status, spec = machine.get("status") or {}, machine.get("spec") or {}
    return str(status.get("failureDomain") or spec.get("failureDomain") or "")


def _report_lost(scope: ClusterScope, before: list[Obj], found: list[Obj]) -> None:
    """Emit an Event for domains that take no new control plane machines any more."""
    eligible = {domain["name"] for domain in found if domain["controlPlane"]}
    lost = sorted(domain["name"] for domain in before if domain.get("controlPlane") and domain["name"] not in eligible)
    if lost:
        message = (
            f"no new control plane machines in {', '.join(lost)}: its hosts are cordoned, in maintenance or removed"
        )
        scope.warning_event("FailureDomainUnavailable", message)
