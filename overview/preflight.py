"""Checks before a cluster is changed: will the change be made at all, does it last, and is there room for it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from caphv.api import remedies
from caphv.api.counting import counted
from caphv.api.ippool import referenced_pools
from caphv.api.names import generated_names
from caphv.api.object import Key, Obj, annotations_of, being_deleted, key_of, labels_of
from overview.details import pools_of
from overview.diagnosis import Parts, resume_commands
from overview.doctor.model import Check, Result, ok, skipped
from overview.hostcapacity import Size, hosts_of, overcommit_of, requested, unplaced
from overview.model import Cluster, Severity
from overview.objects import HarvesterObjects

# Who applies an object from Git, by an annotation or label that it leaves.
_GITOPS = {
    "objectset.rio.cattle.io/id": "Fleet",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
    "argocd.argoproj.io/tracking-id": "Argo CD",
}


@dataclass(frozen=True, slots=True)
class Demand:
    """Machines that exist in addition while a change is under way: how many, and how large each is."""

    machines: int
    size: Size


def general(parts: Parts) -> Iterator[Check]:
    """Whether anything would happen at all, and whether it would last."""
    subject = f"Cluster {parts.key}"
    if being_deleted(parts.cluster):
        yield Check("deletion", subject, Result.ERROR, "the cluster is being deleted", "Create another cluster")
    if commands := resume_commands(parts):
        message = "the cluster is paused: no controller would act on the change"
        yield Check("paused", subject, Result.ERROR, message, f"Resume it: {commands}")
    marks = labels_of(parts.cluster) | annotations_of(parts.cluster)
    for mark, tool in _GITOPS.items():
        if mark in marks:
            message = f"{tool} applies this cluster from Git and would revert the change"
            yield Check("gitops", subject, Result.WARNING, message, "Make the change in the repository")
            return


def health(cluster: Cluster) -> Iterator[Check]:
    """What is wrong with the cluster now: a rollout would stop at it, or make it worse."""
    subject, wrong = f"Cluster {cluster.key}", [each for each in cluster.problems if each.severity.wrong]
    for problem in wrong:
        result = Result.ERROR if problem.severity is Severity.ERROR else Result.WARNING
        yield Check("health", subject, result, f"{problem.objects[0]}: {problem.cause}", problem.next_step)
    if not wrong:
        yield ok(
            "health", subject, f"{cluster.state}; {cluster.control_plane} control plane, {cluster.workers} workers"
        )


def room(parts: Parts, harvester: HarvesterObjects | None, demand: Demand) -> Iterator[Check]:
    """Whether Harvester has addresses and hosts for additional machines."""
    subject = f"Cluster {parts.key}"
    if not demand.machines:
        return
    if harvester is None:
        yield skipped("addresses", subject, "Harvester cannot be read")
        yield skipped("capacity", subject, "Harvester cannot be read")
        return
    yield from _addresses(parts, harvester, demand.machines)
    yield _capacity(subject, harvester, demand)


def _addresses(parts: Parts, harvester: HarvesterObjects, wanted: int) -> Iterator[Check]:
    own = parts.harvester_cluster or {}
    network = (own.get("spec") or {}).get("vmNetworkConfig") or {}
    names = list(referenced_pools(network))
    if network.get("ipPool") and own:
        names.append(generated_names(own, "vm-ippool")[0])
    if not names:
        return  # machines use DHCP
    subject = f"Cluster {parts.key}"
    pools = [pool for pool in pools_of(harvester) if pool.name in names]
    if not pools:
        yield skipped("addresses", subject, f"IPPool {', '.join(names)} cannot be read")
        return
    free = sum(pool.free or 0 for pool in pools)
    message = f"free addresses in IPPool {', '.join(pool.name for pool in pools)}: {free}, needed: {wanted}"
    if free < wanted:
        command = remedies.AUDIT_POOLS(namespace=parts.key.namespace)
        remedy = f"Find leaked addresses: {command}. Otherwise add a range or a pool to ipPoolRefs"
        yield Check("addresses", subject, Result.ERROR, message, remedy)
    else:
        yield ok("addresses", subject, message)


def _capacity(subject: str, harvester: HarvesterObjects, demand: Demand) -> Check:
    hosts = hosts_of(harvester)
    if not hosts or not demand.size:
        return skipped(
            "capacity", subject, "hosts cannot be read" if not hosts else "the size of machines is not known"
        )
    left = unplaced(hosts, [demand.size] * demand.machines)
    number = f"{counted(demand.machines, 'more VM')} of {demand.size}"
    if left:
        message = (
            f"hosts have no room for {left} of {number}" if left < demand.machines else f"no host has room for {number}"
        )
        remedy = "Stop other VMs, end the maintenance of hosts, or add a host"
        return Check("capacity", subject, Result.ERROR, message, remedy)
    note = "" if all(host.all_pods for host in hosts) else ", by the VMs that the identity may see"
    return ok("capacity", subject, f"hosts have room for {number}{note}")


def surge_of(replicas: int, value: object, default: int = 1) -> int:
    """Return how many machines a rolling update may add: a number, or a percentage that is rounded up."""
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdigit():
        return math.ceil(replicas * int(value[:-1]) / 100)
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        return int(value)
    return default


def size_of(parts: Parts, machines: Iterable[Obj], harvester: HarvesterObjects | None) -> Size:
    """Return what the largest VM of some HarvesterMachines requests; without its instance, by the size in its spec.

    Harvester overcommits, so that a VM requests less than its guest sees.
    """
    target = str(((parts.harvester_cluster or {}).get("spec") or {}).get("targetNamespace") or "")
    instances = {key_of(obj): obj for obj in harvester.instances} if harvester else {}
    share = overcommit_of(instances.values())
    sizes = []
    for machine in machines:
        instance = instances.get(Key(target, key_of(machine).name))
        spec = machine.get("spec") or {}
        size = requested(instance.get("spec") or {}) if instance else Size()
        sizes.append(size or share.requests(Size.of(spec.get("cpu"), spec.get("memory"))))
    return max(sizes, default=Size())
