"""Faults of Harvester objects, injected through its API.

They change objects as a hardware failure or a user would. The simulator notices the changes through
its watches, like the provider does. Nothing here calls the simulator directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterable

from caphv.api.conditions import current_time
from caphv.api.object import (
    DEPLOYMENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    STORAGE_CLASSES,
    Key,
    Obj,
    Resource,
    at,
    key_of,
    labels_of,
    uid_of,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, NotFound
from sandbox.harvester import fixtures, instances, kinds, maintenance, quantities, scheduling
from sandbox.harvester.informers import claims_of
from sandbox.harvester.migration import READ_WRITE_MANY

TIMEOUT_SECONDS = 15.0
_SERVER_SIDE = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


class FaultError(Exception):
    """A fault cannot be injected or cleared; the message says why and what to do."""


# Persistent faults. Each function returns the objects that are needed to clear the fault.


async def cordon_hosts(client: ApiClient) -> list[Obj]:
    """Cordon all schedulable hosts: starting VMs find no host, running VMs stay."""
    hosts = [
        host
        for host in (await client.list(NODES))["items"]
        if not at(host, "spec", "unschedulable")
    ]
    await _patch_hosts(client, hosts, {"spec": {"unschedulable": True}})
    # Hosts that a user cordoned before are not included, so they stay cordoned afterwards.
    return [_reference(host) for host in hosts]


async def uncordon_hosts(client: ApiClient, hosts: Iterable[Obj]) -> None:
    """Uncordon the hosts again; waiting VMs start."""
    await _patch_hosts(client, hosts, {"spec": {"unschedulable": None}})


async def scale_balancers(client: ApiClient, replicas: int) -> list[Obj]:
    """Scale the Deployment of the load balancer controller.

    Nothing has to be remembered to scale it back.
    """
    patch = {"spec": {"replicas": replicas}}
    await client.patch(DEPLOYMENTS, kinds.BALANCER_CONTROLLER, kinds.SYSTEM, patch)
    return []


async def delete_object(client: ApiClient, resource: Resource, target: str) -> list[Obj]:
    """Delete `<namespace>/<name>`; return it in the form that `restore_objects` takes."""
    key = _parse_target(target)
    obj = await _read(client, resource, key)
    await client.delete(resource, key.name, key.namespace, uid=uid_of(obj))

    # The API server sets these fields, and refuses a creation with a resourceVersion.
    metadata = {
        field: value for field, value in obj["metadata"].items() if field not in _SERVER_SIDE
    }
    return [kinds.typed(resource, {**obj, "metadata": metadata})]


async def restore_objects(client: ApiClient, resource: Resource, objects: Iterable[Obj]) -> None:
    """Recreate deleted objects, unless an object of the same name exists by now."""
    for obj in objects:
        key = key_of(obj)
        try:
            await client.get(resource, key.name, key.namespace)
        except NotFound:
            await client.create(resource, obj)
            if resource is kinds.IMAGES:
                await _restore_class(client, obj)


async def _restore_class(client: ApiClient, image: Obj) -> None:
    """Recreate the StorageClass of an image, which was deleted with it."""
    name = at(image, "status", "storageClassName")
    if name:
        with contextlib.suppress(AlreadyExists):
            obj = fixtures.storage_class(name)
            await client.create(STORAGE_CLASSES, kinds.typed(STORAGE_CLASSES, obj))


async def fail_host(client: ApiClient, name: str) -> list[Obj]:
    """Cut the power of a host: it becomes NotReady and its instances fail."""
    host = await _read(client, NODES, Key("", name))
    await _set_ready(client, name, "Unknown", "NodeStatusUnknown")
    return [_reference(host)]


async def recover_hosts(client: ApiClient, hosts: Iterable[Obj]) -> None:
    """Bring the hosts back, without their instances."""
    for host in hosts:
        await _set_ready(client, host["metadata"]["name"], "True", "KubeletReady")


async def begin_maintenance(client: ApiClient, name: str) -> list[Obj]:
    """Put a host into maintenance mode; Harvester refuses it while VMs cannot leave the host."""
    host = await _read(client, NODES, Key("", name))
    try:
        await maintenance.enable(client, name)
    except maintenance.MaintenanceError as error:
        raise FaultError(str(error)) from None
    return [_reference(host)]


async def end_maintenance(client: ApiClient, hosts: Iterable[Obj]) -> None:
    """End the maintenance of hosts; VMs do not start again automatically."""
    for host in hosts:
        await maintenance.disable(client, host["metadata"]["name"])


# One-time faults. Each function returns a description of the result.


async def delete_vm(client: ApiClient, target: str) -> str:
    """Delete a VM and keep its disks, like a deletion in Harvester's UI."""
    key = _parse_target(target)
    vm = await _read(client, kinds.VIRTUAL_MACHINES, key)

    # Remove the finalizers, so that the VM is deleted at once. By then it may no longer exist.
    patch = {"metadata": {"finalizers": None}}
    with contextlib.suppress(NotFound):
        await client.delete(kinds.VIRTUAL_MACHINES, key.name, key.namespace, uid=uid_of(vm))
        await client.patch(kinds.VIRTUAL_MACHINES, key.name, key.namespace, patch)
    return f"VirtualMachine {target} deleted"


async def migrate(client: ApiClient, target: str) -> str:
    """Move a running VM to another host without a restart; all its disks must be ReadWriteMany."""
    key = _parse_target(target)
    vm = await _read(client, kinds.VIRTUAL_MACHINES, key)
    vmi = await _read_running_instance(client, key)
    await _check_disks_migratable(client, vm)

    source = instances.host_of(vmi)
    host = await _find_other_host(client, vm, source)
    if not host:
        raise FaultError(
            f"no host except {source} can run {target}: free up a host or change the VM's affinity"
        )

    patch = instances.migrating_patch(vmi, host)
    await client.patch(kinds.INSTANCES, key.name, key.namespace, patch)
    if not await _wait_for_instance(client, key, lambda vmi: instances.host_of(vmi) == host):
        raise FaultError(f"{target} did not leave {source}: check that the simulator runs")
    return f"VirtualMachine {target} moved from {source} to {host}"


async def restart(client: ApiClient, target: str) -> str:
    """Restart a VM as Harvester's UI does: its instance stops, and another one starts."""
    key = _parse_target(target)
    vmi = await _read_running_instance(client, key)
    requests = [{"action": "Stop", "uid": uid_of(vmi)}, {"action": "Start"}]
    await client.patch(
        kinds.VIRTUAL_MACHINES,
        key.name,
        key.namespace,
        {"status": {"stateChangeRequests": requests}},
        subresource="status",
    )
    return f"VirtualMachine {target} restarts"


async def reboot(client: ApiClient, target: str) -> str:
    """Reboot a guest from inside.

    Its instance stays, and the guest agent is silent until the guest is up again.
    """
    key = _parse_target(target)
    vmi = await _read_running_instance(client, key)
    patch = {"status": instances.silent_agent_status(vmi)}
    await client.patch(kinds.INSTANCES, key.name, key.namespace, patch)
    return f"guest of VirtualMachine {target} rebooted"


async def change_address(client: ApiClient, target: str) -> str:
    """Have the DHCP server give a running VM another address; return when the guest reports it."""
    key = _parse_target(target)
    before = _addresses(await _read_running_instance(client, key))

    patch = {"metadata": {"annotations": {kinds.RENEWAL: uuid.uuid4().hex}}}
    await client.patch(kinds.INSTANCES, key.name, key.namespace, patch)
    # The agent is silent in between, so an instance without an address has not changed yet.
    vmi = await _wait_for_instance(client, key, lambda vmi: _addresses(vmi) not in ([], before))
    if vmi is None:
        raise FaultError(
            f"{target} kept {', '.join(before) or 'no address'}: only DHCP addresses can change"
        )
    after = ", ".join(_addresses(vmi))
    return f"VirtualMachine {target} has {after} now, was {', '.join(before) or 'none'}"


# Helpers


def _parse_target(target: str) -> Key:
    namespace, separator, name = target.partition("/")
    if not (separator and namespace and name):
        raise FaultError(f"{target!r}: must be NAMESPACE/NAME")
    return Key(namespace, name)


async def _read(client: ApiClient, resource: Resource, key: Key) -> Obj:
    """Return an object. Raise FaultError with the existing ones if there is none."""
    try:
        return await client.get(resource, key.name, key.namespace)
    except NotFound:
        objects = (await client.list(resource))["items"]
        existing = ", ".join(sorted(str(key_of(obj)) for obj in objects)) or "none"
        raise FaultError(
            f"{resource.kind} {key} not found on Harvester; existing: {existing}"
        ) from None


async def _read_running_instance(client: ApiClient, key: Key) -> Obj:
    vmi = await _read(client, kinds.INSTANCES, key)
    if vmi["status"].get("phase") != "Running":
        raise FaultError(f"VirtualMachine {key} is not running ({vmi['status'].get('phase')})")
    return vmi


async def _wait_for_instance(
    client: ApiClient, key: Key, condition: Callable[[Obj], bool]
) -> Obj | None:
    """Return a running instance once it meets a condition; None after `TIMEOUT_SECONDS`."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        vmi = await _read_running_instance(client, key)
        if condition(vmi):
            return vmi
        await asyncio.sleep(0.05)
    return None


async def _check_disks_migratable(client: ApiClient, vm: Obj) -> None:
    namespace = vm["metadata"]["namespace"]
    for name in claims_of(vm):
        claim = await _read(client, PERSISTENT_VOLUME_CLAIMS, Key(namespace, name))
        if READ_WRITE_MANY not in claim["spec"].get("accessModes", ()):
            raise FaultError(
                f"disk {namespace}/{name} is not {READ_WRITE_MANY}, so {key_of(vm)} cannot be "
                "migrated"
            )


async def _find_other_host(client: ApiClient, vm: Obj, source: str) -> str:
    """Return the host to which a VM can migrate; empty if there is none."""
    hosts = [
        host for host in (await client.list(NODES))["items"] if host["metadata"]["name"] != source
    ]
    # Leave out the VM's own instance, which has the same name, because its capacity becomes free.
    placements = [
        _placement_of(vmi)
        for vmi in (await client.list(kinds.INSTANCES))["items"]
        if key_of(vmi) != key_of(vm)
    ]
    return scheduling.choose_host(vm, hosts, placements)


def _placement_of(vmi: Obj) -> scheduling.Placement:
    cpu, memory = quantities.demand(vmi["spec"])
    return scheduling.Placement(
        host=instances.host_of(vmi),
        namespace=vmi["metadata"]["namespace"],
        labels=labels_of(vmi),
        cpu=cpu,
        memory=memory,
        devices=quantities.devices(vmi["spec"]),
    )


def _reference(obj: Obj) -> Obj:
    return {"metadata": {"name": obj["metadata"]["name"]}}


async def _patch_hosts(client: ApiClient, hosts: Iterable[Obj], patch: Obj) -> None:
    await asyncio.gather(
        *(client.patch(NODES, host["metadata"]["name"], "", patch) for host in hosts)
    )


async def _set_ready(client: ApiClient, name: str, status: str, reason: str) -> None:
    ready = {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "lastTransitionTime": current_time(),
    }
    patch = {"status": {"conditions": [ready]}}
    # A strategic patch merges conditions by type; a merge patch would replace all of them.
    await client.patch(NODES, name, "", patch, patch_type="strategic", subresource="status")


def _addresses(vmi: Obj) -> list[str]:
    interfaces = vmi["status"].get("interfaces") or ()
    return [interface["ipAddress"] for interface in interfaces if interface.get("ipAddress")]
