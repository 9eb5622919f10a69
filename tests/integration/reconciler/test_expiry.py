"""Identities that expire, change and are not used any more, and the Harvester that they lead to."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from caphv.api.object import NAMESPACES, uid_of
from sandbox.harvester import kinds
from sandbox.processes import pki
from tests.support.reconciler.case import AT_ONCE, HARVESTER_CLUSTERS, HARVESTER_MACHINES, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.reconciler.expiry import EXPIRY, account_identity, series
from tests.support.waiting import until

pytestmark = pytest.mark.integration

OTHER = "0c4f1a52-5f0e-4f0a-9d3c-2f6d1c1f7a10"


async def touch(case: Case, value: str) -> None:
    annotations = {"caphv.io/reconcile-at": value}
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": annotations}})


async def test_token_that_ends_soon_is_reported_and_a_lasting_identity_recovers(case: Case) -> None:
    await case.identity(await account_identity(case))
    await case.create_cluster()
    found = await case.ready()
    assert is_false("IdentityUpToDate", "IdentityExpiring", f"identity Secret {case.name}/identity")(found)
    await case.until_event(case.name, "Warning", "IdentityExpiring")
    assert await series(case, EXPIRY, identity=f"{case.name}/identity") is not None
    await case.identity(case.environment.harvester.kubeconfig("operator", ["system:masters"]))
    lasting = await case.until(HARVESTER_CLUSTERS, case.name, is_true("IdentityUpToDate"), timeout=AT_ONCE)
    assert "valid until" in condition_of(lasting, "IdentityUpToDate")["message"]
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)


async def test_opaque_token_has_no_date_and_no_series(case: Case) -> None:
    await case.cluster()
    found = await case.ready()
    assert "do not state" in condition_of(found, "IdentityUpToDate")["message"]
    assert await series(case, EXPIRY, identity=f"{case.name}/identity") is None


async def test_series_go_with_their_cluster(case: Case) -> None:
    await case.identity(case.environment.harvester.kubeconfig("operator", ["system:masters"]))
    await case.create_cluster()
    await case.ready()
    identity, cluster = {"identity": f"{case.name}/identity"}, {"cluster": f"{case.name}/{case.name}"}
    assert await series(case, EXPIRY, **identity) is not None
    assert await series(case, "caphv_cluster_ready", **cluster) == 1
    await case.delete()

    async def gone() -> bool:
        left = [await series(case, EXPIRY, **identity), await series(case, "caphv_cluster_ready", **cluster)]
        return left == [None, None]

    await until(gone, lambda: "series of a deleted cluster are still there", AT_ONCE)


async def test_refused_credentials_are_reported_in_both_conditions(case: Case) -> None:
    await case.identity(case.environment.identity(token="expired"))
    await case.create_cluster()
    says = is_false("HarvesterConnectionReady", "HarvesterAuthenticationFailed", "(401)")
    found = await case.until(HARVESTER_CLUSTERS, case.name, says)
    assert is_false("IdentityUpToDate", "HarvesterAuthenticationFailed")(found)
    await case.until_event(case.name, "Warning", "HarvesterAuthenticationFailed")
    await case.identity()
    found = await case.until(HARVESTER_CLUSTERS, case.name, is_ready, timeout=AT_ONCE)
    assert is_true("IdentityUpToDate")(found)


async def test_identity_is_read_again_when_a_user_asks(case: Case) -> None:
    await case.ready_cluster()
    management = case.environment.management
    since = case.environment.audit_position(management)

    async def read(times: int) -> None:
        asked = f"/api/v1/namespaces/{case.name}/secrets/identity"

        async def done() -> bool:
            uris = [event["requestURI"] for event in case.environment.requests(management, since)]
            return uris.count(asked) == times

        await until(done, lambda: "the identity was not read again", AT_ONCE)

    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {"example.com/other": "x"}}})
    await touch(case, "2026-11-21T09:00:00Z")
    await read(1)
    await touch(case, "2026-11-21T09:00:01Z")
    await read(2)


# The Harvester behind it


async def test_harvester_is_remembered_by_its_uid(case: Case) -> None:
    found = await case.ready_cluster()
    uid = uid_of(await case.harvester.get(NAMESPACES, "kube-system"))
    assert found["status"]["harvester"] == {"uid": uid}


async def test_another_harvester_is_refused_while_there_are_machines(case: Case) -> None:
    before = await case.ready_cluster()
    await case.ready_machine("one")
    await remember(case, OTHER)
    await case.identity(await account_identity(case))
    says = is_false("HarvesterConnectionReady", "AnotherHarvester", OTHER)
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.until_event(case.name, "Warning", "AnotherHarvester")
    # What is missing there was never there: no machine may be taken for lost.
    await case.ask_deletion(kinds.VIRTUAL_MACHINES, "one")
    await case.until_gone(kinds.VIRTUAL_MACHINES, "one")
    await asyncio.sleep(AT_ONCE)
    assert "MachineNotFound" not in str(await case.get(HARVESTER_MACHINES, "one"))
    await remember(case, before["status"]["harvester"]["uid"])
    await touch(case, "now")
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready, timeout=AT_ONCE)
    await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "MachineNotFound"), timeout=AT_ONCE)


async def test_cluster_without_machines_may_move_to_another_harvester(case: Case) -> None:
    before = await case.ready_cluster()
    await remember(case, OTHER)
    await case.identity(await account_identity(case))
    await case.until_event(case.name, "Warning", "HarvesterChanged")
    found = before["status"]["harvester"]
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: is_ready(obj) and obj["status"]["harvester"] == found)


async def remember(case: Case, uid: str) -> None:
    status = {"status": {"harvester": {"uid": uid}}}
    await case.management.patch(HARVESTER_CLUSTERS, case.name, case.name, status, subresource="status")


async def test_identities_of_one_harvester_share_pools_without_conflicts(case: Case, other: Case) -> None:
    pool = await case.pool("shared", 1, 40)
    await case.ready_cluster(vmNetworkConfig=case.vm_network(pool))
    await other.identity(await account_identity(other))
    await other.write_secret("bootstrap", {"value": "#cloud-config\n"})
    await other.create_cluster(vmNetworkConfig=case.vm_network(pool))
    await other.ready()
    since = case.environment.audit_position(case.environment.harvester)
    numbers = range(8)
    await asyncio.gather(*(one.create_machine(f"m-{n}") for one in (case, other) for n in numbers))
    machines = [await one.until(HARVESTER_MACHINES, f"m-{n}", is_ready) for one in (case, other) for n in numbers]
    assert len({machine["status"]["allocatedIPAddress"] for machine in machines}) == len(machines)
    codes = [
        event["responseStatus"]["code"]
        for event in case.environment.requests(case.environment.harvester, since)
        if event["verb"] == "patch" and event["requestURI"].endswith(f"/ippools/{pool}")
    ]
    assert codes
    assert set(codes) == {200}
    # The pool is the other's to use, but not to delete.
    await other.delete()


async def test_harvester_behind_a_proxy_with_a_bundle_of_authorities(case: Case) -> None:
    kubeconfig = case.environment.identity()
    async with proxy() as (url, asked):
        bundle = pki.CA.create("another authority").certificate + case.environment.harvester.ca.certificate
        kubeconfig["clusters"][0]["cluster"] |= {
            "proxy-url": url,
            "certificate-authority-data": base64.b64encode(bundle).decode(),
        }
        await case.identity(kubeconfig)
        await case.create_cluster()
        await case.ready()
        assert set(asked) == {case.environment.harvester.url.removeprefix("https://")}
        await case.delete()


@asynccontextmanager
async def proxy() -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP proxy: its URL, and to where it was asked to connect."""
    asked: list[str] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split()[1].decode()
        asked.append(target)
        host, _, port = target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(tunnel, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
