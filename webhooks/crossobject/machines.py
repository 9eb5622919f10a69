"""Rules about the number, places, names and disks of machines that belong together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from caphv.api.names import LONGHORN_DRIVER
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import Fault, LocatedFinding, did_you_mean
from caphv.validation.rule import Rules
from webhooks.crossobject.model import STORAGE_GROUP, Entry, Inventory, Located
from webhooks.crossobject.networks import harvester
from webhooks.crossobject.owners import cluster_of, is_control_plane, users
from webhooks.crossobject.references import references
from webhooks.rules.model import CLUSTER, MACHINE, MACHINE_TEMPLATE, Field

RULES = Rules()


class _Setting(NamedTuple):
    """An object and one of its fields, set or not."""

    entry: Entry
    field: Field


def _control_plane_replicas(inventory: Inventory) -> Iterator[_Setting]:
    """Yield the replicas of control planes on Harvester, and of Clusters whose class has one."""
    on_harvester = {owner.index for owner, _ in references(inventory)}
    for entry in inventory.entries:
        if is_control_plane(entry) and entry.index in on_harvester:
            yield _Setting(entry, entry.field.at("spec", "replicas"))

    for cluster in inventory.of_kind("Cluster", CLUSTER_API_GROUP):
        cluster_class = topology_class(inventory, cluster)
        if cluster_class is None or cluster_class.index in on_harvester:
            replicas = cluster.field.at("spec", "topology", "controlPlane", "replicas")
            yield _Setting(cluster, replicas)


def topology_class_name(cluster: Entry) -> str:
    """Return the name of the ClusterClass of a Cluster, empty for none."""
    topology = cluster.field.at("spec", "topology")
    return topology.at("classRef", "name").text or topology.at("class").text


def topology_class(inventory: Inventory, cluster: Entry) -> Entry | None:
    """Return the ClusterClass of a Cluster, None if it is not in the inventory."""
    name = topology_class_name(cluster)
    if not name:
        return None

    topology = cluster.field.at("spec", "topology")
    # v1beta2 has the first field, v1beta1 the second one.
    namespace = topology.at("classRef", "namespace").text or topology.at("classNamespace").text
    return inventory.find("ClusterClass", namespace or cluster.namespace, name, CLUSTER_API_GROUP)


@RULES.rule(
    "control-plane-count",
    ("*ControlPlane", "Cluster"),
    "A control plane must have an odd number of machines: one more does not let etcd survive "
    "another failure.",
    example="`replicas: 2` of an RKE2ControlPlane: take 1 or 3",
    advice=True,
)
def _count(inventory: Inventory) -> Iterator[Located]:
    for entry, replicas in _control_plane_replicas(inventory):
        if replicas.number and replicas.number > 0 and replicas.number % 2 == 0:
            # etcd needs a majority of its members.
            survivable = (replicas.number - 1) // 2
            detail = (
                f"etcd survives {survivable} lost machines as with one machine less: take an odd "
                "number"
            )
            yield LocatedFinding(entry, replicas.invalid(detail))


@RULES.rule(
    "one-zone",
    (MACHINE_TEMPLATE, "MachineDeployment"),
    "Machines of a cluster must be spread over zones: a template must not pin several control "
    "plane machines to one zone, and MachineDeployments must not all be in the same.",
    example=(
        "`failureDomain: zone-a` in the template of a control plane with 3 replicas: remove it"
    ),
    advice=True,
)
def _one_zone(inventory: Inventory) -> Iterator[Located]:
    for template, owner, replicas in users(inventory):
        zone = template.spec.at("failureDomain")
        if is_control_plane(owner) and zone.text and (replicas.number or 0) > 1:
            detail = (
                f"all {replicas.number} machines of {owner} would be in one place: remove the "
                "field to spread them"
            )
            yield LocatedFinding(template, zone.invalid(detail), owner)

    for deployments in _deployments_by_cluster(inventory).values():
        zones = [
            deployment.field.at("spec", "template", "spec", "failureDomain")
            for deployment in deployments
        ]
        if len(deployments) > 1 and zones[0].text and len({zone.value for zone in zones}) == 1:
            detail = (
                f"all {len(deployments)} MachineDeployments of the cluster are in this one place: "
                "spread them"
            )
            yield LocatedFinding(deployments[-1], zones[-1].invalid(detail), deployments[0])


def _deployments_by_cluster(inventory: Inventory) -> dict[int, list[Entry]]:
    """Return MachineDeployments on Harvester by the index of their Cluster."""
    deployments: dict[int, list[Entry]] = {}
    for _, owner, _ in users(inventory):
        if owner.kind == "MachineDeployment" and (cluster := cluster_of(inventory, owner)):
            deployments.setdefault(cluster.index, []).append(owner)
    return deployments


@RULES.rule(
    "machine-name-taken",
    (MACHINE,),
    "Names of machines must be unique in a target namespace on Harvester: the VM has the machine's "
    "name.",
    example=(
        "HarvesterMachines `a/worker-1` and `b/worker-1` of clusters that both have "
        "`targetNamespace: demo`"
    ),
)
def _machine_name(inventory: Inventory) -> Iterator[Located]:
    first_of_name: dict[tuple[str, str, str], Entry] = {}
    for entry in inventory.of_kind(MACHINE):
        infrastructure = inventory.infrastructure(entry)
        if not entry.name or infrastructure is None:
            continue

        target = infrastructure.spec.at("targetNamespace").text
        other = first_of_name.setdefault((harvester(infrastructure), target, entry.name), entry)
        if other.namespace != entry.namespace:
            detail = (
                f"{other} has its VM of this name in namespace {target} on Harvester, too: name "
                "one differently"
            )
            name = entry.field.at("metadata", "name")
            yield LocatedFinding(entry, name.problem(Fault.DUPLICATE, detail), other)


@RULES.rule(
    "cluster-name-taken",
    (CLUSTER,),
    "Names of clusters must be unique in a target namespace on Harvester: their machines could get "
    "the same names.",
    example=(
        "HarvesterClusters `a/demo` and `b/demo` that both have `targetNamespace: demo`: give each "
        "its own"
    ),
    advice=True,
)
def _cluster_name(inventory: Inventory) -> Iterator[Located]:
    first_of_name: dict[tuple[str, str, str], Entry] = {}
    for entry in inventory.of_kind(CLUSTER):
        target = entry.spec.at("targetNamespace")
        other = first_of_name.setdefault((harvester(entry), target.text, entry.name), entry)
        if entry.name and target.text and other.namespace != entry.namespace:
            detail = (
                f"{other} has this target namespace, too, and machines of both may get one name: "
                "give each its own"
            )
            yield LocatedFinding(entry, target.problem(Fault.DUPLICATE, detail), other)


def _storage_classes(inventory: Inventory) -> Iterator[_Setting]:
    """Yield the StorageClass of each empty disk of machines and templates."""
    for kind in (MACHINE, MACHINE_TEMPLATE):
        for entry in inventory.of_kind(kind):
            for volume in entry.spec.at("volumes").each():
                name = volume.at("storageClass")
                if volume.at("volumeType").value == "storageClass" and name.text:
                    yield _Setting(entry, name)


@RULES.rule(
    "storage-class-migration",
    (MACHINE, MACHINE_TEMPLATE),
    "Disks must be on a StorageClass that supports live migration, where the StorageClass is among "
    "the files: for Longhorn, one with parameter `migratable`.",
    example=(
        '`storageClass: longhorn` with StorageClass `longhorn` without `migratable: "true"`:'
        " choose another"
    ),
    advice=True,
)
def _migratable(inventory: Inventory) -> Iterator[Located]:
    for entry, name in _storage_classes(inventory):
        storage_class = inventory.find("StorageClass", "", name.text, STORAGE_GROUP)
        if storage_class is None:
            continue

        # Without this parameter, Longhorn does not attach a volume to two hosts, which a live
        # migration needs.
        is_longhorn = storage_class.field.at("provisioner").text == LONGHORN_DRIVER
        is_migratable = storage_class.field.at("parameters", "migratable").value == "true"
        if is_longhorn and not is_migratable:
            detail = (
                'has no parameter migratable: "true", without which a VM is not moved while it runs'
            )
            yield LocatedFinding(entry, name.invalid(detail), storage_class)


@RULES.rule(
    "storage-class-absent",
    (MACHINE, MACHINE_TEMPLATE),
    "A storage class must have the name of a StorageClass, where one among the files has nearly "
    "that name.",
    example=(
        "`storageClass: harvester-longhron` with StorageClass `harvester-longhorn`: correct the "
        "name"
    ),
    advice=True,
)
def _storage_class_name(inventory: Inventory) -> Iterator[Located]:
    names = {entry.name for entry in inventory.of_kind("StorageClass", STORAGE_GROUP)}
    for entry, name in _storage_classes(inventory):
        suggestion = did_you_mean(name.text, names) if name.text not in names else ""
        if suggestion:
            detail = f"no StorageClass of this name is among the files{suggestion}"
            yield LocatedFinding(entry, name.invalid(detail))
