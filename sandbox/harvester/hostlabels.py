"""Labels of hosts that Harvester copies to instances of guests, for the cloud provider in the guest.

Modelled after `ReconcileFromHostLabels` in harvester's `pkg/controller/master/virtualmachine/vmi_controller.go`.
"""

from __future__ import annotations

from caphv.api.object import Obj, annotations_of, labels_of
from sandbox.harvester.guestbalancers import CREATOR, NODE_DRIVER

_COPIED = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region", "kubernetes.io/hostname")


def copied(vmi: Obj, labels: dict[str, str], host: Obj | None) -> dict[str, str | None]:
    """Annotations of an instance that change, with None for those to remove.

    :param vmi: the instance
    :param labels: its labels, which may be about to change
    :param host: the host on which it runs
    """
    if labels.get(CREATOR) != NODE_DRIVER or host is None:
        return {}
    annotations, found = annotations_of(vmi), labels_of(host)
    return {name: found.get(name) for name in _COPIED if annotations.get(name) != found.get(name)}
