"""A sandbox comes up with the real Cluster API core, survives kill -9 of its parts, and leaves nothing behind."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import aiohttp
import psutil
import pytest
from click.testing import CliRunner

from caphv.api.object import NAMESPACES, NODES, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.clientconfig import own_configuration
from caphv.runtime.errors import Forbidden, Invalid, NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from commands.sandbox.group import sandbox
from sandbox.environment import Sandbox
from sandbox.processes import binaries, children
from sandbox.processes.apiserver import ApiServer, Etcd
from sandbox.restart import process_record
from sandbox.state import SandboxSettings, State
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

SETTINGS = SandboxSettings(provider=False)
CLUSTERS = {version: Resource("cluster.x-k8s.io", version, "clusters", "Cluster") for version in ("v1beta1", "v1beta2")}
CLUSTER: Obj = {
    "apiVersion": "cluster.x-k8s.io/v1beta1",
    "kind": "Cluster",
    "metadata": {"name": "old-style", "namespace": "default"},
    "spec": {
        "infrastructureRef": {
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1",
            "kind": "HarvesterCluster",
            "name": "old-style",
            "namespace": "default",
        }
    },
}

NEW_STYLE: Obj = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "Cluster",
    "metadata": {"name": "new-style", "namespace": "default"},
    "spec": {
        "infrastructureRef": {
            "apiGroup": "infrastructure.cluster.x-k8s.io",
            "kind": "HarvesterCluster",
            "name": "new-style",
        }
    },
}
PRECIOUS: Obj = {"metadata": {"name": "precious"}}


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sandbox, Sandbox]]:
    """Two sandboxes that came up at the same time: one with the live page, one in the place of a former sandbox."""
    binaries.prepare()
    folder = tmp_path_factory.mktemp("boxes")
    one = Sandbox(folder / "one", replace(SETTINGS, page=True, older_versions=False))
    two = Sandbox(folder / "two", SETTINGS)

    async def up() -> None:
        former = await former_sandbox(two)
        started = await asyncio.gather(one.up(), two.up(fresh=True))
        assert [set(names) for names in started] == [set(pids(one)), set(pids(two))]
        assert set(pids(two)) == {"etcd", "management", "harvester", "core", "simulator"}
        assert not any(process.is_running() for process in former)

    try:
        asyncio.run(up())
        yield one, two
    finally:
        for box in (one, two):
            asyncio.run(children.stop_all(box.folder))


async def former_sandbox(box: Sandbox) -> list[psutil.Process]:
    """What a fresh start has to remove: parts that run, and an object in etcd. Other parts would take longer."""
    box.folder.mkdir()
    etcd, server = Etcd(box.folder), ApiServer(box.folder, "management")
    await etcd.start()
    await server.start()
    async with server.client() as client:
        await client.create(NAMESPACES, PRECIOUS)
    parts = {process.name: process_record(process) for process in (etcd.process, server.process) if process}
    State(SETTINGS, ready=True, processes=parts).save(box.folder)
    return children.find(box.folder)


async def management(box: Sandbox) -> ApiClient:
    return ApiClient(await own_configuration(str(box.kubeconfig("management"))), name="test")


def pids(box: Sandbox) -> dict[str, int]:
    return {part["name"]: part["pid"] for part in box.status()["processes"]}


async def faults_by_command_affect_all_clients_but_the_simulation(box: Sandbox) -> None:
    identity, administrator, direct = (
        parse_kubeconfig(box.kubeconfig(name).read_bytes()).client(name=name)
        for name in ("identity", "harvester", "harvester-direct")
    )

    async def allowed(client: ApiClient) -> bool:
        with contextlib.suppress(Forbidden):
            return bool(await client.list(NODES))
        return False

    assert await allowed(identity)
    for command, expected in ((["forbidden"], False), (["clear"], True)):
        words = ["fault", "--dir", str(box.folder), *command]
        await asyncio.to_thread(CliRunner().invoke, sandbox, words, catch_exceptions=False)

        async def is_in_effect(expected: bool = expected) -> bool:
            return await allowed(identity) is expected

        await until(is_in_effect, f"{command} has an effect")
        assert await allowed(administrator) is expected
        assert await allowed(direct)
    for client in (identity, administrator, direct):
        await client.close()


async def test_two_sandboxes_side_by_side_and_down_one_after_the_other(boxes: tuple[Sandbox, Sandbox]) -> None:
    one, two = boxes

    async with aiohttp.ClientSession() as session, session.get(one.page()) as answer:
        assert (answer.status, "caphv" in await answer.text()) == (200, True)
    assert not two.page()
    assert one.status()["network"] != two.status()["network"]
    client_one, client_two = await management(one), await management(two)
    await client_one.create(CLUSTERS["v1beta2"], NEW_STYLE)
    await the_core_validates(client_one, NEW_STYLE)
    await faults_by_command_affect_all_clients_but_the_simulation(one)
    with pytest.raises(NotFound):
        await client_two.get(CLUSTERS["v1beta2"], "new-style", "default")
    with pytest.raises(NotFound):
        await client_two.get(NAMESPACES, "precious")
    running = children.find(one.folder)
    assert await one.down()
    assert not one.folder.exists()
    assert not any(process.is_running() for process in running)
    assert two.status()["status"] == "running"
    await client_two.get(NAMESPACES, "default")
    for client in (client_one, client_two):
        await client.close()
    assert not await one.down()


async def the_core_converts_and_validates(client: ApiClient) -> None:
    await client.create(CLUSTERS["v1beta1"], CLUSTER)
    stored = await client.get(CLUSTERS["v1beta2"], "old-style", "default")
    assert stored["spec"]["infrastructureRef"] == {
        "apiGroup": "infrastructure.cluster.x-k8s.io",
        "kind": "HarvesterCluster",
        "name": "old-style",
    }
    crds = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)
    crd = await client.get(crds, "clusters.cluster.x-k8s.io")
    assert [version["name"] for version in crd["spec"]["versions"] if version["storage"]] == ["v1beta2"]
    await the_core_validates(client, CLUSTER)


async def the_core_validates(client: ApiClient, cluster: Obj) -> None:
    # This is what the core's webhook says, not the CRD's schema.
    empty = {**cluster, "metadata": {"name": "empty", "namespace": "default"}, "spec": {"paused": True}}
    with pytest.raises(Invalid, match="must be set"):
        await client.create(CLUSTERS[cluster["apiVersion"].rpartition("/")[2]], empty)


async def test_up_restarts_what_is_missing_and_keeps_all_objects(boxes: tuple[Sandbox, Sandbox]) -> None:
    box = boxes[1]
    before = pids(box)
    assert not await box.up()
    assert pids(box) == before
    client = await management(box)
    await client.create(NAMESPACES, PRECIOUS)
    for name in ("etcd", "management", "core", "simulator"):
        os.kill(before[name], signal.SIGKILL)
        psutil.Process(before[name]).wait(10)
    assert box.status()["status"] == "broken"
    assert await box.up() == ["etcd", "management", "core", "simulator"]
    assert box.status()["status"] == "running"
    await client.get(NAMESPACES, "precious")
    await the_core_converts_and_validates(client)
    assert not any(psutil.pid_exists(before[name]) for name in ("etcd", "management", "core", "simulator"))
    assert {process.pid for process in children.find(box.folder)} == set(pids(box).values())

    restarted = pids(box)
    await box.restart("harvester")
    assert {name for name, pid in pids(box).items() if restarted[name] != pid} == {"harvester"}

    await client.close()
    assert await box.down()
    assert not box.folder.exists()
    assert children.find(box.folder) == []
    assert not await box.down()
