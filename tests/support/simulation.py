"""A simulated Harvester on a real API server for tests, and the objects that a provider would write there."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import AsyncMock
from weakref import WeakSet

import pytest
import yaml

from caphv.api.object import NAMESPACES, SECRETS, Obj, Resource, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import simulate
from sandbox.guest.join import CA_FILES, JOIN_FILE
from sandbox.harvester import kinds
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer
from sandbox.simulate import Simulator
from tests.support.waiting import PATIENCE, until

AGENT = {"packages": ["qemu-guest-agent"]}
QUICK = {"start_seconds": 0.05, "boot_seconds": 0.2, "register_seconds": 0.1, "stop_seconds": 0.1}
_WITH_CRDS: WeakSet[ApiServer] = WeakSet()


@dataclass(frozen=True)
class Simulation:
    """A running simulator with its caches; `namespace` is the test's own."""

    client: ApiClient
    world: SimulatorConfig
    namespace: str
    # Those of the simulator that runs are the last ones.
    informers: list[Informers]
    # End the simulator and start another one, as a sandbox that is started again.
    restart: Callable[[], Awaitable[None]]

    @property
    def prefix(self) -> str:
        """First two octets of the addresses, `127.<n>`."""
        return self.world.network.removesuffix(".0.0/16")

    async def create_vm(self, name: str, user_data: Obj | str = AGENT, address: str = "", **changes: Any) -> Obj:
        """Write the Secret and the VM as a provider does; `changes` are those of `virtual_machine`."""
        text = user_data if isinstance(user_data, str) else "#cloud-config\n" + yaml.safe_dump(user_data)
        data = {"userdata": text}
        if address:
            data["networkdata"] = yaml.safe_dump(network_data(address, f"{self.prefix}.0.1"))
        encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        metadata = {"name": f"{name}-cloud-init", "namespace": self.namespace}
        await self.client.create(SECRETS, {"metadata": metadata, "data": encoded})
        return await self.client.create(kinds.VIRTUAL_MACHINES, virtual_machine(self.namespace, name, **changes))

    async def quota(self, resource: str, hard: str) -> None:
        """Limit a resource of the namespace by ResourceQuota `small`."""
        quota = {"metadata": {"name": "small", "namespace": self.namespace}, "spec": {"hard": {resource: hard}}}
        await self.client.create(kinds.RESOURCE_QUOTAS, quota)
        await self.heard(kinds.RESOURCE_QUOTAS)

    async def heard(self, resource: Resource, namespace: str = "") -> None:
        """Wait until the simulator, whose webhooks read its caches, has the objects of a kind as they are now."""
        (informer,) = (each for each in self.informers[-1].informers if each.resource == resource)

        async def is_current() -> bool:
            listed = (await self.client.list(resource, namespace, metadata_only=True))["items"]
            return _versions(listed) == _versions(informer.store)

        await until(is_current, f"the simulator has heard of {resource}")

    async def addresses(self, name: str) -> list[str]:
        """Addresses that the guest agent reports, once it does."""
        vmi = await self.until(kinds.INSTANCES, name, lambda vmi: vmi["status"].get("interfaces"))
        return [interface.get("ipAddress", "") for interface in vmi["status"]["interfaces"]]

    async def until(
        self,
        resource: Resource,
        name: str,
        condition: Callable[[Obj], Any],
        *,
        client: ApiClient | None = None,
        timeout: float = PATIENCE,
    ) -> Obj:
        """The object as soon as it fulfils the condition."""
        obj: Obj | None = None

        async def holds() -> Obj | None:
            nonlocal obj
            with suppress(NotFound):
                obj = await (client or self.client).get(resource, name, self.namespace)
                return obj if condition(obj) else None
            return None

        found: Obj = await until(holds, lambda: f"{resource.kind} {name} is not as expected: {obj}", timeout)
        return found

    async def until_gone(self, resource: Resource, name: str, timeout: float = PATIENCE) -> None:
        """Wait until the object is deleted."""

        async def gone() -> bool:
            try:
                await self.client.get(resource, name, self.namespace)
            except NotFound:
                return True
            return False

        await until(gone, f"{resource.kind} {name} is still there", timeout)


@dataclass(frozen=True)
class Place:
    """Where a Harvester can be simulated: an API server and a loopback network."""

    server: ApiServer
    network: str


@asynccontextmanager
async def simulation(
    place: Place, namespace: str, *, own_providers: Sequence[str] = (), **settings: Any
) -> AsyncIterator[Simulation]:
    """Simulate a Harvester; `settings` are those of `SimulatorConfig`. Deletes the namespace at the end."""
    world = replace(SimulatorConfig.from_settings(place.network), **{**QUICK, **settings})
    access = parse_kubeconfig(pki.to_yaml(place.server.kubeconfig()))
    async with place.server.client() as client, AsyncExitStack() as stack:
        informers: list[Informers] = []

        def noted(client: ApiClient) -> Informers:
            informers.append(Informers(client))
            return informers[-1]

        async def restart() -> None:
            await stack.aclose()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(simulate, "Informers", noted)
                # Applying the CRDs of Harvester again takes 0.2 s of CPU time, and nothing here changes them.
                if place.server in _WITH_CRDS:
                    patch.setattr(simulate, "define", AsyncMock())
                simulator = Simulator(place.server.folder, world, access, own_providers=own_providers)
                await stack.enter_async_context(simulator.running())
            _WITH_CRDS.add(place.server)

        await restart()
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        simulated = Simulation(client, world, namespace, informers, restart)
        yield simulated
        await client.delete(NAMESPACES, namespace)
        await simulated.until_gone(NAMESPACES, namespace)


def _versions(objs: Iterable[Obj]) -> dict[str, str]:
    """The resource versions of objects by uid."""
    return {uid_of(obj): obj["metadata"]["resourceVersion"] for obj in objs}


def virtual_machine(
    namespace: str,
    name: str,
    *,
    labels: Obj | None = None,
    network_name: str = "default/production",
    storage_class: str = "harvester-longhorn",
    memory: str = "4Gi",
    affinity: Obj | None = None,
    run_strategy: str = "Always",
    eviction_strategy: str = "",
    access_mode: str = "ReadWriteMany",
) -> Obj:
    """A VM with one disk and one interface, in the form that a provider writes."""
    claim = {
        "metadata": {"name": f"{name}-disk-0-x7k2p"},
        "spec": {
            "accessModes": [access_mode],
            "volumeMode": "Block",
            "resources": {"requests": {"storage": "10Gi"}},
            "storageClassName": storage_class,
        },
    }
    cloud_init = {"secretRef": {"name": f"{name}-cloud-init"}, "networkDataSecretRef": {"name": f"{name}-cloud-init"}}
    spec: Obj = {
        "hostname": name,
        "domain": {
            "cpu": {"cores": 2, "sockets": 1, "threads": 1},
            "memory": {"guest": memory},
            "resources": {"limits": {"cpu": "2", "memory": memory}, "requests": {"memory": memory}},
            "devices": {
                "disks": [{"name": "disk-0", "disk": {"bus": "virtio"}}],
                "interfaces": [{"name": "nic-1", "model": "virtio", "bridge": {}}],
            },
        },
        "networks": [{"name": "nic-1", "multus": {"networkName": network_name}}],
        "volumes": [
            {"name": "disk-0", "persistentVolumeClaim": {"claimName": f"{name}-disk-0-x7k2p"}},
            {"name": "cloudinitdisk", "cloudInitNoCloud": cloud_init},
        ],
    }
    if affinity:
        spec["affinity"] = affinity
    if eviction_strategy:
        spec["evictionStrategy"] = eviction_strategy
    annotations = {kinds.CLAIM_TEMPLATES: json.dumps([claim])}
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"runStrategy": run_strategy, "template": {"metadata": {"labels": labels or {}}, "spec": spec}},
    }


def network_data(address: str, gateway: str, mask: str = "255.255.128.0") -> Obj:
    """Network configuration version 1 with one static interface."""
    subnet = {"type": "static", "address": address, "netmask": mask, "gateway": gateway}
    nameserver = {"type": "nameserver", "address": ["9.9.9.9"]}
    return {"version": 1, "config": [{"type": "physical", "name": "eth0", "subnets": [subnet]}, nameserver]}


def joining(role: str, server: str, ca: pki.CA, token: str) -> Obj:
    """User data of a guest that joins a cluster."""
    join = {"role": role, "server": server, "token": token, "ca": ca.certificate.decode(), "version": "v1.36.3"}
    files = [{"path": JOIN_FILE, "permissions": "0600", "content": yaml.safe_dump(join)}]
    if role == "control-plane":
        contents = (ca.certificate.decode(), ca.pair.key.decode())
        files += [{"path": path, "content": content} for path, content in zip(CA_FILES, contents, strict=True)]
    return {**AGENT, "write_files": files}
