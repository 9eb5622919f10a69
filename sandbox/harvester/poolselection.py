"""The selection of an IPPool for a LoadBalancer that names none.

Modelled after load-balancer-harvester. docs/simulators.md has the sources and the differences
between releases.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from caphv.api.object import Obj, annotations_of, list_at
from sandbox.harvester.guestbalancers import CLUSTER, NAMESPACE, NETWORK, PROJECT, is_guest
from sandbox.harvester.releases import Release

_ANY = "*"


@dataclass(frozen=True, slots=True)
class Requirement:
    """The network, project, namespace and cluster that a pool must serve."""

    network: str
    project: str
    namespace: str
    cluster: str


def requirement_of(load_balancer: Obj, release: Release) -> Requirement:
    """Return the requirement for the pool of a LoadBalancer that names none."""
    annotations = annotations_of(load_balancer)
    namespace = annotations.get(NAMESPACE) or load_balancer["metadata"]["namespace"]
    network, project, cluster = (annotations.get(name, "") for name in (NETWORK, PROJECT, CLUSTER))
    if release.guest_network_by_label and not is_guest(load_balancer):
        return Requirement(network or _ANY, project or _ANY, namespace, cluster or _ANY)
    return Requirement(network, project, namespace, cluster)


def select_pool(load_balancer: Obj, pools: Iterable[Obj], release: Release) -> str:
    """Return the name of the pool for a LoadBalancer that names none; empty if no pool serves it.

    The scope of a pool decides whether the pool serves the LoadBalancer. The global pool serves it
    if no other pool does. For a guest, a scope without a project or guest cluster also matches
    loosely: it then serves all projects or guest clusters.
    """
    requirement = requirement_of(load_balancer, release)
    by_name = sorted(pools, key=lambda pool: pool["metadata"]["name"])

    # A strict match wins over a loose one, even over one with a higher priority.
    if name := _best_pool(by_name, requirement, release, loose=False):
        return name
    if is_guest(load_balancer) and release.matches_loosely:
        return _best_pool(by_name, requirement, release, loose=True)
    return ""


def _best_pool(
    pools: Iterable[Obj], requirement: Requirement, release: Release, *, loose: bool
) -> str:
    """Return the name of the pool with the highest priority, else of the global pool, else empty.

    `pools` are sorted by name.
    """
    priorities: dict[str, int] = {}
    global_pool = ""
    for pool in pools:
        name = pool["metadata"]["name"]
        selector = pool["spec"].get("selector") or {}
        same_network = requirement.network in (_ANY, selector.get("network") or "")

        # Before `guest_network_by_label`, the global pool serves all networks.
        if is_global(pool) and (same_network or not release.guest_network_by_label):
            global_pool = global_pool or name
        elif same_network and any(
            _matches(scope, requirement, loose=loose) for scope in selector.get("scope") or ()
        ):
            priorities[name] = selector.get("priority") or 0

    if not priorities:
        return global_pool
    # `max` returns the first of several pools with the highest priority.
    return max(priorities, key=lambda name: priorities[name])


def is_global(pool: Obj) -> bool:
    """Return whether a pool serves everyone."""
    scope: list[Obj] = list_at(pool, "spec", "selector", "scope")
    return len(scope) == 1 and all(
        scope[0].get(name) == _ANY for name in ("namespace", "project", "guestCluster")
    )


def _matches(scope: Obj, requirement: Requirement, *, loose: bool) -> bool:
    open_values = (_ANY, "") if loose else (_ANY,)

    def serves(field: str, value: str, allowed: tuple[str, ...]) -> bool:
        offered = scope.get(field) or ""
        return value in (_ANY, offered) or offered in allowed

    return (
        serves("project", requirement.project, open_values)
        and serves("namespace", requirement.namespace, (_ANY,))
        and serves("guestCluster", requirement.cluster, open_values)
    )
