"""Checks of clusters: what their own objects report, and what their shape makes likely."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from overview.causes import subject_of
from overview.doctor.model import Check, Result, ok, skipped
from overview.model import Cluster, Severity


def checks(clusters: Iterable[Cluster], unconnected: Collection[str] = ()) -> Iterator[Check]:
    """Yield the checks of all clusters.

    :param clusters: which were read
    :param unconnected: identity Secrets that lead to no Harvester, which other checks report
    """
    for cluster in clusters:
        subject = f"Cluster {cluster.key}"
        for problem in cluster.problems:
            cause = subject_of(cluster, problem)
            if cause and cluster.identity in unconnected:
                yield skipped("cluster", subject, f"{cluster.state}, because of {cause}")
            elif problem.severity.wrong:
                result = Result.ERROR if problem.severity is Severity.ERROR else Result.WARNING
                yield Check("cluster", subject, result, f"{problem.objects[0]}: {problem.cause}", problem.next_step)
        if not cluster.wrong:
            yield ok(
                "cluster", subject, f"{cluster.state}; {cluster.control_plane} control plane, {cluster.workers} workers"
            )
        yield from _quorum(cluster, subject)
        yield from _placement(cluster, subject)


def _quorum(cluster: Cluster, subject: str) -> Iterator[Check]:
    desired = cluster.control_plane.desired
    if desired and desired % 2 == 0:
        message = f"{desired} control plane machines survive no more failures than {desired - 1}"
        yield Check("quorum", subject, Result.WARNING, message, "Use an odd number of control plane machines")


def _placement(cluster: Cluster, subject: str) -> Iterator[Check]:
    """Control plane machines that fail together."""
    machines = [machine for machine in cluster.machines if machine.control_plane and machine.host]
    for what, places in (
        ("host", [machine.host for machine in machines]),
        ("zone", [machine.zone for machine in machines if machine.zone]),
    ):
        worst = max(places, key=places.count, default="")
        if len(places) >= 3 and 2 * places.count(worst) > len(places):
            message = f"{places.count(worst)} of {len(places)} control plane machines run in {what} {worst}"
            remedy = f"Without that {what} etcd loses its quorum: spread them over controlPlaneFailureDomains"
            yield Check("placement", subject, Result.WARNING, message, remedy)
            return
