"""Differences between releases of Harvester, as data.

A name of two parts is the newest patch release of its minor; one of three parts differs from that.
Simulators ask `SimulatorConfig.release`. docs/simulators.md has the sources of each difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class MaxSockets(Enum):
    """What Harvester writes as `cpu.maxSockets`: CPUs cannot be hot-plugged beyond it."""

    UNSET = "nothing"
    ONE = "1"
    SOCKETS = "the number of sockets"


@dataclass(frozen=True, slots=True)
class Release:
    """What one release does that another does not.

    With `guests_need_vms`, LoadBalancers of guests are refused unless VMs of their namespace have the labels of
    Harvester's node driver with the name of the guest's cluster. With `guest_network_by_label`, the network of a
    guest's LoadBalancer comes from its annotations or from VMIs with the label of its cluster, before those whose name
    begins with the cluster's, and a global pool serves only its network. Unless `watches_guest_removal`,
    LoadBalancers of guests are admitted while their VMs are removed. With `matches_loosely`, a scope that leaves the
    guest open serves all guests; with `missing_addresses`, a LoadBalancer says that its VMs have none.

    It `assigns_macs` to interfaces of VMs at admission, before 1.7 KubeVirt does so to those of instances. Since 1.8 it
    binds interfaces of overlay networks with DHCP by `managed_tap`, and the StorageClass of an image is named by uid
    (`image_class_by_uid`), before by the image's name. Since 1.8 its load balancer controller `guards_vms` by a
    finalizer. `cpu.maxSockets` of new VMs is set to 1 by 1.6 to 1.8 and to the number of sockets by 1.9. Before 1.9 it
    `drops_cpu_manager`, a label of hosts, from the affinity of VMs.
    """

    name: str
    guests_need_vms: bool = False
    guest_network_by_label: bool = False
    assigns_macs: bool = True
    managed_tap: bool = True
    guards_vms: bool = True
    max_sockets: MaxSockets = MaxSockets.ONE
    drops_cpu_manager: bool = True
    image_class_by_uid: bool = True
    watches_guest_removal: bool = True
    matches_loosely: bool = True
    vm_balancers_lack_network: bool = True
    missing_addresses: bool = True


_BEFORE_1_8: dict[str, Any] = {
    "managed_tap": False,
    "guards_vms": False,
    "image_class_by_uid": False,
    "watches_guest_removal": False,
    "missing_addresses": False,
}
_BEFORE_1_7: dict[str, Any] = {
    **_BEFORE_1_8,
    "assigns_macs": False,
    "matches_loosely": False,
    "vm_balancers_lack_network": False,
}

RELEASES = {
    release.name: release
    for release in (
        Release("1.5", max_sockets=MaxSockets.UNSET, **_BEFORE_1_7),
        Release("1.6", **_BEFORE_1_7),
        Release("1.7", **_BEFORE_1_8),
        Release("1.8.0", guests_need_vms=True),
        Release("1.8"),
        Release("1.9", guest_network_by_label=True, max_sockets=MaxSockets.SOCKETS, drops_cpu_manager=False),
    )
}
NEWEST_STABLE = "1.8"


def release_named(name: str) -> Release:
    """Return a release. Raises ValueError for one that is not simulated."""
    if name not in RELEASES:
        raise ValueError(f"harvester: {name!r} is not simulated; use one of {', '.join(RELEASES)}")
    return RELEASES[name]
