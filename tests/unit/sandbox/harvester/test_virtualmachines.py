"""The life of a VM's instance on the simulated Harvester, with an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from caphv.api.object import Key, Obj, Resource
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from sandbox.harvester import kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.harvester.mutations import MutationSettings, mutated
from sandbox.harvester.virtualmachines import VirtualMachines
from tests.support.waiting import until

pytestmark = pytest.mark.unit

KEY = Key("ns", "new")
HOST: Obj = {
    "metadata": {"name": "one", "labels": {}},
    "spec": {},
    "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}, "conditions": [{"type": "Ready", "status": "True"}]},
}
VM: Obj = {
    "metadata": {"name": KEY.name, "namespace": KEY.namespace},
    "spec": {"runStrategy": "RerunOnFailure", "template": {"spec": {"domain": {"devices": {}}}}},
}


class Api:
    """Creates, patches and deletes; each change reaches the informers at once, and VMs pass Harvester's admission."""

    name, budget = "harvester", None

    def __init__(self) -> None:
        self.informers = Informers(cast(ApiClient, self))
        self._version = 0

    async def create(self, resource: Resource, obj: Obj) -> Obj:
        metadata = {**obj["metadata"], "uid": f"uid-{self._version}"}
        return self._store(resource, {**obj, "metadata": metadata})

    async def patch(self, resource: Resource, name: str, namespace: str, patch: Obj, **_: str) -> Obj:
        old = self._informer(resource).get(namespace, name)
        assert old
        new = merged(copy.deepcopy(old), patch)
        if resource is kinds.VIRTUAL_MACHINES:
            new = mutated(new, old, MutationSettings(100, 100))
        return self._store(resource, new)

    async def delete(self, resource: Resource, name: str, namespace: str, **_: str) -> None:
        self._informer(resource).forget(namespace, name)

    def _store(self, resource: Resource, obj: Obj) -> Obj:
        self._version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        self._informer(resource).observe(obj)
        return obj

    def _informer(self, resource: Resource) -> Informer:
        (found,) = (each for each in self.informers.informers if each.resource is resource)
        return found


def merged(target: Obj, patch: Obj) -> Obj:
    for name, value in patch.items():
        target[name] = merged(target.get(name) or {}, value) if isinstance(value, dict) else value
    return target


@contextlib.asynccontextmanager
async def running_vm() -> AsyncIterator[Api]:
    api = Api()
    await api.create(api.informers.hosts.resource, HOST)
    machines = VirtualMachines(api.informers, SimulatorConfig(start_seconds=0, stop_seconds=0))
    running = asyncio.create_task(machines.run())
    await api.create(kinds.VIRTUAL_MACHINES, VM)
    try:
        await until(lambda: printable(api) == "Running", "it does not start")
        yield api
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def printable(api: Api) -> Any:
    found = api.informers.vms.get(*KEY) or {}
    return found.get("status", {}).get("printableStatus")


async def shut_down(api: Api) -> None:
    """As the guest does by itself."""
    await api.patch(kinds.INSTANCES, KEY.name, KEY.namespace, {"status": {"phase": "Succeeded"}})
    await until(lambda: printable(api) == "Stopped", "it does not stop")


async def set_strategy(api: Api, strategy: str) -> None:
    await api.patch(kinds.VIRTUAL_MACHINES, KEY.name, KEY.namespace, {"spec": {"runStrategy": strategy}})


async def test_a_guest_that_shut_down_stays_off_and_keeps_its_instance() -> None:
    async with running_vm() as api:
        await shut_down(api)
        vmi = api.informers.vmis.get(*KEY)
        assert vmi is not None
        assert vmi["status"]["phase"] == "Succeeded"


async def test_a_vm_whose_guest_shut_down_starts_again() -> None:
    """Admission turns the last step into `RerunOnFailure`, which starts no VM next to an instance that succeeded."""
    async with running_vm() as api:
        await shut_down(api)
        await set_strategy(api, "Halted")
        await until(lambda: api.informers.vmis.get(*KEY) is None, "the instance stays")
        assert printable(api) == "Stopped"
        await set_strategy(api, "Always")
        await until(lambda: printable(api) == "Running", "it does not start")
        found = api.informers.vms.get(*KEY)
        assert found is not None
        assert found["spec"]["runStrategy"] == "RerunOnFailure"
