"""The server of the runtime extension on a loopback port: answers from caches, and wrong requests."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from caphv.api.object import Obj
from caphv.runtime.certwatcher import CertWatcher
from reconciler.caches import Caches
from reconciler.extension.server import ExtensionServer
from sandbox.processes import children, pki
from tests.support.waiting import until

pytestmark = pytest.mark.unit

ROOT = "/hooks.runtime.cluster.x-k8s.io/v1alpha1"
SET = f"{ROOT}/canupdatemachineset/caphv-canupdatemachineset"


class Cache:
    """What the server needs of an informer."""

    def __init__(self, *objects: Obj) -> None:
        self.store = list(objects)
        self.synced = True

    def get(self, namespace: str, name: str) -> Obj | None:
        for obj in self.store:
            if (obj["metadata"]["namespace"], obj["metadata"]["name"]) == (namespace, name):
                return obj
        return None


def machine(name: str, machine_set: str, namespace: str = "team") -> Obj:
    owner = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet", "name": machine_set}
    return {
        "metadata": {"namespace": namespace, "name": f"machine-{name}", "ownerReferences": [owner]},
        "spec": {"infrastructureRef": {"kind": "HarvesterMachine", "name": name}},
    }


def harvester_machine(name: str, status: str) -> Obj:
    condition = {"type": "VMCanGrow", "status": status, "message": f"{name} says why"}
    up_to_date = {"type": "VMUpToDate", "status": "True"}
    return {"metadata": {"namespace": "team", "name": name}, "status": {"conditions": [condition, up_to_date]}}


def request(cpu: int) -> Obj:
    def side(name: str, cpu: int) -> Obj:
        return {
            "machineSet": {"metadata": {"namespace": "team", "name": name}},
            "infrastructureMachineTemplate": {
                "kind": "HarvesterMachineTemplate",
                "spec": {"template": {"spec": {"cpu": cpu, "cpuMax": 8}}},
            },
        }

    return {"current": side("old", 4), "desired": side("new", cpu)}


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    machines: Cache,
    harvester_machines: Cache,
    client_authority: Path | None = None,
    client: pki.KeyPair | None = None,
) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a server with these caches."""
    ca = pki.CA.create("extension")
    pair = ca.server(["127.0.0.1"])
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    (port,) = children.free_ports(1)
    caches: Any = SimpleNamespace(machines=machines, harvester_machines=harvester_machines)
    server = ExtensionServer(f"127.0.0.1:{port}", folder, cast(Caches, caches), client_authority)
    task = asyncio.create_task(server.run())
    try:
        await until(lambda: not server.not_ready())
        context = ssl.create_default_context(cadata=ca.certificate.decode())
        if client:
            (folder / "client.crt").write_bytes(client.certificate)
            (folder / "client.key").write_bytes(client.key)
            context.load_cert_chain(folder / "client.crt", folder / "client.key")
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(f"https://127.0.0.1:{port}", connector=connector) as session:
            yield session
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ask(session: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    async with session.post(path, json=body) as response:
        is_json = response.content_type == "application/json"
        return response.status, await (response.json() if is_json else response.text())


async def test_all_machines_of_the_set_are_checked_and_no_other(tmp_path: Path) -> None:
    machines = Cache(machine("a", "old"), machine("b", "other"), machine("b", "old", "foreign"))
    objects = Cache(harvester_machine("a", "True"), harvester_machine("b", "False"))
    async with serving(tmp_path, machines, objects) as session:
        status, answer = await ask(session, SET, request(8))
        assert (status, answer["status"], "infrastructureMachineTemplatePatch" in answer) == (200, "Success", True)

        machines.store.append(machine("b", "old"))
        _, answer = await ask(session, SET, request(8))
        assert answer["message"].startswith("machines are replaced: 1 of 2 VMs cannot grow")
        assert "says why" not in answer["message"]

        machines.store[-1] = machine("unknown", "old")
        _, answer = await ask(session, SET, request(8))
        assert "1 of 2 VMs cannot follow" in answer["message"]


async def test_only_discovery_is_answered_before_the_caches_are_filled(tmp_path: Path) -> None:
    machines = Cache(machine("a", "old"))
    async with serving(tmp_path, machines, Cache()) as session:
        machines.synced = False
        assert (await ask(session, SET, request(8)))[0] == 503
        assert (await ask(session, f"{ROOT}/discovery", {}))[0] == 200
        machines.synced = True
        assert (await ask(session, SET, request(8)))[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/", {}, 404),
        (f"{ROOT}/updatemachine", {}, 404),
        (SET, [], 400),
        (SET, {"current": 1}, 400),
        (SET, {"current": {"infrastructureMachineTemplate": [1]}}, 400),
        (SET, {"current": {"a": "x" * 4 * 1024 * 1024}}, 413),
        (SET, {"current": [[]] * 60_000}, 400),
        (f"{ROOT}/updatemachine/caphv-updatemachine", {"desired": {"infrastructureMachine": 5}}, 400),
    ],
)
async def test_wrong_requests_are_refused_and_the_next_is_answered(
    tmp_path: Path, path: str, body: Any, code: int
) -> None:
    async with serving(tmp_path, Cache(), Cache()) as session:
        assert (await ask(session, path, body))[0] == code
        status, answer = await ask(session, f"{ROOT}/discovery", {"kind": "DiscoveryRequest"})
        assert (status, len(answer["handlers"])) == (200, 3)


@pytest.mark.parametrize("size", [100, 1_000_000], ids=["small", "large"])
async def test_slow_clients_do_not_delay_others(tmp_path: Path, size: int) -> None:
    """Cluster API gives a hook ten seconds, and stops all rollouts when discovery fails."""
    async with serving(tmp_path, Cache(), Cache()) as session:
        url = session._base_url
        assert url is not None
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        writers = []
        for _ in range(30):
            _, writer = await asyncio.open_connection("127.0.0.1", url.port, ssl=context)
            head = f"POST {SET} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n{{"
            writer.write(head.encode())
            await writer.drain()
            writers.append(writer)
        try:
            async with asyncio.timeout(3):
                assert (await ask(session, f"{ROOT}/discovery", {}))[0] == 200
        finally:
            for writer in writers:
                writer.close()


async def test_large_request_that_gets_no_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reconciler.extension.server._LARGE_BODIES", 100 * 1024)
    monkeypatch.setattr(ExtensionServer, "body_seconds", 0.1)
    async with serving(tmp_path, Cache(), Cache()) as session:
        status, answer = await ask(session, SET, {"current": {"a": "x" * 150 * 1024}})
        assert (status, answer) == (429, "too many large requests at a time: try again")


async def test_other_methods_and_encodings_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, Cache(), Cache()) as session:
        async with session.get(f"{ROOT}/discovery") as response:
            assert response.status == 405
        async with session.post(SET, data=b"x", headers={"Content-Encoding": "gzip"}) as response:
            assert response.status == 415


async def test_not_ready_without_a_certificate_says_what_is_missing(tmp_path: Path) -> None:
    caches: Any = SimpleNamespace(machines=Cache(), harvester_machines=Cache())
    server = ExtensionServer("127.0.0.1:1", tmp_path, cast(Caches, caches))
    task = asyncio.create_task(server.run())
    try:
        await until(lambda: "is missing" in str(server.not_ready()))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_only_clients_with_a_certificate_of_the_authority_are_served(tmp_path: Path) -> None:
    clients, others = pki.CA.create("clients"), pki.CA.create("others")
    authority = tmp_path / "clients.crt"
    authority.write_bytes(clients.certificate)
    async with serving(tmp_path, Cache(), Cache(), authority, clients.client("core")) as session:
        assert (await ask(session, f"{ROOT}/discovery", {}))[0] == 200
        # The authority is read again when it changes.
        authority.write_bytes(others.certificate)

        async def is_refused() -> bool:
            try:
                async with session.post(f"{ROOT}/discovery", json={}, headers={"Connection": "close"}):
                    return False
            except aiohttp.ClientError:
                return True

        await until(is_refused, "the former authority is refused", 10)

    authority.write_bytes(clients.certificate)
    for stranger in (None, others.client("core"), clients.server(["127.0.0.1"])):
        async with serving(tmp_path, Cache(), Cache(), authority, stranger) as session:
            with pytest.raises(aiohttp.ClientError):
                await ask(session, f"{ROOT}/discovery", {})


async def test_server_without_an_authority_of_clients_is_reported_and_not_served(tmp_path: Path) -> None:
    pair = pki.CA.create("extension").server(["127.0.0.1"])
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    for content, problem in ((None, "is missing"), (b"nothing", "has no certificate authority of clients")):
        authority = tmp_path / "clients.crt"
        if content is not None:
            authority.write_bytes(content)
        watcher = CertWatcher(tmp_path, authority)
        assert not watcher.refresh()
        assert problem in watcher.problem
