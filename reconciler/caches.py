"""Caches of the management cluster, and the relations between the objects in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Self

from caphv.api import clusterapi, resources
from caphv.api.identities import identity_of, reference_of
from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION
from caphv.api.object import SECRETS, Key, Obj, Resource, annotations_of, key_of, owner_reference
from caphv.runtime.cache import Informer
from caphv.runtime.client import ApiClient
from caphv.runtime.store import IndexFunction
from reconciler.harvester.addressuse import endpoint_addresses, machine_addresses


@dataclass(frozen=True, slots=True)
class Caches:
    """One informer per kind that the reconcilers read on the management cluster."""

    clusters: Informer
    machines: Informer
    secrets: Informer
    harvester_clusters: Informer
    harvester_machines: Informer
    harvester_machine_templates: Informer

    @classmethod
    def create(
        cls,
        client: ApiClient,
        *,
        cluster_api_version: str,
        namespace: str = "",
        selector: str = "",
    ) -> Self:
        """Create the caches.

        :param client: client of the management cluster
        :param cluster_api_version: the version of Cluster API that the management cluster serves
        :param namespace: the only namespace to read, empty for all
        :param selector: labels that objects of the infrastructure group must have
        """

        def infrastructure(resource: Resource, **indexes: IndexFunction) -> Informer:
            """Return the cache of a kind of this provider."""
            return Informer(
                client, resource, namespace=namespace, label_selector=selector, indexes=indexes
            )

        return cls(
            clusters=Informer(client, resources.clusters(cluster_api_version), namespace=namespace),
            machines=Informer(
                client,
                resources.machines(cluster_api_version),
                namespace=namespace,
                indexes={"bootstrap": _bootstrap_secret},
            ),
            # Only the metadata of Secrets is ever cached.
            secrets=Informer(
                client, SECRETS, namespace=namespace, metadata_only=True, transform=_slim_secret
            ),
            harvester_clusters=infrastructure(
                resources.HARVESTER_CLUSTERS,
                identity=_identity,
                identity_namespace=_identity_namespace,
                endpoint=endpoint_addresses,
            ),
            harvester_machines=infrastructure(
                resources.HARVESTER_MACHINES,
                cluster=_cluster,
                name=_name,
                address=machine_addresses,
            ),
            harvester_machine_templates=infrastructure(
                resources.HARVESTER_MACHINE_TEMPLATES, cluster=_cluster_of_template
            ),
        )

    def __iter__(self) -> Iterator[Informer]:
        return (getattr(self, field.name) for field in fields(self))

    @property
    def publishes_failure_domains(self) -> bool:
        """Whether Cluster API expects failure domains as a list; contract v1beta1 has a map."""
        return self.clusters.resource.version != "v1beta1"

    def cluster_of(self, obj: Obj) -> Obj | None:
        """Return the Cluster that owns a HarvesterCluster, or that the label of a machine names."""
        name = cluster_name(obj)
        return self.clusters.get(obj["metadata"]["namespace"], name) if name else None

    def harvester_cluster_of(self, cluster: Obj) -> Obj | None:
        """Return the HarvesterCluster that a Cluster refers to."""
        kind, name = clusterapi.infrastructure_ref(cluster)
        if kind != resources.HARVESTER_CLUSTERS.kind:
            return None
        return self.harvester_clusters.get(cluster["metadata"]["namespace"], name)

    def harvester_cluster_of_machine(self, machine: Obj) -> Obj | None:
        """Return the HarvesterCluster of a HarvesterMachine."""
        cluster = self.cluster_of(machine)
        return self.harvester_cluster_of(cluster) if cluster else None

    def machines_of(self, cluster: Obj) -> list[Obj]:
        """Return the HarvesterMachines of a Cluster, ordered by name."""
        return self.harvester_machines.store.by_index("cluster", str(key_of(cluster)))

    def count_machines(self, harvester_cluster: Key) -> int:
        """Count the HarvesterMachines of the Cluster of a HarvesterCluster."""
        obj = self.harvester_clusters.get(*harvester_cluster)
        cluster = self.cluster_of(obj) if obj else None
        return len(self.machines_of(cluster)) if cluster else 0

    def clusters_with(self, address: str) -> Iterator[Key]:
        """Yield the HarvesterClusters with an address: of a machine, or as external endpoint."""
        for machine in self.harvester_machines.store.by_index("address", address):
            harvester_cluster = self.harvester_cluster_of_machine(machine)
            if harvester_cluster:
                yield key_of(harvester_cluster)
        for harvester_cluster in self.harvester_clusters.store.by_index("endpoint", address):
            yield key_of(harvester_cluster)

    def templates_of(self, cluster: Obj) -> list[Obj]:
        """Return the HarvesterMachineTemplates of a Cluster."""
        return self.harvester_machine_templates.store.by_index("cluster", str(key_of(cluster)))


def cluster_name(obj: Obj) -> str:
    """Return the name of an object's Cluster, by owner reference or label; empty for none."""
    reference = owner_reference(obj, "Cluster", resources.CLUSTER_API_GROUP)
    return str(reference["name"]) if reference else clusterapi.cluster_name(obj)


def _slim_secret(secret: Obj) -> Obj:
    """Return the fields of a Secret to cache: its identity, and who may refer to it."""
    names = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "finalizers")
    metadata = {name: secret["metadata"][name] for name in names if name in secret["metadata"]}
    if allowed := annotations_of(secret).get(ALLOWED_NAMESPACES_ANNOTATION):
        metadata["annotations"] = {ALLOWED_NAMESPACES_ANNOTATION: allowed}
    return {"metadata": metadata}


# Indexes of the caches: functions that return the values under which an index has an object.


def _bootstrap_secret(machine: Obj) -> Iterable[str]:
    name = clusterapi.bootstrap_secret_name(machine)
    return [f"{machine['metadata']['namespace']}/{name}"] if name else []


def _identity(cluster: Obj) -> Iterable[str]:
    return [str(identity_of(cluster))]


def _identity_namespace(cluster: Obj) -> Iterable[str]:
    # Labels of a namespace may decide whether its clusters may use a HarvesterClusterIdentity.
    return [cluster["metadata"]["namespace"]] if reference_of(cluster) else []


def _cluster(machine: Obj) -> Iterable[str]:
    name = clusterapi.cluster_name(machine)
    return [f"{machine['metadata']['namespace']}/{name}"] if name else []


def _cluster_of_template(template: Obj) -> Iterable[str]:
    # Cluster API makes the Cluster the owner of a template. Only templates of Clusters with a
    # ClusterClass have the label, too.
    owner = owner_reference(template, "Cluster", resources.CLUSTER_API_GROUP)
    return [f"{template['metadata']['namespace']}/{owner['name']}"] if owner else _cluster(template)


def _name(machine: Obj) -> Iterable[str]:
    return [machine["metadata"]["name"]]
