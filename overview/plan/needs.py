"""Whether Harvester has what a plan needs: numbers compared with what is free. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from caphv.api.ippool import referenced_pools
from caphv.api.names import generated_names
from caphv.api.object import Obj
from overview.capacity import Capacity, CapacityObjects, capacity_of
from overview.hostcapacity import Overcommit, Size, hosts_of, overcommit_of, unplaced
from overview.model import Pool
from overview.plan.machinechanges import Needs

_FULL_SIZE = "counted without overcommit, which no VM shows"


@dataclass(frozen=True, slots=True)
class Need:
    """What is needed at most, the surge included, compared with what is free; `free` is None when that is not known.

    `partial` says that others may use some of it without being seen, so that less may be free.
    """

    what: str
    unit: str
    needed: float
    free: float | None
    note: str = ""
    partial: bool = False

    @property
    def short(self) -> bool:
        """Whether it is not enough."""
        return self.free is not None and self.needed > self.free


def needs_and_free(needs: Needs, harvester_cluster: Obj, found: CapacityObjects | None) -> tuple[Need, ...]:
    """Compare what a cluster's change needs with what is free on its Harvester, None where that cannot be read."""
    return tuple(_needs(needs, harvester_cluster, found)) if needs.vms else ()


def _needs(needs: Needs, harvester_cluster: Obj, found: CapacityObjects | None) -> Iterator[Need]:
    capacity = capacity_of(found) if found else None
    share = overcommit_of(found.harvester.instances) if found else Overcommit()
    requests = share.requests(Size(needs.cpu, needs.memory))
    yield from _hosts(needs, requests, share, found, capacity)
    storage = capacity.storage.free if capacity and capacity.storage else None
    yield Need("storage", "B", float(needs.storage), storage, "for one replica")
    if needs.addresses:
        yield _addresses(needs.addresses, harvester_cluster, capacity.pools if capacity else ())
    target = str((harvester_cluster.get("spec") or {}).get("targetNamespace") or "")
    taken = _of_quota(needs, requests)
    for quota in capacity.quotas if capacity else ():
        if quota.namespace == target and quota.resource in taken:
            unit = "" if quota.resource.endswith("cpu") else "B"
            name = f"quota {quota.namespace}/{quota.name} {quota.resource}"
            yield Need(name, unit, float(taken[quota.resource]), quota.free)


def _hosts(
    needs: Needs, requests: Size, share: Overcommit, found: CapacityObjects | None, capacity: Capacity | None
) -> Iterator[Need]:
    """CPU and memory of hosts, which both sides count by requests, as the scheduler does."""
    if found is None or capacity is None or not capacity.total.hosts:
        yield Need("CPU", "", float(requests.cpu), None)
        yield Need("memory", "B", float(requests.memory), None)
        return
    partial = not capacity.all_vms
    seen = "the account does not see VMs of other namespaces" if partial else ""
    cpu, memory, both = (
        "; ".join(filter(None, (seen, "" if known else _FULL_SIZE)))
        for known in (share.cpu is not None, share.memory is not None, share.known)
    )
    yield Need("CPU", "", float(requests.cpu), capacity.total.cpu_free, cpu, partial)
    yield Need("memory", "B", float(requests.memory), capacity.total.memory_free, memory, partial)
    left = unplaced(hosts_of(found.harvester), [share.requests(size) for size in needs.sizes])
    if left:
        yield Need("VMs that fit on a host", "", needs.vms, needs.vms - left, both, partial)


def _of_quota(needs: Needs, requests: Size) -> dict[str, Decimal]:
    """What VMs take of a quota, by the name of its limit. Harvester's own Pods of a VM take a little more."""
    return {
        "limits.cpu": needs.cpu,
        "limits.memory": needs.memory,
        "requests.cpu": requests.cpu,
        "cpu": requests.cpu,
        "requests.memory": requests.memory,
        "memory": requests.memory,
        "requests.storage": needs.storage,
    }


def _addresses(needed: int, harvester_cluster: Obj, pools: Iterable[Pool]) -> Need:
    network = (harvester_cluster.get("spec") or {}).get("vmNetworkConfig") or {}
    names = list(referenced_pools(network))
    if network.get("ipPool") and (harvester_cluster.get("metadata") or {}).get("name"):
        names.append(generated_names(harvester_cluster, "vm-ippool")[0])
    known = [pool for pool in pools if pool.name in names]
    free = sum(pool.free or 0 for pool in known) if known else None
    return Need("addresses", "", needed, free, f"IPPool {', '.join(names)}" if names else "")
