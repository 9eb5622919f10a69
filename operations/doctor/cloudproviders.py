"""Check whether the cloud provider and CSI driver of guests fit their Harvester."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from caphv.api.compatibility import CLOUD_PROVIDER, CSI_DRIVER, Compatibility
from caphv.api.object import Key, Obj
from caphv.api.release import release_of
from caphv.api.rke2 import installs_cloud_provider
from operations.doctor import settings
from operations.doctor.harvester import HarvesterFacts
from operations.status.check import Check, Result, ok
from operations.status.model import Cluster

_CHECK = "cloud-provider"


def checks(
    table: Compatibility,
    clusters: Iterable[Cluster],
    harvesters: Iterable[HarvesterFacts],
    control_planes: Mapping[Key, Obj],
) -> Iterator[Check]:
    """Yield the checks of Harvesters that answer, and of the clusters there.

    :param table: which charts fit which Harvester
    :param clusters: the clusters
    :param harvesters: what was read of the Harvesters, by identity
    :param control_planes: control plane objects by key of the Cluster
    """
    answering = {str(facts.identity): facts for facts in harvesters if facts.objects is not None}
    for facts in answering.values():
        yield from _check_bundles(table, facts)
    for cluster in clusters:
        if cluster.identity in answering:
            harvester, control_plane = answering[cluster.identity], control_planes.get(cluster.key)
            yield from _check(table, cluster, harvester, control_plane or {})


def _check_bundles(table: Compatibility, facts: HarvesterFacts) -> Iterator[Check]:
    """Warn of a Harvester that the newest release of the bundles was not made for."""
    harvester = release_of(facts.deployment)
    if facts.objects is None or not table.unmade_for(harvester):
        return

    assert harvester is not None  # noqa: S101 - an unknown release is no problem
    oldest, newest = table.harvester
    message = (
        f"release {table.bundles} of the bundles is made for Harvester {oldest} to {newest}, not "
        f"{harvester[0]}.{harvester[1]}"
    )
    remedy = "Upgrade Harvester, or caphv to a release whose bundles are made for it"
    subject = f"Harvester {facts.objects.server}"
    yield Check(_CHECK, subject, Result.WARNING, message, remedy)


def _check(
    table: Compatibility, cluster: Cluster, facts: HarvesterFacts, control_plane: Obj
) -> Iterator[Check]:
    """Check the charts of one cluster: RKE2's own, else those of the newest bundles.

    :param table: which charts fit which Harvester
    :param cluster: the cluster
    :param facts: what was read of its Harvester
    :param control_plane: its control plane object
    """
    subject, harvester = f"Cluster {cluster.key}", release_of(facts.deployment)
    if installs_cloud_provider(control_plane):
        source, charts = f"RKE2 {cluster.version}", table.rke2_charts(cluster.version)
        remedy = (
            "Upgrade Harvester before the guest: RKE2 installs these charts with its Kubernetes"
        )
    else:
        source, charts = f"the newest bundles ({table.bundles})", table.charts
        remedy = "Upgrade Harvester, or set the versions of the charts (ccm.version, csi.version)"
    charts = {name: charts[name] for name in (CLOUD_PROVIDER, CSI_DRIVER) if name in charts}
    if not charts:
        return  # a release of RKE2 that the table does not know

    accepted = settings.value_of(facts.objects, settings.CHART_VERSIONS) if facts.objects else None
    problems = table.problems(charts, harvester, accepted if isinstance(accepted, dict) else {})
    for problem in problems:
        yield Check(_CHECK, subject, Result.ERROR, f"{source}: {problem}", remedy)
    if not problems:
        versions = ", ".join(f"{name} {version}" for name, version in charts.items())
        release = f"Harvester {harvester[0]}.{harvester[1]}" if harvester else "this Harvester"
        yield ok(_CHECK, subject, f"{source} has {versions}, which fit {release}")
