"""Check clusters by the reports of their objects, and for a fragile control plane."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from caphv.api import remedies
from caphv.api.supported import support
from operations.status.causes import shared_subject
from operations.status.check import Check, Result, ok, skipped
from operations.status.model import Cluster, Severity


def checks(clusters: Iterable[Cluster], unconnected: Collection[str] = ()) -> Iterator[Check]:
    """Yield the checks of all clusters.

    :param clusters: the clusters that were read
    :param unconnected: identity Secrets that reach no Harvester, which other checks report
    """
    for cluster in clusters:
        subject = f"Cluster {cluster.key}"
        for problem in cluster.problems:
            # A cause that many clusters share has its own check.
            cause = shared_subject(cluster, problem)
            if cause and cluster.identity in unconnected:
                yield skipped("cluster", subject, f"{cluster.state}, because of {cause}")
            elif problem.severity.wrong:
                result = Result.ERROR if problem.severity is Severity.ERROR else Result.WARNING
                message = f"{problem.objects[0]}: {problem.cause}"
                yield Check("cluster", subject, result, message=message, remedy=problem.next_step)

        if not cluster.wrong:
            numbers = f"{cluster.control_plane} control plane, {cluster.workers} workers"
            yield ok("cluster", subject, f"{cluster.state}; {numbers}")
        yield from _check_version(cluster, subject)
        yield from _check_quorum(cluster, subject)
        yield from _check_placement(cluster, subject)


def _check_version(cluster: Cluster, subject: str) -> Iterator[Check]:
    """Warn of a Kubernetes that the provider and its bundles were not written for."""
    suffix = cluster.version.partition("+")[2]
    distribution = next((name for name in ("rke2", "k3s") if suffix.startswith(name)), "kubernetes")
    if problem := support().components[distribution].problem(cluster.version):
        remedy = "Upgrade the cluster to a supported release of its distribution"
        yield Check("cluster-version", subject, Result.WARNING, message=problem, remedy=remedy)


def _check_quorum(cluster: Cluster, subject: str) -> Iterator[Check]:
    """Warn of an even number of control plane machines, because etcd needs more than half."""
    what = "control plane machines"
    desired = cluster.control_plane.desired
    if any(machine.etcd is not machine.control_plane for machine in cluster.machines):
        what = "machines with etcd"
        desired = sum(machine.etcd for machine in cluster.machines)
    if desired and desired % 2 == 0:
        message = f"{desired} {what} survive no more failures than {desired - 1}"
        remedy = f"Use an odd number of {what}"
        yield Check("quorum", subject, Result.WARNING, message=message, remedy=remedy)


def _check_placement(cluster: Cluster, subject: str) -> Iterator[Check]:
    """Warn of a host or zone that takes the quorum of etcd with it when it fails."""
    machines = [machine for machine in cluster.machines if machine.etcd]
    if len(machines) < 3:
        # One or two machines lose their quorum with any of them, wherever they run.
        return

    # Hosts come before zones, because two machines on one host are in one zone as well.
    places_by_kind = {
        "host": [machine.host for machine in machines],
        "zone": [machine.zone for machine in machines],
    }
    for kind, all_places in places_by_kind.items():
        places = [place for place in all_places if place]
        worst = max(places, key=places.count, default="")
        lost = places.count(worst)
        # A machine whose place is unknown counts as a survivor.
        survivors = len(machines) - lost
        if 2 * survivors > len(machines):
            continue

        message = f"{lost} of {len(machines)} control plane machines run in {kind} {worst}"
        # Harvester restarts VMs of a failed host elsewhere, and does not move them back.
        machine = machines[all_places.index(worst)].name
        command = remedies.DELETE_MACHINE(machine=machine, namespace=cluster.key.namespace)
        remedy = (
            f"Without that {kind} etcd loses its quorum. Once another {kind} takes machines, and "
            f"controlPlaneFailureDomains, if set, names it, replace one of them: {command}"
        )
        yield Check("placement", subject, Result.WARNING, message=message, remedy=remedy)
        return
