"""Webhook servers as processes: certificates, replicas, restored configurations, and the one next to the provider."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import psutil
import pytest

from caphv.api.object import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS, Obj, Resource, uid_of
from caphv.runtime.certwatcher import certificates_in
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from sandbox import manifests
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer
from sandbox.webhooks import provider_options
from tests.support.reconciler.environment import core_crds
from tests.support.waiting import until
from tests.support.webhooks import Server, settled, validated, write_certificate
from webhooks.configuration import INJECT_ANNOTATION, NAMES

pytestmark = pytest.mark.integration

BOTH = {NAMES["validate"]: VALIDATING_WEBHOOK_CONFIGURATIONS, NAMES["mutate"]: MUTATING_WEBHOOK_CONFIGURATIONS}
VALIDATING_NAME = NAMES["validate"]


async def restored(client: ApiClient, name: str, before: Obj) -> Obj:
    async def found() -> Obj | None:
        try:
            now = await client.get(BOTH[name], name)
        except NotFound:
            return None
        return now if uid_of(now) != uid_of(before) else None

    now: Obj = await until(found, f"{name} is there again")
    return now


async def reads_of(webhook: Server, name: str) -> float:
    """How often a server has read a configuration, which it does after each change."""
    labels = {"server": "management", "verb": "get", "resource": str(BOTH[name]), "code": "200"}
    return await webhook.value("caphv_api_requests_total", **labels) or 0


async def until_read(webhook: Server, name: str, reads: float) -> None:
    """Wait until a server has read a configuration again."""

    async def is_read() -> bool:
        return await reads_of(webhook, name) > reads

    await until(is_read, f"{name} is read")


@pytest.mark.parametrize("name", BOTH)
async def test_a_deleted_configuration_comes_back_as_it_was(name: str, management: ApiServer, webhook: Server) -> None:
    where = BOTH[name]
    async with management.client() as client:
        await until(lambda: validated(client, "back"), "objects are validated")
        change = {"metadata": {"annotations": {"example.com/mine": "yes"}}}
        reads = await reads_of(webhook, name)
        before = await client.patch(where, name, "", change)
        await until_read(webhook, name, reads)
        await client.delete(where, name)
        now = await restored(client, name, before)
        assert now["webhooks"] == before["webhooks"]
        assert now["metadata"]["annotations"] == {"example.com/mine": "yes"}


async def test_a_bundle_of_cert_manager_is_kept(management: ApiServer, webhook: Server) -> None:
    kind, name = VALIDATING_WEBHOOK_CONFIGURATIONS, VALIDATING_NAME
    async with management.client() as client:
        await until(lambda: validated(client, "injected"), "objects are validated")
        found = await client.get(kind, name)
        other = base64.b64encode(webhook.ca.certificate + pki.CA.create("other").certificate).decode()
        found["metadata"]["annotations"] = {INJECT_ANNOTATION: "caphv-system/caphv-webhook"}
        for entry in found["webhooks"]:
            entry["clientConfig"]["caBundle"] = other
        reads = await reads_of(webhook, name)
        before = await client.replace(kind, found)
        await until_read(webhook, name, reads)
        await asyncio.sleep(1)
        assert (await client.get(kind, name))["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
        await client.delete(kind, name)
        now = await restored(client, name, before)
        assert {entry["clientConfig"]["caBundle"] for entry in now["webhooks"]} == {other}
        assert now["metadata"]["annotations"][INJECT_ANNOTATION]
        await client.patch(kind, name, "", {"metadata": {"annotations": {INJECT_ANNOTATION: None}}})


async def test_certificates_rotate_under_load_without_a_failed_request(management: ApiServer, webhook: Server) -> None:
    async with management.client() as client:
        await until(lambda: validated(client, "rotation"), "objects are validated")
        done = asyncio.Event()
        count = 0

        async def load(number: int) -> None:
            nonlocal count
            while not done.is_set():
                assert await validated(client, f"rotation-{number}")
                count += 1
                await asyncio.sleep(0.02)

        loads = [asyncio.create_task(load(number)) for number in range(4)]
        for _ in range(3):
            started = webhook.log.count("serving the certificate in")
            # Of the same CA, as an issuer that lasts makes them.
            write_certificate(webhook.certificates, webhook.ca)

            async def taken(started: int = started) -> bool:
                return webhook.log.count("serving the certificate in") > started

            await until(taken, "the new certificate is served")
            await asyncio.sleep(0.5)
        done.set()
        await asyncio.gather(*loads)
        assert count > 50


async def test_a_new_authority_reaches_the_configuration(management: ApiServer, webhook: Server) -> None:
    async with management.client() as client:
        await until(lambda: validated(client, "authority"), "objects are validated")
        old, webhook.ca = webhook.ca, pki.CA.create("next")
        write_certificate(webhook.certificates, webhook.ca)
        for name, kind in BOTH.items():

            async def follows(name: str = name, kind: Resource = kind) -> bool:
                found = await client.get(kind, name)
                bundle = base64.b64decode(found["webhooks"][0]["clientConfig"]["caBundle"])
                return certificates_in(bundle)[:2] == [
                    *certificates_in(webhook.ca.certificate),
                    *certificates_in(old.certificate),
                ]

            await until(follows, "the bundle has the new and the old CA")
        # The API server hears of the configurations a moment later.
        await until(lambda: settled(client, "authority"), "objects are validated")


async def test_two_replicas_serve_without_a_leader_and_neither_fights(
    etcd_folder: Path, management: ApiServer, webhook: Server
) -> None:
    second = Server(etcd_folder, "webhook-second")
    second.options = webhook.options
    second.ca = webhook.ca
    await second.start()
    try:
        async with management.client() as client:
            await until(lambda: validated(client, "replicas"), "objects are validated")
            for name, kind in BOTH.items():
                before = await client.get(kind, name)
                await client.delete(kind, name)
                now = await restored(client, name, before)
                await asyncio.sleep(2)
                assert (await client.get(kind, name))["metadata"]["resourceVersion"] == now["metadata"][
                    "resourceVersion"
                ]
            await webhook.stop()
            before = await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, VALIDATING_NAME)
            await client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, VALIDATING_NAME)
            await restored(client, VALIDATING_NAME, before)
    finally:
        await second.stop()
        await webhook.start()


async def test_it_waits_for_its_certificate_and_says_so(etcd_folder: Path) -> None:
    server = Server(etcd_folder, "webhook-waiting")
    process = server.launch()

    async def says() -> bool:
        try:
            code, text = await server.get(server.health_port, "readyz")
        except OSError:
            return False
        return code == 500 and "tls.crt is missing" in text

    try:
        await until(says, "it says that the certificate is missing")
        assert "is missing; create it" in server.log
        write_certificate(server.certificates, server.ca)
        await until(server.ready, "it is ready")
        assert process.alive
    finally:
        await server.stop()


async def test_a_taken_port_ends_it_with_a_message(etcd_folder: Path, webhook: Server) -> None:
    server = Server(etcd_folder, "webhook-taken", port=webhook.port)
    write_certificate(server.certificates, server.ca)
    process = server.launch()

    async def ended() -> bool:
        return not process.alive

    await until(ended, "it ends")
    assert "in use" in server.log
    assert "Traceback" not in server.log


# Next to the provider


async def test_the_provider_serves_them_in_a_process_of_its_own(
    etcd_folder: Path, management: ApiServer, webhook: Server
) -> None:
    await webhook.stop()
    provider = Server(etcd_folder, "provider-with-webhooks", command="run")
    # The last of two options counts: the ones of a sandbox in place of the ones of the tests.
    provider.options = (f"--kubeconfig={etcd_folder / 'webhooks.kubeconfig'}", *provider_options(etcd_folder))
    try:
        async with management.client() as client:
            await manifests.apply(client, core_crds("v1beta2"))
            await provider.start()
            await until(lambda: settled(client, "next"), "the provider's webhooks validate")
            process = provider.process
            assert process is not None
            (child,) = psutil.Process(process.pid).children()
            await until(lambda: exposes(provider, 'operation="CREATE"'), "its metrics tell of the reviews")
            child.kill()

            async def another() -> bool:
                children = psutil.Process(process.pid).children()
                return bool(children) and children[0].pid != child.pid and await provider.ready()

            await until(another, "another one takes its place")
            await until(lambda: settled(client, "next"), "the other one validates")
            (child,) = psutil.Process(process.pid).children()
            await provider.stop()
            assert not child.is_running()
            # Nothing but its end may go when the provider itself is killed.
            await provider.start()
            process = provider.process
            assert process is not None
            (child,) = psutil.Process(process.pid).children()
            psutil.Process(process.pid).kill()

            async def gone() -> bool:
                return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

            await until(gone, "the webhook process ends after its provider")
    finally:
        await provider.stop()
        await webhook.start()
        async with management.client() as client:
            await until(lambda: settled(client, "after"), "the configuration leads to the other server again")


async def exposes(server: Server, what: str) -> bool:
    return what in "".join(line for line in (await server.exposition()).splitlines() if "webhook_requests" in line)
