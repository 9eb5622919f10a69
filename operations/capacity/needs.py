"""Compare the needs of a plan with the free capacity of a Harvester. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from caphv.api.hostresources import HUGEPAGES
from caphv.api.ippool import referenced_pools
from caphv.api.names import generated_names
from caphv.api.object import Obj, at, dict_at, text_at
from operations.capacity.free import Capacity, CapacityObjects, capacity_of
from operations.capacity.hosts import (
    Overcommit,
    Size,
    count_homeless,
    free_devices,
    hosts_of,
    overcommit_of,
)
from operations.capacity.machinechanges import Needs
from operations.status.model import AddressPool

DEVICE = "device "
"""Prefix of needs of devices, before the name of their resource."""
FITTING_VMS = "VMs that fit on a host"
_HIDDEN_VMS = "the account does not see VMs of other namespaces"
_FULL_SIZE = "counted without overcommit, which no VM shows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The largest need of a resource during a change, and its free amount.

    :param free: None if it is unknown
    :param partial: VMs that cannot be read may use some of the resource, so that less may be free
    """

    what: str
    unit: str
    needed: float
    free: float | None
    note: str = ""
    partial: bool = False

    @property
    def short(self) -> bool:
        """Whether the need exceeds the free amount."""
        return self.free is not None and self.needed > self.free


def needs_and_free(
    needs: Needs, harvester_cluster: Obj, objects: CapacityObjects | None
) -> tuple[Need, ...]:
    """Compare the needs of a cluster's change with the free capacity of its Harvester.

    :param needs: the needs of the change
    :param harvester_cluster: the HarvesterCluster, which names the pools and the namespace
    :param objects: objects of the Harvester; None if it cannot be read
    """
    return tuple(_needs(needs, harvester_cluster, objects)) if needs.vms else ()


def _needs(needs: Needs, harvester_cluster: Obj, objects: CapacityObjects | None) -> Iterator[Need]:
    """Yield the needs of hosts, devices, storage, addresses and quotas, as `needs_and_free`."""
    # Harvester overcommits its hosts. Existing VMs show what share of its size a VM requests.
    capacity = capacity_of(objects) if objects else None
    share = overcommit_of(objects.harvester.instances) if objects else Overcommit()
    requests = share.requests(Size(needs.cpu, needs.memory))

    yield from _host_needs(needs, requests, share, objects, capacity)
    yield from _device_needs(needs, objects)
    storage = capacity.storage.free if capacity and capacity.storage else None
    yield Need(
        what="storage", unit="B", needed=float(needs.storage), free=storage, note="for one replica"
    )
    if needs.addresses:
        pools = capacity.pools if capacity else ()
        yield _addresses_of_pools(needs.addresses, harvester_cluster, pools)

    if capacity is None:
        return
    target = text_at(harvester_cluster, "spec", "targetNamespace")
    amounts = _quota_amounts(needs, requests)
    for quota in capacity.quotas:
        if quota.namespace == target and quota.resource in amounts:
            unit = "" if quota.resource.endswith("cpu") else "B"
            what = f"quota {quota.namespace}/{quota.name} {quota.resource}"
            needed = float(amounts[quota.resource])
            yield Need(what=what, unit=unit, needed=needed, free=quota.free)


def _host_needs(
    needs: Needs,
    requests: Size,
    share: Overcommit,
    objects: CapacityObjects | None,
    capacity: Capacity | None,
) -> Iterator[Need]:
    """Yield CPU and memory of hosts. Needed and free amounts are requests, as for the scheduler.

    :param needs: the needs of the change
    :param requests: the requests of the change's VMs
    :param share: the shares of their limits that VMs request
    :param objects: objects of the Harvester
    :param capacity: the free capacity of the Harvester
    """
    cpu = Need(what="CPU", unit="", needed=float(requests.cpu), free=None)
    memory = Need(what="memory", unit="B", needed=float(requests.memory), free=None)
    if objects is None or capacity is None or not capacity.total.hosts:
        yield cpu
        yield memory
        return

    partial = not capacity.all_vms

    def join_notes(*, overcommit_known: bool) -> str:
        notes = []
        if partial:
            notes.append(_HIDDEN_VMS)
        if not overcommit_known:
            notes.append(_FULL_SIZE)
        return "; ".join(notes)

    note = join_notes(overcommit_known=share.cpu is not None)
    yield replace(cpu, free=capacity.total.cpu_free, note=note, partial=partial)
    note = join_notes(overcommit_known=share.memory is not None)
    yield replace(memory, free=capacity.total.memory_free, note=note, partial=partial)

    # The sum may fit although no host has room for a single VM.
    sizes = [share.requests(size) for size in needs.sizes]
    homeless = count_homeless(hosts_of(objects.harvester), sizes)
    if homeless:
        yield Need(
            what=FITTING_VMS,
            unit="",
            needed=needs.vms,
            free=needs.vms - homeless,
            note=join_notes(overcommit_known=share.is_known),
            partial=partial,
        )


def _device_needs(needs: Needs, objects: CapacityObjects | None) -> Iterator[Need]:
    """Yield the needs of devices and huge pages, by the names of their resources."""
    free = free_devices(objects.harvester) if objects and objects.harvester.hosts else None
    partial = free is not None and objects is not None and not objects.all_vms
    note = _HIDDEN_VMS if partial else ""
    for name, count in sorted(needs.devices.items()):
        unit = "B" if name.startswith(HUGEPAGES) else ""
        amount = None
        if free is not None:
            # A machine takes all its devices from one host, so remainders cannot be used.
            size = needs.smallest.get(name) or 1
            amount = float(sum(room[name] - room[name] % size for room in free.values()))
        yield Need(
            what=f"{DEVICE}{name}",
            unit=unit,
            needed=count,
            free=amount,
            note=note,
            partial=partial,
        )


def _quota_amounts(needs: Needs, requests: Size) -> dict[str, Decimal]:
    """Return the amounts that VMs take from a quota, by the name of the limit."""
    # Harvester counts huge pages as memory of the VM.
    pages = Decimal(
        sum(count for name, count in needs.devices.items() if name.startswith(HUGEPAGES))
    )
    # The Pod of a VM takes slightly more than these amounts.
    return {
        "limits.cpu": needs.cpu,
        "limits.memory": needs.memory + pages,
        "requests.cpu": requests.cpu,
        "cpu": requests.cpu,
        "requests.memory": requests.memory + pages,
        "memory": requests.memory + pages,
        "requests.storage": needs.storage,
    }


def _addresses_of_pools(needed: int, harvester_cluster: Obj, pools: Iterable[AddressPool]) -> Need:
    """Return the need of addresses from the IPPools of a cluster."""
    network = dict_at(harvester_cluster, "spec", "vmNetworkConfig")
    names = list(referenced_pools(network))
    # The provider creates this pool, and derives its name from the HarvesterCluster.
    if network.get("ipPool") and at(harvester_cluster, "metadata", "name"):
        names.append(generated_names(harvester_cluster, "vm-ippool")[0])
    visible = [pool for pool in pools if pool.name in names]
    free = sum(pool.free or 0 for pool in visible) if visible else None
    note = f"IPPool {', '.join(names)}" if names else ""
    return Need(what="addresses", unit="", needed=needed, free=free, note=note)
