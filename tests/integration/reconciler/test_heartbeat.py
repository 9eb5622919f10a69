"""A provider without leader election says that it runs, and `caphv status` that it does not any more."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from caphv.api.names import HEARTBEAT_LEASE
from caphv.api.object import LEASES
from caphv.runtime.client import ApiClient
from caphv.runtime.heartbeat import Heartbeat
from operations.status.provider import SILENT_SECONDS, provider_of, read_provider
from tests.support.reconciler.case import Case
from tests.support.reconciler.environment import Provider
from tests.support.waiting import ended, until

pytestmark = pytest.mark.integration


async def test_provider_without_leader_election_is_missed_when_it_falls_silent(case: Case) -> None:
    environment = case.environment
    provider = Provider(environment.folder, "heartbeat", environment.management)
    provider.environment["POD_NAMESPACE"] = case.name
    lease = f"{case.name}/{HEARTBEAT_LEASE}"

    async def beats() -> bool:
        leases = (await case.management.list(LEASES, case.name))["items"]
        seen = provider_of(leases, datetime.now(UTC))
        return seen is not None and (seen.lease, seen.silent) == (lease, False)

    await environment.provider.stop()
    try:
        await provider.start()
        try:
            await until(beats, "the provider is seen")
        finally:
            await provider.stop()
        # Before the other provider starts, whose Lease would be the newest.
        later = datetime.now(UTC) + timedelta(seconds=SILENT_SECONDS + 1)
        silent = await read_provider(case.management, later)
    finally:
        await environment.provider.start()

    assert silent
    assert (silent.lease, silent.silent) == (lease, True)
    assert f"kubectl get pods -n {case.name}" in silent.next_step


async def test_heartbeat_survives_changes_by_others_and_a_missing_lease(case: Case) -> None:
    async def renewed() -> str:
        return str((await case.management.get(LEASES, "beat", case.name))["spec"]["renewTime"])

    async def beat_after(change: str) -> None:
        before = await renewed()

        async def has_beaten() -> bool:
            return await renewed() > before

        await until(has_beaten, f"a beat after {change}")

    task = asyncio.create_task(beat(case.management, case.name))
    try:
        await until(lambda: exists(case.management, case.name), "the first beat")
        await case.management.patch(LEASES, "beat", case.name, {"metadata": {"labels": {"a": "b"}}})
        await beat_after("a change by another client")
        await case.management.delete(LEASES, "beat", case.name)
        await until(lambda: exists(case.management, case.name), "a beat after the deletion")
    finally:
        await ended(task)
    assert (await case.management.get(LEASES, "beat", case.name))["spec"]["holderIdentity"] == ""


async def beat(client: ApiClient, namespace: str) -> None:
    await Heartbeat(client, namespace=namespace, name="beat", identity="one", interval=0.2).run()


async def exists(client: ApiClient, namespace: str) -> bool:
    return any(lease["metadata"]["name"] == "beat" for lease in (await client.list(LEASES, namespace))["items"])
