"""Make a plan: read and compare objects, and ask Harvester for its free capacity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from caphv.api import clusterapi, names, resources
from caphv.api.object import NAMESPACES, Key, Obj, key_of, labels_of, text_at
from caphv.api.objectid import ObjectId
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from operations.backup.reading import read_objects
from operations.capacity.machinechanges import ClusterEffect, effect_of
from operations.capacity.machinepools import (
    CONTROL_PLANE,
    DesiredState,
    Objects,
    desired_state,
)
from operations.capacity.needs import needs_and_free
from operations.capacity.surroundings import Surroundings
from operations.change.plan.harvester import ask_harvester, shortcomings_of
from operations.change.plan.inplace import InPlaceUpdates, extension_policy
from operations.change.plan.model import ClusterPlan, ObjectPlan, Plan
from operations.change.plan.reading import read_preview
from operations.doctor.guests import services
from operations.read.management import list_all, read_management
from operations.read.objects import ManagementObjects, by_cluster, by_key
from operations.status.assembly import overview_of
from operations.status.model import Cluster


async def plan_of_manifests(
    client: ApiClient, manifests: Iterable[Obj], namespace: str, *, with_harvester: bool
) -> Plan:
    """Return the effect of applying manifests.

    Raises `ApiError`, `Unreachable`, `NoClusterApiError`.

    :param client: client of the management cluster
    :param manifests: the objects to apply
    :param namespace: the namespace of manifests that name none
    :param with_harvester: whether to ask Harvesters for their free capacity
    """
    preview = await read_preview(client, manifests, namespace)
    objects = tuple(
        ObjectPlan(str(change.identity), change.action, change.fields, change.error)
        for change in preview.changes
        if change.action is not None
    )

    management, models = await _models(client, preview.clusters)
    clusters: list[ClusterPlan] = []
    hidden: list[str] = []
    configs, unread = await _extension_configs(client) if preview.clusters else ([], [])
    for key in preview.clusters:
        model = models.get(key)
        before = _actual(desired_state(key, preview.before), model, management)
        after = desired_state(key, preview.after)
        updates = await _in_place_updates(client, key, management, configs)
        if any(pool.updates_in_place for pool in after.pools.values()):
            hidden += unread
        effect = effect_of(key, before, after, _outdated(model, management), updates.obstacles)
        if not effect.changes and not effect.unknown:
            continue
        cluster, unseen = await _cluster_plan(client, effect, after, preview.after, with_harvester)
        clusters.append(cluster)
        hidden += unseen

    # Clusters of one Harvester repeat the same lines about it.
    return Plan(objects, tuple(clusters), (*preview.unseen, *dict.fromkeys(hidden)))


async def plan_of_cluster(client: ApiClient, key: Key, *, with_harvester: bool) -> Plan | None:
    """Return the remaining changes of a cluster; None if there is no such cluster.

    Raises `ApiError`, `Unreachable`, `NoClusterApiError`.
    """
    objects, unseen = await read_objects(client, [key.namespace])
    management, models = await _models(client, [key])
    if key not in models:
        return None

    after = desired_state(key, objects)
    before = _actual(after, models[key], management)
    configs, _ = await _extension_configs(client)
    updates = await _in_place_updates(client, key, management, configs)
    effect = effect_of(key, before, after, _outdated(models[key], management), updates.obstacles)
    cluster, hidden = await _cluster_plan(client, effect, after, objects, with_harvester)
    clusters = (cluster,) if effect.changes or effect.unknown else ()
    return Plan((), clusters, (*unseen, *hidden))


async def _models(
    client: ApiClient, keys: Iterable[Key]
) -> tuple[ManagementObjects, dict[Key, Cluster]]:
    """Return the objects of the management cluster, and the models of these clusters."""
    keys = set(keys)
    namespaces = {key.namespace for key in keys}
    objects = ManagementObjects()
    if namespaces:
        # One list of all namespaces costs less than one list per namespace.
        namespace = namespaces.pop() if len(namespaces) == 1 else ""
        objects = await read_management(client, namespace)
    overview = overview_of(objects, datetime.now(UTC))
    return objects, {cluster.key: cluster for cluster in overview.clusters if cluster.key in keys}


def _actual(
    desired: DesiredState, model: Cluster | None, objects: ManagementObjects
) -> DesiredState:
    """Replace the desired numbers of machines by the numbers of existing machines."""
    if model is None:
        return replace(desired, pools={})

    # The existing machines, not the desired ones, are the state before the plan.
    current = {
        _pool_name(group.kind, Key(model.key.namespace, group.name), objects): (
            group.replicas.current
        )
        for group in model.groups
    }
    pools = {
        name: replace(pool, replicas=current.get(name, 0)) for name, pool in desired.pools.items()
    }
    return replace(desired, pools=pools)


def _outdated(model: Cluster | None, objects: ManagementObjects) -> Mapping[str, int]:
    """Return the number of machines that a current rollout still has to replace, by pool."""
    if model is None:
        return {}

    numbers = {}
    for group in model.groups:
        number = group.replicas.current - group.replicas.up_to_date
        key = Key(model.key.namespace, group.name)
        numbers[_pool_name(group.kind, key, objects)] = max(0, number)
    return numbers


async def _extension_configs(client: ApiClient) -> tuple[list[Obj], list[str]]:
    """Return the ExtensionConfigs, and why they could not be seen."""
    try:
        return list(await list_all(client, resources.EXTENSION_CONFIGS)), []
    except NotFound:
        return [], []  # the core has no Runtime SDK
    except RequestError as error:
        why = "machines count as replaced, as without updates in place"
        return [], [f"ExtensionConfigs: {error} ({why})"]


async def _in_place_updates(
    client: ApiClient, cluster: Key, objects: ManagementObjects, configs: Sequence[Obj]
) -> InPlaceUpdates:
    """Return what decides on updates in place of a cluster.

    :param configs: the ExtensionConfigs
    """
    if not configs:
        return InPlaceUpdates()
    try:
        namespace = await client.get(NAMESPACES, cluster.namespace)
    except RequestError:
        return InPlaceUpdates()

    harvester_machines = by_key(objects.harvester_machines)
    machines: dict[str, list[Obj]] = {}
    for machine in by_cluster(objects.machines).get(cluster, ()):
        # The machines of a control plane have none. Nothing asks for the pool without a name.
        deployment = labels_of(machine).get(names.DEPLOYMENT_LABEL, "")
        pool = _pool_name("MachineDeployment", Key(cluster.namespace, deployment), objects)
        name = clusterapi.infrastructure_ref(machine)[1]
        # Nothing is known of a machine that was not read.
        obj = harvester_machines.get(Key(cluster.namespace, name)) or {}
        machines.setdefault(pool, []).append(obj)
    return InPlaceUpdates(extension_policy(configs, namespace), machines)


def _pool_name(kind: str, key: Key, objects: ManagementObjects) -> str:
    """Return the name of a pool, which in a topology differs from its MachineDeployment's name."""
    if kind != "MachineDeployment":
        return CONTROL_PLANE
    for obj in objects.machine_deployments:
        if key_of(obj) == key:
            return labels_of(obj).get(names.POOL_LABEL, key.name)
    return key.name


async def _cluster_plan(
    client: ApiClient,
    effect: ClusterEffect,
    after: DesiredState,
    objects: Objects,
    with_harvester: bool,
) -> tuple[ClusterPlan, list[str]]:
    """Return the plan of a cluster, and what could not be seen of its Harvester.

    :param client: client of the management cluster
    :param effect: the effect on its machines
    :param after: its desired state after the change
    :param objects: all objects after the change
    :param with_harvester: whether to ask its Harvester for the free capacity
    """
    harvester_cluster = _harvester_cluster(effect.cluster, after, objects)
    harvester: Surroundings | None = None
    hidden: list[str] = []
    changes_vms = effect.needs.vms or any(pool.updated for pool in effect.pools)
    if with_harvester and (changes_vms or effect.infrastructure):
        harvester, hidden = await ask_harvester(client, harvester_cluster, objects)

    capacity = harvester.capacity if harvester else None
    cluster = objects.get(ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *effect.cluster))
    plan = ClusterPlan(
        cluster=str(effect.cluster),
        pools=effect.pools,
        infrastructure=effect.infrastructure,
        vms_created=sum(pool.created for pool in effect.pools),
        vms_deleted=sum(pool.deleted for pool in effect.pools),
        shortcomings=shortcomings_of(after, cluster, harvester) if harvester else (),
        needs=needs_and_free(effect.needs, harvester_cluster, capacity),
        unknown=effect.unknown,
        services=_services(effect.cluster, harvester_cluster, after, harvester),
    )
    return plan, hidden


def _services(
    cluster: Key, harvester_cluster: Obj, after: DesiredState, harvester: Surroundings | None
) -> str:
    """Say where Services of type LoadBalancer get addresses from; empty if it is not known.

    :param cluster: the key of the Cluster
    :param harvester_cluster: the HarvesterCluster, which names the namespace on Harvester
    :param after: the desired state of the cluster after the change
    :param harvester: the objects of the Harvester
    """
    if harvester is None:
        return ""
    machines = [{"spec": pool.machine} for pool in after.pools.values()]
    namespace = str(harvester_cluster["spec"].get("targetNamespace") or "")
    objects = harvester.capacity.harvester
    version = harvester.chart_limits.harvester
    return services(objects, machines, namespace, cluster.name, version)


def _harvester_cluster(key: Key, after: DesiredState, objects: Objects) -> Obj:
    """Return the HarvesterCluster with its coming spec, which for a new cluster its class makes."""
    cluster = objects.get(ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *key))
    name = text_at(cluster, "spec", "infrastructureRef", "name")
    kind = resources.HARVESTER_CLUSTERS
    live = objects.get(ObjectId(kind.group, kind.kind, key.namespace, name)) or {}
    return {
        "kind": kind.kind,
        "metadata": live.get("metadata") or {"namespace": key.namespace, "name": name},
        "spec": {**(live.get("spec") or {}), **after.infrastructure},
    }
