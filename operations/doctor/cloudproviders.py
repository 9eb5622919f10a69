"""Check whether the cloud provider and CSI driver that RKE2 installs in guests fit Harvester.

Which bundles a guest runs is in Git, and `caphv generate` compares those of a new cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from caphv.api.compatibility import Compatibility
from caphv.api.object import Key, Obj
from caphv.api.release import release_of
from caphv.api.rke2 import installs_cloud_provider
from operations.doctor import settings
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.read.harvestersettings import CHART_VERSIONS
from operations.status.check import Check, Result, ok
from operations.status.model import Cluster

_CHECK = "cloud-provider"


def checks(
    table: Compatibility,
    clusters: Iterable[Cluster],
    harvesters: Iterable[HarvesterFacts],
    control_planes: Mapping[Key, Obj],
) -> Iterator[Check]:
    """Yield the checks of clusters whose Harvester answers.

    :param table: which charts fit which Harvester
    :param clusters: the clusters
    :param harvesters: what was read of the Harvesters, by identity
    :param control_planes: control plane objects by key of the Cluster
    """
    answering = {str(facts.identity): facts for facts in harvesters if facts.objects is not None}
    for cluster in clusters:
        control_plane = control_planes.get(cluster.key) or {}
        if cluster.identity in answering and installs_cloud_provider(control_plane):
            yield from _check(table, cluster, answering[cluster.identity])


def _check(table: Compatibility, cluster: Cluster, facts: HarvesterFacts) -> Iterator[Check]:
    """Check the charts that RKE2 installs in one cluster.

    :param table: which charts fit which Harvester
    :param cluster: the cluster
    :param facts: what was read of its Harvester
    """
    charts = table.rke2_charts(cluster.version)
    if not charts:
        return  # a release of RKE2 that the table does not know

    subject = f"Cluster {cluster.key}"
    harvester = release_of(facts.deployment)
    accepted = settings.value_of(facts.objects, CHART_VERSIONS) if facts.objects else None
    problems = table.problems(charts, harvester, accepted if isinstance(accepted, dict) else {})
    for problem in problems:
        message = f"RKE2 {cluster.version}: {problem}"
        remedy = "Upgrade Harvester before the guest: RKE2 installs this chart with its Kubernetes"
        yield Check(_CHECK, subject, Result.ERROR, message=message, remedy=remedy)
    if not problems:
        versions = ", ".join(f"{name} {version}" for name, version in charts.items())
        release = f"Harvester {harvester[0]}.{harvester[1]}" if harvester else "this Harvester"
        message = f"RKE2 {cluster.version} has {versions}, which fit {release}"
        yield ok(_CHECK, subject, message)
