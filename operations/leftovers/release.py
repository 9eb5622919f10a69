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

_POLL_SECONDS = 1.0
# Seconds to wait until Harvester has released the addresses of deleted objects.
_RELEASE_SECONDS = 20.0


class Outcome(StrEnum):
    """The result of deleting a leftover."""

    DELETED = "deleted"
    RELEASED = "released"
    """An address was released."""
    CORRECTED = "corrected"
    """Counts or marks of a pool were corrected."""
    DELETING = "deleting"
    """The deletion was requested, and something still keeps the object."""
    KEPT = "kept"
    """The object is no longer a leftover, or is in use now."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Deletion:
    """The result of deleting one leftover, with its reason."""

    harvester: str
    object: str
    outcome: Outcome
    message: str = ""

    @property
    def done(self) -> bool:
        """Whether nothing remains to be done for the object."""
        return self.outcome in (Outcome.DELETED, Outcome.RELEASED, Outcome.CORRECTED)


async def release_addresses(
    management: ApiClient,
    harvester: HarvesterClient,
    owners: OwnerObjects,
    pool: str,
    addresses: Sequence[OwnedObject],
) -> list[Deletion]:
    """Repair a pool until no deleted object holds one of these addresses.

    Harvester releases the addresses of its load balancers itself, a moment after their deletion.
    Raises `ApiError`, `Unreachable`.

    :param management: client of the management cluster
    :param harvester: the Harvester
    :param owners: possible owners on the management cluster
    :param pool: name of the IPPool
    :param addresses: the addresses to release
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _RELEASE_SECONDS
    deletions: list[Deletion] = []
    while True:
        repaired = await apply_repair(management, harvester, pool, owners)
        if repaired is not None:
            deletions += _repairs(harvester.server, repaired, {obj.name for obj in addresses})

        entries = await _read_entries(harvester, owners, pool)
        remaining = {
            address: entries[address.name] for address in addresses if address.name in entries
        }
        is_held = any(
            entry.verdict in (Verdict.HELD, Verdict.IN_USE) for entry in remaining.values()
        )
        if not is_held or loop.time() > deadline:
            break
        await asyncio.sleep(_POLL_SECONDS)

    for address in addresses:
        if entry := remaining.get(address):
            reason = entry.detail or f"{entry.owner} holds it"
            deletion = Deletion(harvester.server, address.subject, Outcome.KEPT, reason)
        else:
            deletion = Deletion(harvester.server, address.subject, Outcome.RELEASED)
        deletions.append(deletion)
    return deletions


async def _read_entries(
    harvester: HarvesterClient, owners: OwnerObjects, pool: str
) -> dict[str, Entry]:
    """Read the entries of a pool, and return them by address; none if the pool was deleted."""
    pools = await read_pools(harvester, owners)
    reports = {report.name: report for report in pools.reports()}
    return {entry.address: entry for entry in reports[pool].entries} if pool in reports else {}


def _repairs(server: str, report: PoolReport, listed: Collection[str]) -> Iterator[Deletion]:
    """Yield the changes of a repair, except releases of the listed addresses.

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
