"""Labels of hosts that Harvester copies to instances, for the cloud provider in the guest.

Modelled after `ReconcileFromHostLabels` in harvester's
`pkg/controller/master/virtualmachine/vmi_controller.go`.
"""

from __future__ import annotations

from caphv.api.object import Obj, annotations_of, labels_of
from sandbox.harvester.guestbalancers import CREATOR, NODE_DRIVER

_TOPOLOGY = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "kubernetes.io/hostname",
)


def topology_changes(vmi: Obj, labels: dict[str, str], host: Obj | None) -> dict[str, str | None]:
    """Return the annotations of an instance that must change. The value is None to remove one.

    :param vmi: the instance
    :param labels: the new labels of the instance
    :param host: the host on which the instance runs
    """
    if labels.get(CREATOR) != NODE_DRIVER or host is None:
        return {}

    current = annotations_of(vmi)
    expected = labels_of(host)
    return {
        name: expected.get(name) for name in _TOPOLOGY if current.get(name) != expected.get(name)
    }
