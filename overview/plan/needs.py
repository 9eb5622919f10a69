"""Whether Harvester has what a plan needs: numbers compared with what is free. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from caphv.api.ippool import referenced_pools
from caphv.api.names import generated_names
from caphv.api.object import Obj
from overview.capacity import CapacityObjects, capacity_of
from overview.model import Pool
from overview.plan.effects import Needs
from overview.room import Size, hosts_of, unplaced

# What of a quota a VM takes, by the name of its limit. Harvester's own Pods of a VM take a little more.
_OF_QUOTA = {
    "limits.cpu": "cpu",
    "requests.cpu": "cpu",
    "cpu": "cpu",
    "limits.memory": "memory",
    "requests.memory": "memory",
    "memory": "memory",
    "requests.storage": "storage",
}


@dataclass(frozen=True, slots=True)
class Need:
    """What is needed at most, the surge included, compared with what is free; `free` is None when that is not known."""

    what: str
    unit: str
    needed: float
    free: float | None
    note: str = ""

    @property
    def short(self) -> bool:
        """Whether it is not enough."""
        return self.free is not None and self.needed > self.free


def needs_and_free(needs: Needs, harvester_cluster: Obj, found: CapacityObjects | None) -> tuple[Need, ...]:
    """Compare what a cluster's change needs with what is free on its Harvester, None where that cannot be read."""
    return tuple(_needs(needs, harvester_cluster, found)) if needs.vms else ()


def _needs(needs: Needs, harvester_cluster: Obj, found: CapacityObjects | None) -> Iterator[Need]:
    capacity = capacity_of(found) if found else None
    known = capacity is not None and capacity.total.hosts > 0
    note = "" if capacity is None or capacity.all_vms else "by the VMs that are seen"
    yield Need("CPU", "", float(needs.cpu), capacity.total.cpu_free if capacity and known else None, note)
    yield Need("memory", "B", float(needs.memory), capacity.total.memory_free if capacity and known else None, note)
    if found and known:
        left = unplaced(hosts_of(found.harvester), _requests(needs.sizes, found))
        if left:
            yield Need("VMs that fit on a host", "", needs.vms, needs.vms - left, note)
    storage = capacity.storage.free if capacity and capacity.storage else None
    yield Need("storage", "B", float(needs.storage), storage, "for one replica")
    if needs.addresses:
        yield _addresses(needs.addresses, harvester_cluster, capacity.pools if capacity else ())
    target = str((harvester_cluster.get("spec") or {}).get("targetNamespace") or "")
    for quota in capacity.quotas if capacity else ():
        field = _OF_QUOTA.get(quota.resource)
        if quota.namespace == target and field:
            unit = "" if field == "cpu" else "B"
            name = f"quota {quota.namespace}/{quota.name} {quota.resource}"
            yield Need(name, unit, float(getattr(needs, field)), quota.free)


def _requests(sizes: Iterable[Size], found: CapacityObjects) -> list[Size]:
    """What VMs of these sizes request of hosts: Harvester overcommits CPUs by the share that its other VMs show."""
    shares = []
    for instance in found.harvester.instances:
        resources = ((instance.get("spec") or {}).get("domain") or {}).get("resources") or {}
        limits, requests = (Size.of((resources.get(kind) or {}).get("cpu"), 0) for kind in ("limits", "requests"))
        if limits.cpu and requests.cpu:
            shares.append(requests.cpu / limits.cpu)
    share = max(shares, default=Decimal(1))
    return [Size(size.cpu * share, size.memory) for size in sizes]


def _addresses(needed: int, harvester_cluster: Obj, pools: Iterable[Pool]) -> Need:
    network = (harvester_cluster.get("spec") or {}).get("vmNetworkConfig") or {}
    names = list(referenced_pools(network))
    if network.get("ipPool") and (harvester_cluster.get("metadata") or {}).get("name"):
        names.append(generated_names(harvester_cluster, "vm-ippool")[0])
    known = [pool for pool in pools if pool.name in names]
    free = sum(pool.free or 0 for pool in known) if known else None
    return Need("addresses", "", needed, free, f"IPPool {', '.join(names)}" if names else "")
