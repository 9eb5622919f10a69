"""Differences between releases of Harvester, as data.

A name of two parts means the newest patch release of the minor version. A name of three parts means
a patch release that differs from the newest one. Simulators read `SimulatorConfig.release`.
docs/simulators.md has the sources of each difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class MaxSockets(Enum):
    """The value of `cpu.maxSockets` that Harvester sets. It limits CPUs that are hot-plugged."""

    UNSET = "nothing"
    ONE = "1"
    SOCKETS = "the number of sockets"


@dataclass(frozen=True, slots=True)
class Release:
    """One release, with its differences to other releases."""

    name: str

    # Refuse LoadBalancers of guests unless VMs of their namespace have the labels of Harvester's
    # node driver with the name of the guest's cluster.
    guests_need_vms: bool = False

    # Take the network of a guest's LoadBalancer from its annotations, then from VMIs with the label
    # of its cluster, and then from VMIs whose name begins with the cluster's name. A global pool
    # serves only its network.
    guest_network_by_label: bool = False

    # Refuse LoadBalancers of guests while their VMs are being removed.
    watches_guest_removal: bool = True

    # A scope that leaves the guest open serves all guests.
    matches_loosely: bool = True

    # LoadBalancers of VMs get no annotation of a network.
    vm_balancers_lack_network: bool = True

    # A LoadBalancer reports that its VMs have no addresses.
    missing_addresses: bool = True

    # Give MAC addresses to the interfaces of VMs at admission. Otherwise KubeVirt gives them to the
    # interfaces of instances.
    assigns_macs: bool = True

    # Bind interfaces of overlay networks with DHCP by `managedtap`.
    managed_tap: bool = True

    # The load balancer controller keeps a finalizer on each VM.
    guards_vms: bool = True

    # `cpu.maxSockets` of new VMs.
    max_sockets: MaxSockets = MaxSockets.ONE

    # Leave sockets and memory of VMs with the annotation of hot-plug as they are.
    keeps_maxima: bool = True

    # Check at admission whether a larger disk of a running VM can grow.
    checks_larger_disks: bool = True

    # Attach a hot-pluggable disk in the spec of a running VM.
    attaches_from_spec: bool = True

    # Remove `cpumanager`, a label of hosts, from the affinity of VMs.
    drops_cpu_manager: bool = True

    # Request GPUs of VMs as host devices, which include vGPUs.
    moves_gpus: bool = True

    # Name the StorageClass of an image after the uid of the image instead of its name.
    image_class_by_uid: bool = True


_BEFORE_1_8: dict[str, Any] = {
    "attaches_from_spec": False,
    "managed_tap": False,
    "moves_gpus": False,
    "guards_vms": False,
    "image_class_by_uid": False,
    "watches_guest_removal": False,
    "missing_addresses": False,
}
_BEFORE_1_7: dict[str, Any] = {
    **_BEFORE_1_8,
    "checks_larger_disks": False,
    "assigns_macs": False,
    "matches_loosely": False,
    "vm_balancers_lack_network": False,
}

RELEASES = {
    release.name: release
    for release in (
        Release("1.5", max_sockets=MaxSockets.UNSET, keeps_maxima=False, **_BEFORE_1_7),
        Release("1.6", **_BEFORE_1_7),
        Release("1.7", **_BEFORE_1_8),
        Release("1.8.0", guests_need_vms=True),
        Release("1.8"),
        Release(
            "1.9",
            guest_network_by_label=True,
            max_sockets=MaxSockets.SOCKETS,
            drops_cpu_manager=False,
        ),
    )
}
NEWEST_STABLE = "1.8"


def release_named(name: str) -> Release:
    """Return a release. Raise ValueError if it is not simulated."""
    if name not in RELEASES:
        raise ValueError(f"harvester: {name!r} is not simulated; use one of {', '.join(RELEASES)}")
    return RELEASES[name]
