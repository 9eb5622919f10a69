"""Failure domains of a Harvester, for Cluster API to spread control plane machines over. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from caphv.runtime.resource import Obj, labels_of

ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
HOSTNAME = "kubernetes.io/hostname"


def failure_domains(hosts: Iterable[Obj]) -> list[dict[str, Any]]:
    """One domain a zone when every host carries the label, else one a host name; sorted (contract)."""
    hosts = list(hosts)
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
    return {"name": name, "controlPlane": True, "attributes": {"topologyKey": topology_key}}
