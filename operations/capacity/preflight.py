"""Check before a change whether controllers will act on it, and whether there is room. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api import remedies
from caphv.api.compatibility import compatibility
from caphv.api.counting import counted
from caphv.api.hostresources import HUGEPAGES
from caphv.api.ippool import referenced_pools
from caphv.api.names import generated_names
from caphv.api.object import (
    Key,
    Obj,
    annotations_of,
    at,
    being_deleted,
    dict_at,
    key_of,
    labels_of,
    text_at,
)
from caphv.api.quantity import in_gibibytes
from caphv.api.rke2 import installs_cloud_provider
from operations.capacity.free import CapacityObjects
from operations.capacity.hosts import (
    Size,
    count_homeless,
    count_without_devices,
    devices_of_machine,
    free_devices,
    hosts_of,
    overcommit_of,
    requests_of,
)
from operations.capacity.requirements import imports_of, machine_requirements, shortcomings
from operations.capacity.surroundings import Surroundings
from operations.read.chartlimits import ChartLimits
from operations.read.objects import HarvesterObjects, by_key
from operations.status.check import Check, Result, ok, skipped
from operations.status.details import pools_of
from operations.status.model import Cluster, Severity
from operations.status.parts import Parts, resume_commands

# Tools that apply objects from Git, by the annotation or label that each sets.
_GITOPS = {
    "objectset.rio.cattle.io/id": "Fleet",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
    "argocd.argoproj.io/tracking-id": "Argo CD",
}


@dataclass(frozen=True, slots=True)
class Demand:
    """Additional machines that exist during a change.

    :param machines: their number
    :param size: the requests of each of them
    :param devices: the devices of each additional machine, by resource. There is one list for each
        pool, because pools change one after the other.
    """

    machines: int
    size: Size
    devices: Sequence[Sequence[Mapping[str, int]]]


def check_controllers(parts: Parts) -> Iterator[Check]:
    """Check whether controllers act on the cluster, and whether GitOps would revert a change."""
    subject = f"Cluster {parts.key}"
    if being_deleted(parts.cluster):
        message = "the cluster is being deleted"
        yield Check("deletion", subject, Result.ERROR, message, "Create another cluster")

    if commands := resume_commands(parts):
        message = "the cluster is paused: no controller would act on the change"
        yield Check("paused", subject, Result.ERROR, message, f"Resume it: {commands}")

    marks = labels_of(parts.cluster) | annotations_of(parts.cluster)
    for mark, tool in _GITOPS.items():
        if mark in marks:
            message = f"{tool} applies this cluster from Git and would revert the change"
            remedy = "Make the change in the repository"
            yield Check("gitops", subject, Result.WARNING, message, remedy)
            return


def check_health(cluster: Cluster) -> Iterator[Check]:
    """Yield problems of the cluster, which could block a rollout or become worse by it."""
    subject = f"Cluster {cluster.key}"
    problems = [problem for problem in cluster.problems if problem.severity.wrong]
    for problem in problems:
        result = Result.ERROR if problem.severity is Severity.ERROR else Result.WARNING
        message = f"{problem.objects[0]}: {problem.cause}"
        yield Check("health", subject, result, message, problem.next_step)

    if not problems:
        numbers = f"{cluster.control_plane} control plane, {cluster.workers} workers"
        yield ok("health", subject, f"{cluster.state}; {numbers}")


def check_room(parts: Parts, harvester: HarvesterObjects | None, demand: Demand) -> Iterator[Check]:
    """Check whether Harvester has addresses and hosts for additional machines."""
    if not demand.machines:
        return
    subject = f"Cluster {parts.key}"
    if harvester is None:
        yield skipped("addresses", subject, "Harvester cannot be read")
        yield skipped("capacity", subject, "Harvester cannot be read")
        return

    yield from _check_addresses(parts, harvester, demand.machines)
    yield _check_hosts(subject, harvester, demand)
    yield from _check_devices(subject, harvester, demand)


def check_charts(parts: Parts, version: str, limits: ChartLimits | None) -> Iterator[Check]:
    """Check whether Harvester accepts the charts that another version of RKE2 installs.

    :param parts: the objects of the cluster
    :param version: the version of Kubernetes
    :param limits: the charts that its Harvester accepts; None if it cannot be read
    """
    charts = compatibility().rke2_charts(version)
    if not installs_cloud_provider(parts.control_plane or {}) or not charts:
        return
    subject = f"Cluster {parts.key}"
    if limits is None:
        yield skipped("cloud-provider", subject, "Harvester cannot be read")
        return

    problems = compatibility().problems(charts, limits.harvester, limits.accepted)
    for problem in problems:
        remedy = "Upgrade Harvester first: RKE2 installs this chart with its Kubernetes"
        yield Check("cloud-provider", subject, Result.ERROR, problem, remedy)
    if not problems:
        versions = ", ".join(f"{name} {version}" for name, version in charts.items())
        yield ok("cloud-provider", subject, f"Harvester takes {versions} of RKE2 {version}")


def check_objects(
    parts: Parts, harvester: HarvesterObjects | None, version: str
) -> Iterator[Check]:
    """Check whether Harvester has the objects to which the VMs of new machines refer.

    :param parts: the objects of the cluster
    :param harvester: its Harvester with images, key pairs and networks; None if it cannot be read
    :param version: the version of Kubernetes of new machines
    """
    subject = f"Cluster {parts.key}"
    if harvester is None:
        yield skipped("objects", subject, "Harvester cannot be read")
        return

    spec = dict_at(parts.harvester_cluster, "spec")
    target = str(spec.get("targetNamespace") or "")
    imported = imports_of(spec)
    surroundings = Surroundings(CapacityObjects(harvester))
    # A dict removes duplicates, because many machines refer to the same image.
    absent: dict[tuple[str, str], None] = {}
    for machine in parts.harvester_machines.values():
        required = machine_requirements(
            machine.get("spec") or {}, target, version=version, imported=imported
        )
        for finding in shortcomings(required, surroundings):
            if not finding.advice:
                absent[str(finding.value), finding.detail] = None

    for value, detail in absent:
        remedy = "Correct it first: new machines would get no VM"
        yield Check("objects", subject, Result.ERROR, f"{value}: {detail}", remedy)
    if not absent:
        yield ok("objects", subject, "Harvester has what new machines name, as far as it shows it")


def _check_addresses(parts: Parts, harvester: HarvesterObjects, needed: int) -> Iterator[Check]:
    """Check whether the cluster's IPPools have addresses for additional machines."""
    harvester_cluster = parts.harvester_cluster or {}
    network = dict_at(harvester_cluster, "spec", "vmNetworkConfig")
    names = list(referenced_pools(network))
    # The provider creates this pool, and derives its name from the HarvesterCluster.
    if network.get("ipPool") and harvester_cluster:
        names.append(generated_names(harvester_cluster, "vm-ippool")[0])
    if not names:
        return  # machines use DHCP

    subject = f"Cluster {parts.key}"
    pools = [pool for pool in pools_of(harvester) if pool.name in names]
    if not pools:
        yield skipped("addresses", subject, f"IPPool {', '.join(names)} cannot be read")
        return

    free = sum(pool.free or 0 for pool in pools)
    message = (
        f"free addresses in IPPool {', '.join(pool.name for pool in pools)}: {free}, needed: "
        f"{needed}"
    )
    if free < needed:
        command = remedies.AUDIT_POOLS(namespace=parts.key.namespace)
        remedy = (
            f"Find leaked addresses: {command}. Otherwise add a range to the pool, or another pool "
            "to ipPoolRefs"
        )
        yield Check("addresses", subject, Result.ERROR, message, remedy)
    else:
        yield ok("addresses", subject, message)


def _check_hosts(subject: str, harvester: HarvesterObjects, demand: Demand) -> Check:
    """Check whether hosts have room for additional machines."""
    hosts = hosts_of(harvester)
    if not hosts:
        return skipped("capacity", subject, "hosts cannot be read")
    if not demand.size:
        return skipped("capacity", subject, "the size of machines is not known")

    # All additional machines exist at the same time, so each takes room from the next.
    number = f"{counted(demand.machines, 'more VM')} of {demand.size}"
    homeless = count_homeless(hosts, [demand.size] * demand.machines)
    if homeless:
        message = f"no host has room for {number}"
        if homeless < demand.machines:
            message = f"hosts have no room for {homeless} of {number}"
        remedy = "Stop other VMs, end the maintenance of hosts, or add a host"
        return Check("capacity", subject, Result.ERROR, message, remedy)

    note = "" if all(host.all_pods for host in hosts) else ", by the VMs that the identity may see"
    return ok("capacity", subject, f"hosts have room for {number}{note}")


def _check_devices(subject: str, harvester: HarvesterObjects, demand: Demand) -> Iterator[Check]:
    """Warn of devices of which too few are free: machines with them would wait."""
    if not harvester.hosts:
        return
    free = free_devices(harvester)
    total = sum(free.values(), Counter[str]())
    checks: dict[str, Check] = {}
    for machines in demand.devices:
        for name, check in _check_pool_devices(subject, machines, free, total):
            # Keep the worst result of several pools.
            if check.result is Result.WARNING or name not in checks:
                checks[name] = check
    yield from (checks[name] for name in sorted(checks))


def _check_pool_devices(
    subject: str,
    machines: Sequence[Mapping[str, int]],
    free: Mapping[str, Counter[str]],
    total: Counter[str],
) -> Iterator[tuple[str, Check]]:
    """Check the devices of machines that exist in addition at the same time.

    :param free: free devices by host and resource
    :param total: their sum over all hosts
    """
    must_wait = count_without_devices(free, machines) > 0
    for name in sorted({name for devices in machines for name in devices}):
        counts = [devices[name] for devices in machines if devices.get(name)]
        needed = sum(counts)
        message = (
            f"free devices {name}: {_amount(name, total[name])}; "
            f"{counted(len(counts), 'more machine')} with them: {_amount(name, needed)} needed"
        )
        if must_wait and total[name] >= needed:
            message += ", and each machine needs all its devices on one host"
        if must_wait:
            remedy = (
                "Further machines with such devices would wait. Enable more on Harvester, stop a "
                "VM that uses them, or for a rollout set maxSurge: 0 in its MachineDeployment"
            )
            yield name, Check("devices", subject, Result.WARNING, message, remedy)
        else:
            yield name, ok("devices", subject, message)


def _amount(name: str, count: int) -> str:
    """Format a number of devices, or of bytes of huge pages."""
    return in_gibibytes(count) if name.startswith(HUGEPAGES) else str(count)


def devices_of_machines(machines: Iterable[Obj], number: int) -> list[Counter[str]]:
    """Return the devices of each additional machine of a pool; empty if machines have none.

    :param machines: HarvesterMachines of the pool, or templates of them
    :param number: the number of additional machines
    """
    largest: Counter[str] = Counter()
    for machine in machines:
        spec = at(machine, "spec", "template", "spec") or machine.get("spec") or {}
        largest |= devices_of_machine(spec)
    return [largest] * number if largest else []


def surge_of(replicas: int, value: object) -> int:
    """Return the number of machines that a rolling update may add.

    :param value: a number, or a percentage of `replicas`, which is rounded up; 1 for other values
    """
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdigit():
        return math.ceil(replicas * int(value[:-1]) / 100)
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        return int(value)
    return 1


def size_of(parts: Parts, machines: Iterable[Obj], harvester: HarvesterObjects | None) -> Size:
    """Return the requests of the largest VM of some HarvesterMachines.

    :param parts: the objects of the cluster
    :param machines: HarvesterMachines
    :param harvester: objects of the Harvester; None if it cannot be read
    """
    target = text_at(parts.harvester_cluster, "spec", "targetNamespace")
    instances = by_key(harvester.instances) if harvester else {}
    share = overcommit_of(instances.values())

    # Harvester overcommits its hosts, so a VM requests less than its guest has. Without an
    # instance, the size in the spec counts, multiplied by the shares that other VMs show.
    sizes = []
    for machine in machines:
        instance = instances.get(Key(target, key_of(machine).name))
        spec = machine.get("spec") or {}
        size = requests_of(instance.get("spec") or {}) if instance else Size()
        sizes.append(size or share.requests(Size.of_machine(spec)))
    return max(sizes, default=Size())
