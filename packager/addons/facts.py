"""Facts of one cluster: its objects and its Fleet Clusters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from caphv.api.object import Key, Obj, at, text_at

CAAPF, RANCHER = "caapf", "rancher"
"""Managers that import a cluster into Fleet."""
RANCHER_WORKSPACE = "fleet-default"
"""Namespace of the Fleet Clusters that Rancher creates."""
WITH_HELM_CONTROLLER = ("rke2", "k3s")
"""Distributions whose Helm controller installs charts from HelmChart manifests."""


class FleetCluster(NamedTuple):
    """A Fleet Cluster of a Cluster, and the manager that created it: `caapf` or `rancher`."""

    manager: str
    workspace: str = ""
    name: str = ""


@dataclass(frozen=True)
class ClusterFacts:
    """The objects of one cluster, from an API server or a file, and its Fleet Clusters.

    Empty `fleet_clusters` prove nothing, because Fleet Clusters may be unknown.
    """

    cluster: Obj
    harvester_cluster: Obj | None = None
    control_plane: Obj | None = None
    fleet_clusters: frozenset[FleetCluster] = frozenset()

    @property
    def key(self) -> Key:
        """Namespace and name of the Cluster; an object in a file may have no namespace."""
        namespace = at(self.cluster, "metadata", "namespace")
        return Key(str(namespace or "default"), text_at(self.cluster, "metadata", "name"))

    @property
    def kubernetes_version(self) -> str:
        """Desired version, such as `v1.36.2+rke2r1`; empty when no object has it."""
        # With a topology, the core passes its version on to the control plane later.
        topology = at(self.cluster, "spec", "topology", "version")
        return str(topology or at(self.control_plane, "spec", "version") or "")


def labels_of_cluster(facts: ClusterFacts) -> dict[str, str]:
    """Return the labels of the Cluster; empty if an object in a file has none."""
    return _texts(facts, "labels")


def annotations_of_cluster(facts: ClusterFacts) -> dict[str, str]:
    """Return the annotations of the Cluster; empty if an object in a file has none."""
    return _texts(facts, "annotations")


def _texts(facts: ClusterFacts, name: str) -> dict[str, str]:
    # No API server has checked objects in files, so they may hold anything here.
    texts = at(facts.cluster, "metadata", name)
    return texts if isinstance(texts, dict) else {}


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor of a version such as `v1.36.2+rke2r1`, None for other texts."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})", version)
    return (int(match[1]), int(match[2])) if match else None
