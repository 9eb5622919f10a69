"""LoadBalancers of guests: whether the webhook admits them, their network, and the pool that serves them.

The cloud provider in a guest creates them with workload type `cluster`. Harvester allocates an address, and the guest
does the rest. Sources and differences of releases are in docs/simulators.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from caphv.api.object import Obj, annotations_of, labels_of
from sandbox.harvester.releases import Release

GROUP = "loadbalancer.harvesterhci.io"
NETWORK, PROJECT, NAMESPACE, CLUSTER = (f"{GROUP}/{name}" for name in ("network", "project", "namespace", "cluster"))
# On a LoadBalancer, and on VMs and instances.
CLUSTER_OF_BALANCER = "cloudprovider.harvesterhci.io/cluster"
CLUSTER_OF_VM = "guestcluster.harvesterhci.io/name"
MANAGEMENT_NETWORK = "cloudprovider.harvesterhci.io/managementNetwork"
CREATOR, NODE_DRIVER = "harvesterhci.io/creator", "docker-machine-driver-harvester"
ON_REMOVAL = "harvesterhci.io/removeAllPersistentVolumeClaims"
_ANY = "*"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a pool has to serve."""

    network: str
    project: str
    namespace: str
    cluster: str


def is_guest(load_balancer: Obj) -> bool:
    """Whether a guest does the load balancing."""
    return load_balancer["spec"].get("workloadType") == "cluster"


def denial(load_balancer: Obj, vms: Iterable[Obj], release: Release) -> str:
    """Why the webhook denies a new LoadBalancer of a guest; empty if it does not.

    `vms` are those of its namespace.
    """
    name = labels_of(load_balancer).get(CLUSTER_OF_BALANCER)
    if not is_guest(load_balancer) or name is None or not release.watches_guest_removal:
        return ""
    if name in ("", "kubernetes") and not release.guests_need_vms:
        return ""

    nodes = [vm for vm in vms if labels_of(vm).get(CREATOR) == NODE_DRIVER and labels_of(vm).get(CLUSTER_OF_VM) == name]
    if not nodes and release.guests_need_vms:
        return "it has no running vm"
    leaving = [vm["metadata"]["name"] for vm in nodes if annotations_of(vm).get(ON_REMOVAL) == "true"]
    where = load_balancer["metadata"]["namespace"]
    return f"the vm {where}/{leaving[0]} shows guest cluster {name} is being removed" if leaving else ""


def mutated_annotations(load_balancer: Obj, vmis: Sequence[Obj], release: Release) -> dict[str, str]:
    """Annotations of a LoadBalancer as the mutator sets them; `vmis` are the instances of its namespace.

    Namespaces of the sandbox are in no project of Rancher.
    """
    before = annotations_of(load_balancer)
    own = {NAMESPACE: load_balancer["metadata"]["namespace"]}
    if load_balancer["spec"].get("workloadType") == "vm" and release.vm_balancers_lack_network:
        return {**before, **own}
    network = _network(before, vmis, release) if is_guest(load_balancer) else ""
    return {**before, **own, PROJECT: "", NETWORK: network}


def _network(before: dict[str, str], vmis: Sequence[Obj], release: Release) -> str:
    """The network of the guest: that of the first of its instances."""
    cluster = before.get(CLUSTER, "")
    if release.guest_network_by_label:
        if asked := before.get(NETWORK) or before.get(MANAGEMENT_NETWORK):
            return asked
        named = (vmi for vmi in vmis if cluster and labels_of(vmi).get(CLUSTER_OF_VM) == cluster)
        if network := _first_network(named):
            return network
    if not cluster:
        return ""
    nodes = (vmi for vmi in vmis if labels_of(vmi).get(CREATOR) == NODE_DRIVER)
    return _first_network(vmi for vmi in nodes if vmi["metadata"]["name"].startswith(cluster))


def _first_network(vmis: Iterable[Obj]) -> str:
    networks = (network for vmi in vmis for network in vmi["spec"].get("networks") or ())
    return next((str(network["multus"]["networkName"]) for network in networks if network.get("multus")), "")


def requirement_of(load_balancer: Obj, release: Release) -> Requirement:
    """What the pool of a LoadBalancer that names none has to serve."""
    values = annotations_of(load_balancer)
    namespace = values.get(NAMESPACE) or load_balancer["metadata"]["namespace"]
    network, project, cluster = (values.get(name, "") for name in (NETWORK, PROJECT, CLUSTER))
    if release.guest_network_by_label and not is_guest(load_balancer):
        return Requirement(network or _ANY, project or _ANY, namespace, cluster or _ANY)
    return Requirement(network, project, namespace, cluster)


def select_pool(load_balancer: Obj, pools: Iterable[Obj], release: Release) -> str:
    """Name of the pool that serves a LoadBalancer that names none; empty if no pool does.

    A pool serves it by its scope, and the global pool if no other does. The scope of a guest is also matched loosely:
    there, a scope that leaves project or guest open serves all.
    """
    wanted = requirement_of(load_balancer, release)
    ordered = sorted(pools, key=lambda pool: pool["metadata"]["name"])
    for loose in (False, True) if is_guest(load_balancer) and release.matches_loosely else (False,):
        scoped: dict[str, int] = {}
        everyone = ""
        for pool in ordered:
            selector, name = pool["spec"].get("selector") or {}, pool["metadata"]["name"]
            scopes = selector.get("scope") or ()
            if _is_global(selector) and (not release.guest_network_by_label or _same_network(selector, wanted)):
                everyone = everyone or name
            elif _same_network(selector, wanted) and any(_matches(scope, wanted, loose=loose) for scope in scopes):
                scoped[name] = selector.get("priority") or 0
        if scoped or everyone:
            return max(scoped, key=lambda name: scoped[name]) if scoped else everyone
    return ""


def is_global(pool: Obj) -> bool:
    """Whether a pool serves everyone."""
    return _is_global(pool["spec"].get("selector") or {})


def _same_network(selector: Obj, wanted: Requirement) -> bool:
    return wanted.network in (_ANY, selector.get("network") or "")


def _is_global(selector: Obj) -> bool:
    scope: list[Obj] = selector.get("scope") or []
    return len(scope) == 1 and all(scope[0].get(name) == _ANY for name in ("namespace", "project", "guestCluster"))


def _matches(scope: Obj, wanted: Requirement, *, loose: bool) -> bool:
    open_values = (_ANY, "") if loose else (_ANY,)

    def fits(field: str, value: str, allowed: tuple[str, ...]) -> bool:
        offered = scope.get(field) or ""
        return value in (_ANY, offered) or offered in allowed

    return (
        fits("project", wanted.project, open_values)
        and fits("namespace", wanted.namespace, (_ANY,))
        and fits("guestCluster", wanted.cluster, open_values)
    )
