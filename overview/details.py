"""Adds to a cluster what its Harvester and its own API server say: pure, from plain objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from caphv.api import ippool, names, remedies, resources
from caphv.api.object import Key, Obj, annotations_of, being_deleted, labels_of
from overview.model import (
    Cluster,
    Disk,
    Group,
    Machine,
    Node,
    Overview,
    Pool,
    Problem,
    Severity,
    State,
    VirtualMachine,
)
from overview.objects import HarvesterObjects, Unseen, by_key, condition_of


def with_harvester(cluster: Cluster, harvester: HarvesterObjects) -> Cluster:
    """Return a cluster with the VMs of its machines, and what is wrong with them and their hosts."""
    vms, instances, claims = (by_key(each) for each in (harvester.vms, harvester.instances, harvester.claims))
    namespace = cluster.target_namespace
    complete = harvester.sees(f"{resources.VIRTUAL_MACHINES} of namespace {namespace}")

    def seen(machine: Machine) -> Machine:
        key = Key(namespace, machine.infrastructure)
        vm = vms.get(key) if machine.infrastructure else None
        found = _virtual_machine(vm, instances.get(key), claims) if vm else None
        return replace(machine, vm=found, vm_namespace=namespace)

    cluster = _map_machines(cluster, seen)
    found = [*_host_problems(cluster, harvester)]
    if complete and namespace in harvester.namespaces:
        found += _lost(cluster)
    return _with_problems(cluster, found)


def with_nodes(cluster: Cluster, found: list[Obj] | Unseen) -> Cluster:
    """Return a cluster with the Nodes that its own API server has."""
    if isinstance(found, Unseen):
        return cluster
    nodes = {obj["metadata"]["name"]: obj for obj in found}

    def seen(machine: Machine) -> Machine:
        # Until `nodeRef` is set: the VM, and by it the Node, has the name of the HarvesterMachine.
        obj = nodes.get(machine.node.name if machine.node else machine.infrastructure or machine.name)
        return replace(machine, node=_node(obj)) if obj else machine

    cluster = _map_machines(cluster, seen)
    problems = [
        Problem(
            Severity.ERROR,
            (f"Node/{machine.node.name}",),
            "NodeNotReady",
            "the kubelet does not report, or reports that it is not ready",
            "Check the VM's console on Harvester, or replace the machine: "
            f"{remedies.DELETE_MACHINE(machine=machine.name, namespace=cluster.namespace)}",
        )
        for machine in cluster.machines
        if machine.node and machine.node.ready not in ("True", "") and not machine.deleting
    ]
    return _with_problems(cluster, problems)


def pools_of(harvester: HarvesterObjects) -> tuple[Pool, ...]:
    """Return the pools of a Harvester with what is free."""
    found = []
    for obj in harvester.pools:
        allocated = len(ippool.allocated(obj))
        try:
            total, free = ippool.pool_capacity(obj), ippool.free_count(obj)
        except ippool.InvalidPoolError:
            total, free = 0, None
        found.append(Pool(harvester.server, obj["metadata"]["name"], total, free, allocated))
    return tuple(sorted(found, key=lambda pool: pool.name))


def with_details(
    overview: Overview, harvesters: dict[Key, HarvesterObjects], nodes: dict[Key, list[Obj] | Unseen]
) -> Overview:
    """Return an overview with what Harvesters (by identity) and workload clusters say."""

    def deepen(cluster: Cluster) -> Cluster:
        namespace, _, name = cluster.identity.rpartition("/")
        harvester = harvesters.get(Key(namespace, name))
        whole = with_harvester(cluster, harvester) if harvester else cluster
        return with_nodes(whole, nodes[cluster.key]) if cluster.key in nodes else whole

    each = {id(found): found for found in harvesters.values()}.values()
    hidden = [str(found) for found in nodes.values() if isinstance(found, Unseen)]
    hidden += [f"{what} on Harvester {found.server}" for found in each for what in found.unseen]
    pools = tuple(pool for found in each for pool in pools_of(found))
    return replace(
        overview, clusters=tuple(map(deepen, overview.clusters)), pools=pools, unseen=(*overview.unseen, *hidden)
    )


def _virtual_machine(vm: Obj, instance: Obj | None, claims: dict[Key, Obj]) -> VirtualMachine:
    metadata, status = vm["metadata"], (instance or {}).get("status") or {}
    template = ((vm.get("spec") or {}).get("template") or {}).get("spec") or {}
    names_of_claims = [
        str(volume["persistentVolumeClaim"]["claimName"])
        for volume in template.get("volumes") or ()
        if (volume.get("persistentVolumeClaim") or {}).get("claimName")
    ]
    namespace = str(metadata.get("namespace") or "")
    addresses = [
        str(address)
        for interface in status.get("interfaces") or ()
        for address in (interface.get("ipAddresses") or [interface.get("ipAddress")])
        if address and interface.get("name")
    ]
    printable = str((vm.get("status") or {}).get("printableStatus") or "")
    return VirtualMachine(
        namespace=namespace,
        name=str(metadata["name"]),
        status="Terminating" if being_deleted(vm) else printable,
        host=str(status.get("nodeName") or ""),
        created=str(metadata.get("creationTimestamp") or ""),
        disks=tuple(_disk(name, claims.get(Key(namespace, name))) for name in names_of_claims),
        addresses=tuple(dict.fromkeys(addresses)),
    )


def _disk(name: str, claim: Obj | None) -> Disk:
    if claim is None:
        return Disk(name, phase="missing")
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    wanted = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return Disk(
        name,
        size=str((status.get("capacity") or {}).get("storage") or wanted or ""),
        storage_class=str(spec.get("storageClassName") or ""),
        phase=str(status.get("phase") or ""),
        image=annotations_of(claim).get(names.IMAGE_ID_ANNOTATION, ""),
    )


def _node(obj: Obj) -> Node:
    ready = str(condition_of(obj, "Ready").get("status") or "Unknown")
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return Node(
        str(obj["metadata"]["name"]),
        ready,
        str((status.get("nodeInfo") or {}).get("kubeletVersion") or ""),
        created=str(obj["metadata"].get("creationTimestamp") or ""),
        zone=labels_of(obj).get(names.ZONE_LABEL, ""),
        provider_id=str(spec.get("providerID") or ""),
    )


def _lost(cluster: Cluster) -> Iterable[Problem]:
    """Machines that are ready by what the management cluster says, and have no VM."""
    for machine in cluster.machines:
        if machine.ready and machine.infrastructure and machine.vm is None and not machine.deleting:
            yield Problem(
                Severity.ERROR,
                (f"HarvesterMachine/{machine.infrastructure}",),
                "MachineNotFound",
                f"VirtualMachine {cluster.target_namespace}/{machine.infrastructure} does not exist on Harvester, and "
                "the provider has not noticed: it does not run, or cannot reach Harvester",
                f"Check the provider: {remedies.GET_PODS(namespace='caphv-system')}",
            )


def _host_problems(cluster: Cluster, harvester: HarvesterObjects) -> Iterable[Problem]:
    """Hosts that run machines of the cluster and are not ready."""
    not_ready = {obj["metadata"]["name"] for obj in harvester.hosts if not host_ready(obj)}
    for host in sorted({machine.vm.host for machine in cluster.machines if machine.vm} & not_ready):
        machines = tuple(f"Machine/{each.name}" for each in cluster.machines if each.vm and each.vm.host == host)
        yield Problem(
            Severity.ERROR,
            machines,
            "HostNotReady",
            f"host {host} of Harvester, which runs it, is not ready",
            "Check the host on Harvester; VMs of a lost host restart on others",
        )


def host_ready(obj: Obj) -> bool:
    """Whether a host of Harvester reports that it is ready."""
    return bool(condition_of(obj, "Ready").get("status") == "True")


def _with_problems(cluster: Cluster, found: Iterable[Problem]) -> Cluster:
    """Return a cluster with further problems; a lost host explains what Machines on it report."""
    found = list(found)
    explained = {name for problem in found if problem.reason == "HostNotReady" for name in problem.objects}
    known = tuple(problem for problem in cluster.problems if not explained.issuperset(problem.objects))
    problems = _added(known, found)
    state = cluster.state
    if state in (State.AVAILABLE, State.PROGRESSING) and any(each.severity.wrong for each in problems):
        state = State.DEGRADED
    return replace(cluster, problems=problems, state=state)


def _added(known: tuple[Problem, ...], found: Iterable[Problem]) -> tuple[Problem, ...]:
    """Problems of both, each object's once: what the management cluster reported comes first."""
    named = {name.partition("/")[2] for problem in known if problem.severity.wrong for name in problem.objects}
    fresh = [each for each in found if not {name.partition("/")[2] for name in each.objects} <= named]
    return tuple(sorted((*known, *fresh), key=lambda problem: problem.severity.rank))


def _map_machines(cluster: Cluster, change: Callable[[Machine], Machine]) -> Cluster:
    def group(each: Group) -> Group:
        return replace(each, machines=tuple(map(change, each.machines)))

    return replace(cluster, groups=tuple(map(group, cluster.groups)))
