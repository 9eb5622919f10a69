"""The release of a Harvester, and what depends on it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from caphv.api.object import Obj, at, labels_of, text_at

_TAG = re.compile(r"/harvester:v(\d{1,3})\.(\d{1,3})(?!\d)")
_ARCHITECTURE = "kubernetes.io/arch"
# The first releases that support it.
_HOTPLUG = (1, 7)
_LARGER_DISKS = (1, 7)
_MORE_DISKS = (1, 8)


def release_of(deployment: Obj | None) -> tuple[int, int] | None:
    """Return the release of Harvester by the image of its Deployment; None if it is unknown.

    :param deployment: Deployment `harvester-system/harvester`
    """
    containers = at(deployment, "spec", "template", "spec", "containers")
    for container in containers if isinstance(containers, list) else ():
        match = _TAG.search(text_at(container, "image"))
        if match:
            return int(match[1]), int(match[2])
    return None


def hotplug_obstacle(deployment: Obj | None, hosts: Iterable[Obj]) -> str:
    """Return why no VM can grow while it runs; empty if VMs can.

    :param deployment: Deployment `harvester-system/harvester`
    :param hosts: Nodes of Harvester
    """
    if too_old := _too_old(deployment, _HOTPLUG):
        return too_old

    # KubeVirt refuses a VM with maxima on other architectures.
    others = {labels_of(host).get(_ARCHITECTURE, "") for host in hosts} - {"amd64"}
    if others:
        return f"hosts are {', '.join(sorted(others)) or 'unknown'}, and only amd64 supports it"
    return ""


def larger_disks_obstacle(deployment: Obj | None) -> str:
    """Return why disks cannot grow while their VM runs; empty if the release can do that."""
    # Before, its webhook did not check a larger disk of a running VM.
    return _too_old(deployment, _LARGER_DISKS)


def more_disks_obstacle(deployment: Obj | None) -> str:
    """Return why a running VM cannot get disks; empty if the release can do that."""
    # Before, KubeVirt attached a disk by a subresource alone, and a volume in the spec of a VM
    # needed a restart.
    return _too_old(deployment, _MORE_DISKS)


def _too_old(deployment: Obj | None, first: tuple[int, int]) -> str:
    """Return why a Harvester lacks what the first release introduced; empty if it has it."""
    release = release_of(deployment)
    if release is None:
        return "the release of Harvester is unknown"
    if release < first:
        return (
            f"Harvester {release[0]}.{release[1]} does not support it, {first[0]}.{first[1]} and "
            "later do"
        )
    return ""
