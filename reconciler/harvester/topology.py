"""Failure domains of a Harvester: its zones if its hosts have them, else its hosts.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from caphv.api import names
from caphv.api.counting import name_some
from caphv.api.hosts import accepts_machines, is_ready, is_witness, why_closed
from caphv.api.object import Obj, at, labels_of

# The CRD of the core's Clusters takes no more failure domains, and without its status no cluster
# is ever provisioned (cluster-api v1.13.6, Cluster.status.failureDomains).
MOST_DOMAINS = 100


def failure_domains(
    hosts: Collection[Obj],
    control_plane: Collection[str] = (),
    *,
    published: Collection[Obj] = (),
    used: Collection[str] = (),
) -> list[Obj]:
    """Return one domain per zone if every host has the label, else one domain per host.

    The contract requires that they are sorted. A domain whose hosts are all cordoned, in
    maintenance or not ready takes no new control plane machine: one that replaces a machine of a
    zone that is down would wait there for its return. While no host at all is ready, that decides
    nothing. Of more than `MOST_DOMAINS`, those are returned
    that have machines, then those that are selected, then those that are published.

    :param hosts: Nodes of Harvester
    :param control_plane: names of the domains for control plane machines, empty for all
    :param published: the present domains; zones stay zones when a host without the label joins
    :param used: names of domains that have machines; they stay published after their hosts were
        removed, but take no new machine
    """
    workers = [host for host in hosts if not is_witness(host)]
    zones = {zone for host in workers if (zone := labels_of(host).get(names.ZONE_LABEL))}
    complete = all(labels_of(host).get(names.ZONE_LABEL) for host in workers)

    # Once zones are published, a host without the label belongs to no domain.
    members: dict[str, list[Obj]] = {}
    if zones and (complete or names.ZONE_LABEL in set(map(topology_key, published))):
        key = names.ZONE_LABEL
        for host in workers:
            if zone := labels_of(host).get(key):
                members.setdefault(zone, []).append(host)
    else:
        key = names.HOSTNAME_LABEL
        for host in workers:
            members[host_name(host)] = [host]

    open_hosts = _open_hosts(hosts)
    domains = {}
    for name, group in members.items():
        selected = not control_plane or name in control_plane
        is_open = any(host["metadata"]["name"] in open_hosts for host in group)
        domains[name] = _domain(name, key, selected and is_open)
    for domain in published:
        if domain["name"] in used and domain["name"] not in domains:
            domains[domain["name"]] = {**domain, "controlPlane": False}

    former = {domain["name"] for domain in published}
    by_importance = sorted(
        domains,
        key=lambda name: (name not in used, name not in control_plane, name not in former, name),
    )
    return [domains[name] for name in sorted(by_importance[:MOST_DOMAINS])]


def unpublished_domains(hosts: Iterable[Obj]) -> list[Obj]:
    """Return a domain for each zone, then a domain for each host.

    If Cluster API takes no failure domains from the status, users may name either of them.
    """
    workers = [host for host in hosts if not is_witness(host)]
    zones = {zone for host in workers if (zone := labels_of(host).get(names.ZONE_LABEL))}
    return [
        *(_domain(zone, names.ZONE_LABEL, True) for zone in sorted(zones)),
        *(_domain(name, names.HOSTNAME_LABEL, True) for name in sorted(map(host_name, workers))),
    ]


def has_single_host(name: str, published: Collection[Obj], hosts: Collection[Obj]) -> bool:
    """Return whether at most one host of a domain accepts machines, so that no VM could migrate."""
    # A name that is not published names a host. If no host has the name either, it is a mistake,
    # not a domain of one host.
    if not any(domain["name"] == name for domain in published):
        return any(host_name(host) == name for host in hosts)
    accepting = [
        host for host in hosts if accepts_machines(host) and domain_of_host(published, host) == name
    ]
    return len(accepting) <= 1


def why_unavailable(domain: Obj, hosts: Collection[Obj]) -> str:
    """Explain why no host of a domain accepts new machines; empty if a host does."""
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
    """Return the names of hosts that take new VMs, all that are not closed if none is ready."""
    accepting = [host for host in hosts if accepts_machines(host)]
    ready = [host for host in accepting if is_ready(host)]
    return {host["metadata"]["name"] for host in ready or accepting}


def why_no_host(hosts: Iterable[Obj]) -> str:
    """Name the hosts that run no new VMs, with the cause, and say what to do; empty for none."""
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
    """Return the name of the domain that contains a host, empty for none."""
    for domain in domains:
        key = topology_key(domain)
        value = host_name(host) if key == names.HOSTNAME_LABEL else labels_of(host).get(key)
        if value == domain["name"]:
            return str(domain["name"])
    return ""


def host_name(host: Obj) -> str:
    """Return the host name by which affinities select a host."""
    return labels_of(host).get(names.HOSTNAME_LABEL) or str(host["metadata"]["name"])


def _domain(name: str, key: str, control_plane: bool) -> Obj:
    return {"name": name, "attributes": {"topologyKey": key}, "controlPlane": control_plane}
