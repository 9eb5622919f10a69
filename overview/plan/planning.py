"""Makes a plan: reads, compares, and asks Harvester for what is free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from caphv.api import resources
from caphv.api.object import Key, Obj, key_of, labels_of
from caphv.api.objectid import ObjectId
from caphv.runtime.client import ApiClient
from overview.assembly import overview_of
from overview.backup.reading import read_objects
from overview.capacity import CapacityObjects
from overview.doctor.guests import services
from overview.model import Cluster
from overview.objects import ManagementObjects
from overview.plan.harvester import ask_harvester, shortcomings_of
from overview.plan.machinechanges import ClusterEffect, effect_of
from overview.plan.model import ClusterPlan, ObjectPlan, Plan
from overview.plan.needs import needs_and_free
from overview.plan.pools import CONTROL_PLANE, TOPOLOGY_NAME, Objects, Wanted, wanted_of
from overview.plan.reading import read_preview
from overview.reader import read_management


async def plan_of_manifests(
    client: ApiClient, manifests: Iterable[Obj], namespace: str, *, with_harvester: bool = True
) -> Plan:
    """Return what applying manifests does. Raises `ApiError`, `Unreachable`, `NoClusterApiError`."""
    found = await read_preview(client, manifests, namespace)
    objects = tuple(
        ObjectPlan(str(change.identity), change.action, change.fields, change.error)
        for change in found.changes
        if change.action is not None
    )
    management, models = await _models(client, found.clusters)
    plans = []
    for key in found.clusters:
        before = _actual(wanted_of(key, found.before), models.get(key), management)
        after = wanted_of(key, found.after)
        effect = effect_of(key, before, after, _outdated(models.get(key), management))
        if effect.changes or effect.unknown:
            plans.append(await _cluster_plan(client, effect, after, found.after, with_harvester))
    hidden = dict.fromkeys(text for _, more in plans for text in more)
    return Plan(objects, tuple(plan for plan, _ in plans), (*found.unseen, *hidden))


async def plan_of_cluster(client: ApiClient, key: Key, *, with_harvester: bool = True) -> Plan | None:
    """Return what is still to be done for a cluster; None when there is none.

    Raises `ApiError`, `Unreachable`, `NoClusterApiError`.
    """
    objects, unseen = await read_objects(client, [key.namespace])
    management, models = await _models(client, [key])
    if key not in models:
        return None
    after = wanted_of(key, objects)
    before = _actual(after, models[key], management)
    effect = effect_of(key, before, after, _outdated(models[key], management))
    found, more = await _cluster_plan(client, effect, after, objects, with_harvester)
    clusters = (found,) if effect.changes or effect.unknown else ()
    return Plan((), clusters, (*unseen, *more))


async def _models(client: ApiClient, keys: Iterable[Key]) -> tuple[ManagementObjects, dict[Key, Cluster]]:
    """The clusters as they are now, with their machines."""
    spaces = {key.namespace for key in keys}
    objects = ManagementObjects()
    if spaces:
        objects = await read_management(client, spaces.pop() if len(spaces) == 1 else "")
    wanted = set(keys)
    found = {each.key: each for each in overview_of(objects, datetime.now(UTC)).clusters}
    return objects, {key: each for key, each in found.items() if key in wanted}


def _actual(wanted: Wanted, model: Cluster | None, objects: ManagementObjects) -> Wanted:
    """The pools with the numbers of machines that exist, in place of those that are wanted."""
    if model is None:
        return replace(wanted, pools={})
    current = {_pool_name(group.kind, group.name, objects): group.replicas.current for group in model.groups}
    return replace(
        wanted, pools={name: replace(pool, replicas=current.get(name, 0)) for name, pool in wanted.pools.items()}
    )


def _outdated(model: Cluster | None, objects: ManagementObjects) -> Mapping[str, int]:
    groups = model.groups if model else ()
    return {
        _pool_name(group.kind, group.name, objects): max(0, group.replicas.current - group.replicas.up_to_date)
        for group in groups
    }


def _pool_name(kind: str, name: str, objects: ManagementObjects) -> str:
    if kind != "MachineDeployment":
        return CONTROL_PLANE
    obj = next((each for each in objects.machine_deployments if key_of(each).name == name), None)
    return labels_of(obj).get(TOPOLOGY_NAME, name) if obj else name


async def _cluster_plan(
    client: ApiClient, effect: ClusterEffect, after: Wanted, objects: Objects, with_harvester: bool
) -> tuple[ClusterPlan, list[str]]:
    own = _harvester_cluster(effect.cluster, after, objects)
    asked = with_harvester and (effect.needs.vms or effect.infrastructure)
    harvester, hidden = await ask_harvester(client, own, objects) if asked else (None, [])
    capacity = harvester.capacity if harvester else None
    cluster = objects.get(ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *effect.cluster))
    plan = ClusterPlan(
        str(effect.cluster),
        effect.pools,
        effect.infrastructure,
        sum(pool.created for pool in effect.pools),
        sum(pool.deleted for pool in effect.pools),
        shortcomings_of(after, cluster, harvester) if harvester else (),
        needs_and_free(effect.needs, own, capacity),
        effect.unknown,
        _services(effect.cluster, own, after, capacity),
    )
    return plan, hidden


def _services(cluster: Key, harvester_cluster: Obj, after: Wanted, capacity: CapacityObjects | None) -> str:
    if capacity is None:
        return ""
    machines = [{"spec": pool.machine} for pool in after.pools.values()]
    namespace = str(harvester_cluster["spec"].get("targetNamespace") or "")
    return services(capacity.harvester, machines, namespace, cluster.name)


def _harvester_cluster(key: Key, after: Wanted, objects: Objects) -> Obj:
    """The HarvesterCluster with its coming spec; of a new cluster, what its class makes."""
    cluster = objects.get(ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *key)) or {}
    name = str(((cluster.get("spec") or {}).get("infrastructureRef") or {}).get("name") or "")
    kind = resources.HARVESTER_CLUSTERS
    live = objects.get(ObjectId(kind.group, kind.kind, key.namespace, name)) or {}
    metadata = live.get("metadata") or {"namespace": key.namespace, "name": name}
    return {"kind": kind.kind, "metadata": metadata, "spec": {**(live.get("spec") or {}), **after.infrastructure}}
