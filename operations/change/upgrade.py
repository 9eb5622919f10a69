"""Upgrade a cluster's Kubernetes: plan it with the answers of servers, and complete it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from caphv.api.object import Key, at
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Conflict, RequestError
from caphv.runtime.kubeconfig import KubeconfigError
from operations.capacity.preflight import (
    Demand,
    check_charts,
    check_objects,
    check_room,
    size_of,
)
from operations.change.changes import Patch, Plan
from operations.change.clusterparts import Unread, cluster_and_parts, require_read, unread_kinds
from operations.change.disruptions import disruption_checks
from operations.change.patchwriter import write_patches
from operations.change.upgradeplan import (
    Progress,
    plan_upgrade,
    progress,
    surge,
    surging_devices,
)
from operations.read.chartlimits import ChartLimits, read_chart_limits
from operations.read.harvester import read_harvester
from operations.read.management import Step
from operations.read.objects import HarvesterObjects, ManagementObjects, Unseen
from operations.read.servers import HARVESTER_SECONDS, answering_client
from operations.status.model import Cluster
from operations.status.parts import Parts
from operations.status.query import Answer


async def plan_with_checks(
    client: ApiClient, answer: Answer, key: Key, version: str, step: Step
) -> Plan:
    """Plan an upgrade, with checks of capacity and PodDisruptionBudgets.

    Raises `ChangeError`, `ApiError`, `Unreachable`.

    :param client: client of the management cluster
    :param answer: the cluster with its Harvester
    :param key: the cluster to upgrade
    :param version: the version of Kubernetes to upgrade it to
    :param step: called with a description of each step
    """
    parts, deployments, cluster = cluster_and_parts(answer.objects, key)
    plan = plan_upgrade(parts, deployments, cluster, version)
    unread = unread_kinds(answer.objects, parts.cluster)
    require_read(key, _needed(parts, unread))
    if not plan.changes:
        return plan

    harvester = answer.harvesters.of(parts.harvester_cluster) if parts.harvester_cluster else None
    machines = list(parts.harvester_machines.values())
    size = size_of(parts, machines, harvester)
    demand = Demand(surge(parts, deployments), size, surging_devices(parts, deployments))
    surroundings = await _read_surroundings(answer, parts)
    charts = check_charts(parts, version, surroundings.limits)
    objects = check_objects(parts, surroundings.objects, version)
    step("reading the workload cluster")
    budgets = await disruption_checks(client, plan.cluster)
    room = check_room(parts, harvester, demand)
    checks = (*plan.checks, *unread.checks(key), *charts, *objects, *room, *budgets)
    return replace(plan, checks=checks)


def _needed(parts: Parts, unread: Unread) -> list[Unseen]:
    """Return the kinds that decide what to patch, and when, as far as they could not be read.

    Workers that are not seen would be left out, and those of machines that are not seen would be
    upgraded before their API server. With a topology, Cluster API keeps the order.
    """
    if _has_topology(parts):
        return []
    return [*unread.control_plane, *unread.deployments, *unread.machines]


def _has_topology(parts: Parts) -> bool:
    return bool(at(parts.cluster, "spec", "topology"))


class _Surroundings(NamedTuple):
    """Which charts a Harvester takes, and what machines may name there; None if not read."""

    limits: ChartLimits | None = None
    objects: HarvesterObjects | None = None


async def _read_surroundings(answer: Answer, parts: Parts) -> _Surroundings:
    """Read the Harvester of a cluster. Nothing is read if the Harvester does not answer."""
    account = answer.harvesters.account_of(parts.harvester_cluster or {})
    if account is None:
        return _Surroundings()
    try:
        async with answering_client(
            account.kubeconfig, "harvester", HARVESTER_SECONDS
        ) as harvester:
            objects = await read_harvester(harvester, (), surroundings=True)
            return _Surroundings(await read_chart_limits(harvester), objects)
    except (RequestError, KubeconfigError, TimeoutError):
        return _Surroundings()


@dataclass(frozen=True, slots=True)
class Rollout:
    """The progress of an upgrade; `due` has the patches that it needs now."""

    cluster: Cluster
    progress: Progress
    due: tuple[Patch, ...]
    is_complete: bool


def observe_rollout(objects: ManagementObjects, key: Key, version: str) -> Rollout:
    """Return the progress of an upgrade to a version. Raises `ChangeError`."""
    parts, deployments, cluster = cluster_and_parts(objects, key)
    machines = progress(parts, cluster, version)
    plan = plan_upgrade(parts, deployments, cluster, version)
    # With a topology, Cluster API itself changes the workers after the control plane.
    is_seen = not _needed(parts, unread_kinds(objects, parts.cluster))
    due = plan.patches if is_seen and not _has_topology(parts) else ()
    return Rollout(cluster, machines, due, machines.complete and not plan.changes)


async def advance_rollout(client: ApiClient, patches: Iterable[Patch]) -> None:
    """Write the patches that are due. Raises `ApiError`, `Unreachable`."""
    # After a conflict, the next event of the objects calls this function again.
    with suppress(Conflict):
        await write_patches(client, patches)
