"""Who makes machines of which template: control planes, MachineDeployments and MachineSets, and topologies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from caphv.api.resources import CLUSTER_API_GROUP
from webhooks.crossobject.model import CONTROL_PLANE_GROUP, Entry, Inventory
from webhooks.crossobject.references import references
from webhooks.rules.model import MACHINE_TEMPLATE, Field

_MAKERS = frozenset({"MachineDeployment", "MachineSet"})


def is_control_plane(entry: Entry) -> bool:
    """Whether it is the control plane of a cluster, of whichever provider."""
    return entry.group == CONTROL_PLANE_GROUP and entry.kind.endswith("ControlPlane")


@lru_cache(maxsize=1)
def users(inventory: Inventory) -> tuple[tuple[Entry, Entry, Field], ...]:
    """Return template, its user, and the user's `spec.replicas`, for all templates among the objects."""
    return tuple(_users(inventory))


def _users(inventory: Inventory) -> Iterator[tuple[Entry, Entry, Field]]:
    for owner, ref in references(inventory):
        if ref.at("kind").text == MACHINE_TEMPLATE and (owner.kind in _MAKERS or is_control_plane(owner)):
            namespace = ref.at("namespace").text or owner.namespace
            if template := inventory.find(MACHINE_TEMPLATE, namespace, ref.at("name").text):
                yield template, owner, owner.field.at("spec", "replicas")


def cluster_of(inventory: Inventory, owner: Entry) -> Entry | None:
    """The Cluster of a user: by its name or label, and of a control plane by the Cluster's reference to it."""
    if owner.cluster_name:
        return inventory.find("Cluster", owner.namespace, owner.cluster_name, CLUSTER_API_GROUP)
    for cluster in inventory.of_kind("Cluster", CLUSTER_API_GROUP):
        ref = cluster.field.at("spec", "controlPlaneRef")
        if (ref.at("kind").text, ref.at("name").text) == (owner.kind, owner.name):
            return cluster
    return None


@lru_cache(maxsize=1)
def _templates(inventory: Inventory) -> dict[int, dict[int, Entry]]:
    found: dict[int, dict[int, Entry]] = {}
    for template, owner, _ in users(inventory):
        if cluster := cluster_of(inventory, owner):
            found.setdefault(cluster.index, {})[template.index] = template
    return found


def machine_templates(inventory: Inventory, cluster: Entry) -> list[Entry]:
    """Templates of which machines of a cluster are made, each once."""
    return list(_templates(inventory).get(cluster.index, {}).values())
