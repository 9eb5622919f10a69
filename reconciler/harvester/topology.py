"""Failure domains of a Harvester: zones if its hosts have zone labels, hosts otherwise. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from caphv.api import names
from caphv.api.counting import name_some
from caphv.api.hosts import accepts_machines, is_ready, is_witness, why_closed
from caphv.api.object import Obj, at, labels_of

# The core's CRD rejects a status with more failure domains, so that the cluster would never be
# provisioned (cluster-api v1.13.6, Cluster.status.failureDomains).
MAX_DOMAINS = 100


def failure_domains(
    hosts: Collection[Obj],
    *,
    control_plane: Collection[str],
    published: Collection[Obj],
    used: Collection[str],
) -> list[Obj]:
    """Return the failure domains to publish, sorted by name as Cluster API's contract requires.

    A domain is closed to new control plane machines while all its hosts are cordoned, in
    maintenance or not ready: the replacement of a machine in a zone that is down must not wait for
    this zone. Readiness is ignored if no host is ready.

    If there are more than `MAX_DOMAINS`, domains in use win, then selected ones, then those already
    published.

    :param hosts: Nodes of Harvester
    :param control_plane: names of the domains selected for control plane machines; empty for all
    :param published: the present domains
    :param used: names of domains that have machines; they stay published after their hosts were
        removed, but accept no new machines
    """
    grouping = _group_hosts(hosts, published)
    open_hosts = _open_hosts(hosts)
    domains = {}
    for name, members in grouping.members.items():
        is_selected = not control_plane or name in control_plane
        is_open = any(host["metadata"]["name"] in open_hosts for host in members)
        domains[name] = _domain(name, grouping.label, is_selected and is_open)
    for domain in published:
        if domain["name"] in used and domain["name"] not in domains:
            domains[domain["name"]] = {**domain, "controlPlane": False}

    published_names = {domain["name"] for domain in published}

    def importance(name: str) -> tuple[bool, bool, bool, str]:
        # False sorts first.
        return name not in used, name not in control_plane, name not in published_names, name

    return [domains[name] for name in sorted(sorted(domains, key=importance)[:MAX_DOMAINS])]


class _Grouping(NamedTuple):
    """The label that identifies domains, and the hosts of each domain by its name."""

    label: str
    members: dict[str, list[Obj]]


def _group_hosts(hosts: Iterable[Obj], published: Iterable[Obj]) -> _Grouping:
    """Group hosts by failure domain.

    Zones are used if every host has the zone label. Once zones are published, they stay: a host
    that joins without the label then belongs to no domain.
    """
    workers = [host for host in hosts if not is_witness(host)]
    zones = [labels_of(host).get(names.ZONE_LABEL) for host in workers]
    publishes_zones = any(topology_key(domain) == names.ZONE_LABEL for domain in published)
    uses_zones = any(zones) and (all(zones) or publishes_zones)
    if not uses_zones:
        return _Grouping(names.HOSTNAME_LABEL, {host_name(host): [host] for host in workers})

    members: dict[str, list[Obj]] = {}
    for host, zone in zip(workers, zones, strict=True):
        if zone:
            members.setdefault(zone, []).append(host)
    return _Grouping(names.ZONE_LABEL, members)


def unpublished_domains(hosts: Iterable[Obj]) -> list[Obj]:
    """Return a domain for each zone, then a domain for each host.

    Users may name either if Cluster API does not read failure domains from the status.
    """
    workers = [host for host in hosts if not is_witness(host)]
    zones = {zone for host in workers if (zone := labels_of(host).get(names.ZONE_LABEL))}
    return [
        *(_domain(zone, names.ZONE_LABEL, True) for zone in sorted(zones)),
        *(_domain(name, names.HOSTNAME_LABEL, True) for name in sorted(map(host_name, workers))),
    ]


def has_single_host(name: str, published: Collection[Obj], hosts: Collection[Obj]) -> bool:
    """Return whether at most one host of a domain accepts machines, so that no VM could migrate."""
    # A name that is not published is the name of a host. If there is no such host, the name is a
    # mistake, and not a domain of one host.
    if not any(domain["name"] == name for domain in published):
        return any(host_name(host) == name for host in hosts)
    accepting = [
        host for host in hosts if accepts_machines(host) and domain_of_host(published, host) == name
    ]
    return len(accepting) <= 1


def why_unavailable(domain: Obj, hosts: Collection[Obj]) -> str:
    """Return why no host of a domain accepts new machines; empty if a host does."""
    members = [host for host in hosts if domain_of_host([domain], host)]
    if not members:
        return f"no host has label {topology_key(domain)}={domain['name']}"
    open_hosts = _open_hosts(hosts)
    if any(host["metadata"]["name"] in open_hosts for host in members):
        return ""
    return ", ".join(
        f"host {host['metadata']['name']} is {why_closed(host) or 'not ready'}" for host in members
    )


def _open_hosts(hosts: Collection[Obj]) -> set[str]:
    """Return the names of ready hosts that accept VMs; if none is ready, of all that accept VMs."""
    accepting = [host for host in hosts if accepts_machines(host)]
    ready = [host for host in accepting if is_ready(host)]
    return {host["metadata"]["name"] for host in ready or accepting}


def why_no_host(hosts: Iterable[Obj]) -> str:
    """Return which hosts run no new VMs, why, and what to do; empty if all hosts do."""
    workers = [host for host in hosts if not is_witness(host)]
    closed = [host for host in workers if not (is_ready(host) and accepts_machines(host))]
    if not closed:
        return ""

    states = [
        f"{host['metadata']['name']} is {why_closed(host) if is_ready(host) else 'not ready'}"
        for host in sorted(closed, key=lambda host: str(host["metadata"]["name"]))
    ]
    named = name_some(states)
    if len(closed) == len(workers):
        return f"{named}: start them, uncordon them, or end their maintenance"
    return f"{named}: start them, free CPU or memory on others, or change the VM's affinity"


def topology_key(domain: Obj) -> str:
    """Return the label by which a domain selects its hosts."""
    return str(at(domain, "attributes", "topologyKey") or "")


def domain_of_host(domains: Iterable[Obj], host: Obj) -> str:
    """Return the name of the domain that contains a host; empty if none does."""
    for domain in domains:
        key = topology_key(domain)
        value = host_name(host) if key == names.HOSTNAME_LABEL else labels_of(host).get(key)
        if value == domain["name"]:
            return str(domain["name"])
    return ""


def host_name(host: Obj) -> str:
    """Return the host name by which node affinities select a host."""
    return labels_of(host).get(names.HOSTNAME_LABEL) or str(host["metadata"]["name"])


def _domain(name: str, key: str, control_plane: bool) -> Obj:
    """Return a failure domain in the form of Cluster API.

    :param key: the label by which the domain selects its hosts
    """
    return {"name": name, "attributes": {"topologyKey": key}, "controlPlane": control_plane}
