"""Release the addresses of leftovers, and correct the counts of their pools."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from caphv.api import resources
from caphv.runtime.client import ApiClient
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.capacity.poolreader import apply_repair, read_pools
from operations.leftovers.decision import ADDRESS, OwnedObject
from operations.read.harvesterclient import HarvesterClient
from operations.read.owners import OwnerObjects

_POLL = 1.0
# Seconds that Harvester gets to release the addresses of what was deleted.
_PATIENCE = 20.0


class Outcome(StrEnum):
    """What became of a leftover."""

    DELETED = "deleted"
    RELEASED = "released"
    """Of an address."""
    CORRECTED = "corrected"
    """Of counts and marks of a pool."""
    DELETING = "deleting"
    """Its deletion was requested, and something still keeps it."""
    KEPT = "kept"
    """It is no leftover any more, or something uses it now."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Deletion:
    """What became of one leftover, and why."""

    harvester: str
    object: str
    outcome: Outcome
    message: str = ""

    @property
    def done(self) -> bool:
        """Whether nothing of the object is left to do."""
        return self.outcome in (Outcome.DELETED, Outcome.RELEASED, Outcome.CORRECTED)


async def release_addresses(
    management: ApiClient,
    harvester: HarvesterClient,
    owners: OwnerObjects,
    pool: str,
    addresses: Sequence[OwnedObject],
) -> list[Deletion]:
    """Repair a pool until nothing that was deleted holds one of these addresses.

    Harvester releases those of its load balancers itself, a moment after they are deleted. Raises
    `ApiError`, `Unreachable`.

    :param management: client of the management cluster
    :param harvester: the Harvester
    :param owners: what the management cluster has
    :param pool: name of the IPPool
    :param addresses: what is to be released
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _PATIENCE
    deletions: list[Deletion] = []
    while True:
        repaired = await apply_repair(management, harvester, pool, owners)
        if repaired is not None:
            deletions += _repairs(harvester.server, repaired, {obj.name for obj in addresses})

        entries = await _entries(harvester, owners, pool)
        remaining = {
            address: entries[address.name] for address in addresses if address.name in entries
        }
        held = any(entry.verdict in (Verdict.HELD, Verdict.IN_USE) for entry in remaining.values())
        if not held or loop.time() > end:
            break
        await asyncio.sleep(_POLL)

    for address in addresses:
        outcome, message = Outcome.RELEASED, ""
        if entry := remaining.get(address):
            outcome, message = Outcome.KEPT, entry.detail or f"{entry.owner} holds it"
        deletions.append(Deletion(harvester.server, address.subject, outcome, message))
    return deletions


async def _entries(harvester: HarvesterClient, owners: OwnerObjects, pool: str) -> dict[str, Entry]:
    """Return the entries of a pool by address, as they are now; none of one that is deleted."""
    pools = await read_pools(harvester, owners)
    reports = {report.name: report for report in pools.reports()}
    return {entry.address: entry for entry in reports[pool].entries} if pool in reports else {}


def _repairs(server: str, report: PoolReport, listed: Collection[str]) -> Iterator[Deletion]:
    """Yield what a repair changed apart from the addresses that were listed.

    :param server: the Harvester
    :param report: the pool before its repair
    :param listed: addresses whose release is reported on its own
    """
    pool = f"{resources.IP_POOLS.kind} {report.name}"
    for entry in report.leaked:
        if entry.address not in listed:
            subject = f"{ADDRESS} {entry.address} of {pool}"
            yield Deletion(server, subject, Outcome.RELEASED, entry.detail)

    corrections = []
    if report.available != report.expected:
        corrections.append(f"status.available was {report.available} for {report.expected} free")
    if report.stray_marks:
        corrections.append(f"removed marks of free addresses: {', '.join(report.stray_marks)}")
    if corrections:
        yield Deletion(server, pool, Outcome.CORRECTED, "; ".join(corrections))
