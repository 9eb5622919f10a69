"""Find the control planes and MachineDeployments that create machines from a template."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from caphv.api.resources import CLUSTER_API_GROUP
from webhooks.crossobject.model import CONTROL_PLANE_GROUP, Entry, Inventory
from webhooks.crossobject.references import references
from webhooks.rules.model import MACHINE_TEMPLATE, Field

_MAKERS = frozenset({"MachineDeployment", "MachineSet"})


class TemplateUse(NamedTuple):
    """A machine template, an object that creates machines from it, and that object's replicas."""

    template: Entry
    owner: Entry
    replicas: Field


def is_control_plane(entry: Entry) -> bool:
    """Return whether an object is the control plane of a cluster, of any provider."""
    return entry.group == CONTROL_PLANE_GROUP and entry.kind.endswith("ControlPlane")


@lru_cache(maxsize=1)
def users(inventory: Inventory) -> tuple[TemplateUse, ...]:
    """Return all uses of machine templates."""
    return tuple(_users(inventory))


def _users(inventory: Inventory) -> Iterator[TemplateUse]:
    """Yield the uses of templates that are in the inventory."""
    for owner, ref in references(inventory):
        is_user = owner.kind in _MAKERS or is_control_plane(owner)
        if ref.at("kind").text != MACHINE_TEMPLATE or not is_user:
            continue

        namespace = ref.at("namespace").text or owner.namespace
        if template := inventory.find(MACHINE_TEMPLATE, namespace, ref.at("name").text):
            yield TemplateUse(template, owner, owner.field.at("spec", "replicas"))


def cluster_of(inventory: Inventory, owner: Entry) -> Entry | None:
    """Return the Cluster of a template's user, None if it is not in the inventory.

    The user names the Cluster or has its label, or the Cluster references its control plane.
    """
    if owner.cluster_name:
        return inventory.find("Cluster", owner.namespace, owner.cluster_name, CLUSTER_API_GROUP)

    for cluster in inventory.of_kind("Cluster", CLUSTER_API_GROUP):
        ref = cluster.field.at("spec", "controlPlaneRef")
        if (ref.at("kind").text, ref.at("name").text) == (owner.kind, owner.name):
            return cluster
    return None


@lru_cache(maxsize=1)
def _templates(inventory: Inventory) -> dict[int, dict[int, Entry]]:
    """Return machine templates by index, grouped by the index of the Cluster that uses them."""
    templates: dict[int, dict[int, Entry]] = {}
    for template, owner, _ in users(inventory):
        if cluster := cluster_of(inventory, owner):
            templates.setdefault(cluster.index, {})[template.index] = template
    return templates


def machine_templates(inventory: Inventory, cluster: Entry) -> list[Entry]:
    """Return the templates from which machines of a cluster are created, each once."""
    return list(_templates(inventory).get(cluster.index, {}).values())
