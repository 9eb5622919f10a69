"""Failure domains of a Harvester: its zones if every host has one, else its hosts. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from caphv.api import names
from caphv.api.object import Obj, labels_of


def failure_domains(hosts: Iterable[Obj], control_plane: Collection[str] = ()) -> list[dict[str, Any]]:
    """One domain per zone if every host has the label, else one per host name; sorted (contract).

    `control_plane` names those for control plane machines, all if it is empty.
    """
    found = _domains(list(hosts))
    return [{**domain, "controlPlane": not control_plane or domain["name"] in control_plane} for domain in found]


def _domains(hosts: list[Obj]) -> list[dict[str, Any]]:
    zones = {labels_of(host).get(names.ZONE_LABEL) for host in hosts}
    if hosts and None not in zones and "" not in zones:
        return [_domain(str(zone), names.ZONE_LABEL) for zone in sorted(filter(None, zones))]
    return [_domain(name, names.HOSTNAME_LABEL) for name in sorted(host_name(host) for host in hosts)]


def domain_of_host(domains: Iterable[dict[str, Any]], host: Obj) -> str:
    """The domain that contains a host, empty for none."""
    for domain in domains:
        key = (domain.get("attributes") or {}).get("topologyKey", "")
        value = host_name(host) if key == names.HOSTNAME_LABEL else labels_of(host).get(key)
        if value == domain["name"]:
            return str(domain["name"])
    return ""


def host_name(host: Obj) -> str:
    """The host name by which affinities select a host."""
    return labels_of(host).get(names.HOSTNAME_LABEL) or str(host["metadata"]["name"])


def _domain(name: str, topology_key: str) -> dict[str, Any]:
    return {"name": name, "attributes": {"topologyKey": topology_key}}
