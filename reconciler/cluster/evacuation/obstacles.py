"""Check whether machines that leave their host would find another one, and remember the result.

Hosts, claims and instances are listed, because the caches lack access modes, some resources of
hosts and other namespaces. The lists are long, and a drain is polled every two seconds. They are
therefore read before a machine begins to move, before its VM is stopped, and otherwise at most
every 30 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from caphv.api.object import NODES, PERSISTENT_VOLUME_CLAIMS, Obj, Resource, dict_at
from caphv.api.resources import VIRTUAL_MACHINE_INSTANCES
from caphv.api.virtualmachine import claims_of, devices_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from caphv.runtime.listing import list_pages
from reconciler.cluster.evacuation.plan import EvacuatedVm
from reconciler.cluster.evacuation.targets import INSTANCE, describe_bound_claims, describe_obstacle
from reconciler.cluster.scope import ClusterScope
from reconciler.memory.cluster import ClusterMemory, Review

_REVIEW_SECONDS = 30.0


async def review(scope: ClusterScope, objs: Mapping[str, Obj], vms: Iterable[EvacuatedVm]) -> str:
    """Check whether machines that must move would find another host, and remember the result.

    Return why devices in other namespaces were not counted; empty if they were, or if no VM has
    devices. Raises `ApiError`, `Unreachable`.

    :param objs: the VirtualMachines by name
    """
    leaving = [vm for vm in vms if vm.must_move and not vm.obstacle]
    if not leaving:
        return ""

    client = scope.require_session().client
    namespace = scope.target_namespace
    hosts = await _list(client, NODES)
    has_claims = claims_of(*(objs[vm.name] for vm in leaving))
    claims = await _list(client, PERSISTENT_VOLUME_CLAIMS, namespace) if has_claims else []
    has_devices = any(devices_of(dict_at(objs[vm.name], *INSTANCE)) for vm in leaving)
    listed = _Instances([], "")
    if has_devices:
        listed = await _read_instances(client, namespace)

    for vm in leaving:
        obj = objs[vm.name]
        reason = describe_bound_claims(obj, claims) or describe_obstacle(
            obj, vm.host, hosts, listed.instances
        )
        scope.memory.evacuation.reviews[vm.name] = Review(time.monotonic(), reason)
    return listed.uncounted


def recall(memory: ClusterMemory, vms: Iterable[EvacuatedVm]) -> tuple[EvacuatedVm, ...]:
    """Return the machines with the obstacles that their last reviews have found.

    A machine keeps an obstacle that it already has. A machine whose VM was stopped gets none.
    """
    recalled = []
    for vm in vms:
        last_review = memory.evacuation.reviews.get(vm.name)
        if last_review is None or vm.obstacle or vm.saved_strategy:
            recalled.append(vm)
        else:
            recalled.append(replace(vm, obstacle=last_review.obstacle))
    return tuple(recalled)


def is_due(memory: ClusterMemory, vm: EvacuatedVm) -> bool:
    """Return whether a machine that is being drained must be reviewed again."""
    if vm.name not in memory.evacuation.reviews:
        return True
    reviewed_at = memory.evacuation.reviews[vm.name].reviewed_at
    return time.monotonic() - reviewed_at >= _REVIEW_SECONDS


class _Instances(NamedTuple):
    """Instances that may use devices.

    :param uncounted: why only those of one namespace were read; empty if all were
    """

    instances: list[Obj]
    uncounted: str


async def _read_instances(client: ApiClient, namespace: str) -> _Instances:
    """List the instances of all namespaces, else those of one namespace.

    Instances of all namespaces need a right that not every account has.
    """
    try:
        return _Instances(await _list(client, VIRTUAL_MACHINE_INSTANCES), "")
    except Forbidden as error:
        instances = await _list(client, VIRTUAL_MACHINE_INSTANCES, namespace)
        return _Instances(instances, error.message)


async def _list(client: ApiClient, resource: Resource, namespace: str = "") -> list[Obj]:
    """Return all objects of a kind, page by page."""
    return [obj async for page in list_pages(client, resource, namespace) for obj in page]
