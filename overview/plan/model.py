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
class Shortcoming:
    """What a cluster names and its Harvester does not have, or has otherwise.

    :param check: name of the check, as `caphv doctor` has it
    :param fields: where it is named
    :param where: what a user edits to correct it, empty if that is these fields
    :param advice: whether the cluster could start nevertheless
    """

    check: str
    value: str
    message: str
    fields: tuple[str, ...]
    where: str = ""
    advice: bool = False


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What happens to the machines of a cluster and on its Harvester.

    :param shortcomings: what Harvester lacks
    :param unknown: what cannot be predicted
    :param services: from where Services of type LoadBalancer in the guest get addresses, empty if that is not known
    """

    cluster: str
    pools: tuple[PoolEffect, ...] = ()
    infrastructure: tuple[Field, ...] = ()
    vms_created: int = 0
    vms_deleted: int = 0
    shortcomings: tuple[Shortcoming, ...] = ()
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
        short = any(need.short for cluster in self.clusters for need in cluster.needs)
        return short or any(not found.advice for cluster in self.clusters for found in cluster.shortcomings)

    @property
    def changes(self) -> bool:
        """Whether anything happens."""
        return bool(self.objects) or any(each.pools or each.infrastructure or each.unknown for each in self.clusters)
