"""Add what Harvester and its own API server report to a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from caphv.api import ippool, names, remedies, resources
from caphv.api.hosts import is_ready
from caphv.api.object import (
    Key,
    Obj,
    annotations_of,
    at,
    being_deleted,
    labels_of,
    list_at,
    text_at,
)
from caphv.api.virtualmachine import claim_sources
from operations.read.objects import HarvesterObjects, Unseen, by_key, condition_of
from operations.status.causes import HOSTS_NOT_READY, with_causes
from operations.status.conditionproblems import PATIENCE, age_of
from operations.status.model import (
    AddressPool,
    Cluster,
    Disk,
    Machine,
    Node,
    Overview,
    Problem,
    Severity,
    State,
    VirtualMachine,
)
from operations.status.parkingproblems import explains_all


def with_harvester(cluster: Cluster, harvester: HarvesterObjects) -> Cluster:
    """Return a cluster with the VMs of its machines, and problems of the VMs and their hosts."""
    vms = by_key(harvester.vms)
    instances = by_key(harvester.instances)
    claims = by_key(harvester.claims)
    namespace = cluster.target_namespace

    def with_vm(machine: Machine) -> Machine:
        key = Key(namespace, machine.infrastructure)
        obj = vms.get(key) if machine.infrastructure else None
        vm = _virtual_machine(obj, instances.get(key), claims) if obj else None
        return replace(machine, vm=vm, vm_namespace=namespace)

    detailed = _map_machines(cluster, with_vm)
    problems = [*_host_problems(detailed, harvester)]

    # A VM counts as absent only if all VMs of the namespace could be read.
    complete = harvester.sees(f"{resources.VIRTUAL_MACHINES} of namespace {namespace}")
    if complete and namespace in harvester.namespaces:
        problems += _missing_vm_problems(detailed)
    return _with_problems(detailed, problems)


def with_nodes(cluster: Cluster, objects: list[Obj] | Unseen, now: datetime) -> Cluster:
    """Return a cluster with the Nodes from its own API server."""
    if isinstance(objects, Unseen):
        return cluster
    nodes = {obj["metadata"]["name"]: obj for obj in objects}

    def with_node(machine: Machine) -> Machine:
        # Before `nodeRef` is set, the name of the HarvesterMachine counts, because VM and Node have
        # the same name.
        name = machine.node.name if machine.node else machine.infrastructure or machine.name
        obj = nodes.get(name)
        return replace(machine, node=_node(obj)) if obj else machine

    detailed = _map_machines(cluster, with_node)
    return _with_problems(detailed, [*_node_problems(detailed, nodes, now)])


def _node_problems(cluster: Cluster, nodes: dict[str, Obj], now: datetime) -> Iterator[Problem]:
    """Yield a problem for each Node that is not ready.

    :param cluster: the cluster with its Nodes
    :param nodes: the Nodes that its own API server has, by name
    :param now: the current time
    """
    servers = [machine for machine in cluster.machines if machine.etcd]
    for machine in cluster.machines:
        # Without a status, only the Machine remembers the Node.
        if not machine.node or machine.node.ready in ("True", "") or machine.deleting:
            continue

        step = "Check the VM's console on Harvester"
        # The only machine with the etcd of the cluster cannot be replaced.
        if servers != [machine]:
            command = remedies.DELETE_MACHINE(machine=machine.name, namespace=cluster.namespace)
            step += f", or replace the machine: {command}"

        # The kubelet of a Node that has just joined reports that it is not ready, for example until
        # the CNI runs. Unknown means that the kubelet no longer reports.
        ready = condition_of(nodes.get(machine.node.name), "Ready")
        since = str(ready.get("lastTransitionTime") or "")
        is_late = not since or age_of(since, now) > PATIENCE
        starts = machine.node.ready == "False" and not is_late
        yield Problem(
            Severity.WAITING if starts else Severity.ERROR,
            (f"Node/{machine.node.name}",),
            "NodeNotReady",
            cause="the kubelet does not report, or reports that it is not ready",
            next_step=step,
            since=since,
        )


def pools_of(harvester: HarvesterObjects) -> tuple[AddressPool, ...]:
    """Return the pools of a Harvester with their free addresses."""
    pools = []
    for obj in harvester.pools:
        allocated = len(ippool.allocated(obj))
        # Harvester accepts ranges that `ippool` cannot parse.
        try:
            total = ippool.pool_capacity(obj)
            free = ippool.free_count(obj)
        except ippool.InvalidPoolError:
            total = 0
            free = None
        pools.append(
            AddressPool(
                harvester=harvester.server,
                name=obj["metadata"]["name"],
                total=total,
                free=free,
                allocated=allocated,
            )
        )
    return tuple(sorted(pools, key=lambda pool: pool.name))


def with_details(
    overview: Overview,
    harvesters: dict[Key, HarvesterObjects],
    nodes: dict[Key, list[Obj] | Unseen],
    now: datetime,
) -> Overview:
    """Return an overview with the reports of Harvesters and workload clusters.

    :param overview: the overview by the management cluster alone
    :param harvesters: the objects of each Harvester, by identity Secret
    :param nodes: the Nodes of workload clusters, or why they could not be read
    :param now: the current time
    """

    def add_details(cluster: Cluster) -> Cluster:
        namespace, _, name = cluster.identity.rpartition("/")
        detailed = cluster
        if harvester := harvesters.get(Key(namespace, name)):
            detailed = with_harvester(detailed, harvester)
        if cluster.key in nodes:
            detailed = with_nodes(detailed, nodes[cluster.key], now)
        return detailed

    hidden = [str(objects) for objects in nodes.values() if isinstance(objects, Unseen)]
    pools: list[AddressPool] = []

    # Several identities may belong to one Harvester.
    for harvester in {id(objects): objects for objects in harvesters.values()}.values():
        hidden += [f"{item} on Harvester {harvester.server}" for item in harvester.unseen]
        pools += pools_of(harvester)

    detailed = replace(
        overview,
        clusters=tuple(map(add_details, overview.clusters)),
        pools=tuple(pools),
        unseen=(*overview.unseen, *hidden),
    )
    # Clusters on one Harvester have further causes in common.
    return with_causes(detailed)


def _virtual_machine(vm: Obj, instance: Obj | None, claims: dict[Key, Obj]) -> VirtualMachine:
    """Return the model of a VM, its VirtualMachineInstance while it runs, and its disks."""
    metadata = vm["metadata"]
    namespace = str(metadata.get("namespace") or "")
    claim_names = [source["claimName"] for source in claim_sources(vm)]

    # Tenants' servers may answer anything.
    addresses: list[object] = []
    for interface in list_at(instance, "status", "interfaces"):
        # An interface without a name exists only inside the guest, such as the CNI's interface.
        if at(interface, "name"):
            addresses += list_at(interface, "ipAddresses") or [at(interface, "ipAddress")]
    texts = [address for address in addresses if address and isinstance(address, str)]

    printable = text_at(vm, "status", "printableStatus")
    return VirtualMachine(
        namespace=namespace,
        name=str(metadata["name"]),
        status="Terminating" if being_deleted(vm) else printable,
        host=text_at(instance, "status", "nodeName"),
        created=str(metadata.get("creationTimestamp") or ""),
        disks=tuple(_disk(name, claims.get(Key(namespace, name))) for name in claim_names),
        addresses=tuple(dict.fromkeys(texts)),
    )


def _disk(name: str, claim: Obj | None) -> Disk:
    """Return the model of a disk, by its PersistentVolumeClaim."""
    if claim is None:
        return Disk(name, phase="missing")

    # Only a bound claim has a capacity, which may differ from its request.
    capacity = at(claim, "status", "capacity", "storage")
    request = at(claim, "spec", "resources", "requests", "storage")
    return Disk(
        name,
        size=str(capacity or request or ""),
        storage_class=text_at(claim, "spec", "storageClassName"),
        phase=text_at(claim, "status", "phase"),
        image=text_at(annotations_of(claim), names.IMAGE_ID_ANNOTATION),
    )


def _node(obj: Obj) -> Node:
    """Return the model of a Node from its own API server."""
    return Node(
        str(obj["metadata"]["name"]),
        str(condition_of(obj, "Ready").get("status") or "Unknown"),
        text_at(obj, "status", "nodeInfo", "kubeletVersion"),
        created=str(obj["metadata"].get("creationTimestamp") or ""),
        zone=text_at(labels_of(obj), names.ZONE_LABEL),
        provider_id=text_at(obj, "spec", "providerID"),
    )


def _missing_vm_problems(cluster: Cluster) -> Iterator[Problem]:
    """Yield a problem for each machine without a VM that the management cluster calls ready."""
    for machine in cluster.machines:
        should_exist = machine.ready and machine.infrastructure and not machine.deleting
        if not should_exist or machine.vm is not None:
            continue

        yield Problem(
            Severity.ERROR,
            (f"HarvesterMachine/{machine.infrastructure}",),
            "MachineNotFound",
            cause=f"VirtualMachine {cluster.target_namespace}/{machine.infrastructure} does not "
            "exist on Harvester, and the provider has not noticed: it does not run, or "
            "cannot reach Harvester",
            next_step=f"Check the provider: {remedies.GET_PODS(namespace='caphv-system')}",
        )


def _host_problems(cluster: Cluster, harvester: HarvesterObjects) -> Iterator[Problem]:
    """Yield a problem for each host that runs machines of the cluster and is not ready.

    A failed host no longer runs the machines that it ran before. A note therefore names all hosts
    that are not ready; clusters of one Harvester share it.
    """
    # Since when each host that is not ready has been so.
    not_ready = {
        obj["metadata"]["name"]: str(condition_of(obj, "Ready").get("lastTransitionTime") or "")
        for obj in harvester.hosts
        if not is_ready(obj)
    }

    machines_by_host: dict[str, list[str]] = {}
    for machine in cluster.machines:
        if machine.vm and machine.vm.host in not_ready:
            machines_by_host.setdefault(machine.vm.host, []).append(f"Machine/{machine.name}")

    for host, machines in sorted(machines_by_host.items()):
        yield Problem(
            Severity.ERROR,
            tuple(machines),
            "HostNotReady",
            cause=f"host {host} of Harvester, which runs it, is not ready",
            next_step="Check the host on Harvester; VMs of a lost host restart on others",
        )

    if not_ready.keys() - machines_by_host.keys():
        names_of_hosts = ", ".join(sorted(not_ready))
        command = remedies.DOCTOR(ref=cluster.key)
        yield Problem(
            Severity.NOTE,
            tuple(f"Host/{host}" for host in sorted(not_ready)),
            HOSTS_NOT_READY,
            cause=f"hosts of Harvester are not ready: {names_of_hosts}",
            next_step=f"Check them on Harvester. See what else is wrong there: {command}",
            since=min(not_ready.values()),
        )


def _with_problems(cluster: Cluster, additional: Collection[Problem]) -> Cluster:
    """Return a cluster with further problems; a lost host explains the problems of its Machines."""
    # Stopped VMs and Nodes are no problem in a parked cluster.
    if explains_all(cluster.problems):
        return cluster
    explained = {
        name
        for problem in additional
        if problem.reason == "HostNotReady"
        for name in problem.objects
    }
    remaining = tuple(
        problem for problem in cluster.problems if not explained.issuperset(problem.objects)
    )
    problems = _add_problems(remaining, additional)

    # Deletion, pause and failure matter more than the additional problems.
    state = cluster.state
    needs_action = any(problem.severity.wrong for problem in problems)
    if needs_action and state in (State.AVAILABLE, State.PROGRESSING):
        state = State.DEGRADED
    return replace(cluster, problems=problems, state=state)


def _add_problems(
    reported: tuple[Problem, ...], additional: Iterable[Problem]
) -> tuple[Problem, ...]:
    """Return the reported problems, and the additional ones of objects that have none yet.

    Objects are compared by their names alone: a Machine, its HarvesterMachine and its Node may
    share a name, and then the reported problem is the cause of the additional one.
    """

    def object_names(problem: Problem) -> set[str]:
        return {name.partition("/")[2] for name in problem.objects}

    with_problem: set[str] = set()
    for problem in reported:
        if problem.severity.wrong:
            with_problem |= object_names(problem)

    unexplained = [problem for problem in additional if not object_names(problem) <= with_problem]
    return tuple(sorted((*reported, *unexplained), key=lambda problem: problem.severity.rank))


def _map_machines(cluster: Cluster, change: Callable[[Machine], Machine]) -> Cluster:
    """Return a cluster with each of its machines changed."""
    groups = (
        replace(group, machines=tuple(map(change, group.machines))) for group in cluster.groups
    )
    return replace(cluster, groups=tuple(groups))
