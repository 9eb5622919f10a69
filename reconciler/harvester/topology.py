"""Failure domains of a Harvester: its zones if its hosts have them, else its hosts. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from caphv.api import names
from caphv.api.object import Obj, annotations_of, labels_of


def failure_domains(
    hosts: Collection[Obj],
    control_plane: Collection[str] = (),
    *,
    published: Collection[dict[str, Any]] = (),
    used: Collection[str] = (),
) -> list[dict[str, Any]]:
    """One domain per zone if every host has the label, else one per host; sorted (contract).

    Zones stay zones when a host without the label joins: `published` are the present domains. `control_plane` names
    the domains for control plane machines, all if it is empty; one whose hosts are all cordoned or in maintenance takes
    no new machine. Domains of machines (`used`) stay published, for no new machine, even if their hosts were removed.
    """
    workers = [host for host in hosts if not _is_witness(host)]
    zones = {zone for host in workers if (zone := labels_of(host).get(names.ZONE_LABEL))}
    complete = all(labels_of(host).get(names.ZONE_LABEL) for host in workers)
    if zones and (complete or names.ZONE_LABEL in set(map(topology_key, published))):
        key = names.ZONE_LABEL
        found = {zone: [host for host in workers if labels_of(host).get(key) == zone] for zone in zones}
    else:
        key = names.HOSTNAME_LABEL
        found = {host_name(host): [host] for host in workers}
    domains = {
        name: _domain(name, key, (not control_plane or name in control_plane) and any(map(accepts_machines, members)))
        for name, members in found.items()
    }
    for domain in published:
        if domain["name"] in used and domain["name"] not in domains:
            domains[domain["name"]] = {**domain, "controlPlane": False}
    return [domains[name] for name in sorted(domains)]


def unpublished_domains(hosts: Iterable[Obj]) -> list[dict[str, Any]]:
    """Each zone, then each host: what the name of a failure domain can mean where the core takes none."""
    workers = [host for host in hosts if not _is_witness(host)]
    zones = {zone for host in workers if (zone := labels_of(host).get(names.ZONE_LABEL))}
    return [
        *(_domain(zone, names.ZONE_LABEL, True) for zone in sorted(zones)),
        *(_domain(name, names.HOSTNAME_LABEL, True) for name in sorted(map(host_name, workers))),
    ]


def has_single_host(name: str, published: Collection[dict[str, Any]], hosts: Collection[Obj]) -> bool:
    """Whether at most one host of a domain accepts machines, so that a VM there could not migrate within the domain.

    A name that is not published is that of a host; a name that nothing has is a mistake, and no domain of one host.
    """
    if any(domain["name"] == name for domain in published):
        return sum(accepts_machines(host) and domain_of_host(published, host) == name for host in hosts) <= 1
    return any(host_name(host) == name for host in hosts)


def why_unavailable(domain: dict[str, Any], hosts: Collection[Obj]) -> str:
    """Why no host of a domain accepts new machines; empty if one does."""
    members = [host for host in hosts if domain_of_host([domain], host)]
    if not members:
        return f"no host has label {topology_key(domain)}={domain['name']}"
    if any(map(accepts_machines, members)):
        return ""
    return ", ".join(f"host {host['metadata']['name']} {_state(host)}" for host in members)


def accepts_machines(host: Obj) -> bool:
    """Whether a host may run new VMs: it is neither cordoned, nor in maintenance, nor a witness."""
    maintenance = annotations_of(host).get(names.MAINTENANCE_ANNOTATION)
    return not (_is_witness(host) or (host.get("spec") or {}).get("unschedulable") or maintenance)


def _state(host: Obj) -> str:
    if _is_witness(host):
        return "is a witness"
    return "is in maintenance" if annotations_of(host).get(names.MAINTENANCE_ANNOTATION) else "is cordoned"


def topology_key(domain: dict[str, Any]) -> str:
    """Label of hosts by which a domain selects them."""
    return str((domain.get("attributes") or {}).get("topologyKey") or "")


def _is_witness(host: Obj) -> bool:
    return labels_of(host).get(names.WITNESS_LABEL) == "true"


def domain_of_host(domains: Iterable[dict[str, Any]], host: Obj) -> str:
    """The domain that contains a host, empty for none."""
    for domain in domains:
        key = topology_key(domain)
        value = host_name(host) if key == names.HOSTNAME_LABEL else labels_of(host).get(key)
        if value == domain["name"]:
            return str(domain["name"])
    return ""


def host_name(host: Obj) -> str:
    """The host name by which affinities select a host."""
    return labels_of(host).get(names.HOSTNAME_LABEL) or str(host["metadata"]["name"])


def _domain(name: str, key: str, control_plane: bool) -> dict[str, Any]:
    return {"name": name, "attributes": {"topologyKey": key}, "controlPlane": control_plane}
