"""Check the IPPools on a Harvester."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import remedies
from caphv.api.counting import counted
from caphv.api.identities import is_cluster_identity
from caphv.api.object import key_of
from operations.capacity.addresspools import PoolReport, used_pools
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.status.check import Check, Result, ok, skipped

# Warn of a pool when a smaller share of its addresses is free.
_SCARCE_SHARE = 0.1


def checks(facts: HarvesterFacts, subject: str) -> Iterator[Check]:
    """Check the IPPools that clusters use, and all pools with wrong entries or counts."""
    if facts.recorded_owners is None:
        yield skipped("pools", subject, "the owners of addresses may not be read")
        return

    used = used_pools(facts.clusters, facts.machines)

    # A command finds the Harvester by an identity or a cluster in its namespace.
    namespaces = [key_of(obj).namespace for obj in facts.clusters]
    if not is_cluster_identity(facts.identity):
        namespaces.insert(0, facts.identity.namespace)
    for report in facts.pools:
        in_use = report.name in used
        if in_use or report.wrong:
            namespace = next(iter(namespaces), "NAMESPACE")
            yield _check_pool(report, subject, used=in_use, namespace=namespace)


def _check_pool(report: PoolReport, subject: str, *, used: bool, namespace: str) -> Check:
    """Check one IPPool.

    :param report: the report on the pool
    :param subject: the Harvester
    :param used: whether a cluster uses the pool
    :param namespace: the namespace of the identity, or of a cluster that uses it
    """
    if report.error:
        remedy = "Correct spec.ranges of the IPPool"
        return Check("pools", subject, Result.ERROR, message=report.error, remedy=remedy)

    free = f"IPPool {report.name}: {report.expected} of {report.total} addresses are free"
    if report.wrong:
        message = f"{free}; status.available is {report.available}"
        if report.leaked:
            message = f"{free}; {counted(len(report.leaked), 'has', 'have')} leaked"
        command = remedies.RELEASE_ADDRESSES(pool=report.name, namespace=namespace)
        return Check("pools", subject, Result.WARNING, message=message, remedy=command)

    if used and report.expected <= 0:
        remedy = "Add a range to the pool, or another pool to ipPoolRefs"
        return Check("pools", subject, Result.ERROR, message=free, remedy=remedy)
    if used and report.expected < report.total * _SCARCE_SHARE:
        remedy = "Add a range before the next rollout needs it"
        return Check("pools", subject, Result.WARNING, message=free, remedy=remedy)
    return ok("pools", subject, free)
