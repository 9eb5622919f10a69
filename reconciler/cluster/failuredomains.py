"""Failure domains of a Harvester, for Cluster API to spread control plane machines over."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj, labels_of
from reconciler.cluster.scope import ClusterScope
from reconciler.status import Blocked

ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
HOSTNAME = "kubernetes.io/hostname"


def ensure_failure_domains(scope: ClusterScope) -> None:
    """Publish the domains. Raises `Blocked` when the spec names none that is there: machines would go anywhere."""
    wanted = scope.obj["spec"].get("controlPlaneFailureDomains") or ()
    found = failure_domains(scope.connected().hosts.store, wanted)
    scope.draft.fields["failureDomains"] = found
    if wanted and not any(domain["controlPlane"] for domain in found):
        there = ", ".join(domain["name"] for domain in found) or "none"
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
            f"spec.controlPlaneFailureDomains is {', '.join(wanted)}: name some of those that Harvester has: {there}",
            warn=True,
        )


def failure_domains(hosts: Iterable[Obj], control_plane: Collection[str] = ()) -> list[dict[str, Any]]:
    """One domain a zone when every host carries the label, else one a host name; sorted (contract).

    `control_plane` names those for control plane machines, all when it is empty.
    """
    found = _domains(list(hosts))
    return [{**domain, "controlPlane": not control_plane or domain["name"] in control_plane} for domain in found]


def _domains(hosts: list[Obj]) -> list[dict[str, Any]]:
    zones = {labels_of(host).get(ZONE) for host in hosts}
    if hosts and None not in zones and "" not in zones:
        return [_domain(str(zone), ZONE) for zone in sorted(filter(None, zones))]
    return [_domain(name, HOSTNAME) for name in sorted(host_name(host) for host in hosts)]


def domain_of_host(domains: Iterable[dict[str, Any]], host: Obj) -> str:
    """The domain among these that a host lies in, empty when in none."""
    for domain in domains:
        key = (domain.get("attributes") or {}).get("topologyKey", "")
        value = host_name(host) if key == HOSTNAME else labels_of(host).get(key)
        if value == domain["name"]:
            return str(domain["name"])
    return ""


def host_name(host: Obj) -> str:
    """The host name by which affinities select a host."""
    return labels_of(host).get(HOSTNAME) or str(host["metadata"]["name"])


def _domain(name: str, topology_key: str) -> dict[str, Any]:
    return {"name": name, "attributes": {"topologyKey": topology_key}}
