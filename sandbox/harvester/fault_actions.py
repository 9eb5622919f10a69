"""Faults of Harvester objects, injected through its API as a hardware failure or a user would cause them.

The simulator notices them through its watches, like the provider does; nothing here calls the simulator directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Iterable
from typing import Any

from caphv.api.object import DEPLOYMENTS, NODES, PERSISTENT_VOLUME_CLAIMS, Obj, Resource, key_of, labels_of, uid_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from sandbox.harvester import kinds, maintenance, quantities, scheduling
from sandbox.harvester.informers import claims_of
from sandbox.harvester.instances import migrating, without_agent
from sandbox.harvester.migration import READ_WRITE_MANY

TIMEOUT_SECONDS = 15.0
_SERVER_SIDE = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


class FaultError(Exception):
    """A fault cannot be injected or cleared; the message says why and what to do."""


# Persistent faults: each returns what clearing it needs.


async def cordon_hosts(client: ApiClient) -> list[Obj]:
    """Cordon all schedulable hosts: starting VMs find no host, running VMs stay."""
    hosts = (await client.list(NODES))["items"]
    found = [host for host in hosts if not (host.get("spec") or {}).get("unschedulable")]
    await _each_host(client, found, {"spec": {"unschedulable": True}})
    return [{"metadata": {"name": host["metadata"]["name"]}} for host in found]


async def uncordon_hosts(client: ApiClient, hosts: Iterable[Obj]) -> None:
    """Uncordon the hosts again; waiting VMs start."""
    await _each_host(client, hosts, {"spec": {"unschedulable": None}})


async def scale_balancers(client: ApiClient, replicas: int) -> list[Obj]:
    """Scale the Deployment of the load balancer controller; nothing has to be remembered to scale it back."""
    await client.patch(DEPLOYMENTS, kinds.BALANCER_CONTROLLER, kinds.SYSTEM, {"spec": {"replicas": replicas}})
    return []


async def delete_object(client: ApiClient, resource: Resource, target: str) -> list[Obj]:
    """Delete `<namespace>/<name>`; returns it in the form that `restore_objects` takes."""
    namespace, name = _qualified(target)
    obj = await _existing(client, resource, namespace, name)
    await client.delete(resource, name, namespace, uid=uid_of(obj))
    metadata = {field: value for field, value in obj["metadata"].items() if field not in _SERVER_SIDE}
    return [kinds.typed(resource, {**obj, "metadata": metadata})]


async def restore_objects(client: ApiClient, resource: Resource, objects: Iterable[Obj]) -> None:
    """Recreate deleted objects, unless an object of the same name exists by now."""
    for obj in objects:
        metadata = obj["metadata"]
        try:
            await client.get(resource, metadata["name"], metadata["namespace"])
        except NotFound:
            await client.create(resource, obj)


async def fail_host(client: ApiClient, name: str) -> list[Obj]:
    """Cut the power of a host: it becomes NotReady and its instances fail."""
    host = await _existing(client, NODES, "", name)
    await _host_ready(client, name, "Unknown", "NodeStatusUnknown")
    return [{"metadata": {"name": host["metadata"]["name"]}}]


async def recover_hosts(client: ApiClient, hosts: Iterable[Obj]) -> None:
    """Bring the hosts back, without their instances."""
    for host in hosts:
        await _host_ready(client, host["metadata"]["name"], "True", "KubeletReady")


async def begin_maintenance(client: ApiClient, name: str) -> list[Obj]:
    """Put a host into maintenance mode; Harvester refuses it while VMs cannot leave the host."""
    host = await _existing(client, NODES, "", name)
    try:
        await maintenance.enable(client, name)
    except maintenance.MaintenanceError as error:
        raise FaultError(str(error)) from None
    return [{"metadata": {"name": host["metadata"]["name"]}}]


async def end_maintenance(client: ApiClient, hosts: Iterable[Obj]) -> None:
    """End the maintenance of hosts; VMs do not start again automatically."""
    for host in hosts:
        await maintenance.disable(client, host["metadata"]["name"])


# One-time faults


async def delete_vm(client: ApiClient, target: str) -> str:
    """Delete a VM and keep its disks, like a deletion in Harvester's UI."""
    namespace, name = _qualified(target)
    vm = await _existing(client, kinds.VIRTUAL_MACHINES, namespace, name)
    with contextlib.suppress(NotFound):
        await client.delete(kinds.VIRTUAL_MACHINES, name, namespace, uid=uid_of(vm))
        await client.patch(kinds.VIRTUAL_MACHINES, name, namespace, {"metadata": {"finalizers": None}})
    return f"VirtualMachine {target} deleted"


async def migrate(client: ApiClient, target: str) -> str:
    """Move a running VM to another host without a restart; all its disks must be ReadWriteMany."""
    namespace, name = _qualified(target)
    vm = await _existing(client, kinds.VIRTUAL_MACHINES, namespace, name)
    vmi = await _running_instance(client, namespace, name)
    for claim_name in claims_of(vm):
        claim = await _existing(client, PERSISTENT_VOLUME_CLAIMS, namespace, claim_name)
        if READ_WRITE_MANY not in claim["spec"].get("accessModes", ()):
            raise FaultError(f"disk {namespace}/{claim_name} is not {READ_WRITE_MANY}, so {target} cannot be migrated")
    source = vmi["status"]["nodeName"]
    hosts = [host for host in (await client.list(NODES))["items"] if host["metadata"]["name"] != source]
    instances = (await client.list(kinds.INSTANCES))["items"]
    host = scheduling.place(vm, hosts, [_placed(other) for other in instances if key_of(other) != key_of(vmi)])
    if not host:
        raise FaultError(f"no host except {source} can run {target}: free up a host or change the VM's affinity")
    await client.patch(kinds.INSTANCES, name, namespace, migrating(vmi, host))
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if (await _running_instance(client, namespace, name))["status"].get("nodeName") == host:
            return f"VirtualMachine {target} moved from {source} to {host}"
        await asyncio.sleep(0.05)
    raise FaultError(f"{target} did not leave {source}: check that the simulator runs")


async def restart(client: ApiClient, target: str) -> str:
    """Restart a VM as Harvester's UI does: its instance stops, and another one starts."""
    namespace, name = _qualified(target)
    vmi = await _running_instance(client, namespace, name)
    requests = [{"action": "Stop", "uid": uid_of(vmi)}, {"action": "Start"}]
    patch = {"status": {"stateChangeRequests": requests}}
    await client.patch(kinds.VIRTUAL_MACHINES, name, namespace, patch, subresource="status")
    return f"VirtualMachine {target} restarts"


async def reboot(client: ApiClient, target: str) -> str:
    """Reboot a guest from inside: its instance stays, and the guest agent is silent until the guest is up again."""
    namespace, name = _qualified(target)
    vmi = await _running_instance(client, namespace, name)
    await client.patch(kinds.INSTANCES, name, namespace, {"status": without_agent(vmi)})
    return f"guest of VirtualMachine {target} rebooted"


async def change_address(client: ApiClient, target: str) -> str:
    """Have the DHCP server give a running VM another address; returns when the guest reports it."""
    namespace, name = _qualified(target)
    vmi = await _running_instance(client, namespace, name)
    before = _addresses(vmi)
    patch = {"metadata": {"annotations": {kinds.RENEWAL: uuid.uuid4().hex}}}
    await client.patch(kinds.INSTANCES, name, namespace, patch)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        now = _addresses(await _running_instance(client, namespace, name))
        if now and now != before:
            return f"VirtualMachine {target} has {', '.join(now)} now, was {', '.join(before) or 'none'}"
        await asyncio.sleep(0.1)
    raise FaultError(f"{target} kept {', '.join(before) or 'no address'}: only DHCP addresses can change")


# Helpers


def _qualified(target: str) -> tuple[str, str]:
    namespace, separator, name = target.partition("/")
    if not (separator and namespace and name):
        raise FaultError(f"{target!r}: must be NAMESPACE/NAME")
    return namespace, name


async def _existing(client: ApiClient, resource: Resource, namespace: str, name: str) -> Obj:
    try:
        return await client.get(resource, name, namespace)
    except NotFound:
        listed = (await client.list(resource))["items"]
        there = ", ".join(sorted(str(key_of(obj)) for obj in listed)) or "none"
        where = f"{namespace}/{name}" if namespace else name
        raise FaultError(f"{resource.kind} {where} not found on Harvester; existing: {there}") from None


async def _running_instance(client: ApiClient, namespace: str, name: str) -> Obj:
    vmi = await _existing(client, kinds.INSTANCES, namespace, name)
    if vmi["status"].get("phase") != "Running":
        raise FaultError(f"VirtualMachine {namespace}/{name} is not running ({vmi['status'].get('phase')})")
    return vmi


async def _each_host(client: ApiClient, hosts: Iterable[Obj], patch: Obj) -> None:
    await asyncio.gather(*(client.patch(NODES, host["metadata"]["name"], "", patch) for host in hosts))


async def _host_ready(client: ApiClient, name: str, status: str, reason: str) -> None:
    ready = {"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": kinds.now()}
    patch = {"status": {"conditions": [ready]}}
    await client.patch(NODES, name, "", patch, patch_type="strategic", subresource="status")


def _placed(vmi: Obj) -> scheduling.Placed:
    cpu, memory = quantities.demand(vmi["spec"])
    host: Any = vmi.get("status", {}).get("nodeName", "")
    return scheduling.Placed(str(host), vmi["metadata"]["namespace"], labels_of(vmi), cpu, memory)


def _addresses(vmi: Obj) -> list[str]:
    interfaces = vmi["status"].get("interfaces") or ()
    return [interface["ipAddress"] for interface in interfaces if interface.get("ipAddress")]
