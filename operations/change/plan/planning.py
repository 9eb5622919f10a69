"""Make a plan: read and compare objects, and ask Harvester for its free capacity."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from caphv.api import clusterapi, names, resources
from caphv.api.object import NAMESPACES, Key, Obj, key_of, labels_of, text_at
from caphv.api.objectid import ObjectId
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from operations.backup.reading import read_objects
from operations.capacity.machinechanges import effect_of
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

    planner = await _read_planner(client, preview.clusters, with_harvester=with_harvester)
    clusters = []
    for key in preview.clusters:
        before = desired_state(key, preview.before)
        if cluster := await planner.plan(key, before, preview.after):
            clusters.append(cluster)
    return Plan(objects, tuple(clusters), (*preview.unseen, *planner.unseen))


async def plan_of_cluster(client: ApiClient, key: Key, *, with_harvester: bool) -> Plan | None:
    """Return the remaining changes of a cluster; None if there is no such cluster.

    Raises `ApiError`, `Unreachable`, `NoClusterApiError`.
    """
    objects, unseen = await read_objects(client, [key.namespace])
    planner = await _read_planner(client, [key], with_harvester=with_harvester)
    if key not in planner.models:
        return None

    # What is under way leads from the existing machines to the desired state as it is.
    cluster = await planner.plan(key, desired_state(key, objects), objects)
    return Plan((), (cluster,) if cluster else (), (*unseen, *planner.unseen))


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plan clusters, by the objects of a management cluster and the answers of Harvesters.

    :param client: client of the management cluster
    :param with_harvester: whether to ask Harvesters for their free capacity
    :param management: the objects of the management cluster
    :param models: the models of the existing clusters
    :param configs: the ExtensionConfigs
    :param configs_error: why the ExtensionConfigs could not be read, or empty
    :param unseen: collects what could not be seen, each text once
    """

    client: ApiClient
    with_harvester: bool
    management: ManagementObjects
    models: Mapping[Key, Cluster]
    configs: Sequence[Obj]
    configs_error: str
    unseen: dict[str, None] = field(default_factory=dict)

    async def plan(self, key: Key, desired: DesiredState, objects: Objects) -> ClusterPlan | None:
        """Return the plan of a cluster; None if nothing happens.

        :param key: the cluster
        :param desired: its desired state before the change
        :param objects: all objects after the change
        """
        model = self.models.get(key)
        before = _actual(desired, model, self.management)
        after = desired_state(key, objects)
        if self.configs_error and any(pool.updates_in_place for pool in after.pools.values()):
            self.unseen[self.configs_error] = None
        updates = await self._in_place_updates(key)
        effect = effect_of(key, before, after, _outdated(model, self.management), updates.obstacles)
        if not effect.changes and not effect.unknown:
            return None

        harvester_cluster = _harvester_cluster(key, after, objects)
        harvester = None
        changes_vms = effect.needs.vms or any(pool.updated for pool in effect.pools)
        if self.with_harvester and (changes_vms or effect.infrastructure):
            harvester, hidden = await ask_harvester(self.client, harvester_cluster, objects)
            # Clusters of one Harvester repeat the same lines about it.
            self.unseen.update(dict.fromkeys(hidden))

        cluster = objects.get(ObjectId(resources.CLUSTER_API_GROUP, "Cluster", *key))
        return ClusterPlan(
            cluster=str(key),
            pools=effect.pools,
            infrastructure=effect.infrastructure,
            vms_created=sum(pool.created for pool in effect.pools),
            vms_deleted=sum(pool.deleted for pool in effect.pools),
            shortcomings=shortcomings_of(after, cluster, harvester) if harvester else (),
            needs=needs_and_free(
                effect.needs, harvester_cluster, harvester.capacity if harvester else None
            ),
            unknown=effect.unknown,
            services=_services(key, harvester_cluster, after, harvester),
        )

    async def _in_place_updates(self, cluster: Key) -> InPlaceUpdates:
        """Return what decides on updates in place of a cluster."""
        if not self.configs:
            return InPlaceUpdates()
        try:
            namespace = await self.client.get(NAMESPACES, cluster.namespace)
        except RequestError:
            return InPlaceUpdates()

        harvester_machines = by_key(self.management.harvester_machines)
        machines: dict[str, list[Obj]] = {}
        for machine in by_cluster(self.management.machines).get(cluster, ()):
            # The machines of a control plane have none. Nothing asks for the pool without a name.
            deployment = labels_of(machine).get(names.DEPLOYMENT_LABEL, "")
            pool = _pool_name(
                "MachineDeployment", Key(cluster.namespace, deployment), self.management
            )
            name = clusterapi.infrastructure_ref(machine)[1]
            # Nothing is known of a machine that was not read.
            obj = harvester_machines.get(Key(cluster.namespace, name)) or {}
            machines.setdefault(pool, []).append(obj)
        return InPlaceUpdates(extension_policy(self.configs, namespace), machines)


async def _read_planner(
    client: ApiClient, keys: Collection[Key], *, with_harvester: bool
) -> _Planner:
    """Read what the plans of these clusters need. Raises `ApiError`, `Unreachable`."""
    namespaces = {key.namespace for key in keys}
    management = ManagementObjects()
    configs: Sequence[Obj] = ()
    configs_error = ""
    if namespaces:
        # One list of all namespaces costs less than one list per namespace.
        namespace = namespaces.pop() if len(namespaces) == 1 else ""
        management = await read_management(client, namespace)
        try:
            configs = await list_all(client, resources.EXTENSION_CONFIGS)
        except NotFound:
            pass  # the core has no Runtime SDK
        except RequestError as error:
            why = "machines count as replaced, as without updates in place"
            configs_error = f"ExtensionConfigs: {error} ({why})"

    overview = overview_of(management, datetime.now(UTC))
    models = {cluster.key: cluster for cluster in overview.clusters if cluster.key in keys}
    return _Planner(client, with_harvester, management, models, configs, configs_error)


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


def _pool_name(kind: str, key: Key, objects: ManagementObjects) -> str:
    """Return the name of a pool, which in a topology differs from its MachineDeployment's name."""
    if kind != "MachineDeployment":
        return CONTROL_PLANE
    for obj in objects.machine_deployments:
        if key_of(obj) == key:
            return labels_of(obj).get(names.POOL_LABEL, key.name)
    return key.name


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
    namespace = text_at(harvester_cluster["spec"], "targetNamespace")
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
