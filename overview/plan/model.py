"""A plan as commands show it: frozen data."""

from __future__ import annotations

from dataclasses import dataclass

from overview.plan.machinechanges import Action, Field, PoolEffect
from overview.plan.needs import Need


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """What happens to one object of the management cluster; `error` says why the API server refuses it."""

    object: str
    action: Action
    fields: tuple[Field, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What happens to the machines of a cluster and on its Harvester; `unknown` says what cannot be predicted.

    `services` says from where Services of type LoadBalancer in the guest get addresses, empty if that is not known.
    """

    cluster: str
    pools: tuple[PoolEffect, ...] = ()
    infrastructure: tuple[Field, ...] = ()
    vms_created: int = 0
    vms_deleted: int = 0
    needs: tuple[Need, ...] = ()
    unknown: tuple[str, ...] = ()
    services: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What applying manifests does, or what is still to be done for a cluster."""

    objects: tuple[ObjectPlan, ...] = ()
    clusters: tuple[ClusterPlan, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the API server refuses an object."""
        return any(each.action is Action.REFUSED for each in self.objects)

    @property
    def short(self) -> bool:
        """Whether Harvester lacks what is needed."""
        return any(need.short for each in self.clusters for need in each.needs)

    @property
    def changes(self) -> bool:
        """Whether anything happens."""
        return bool(self.objects) or any(each.pools or each.infrastructure or each.unknown for each in self.clusters)
