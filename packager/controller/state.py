"""The state of each Cluster on the management cluster: complete facts, or why it must wait.

A cluster is rendered only when all objects that it refers to are known. The first rendering pins
its network, so a guess before its control plane exists could not be corrected later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from caphv.api import clusterapi, names, resources
from caphv.api.object import Key, Obj, annotations_of, at, being_deleted, dict_at, key_of, labels_of
from caphv.runtime.cache import Change, Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.election import share_name
from caphv.runtime.errors import Forbidden
from packager import informers
from packager.addons.cluster_objects import (
    fleet_cluster_owner,
    fleet_clusters,
    is_on_harvester,
    is_suspended,
)
from packager.addons.facts import ClusterFacts, FleetCluster
from packager.definitions.protection import is_protected
from packager.informers import OptionalKinds

_FLEET_CLUSTER = (resources.FLEET_GROUP, "Cluster")


@dataclass(frozen=True)
class ClusterState:
    """One Cluster. Without `facts` it is not rendered now, and `why` gives reason and remedy.

    `incomplete`: an object that it refers to is known not to exist yet.
    """

    facts: ClusterFacts | None = None
    why: str = ""
    suspended: bool = False
    incomplete: bool = False


@dataclass(frozen=True)
class ClusterFilter:
    """Selects clusters by namespace, and by the watch-filter label of their HarvesterCluster."""

    namespace: str = ""
    watch_filter: str = ""

    @property
    def share(self) -> str:
        """A name of the selection for Leases and files of this packager; empty for all clusters."""
        return share_name(self.namespace, self.watch_filter)


class ClusterCache:
    """Caches of the management cluster.

    `changed` is called for each Cluster that may need another rendering. Its second argument is
    true if a user requested it. `settled` is called when an optional kind was read for the first
    time, or found to be missing.
    """

    def __init__(
        self,
        client: ApiClient,
        version: str,
        options: ClusterFilter,
        changed: Callable[[Key, bool], None],
        settled: Callable[[], None],
    ) -> None:
        self.options = options
        self._changed = changed
        self._moved: set[Key] = set()
        self._deleted: set[Key] = set()

        self.kinds = OptionalKinds(client, settled)
        self.clusters = Informer(
            client,
            resources.clusters(version),
            namespace=options.namespace,
            transform=informers.strip_status,
            indexes={
                "infrastructure": _infrastructure,
                "control plane": _control_plane,
                "class": _class,
            },
        )
        self.harvester_clusters = Informer(
            client, resources.HARVESTER_CLUSTERS, namespace=options.namespace
        )
        self.classes = Informer(
            client, resources.cluster_classes(version), transform=informers.strip_status
        )

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The caches that must be in sync before the first plan."""
        return self.kinds.crds, self.clusters, self.harvester_clusters, self.classes

    def connect(self) -> None:
        """Report all existing objects, and then changes."""
        self.kinds.want(*_FLEET_CLUSTER, self._on_fleet_cluster_change)
        self.clusters.add_handler(self._on_cluster_change)
        self.harvester_clusters.add_handler(self._on_harvester_cluster_change)
        self.classes.add_handler(self._on_class_change)

    async def wait_until_ready(self, seconds: float) -> None:
        """Wait until all kinds that Clusters refer to were read or refused, or the time is up."""
        for cluster in self.clusters.store:
            self._want_control_plane(cluster)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.kinds.wait_for_all()

    def states(self) -> dict[Key, ClusterState]:
        """Return the state of all selected Clusters on Harvester."""
        # Without Fleet there are no Fleet Clusters, and the Cluster's label tells who imports it.
        informer = self.kinds.get(*_FLEET_CLUSTER)
        imported = fleet_clusters(informer.store) if informer else {}
        return {
            key_of(cluster): self._state(cluster, imported.get(key_of(cluster), frozenset()))
            for cluster in self.clusters.store
            if is_on_harvester(cluster, self._find) and self._is_selected(cluster)
        }

    def keys(self) -> set[Key]:
        """Return all Clusters, including those that are not selected."""
        return set(self.clusters.store.keys())

    def present_clusters(self) -> frozenset[Key]:
        """Return the Clusters of this packager, as far as that is known.

        Clusters that are suspended or being deleted are left out.
        """
        return frozenset(
            key_of(cluster)
            for cluster in self.clusters.store
            if not suspension(cluster)
            and not being_deleted(cluster)
            and not self._is_of_another(cluster)
        )

    def moved_clusters(self) -> set[Key]:
        """Return the Clusters that were deleted while paused, until `forget_moves`."""
        return set(self._moved)

    def forget_moves(self, keys: Iterable[Key]) -> None:
        """Forget moved clusters, because the repository records them now."""
        self._moved.difference_update(keys)

    def deleted_clusters(self) -> set[Key]:
        """Return the Clusters whose complete deletion was observed, until they exist again.

        A Cluster that is merely absent, for example after the restore of an older backup, may still
        be running.
        """
        return set(self._deleted)

    def confirmed_clusters(self) -> set[Key]:
        """Return the Clusters whose annotation confirms the removal of their definition."""
        return {
            key_of(cluster)
            for cluster in self.clusters.store
            if annotations_of(cluster).get(names.CONFIRM_REMOVAL_ANNOTATION) == "true"
        }

    def protected_clusters(self) -> set[Key]:
        """Return the Clusters that outlive the removal of their manifest."""
        return {key_of(cluster) for cluster in self.clusters.store if is_protected(cluster)}

    def harvester_cluster(self, key: Key) -> Obj | None:
        """Return the HarvesterCluster of a Cluster."""
        cluster = self.clusters.get(*key)
        name = clusterapi.infrastructure_ref(cluster).name if cluster else ""
        return self.harvester_clusters.get(key.namespace, name) if name else None

    # One Cluster

    def _is_selected(self, cluster: Obj) -> bool:
        watch_filter = self.options.watch_filter
        if not watch_filter:
            return True
        harvester_cluster = self.harvester_clusters.get(*_infrastructure_key(cluster))
        return harvester_cluster is not None and (
            labels_of(harvester_cluster).get(names.WATCH_FILTER_LABEL) == watch_filter
        )

    def _is_of_another(self, cluster: Obj) -> bool:
        """Whether the HarvesterCluster is known to belong to another packager."""
        # Without a HarvesterCluster, its packager is unknown, and the Cluster counts as ours.
        exists = self.harvester_clusters.get(*_infrastructure_key(cluster)) is not None
        return exists and not self._is_selected(cluster)

    def _state(self, cluster: Obj, imported: frozenset[FleetCluster]) -> ClusterState:
        """Return the state of one Cluster; `imported` are its Fleet Clusters."""
        if reason := suspension(cluster):
            return ClusterState(why=reason, suspended=True)
        if being_deleted(cluster):
            why = "the Cluster is being deleted; its bundles stay until it is deleted"
            return ClusterState(why=why)

        harvester_cluster = self.harvester_clusters.get(*_infrastructure_key(cluster))
        control_plane = self._control_plane(cluster)
        # The first rendering pins the network, so all objects must be known.
        if missing := self._missing(cluster, harvester_cluster, control_plane):
            return missing
        if not self.kinds.is_settled(*_FLEET_CLUSTER):
            problem = self.kinds.problem(*_FLEET_CLUSTER)
            return ClusterState(why=problem or "waiting for the list of Fleet Clusters")
        return ClusterState(
            ClusterFacts(
                cluster=cluster,
                harvester_cluster=harvester_cluster,
                control_plane=control_plane,
                fleet_clusters=imported,
            )
        )

    def _missing(
        self, cluster: Obj, harvester_cluster: Obj | None, control_plane: Obj | None
    ) -> ClusterState | None:
        """Return the state of a Cluster that waits for an object; None if it has all objects."""
        key = _infrastructure_key(cluster)
        group, kind, name = control_plane_ref(cluster)
        if not (key.name and name) and (missing := self._missing_class(cluster)):
            return ClusterState(why=missing, incomplete=True)
        if harvester_cluster is None:
            why = f"waiting for HarvesterCluster {key} to be created"
            return ClusterState(why=why, incomplete=True)
        if name and control_plane is None:
            why = f"waiting for {kind} {key.namespace}/{name} of {group} to be created and readable"
            why = self.kinds.problem(group, kind) or why + self._lacking_right(group, kind)
            return ClusterState(why=why, incomplete=self.kinds.is_settled(group, kind))
        return None

    def _lacking_right(self, group: str, kind: str) -> str:
        """Return a hint about the right to read a kind; empty if the server did not refuse it."""
        informer = self.kinds.get(group, kind)
        if informer is None or not isinstance(informer.last_error, Forbidden):
            return ""

        resource = informer.resource
        namespace = self.options.namespace
        role = f"Role in namespace {namespace}" if namespace else "ClusterRole"
        rule = f"{{apiGroups: [{group}], resources: [{resource.plural}], verbs: [list, watch]}}"
        return (
            f". The packager may not list {resource}: bind a {role} with rule {rule} to its account"
        )

    def _want_control_plane(self, cluster: Obj) -> None:
        group, kind, name = control_plane_ref(cluster)
        if name:
            self.kinds.want(
                group, kind, self._on_control_plane_change, namespace=self.options.namespace
            )

    def _control_plane(self, cluster: Obj) -> Obj | None:
        self._want_control_plane(cluster)
        group, kind, name = control_plane_ref(cluster)
        informer = self.kinds.get(group, kind)
        if informer is None or not name:
            return None
        return informer.get(cluster["metadata"]["namespace"], name)

    def _missing_class(self, cluster: Obj) -> str:
        """Return why a Cluster lacks the objects of its ClusterClass; empty if it has no class."""
        key = class_key(cluster)
        if key is None:
            return ""
        if self.classes.get(*key) is None:
            return (
                f"ClusterClass {key} does not exist: create it, or reference another one in "
                "spec.topology"
            )
        return (
            "waiting for Cluster API to create infrastructure and control plane from ClusterClass "
            f"{key}"
        )

    def _find(self, group: str, kind: str, key: Key) -> Obj | None:
        """Return a ClusterClass, which tells whether a new Cluster will be on Harvester."""
        if (group, kind) != (resources.CLUSTER_API_GROUP, "ClusterClass"):
            return None
        return self.classes.get(*key)

    # Changes

    def _on_cluster_change(self, change: Change) -> None:
        if change.new is None and clusterapi.paused(change.obj, change.obj):
            # `clusterctl move` pauses a Cluster before it recreates it on another management
            # cluster.
            self._moved.add(change.key)
        elif change.new is None and being_deleted(change.obj):
            self._deleted.add(change.key)
        elif change.new is not None:
            self._moved.discard(change.key)
            self._deleted.discard(change.key)
        if differs(change):
            self._changed(change.key, _is_requested(change))

    def _on_harvester_cluster_change(self, change: Change) -> None:
        if differs(change):
            self._report_all("infrastructure", str(change.key), _is_requested(change))

    def _on_control_plane_change(self, change: Change) -> None:
        if differs(change):
            resource = change.resource
            self._report_all("control plane", f"{resource.group}/{resource.kind}/{change.key}")

    def _on_class_change(self, change: Change) -> None:
        if differs(change):
            self._report_all("class", str(change.key))

    def _on_fleet_cluster_change(self, change: Change) -> None:
        if differs(change):
            key = fleet_cluster_owner(change.obj)
            if self.clusters.get(*key):
                self._changed(key, False)

    def _report_all(self, index: str, value: str, urgent: bool = False) -> None:
        for cluster in self.clusters.store.by_index(index, value):
            self._changed(key_of(cluster), urgent)


# Reading objects


def suspension(cluster: Obj) -> str:
    """Return why the bundles of a Cluster are suspended; empty when they are not."""
    if is_suspended(cluster):
        return (
            f"annotation {names.SUSPEND_ADDONS_ANNOTATION} suspends the bundles of this Cluster; "
            "remove it to resume"
        )
    if clusterapi.paused(cluster, cluster):
        return "the Cluster is paused; its bundles remain unchanged until it is resumed"
    return ""


class ControlPlaneRef(NamedTuple):
    """The control plane of a Cluster; all fields are empty when it has none."""

    group: str
    kind: str
    name: str


def control_plane_ref(cluster: Obj) -> ControlPlaneRef:
    """Return the reference of a Cluster to its control plane.

    The reference may be of either contract version.
    """
    ref = dict_at(cluster, "spec", "controlPlaneRef")
    group = ref.get("apiGroup") or str(ref.get("apiVersion", "")).partition("/")[0]
    return ControlPlaneRef(str(group), str(ref.get("kind", "")), str(ref.get("name", "")))


def class_key(cluster: Obj) -> Key | None:
    """Return namespace and name of a Cluster's ClusterClass, None when it has no topology."""
    topology = at(cluster, "spec", "topology")
    if not topology:
        return None
    ref = topology.get("classRef") or {}
    name = ref.get("name") or topology.get("class") or ""
    namespace = (
        ref.get("namespace") or topology.get("classNamespace") or cluster["metadata"]["namespace"]
    )
    return Key(str(namespace), str(name))


def differs(change: Change) -> bool:
    """Whether a change affects more than the status and the metadata of other controllers."""
    return change.old is None or change.new is None or _view(change.old) != _view(change.new)


def _view(obj: Obj) -> list[object]:
    return [labels_of(obj), annotations_of(obj), obj.get("spec"), being_deleted(obj)]


def _is_requested(change: Change) -> bool:
    """Whether a user set the annotation that requests a reconcile."""
    if change.old is None or change.new is None:
        return False
    old = annotations_of(change.old).get(names.RECONCILE_AT_ANNOTATION)
    new = annotations_of(change.new).get(names.RECONCILE_AT_ANNOTATION)
    return new is not None and new != old


def _infrastructure_key(cluster: Obj) -> Key:
    return Key(cluster["metadata"]["namespace"], clusterapi.infrastructure_ref(cluster).name)


def _infrastructure(cluster: Obj) -> Iterable[str]:
    return [str(_infrastructure_key(cluster))]


def _control_plane(cluster: Obj) -> Iterable[str]:
    group, kind, name = control_plane_ref(cluster)
    return [f"{group}/{kind}/{cluster['metadata']['namespace']}/{name}"] if name else []


def _class(cluster: Obj) -> Iterable[str]:
    key = class_key(cluster)
    return [str(key)] if key else []
