"""A plan as commands show it: frozen data."""

from __future__ import annotations

from dataclasses import dataclass

from operations.capacity.machinechanges import Action, Field, PoolEffect
from operations.capacity.needs import Need


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """The effect on one object of the management cluster.

    `error` says why the API server refuses the object.
    """

    object: str
    action: Action
    fields: tuple[Field, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Shortcoming:
    """An object that a cluster names, and that is absent or unfit on its Harvester.

    :param check: the name of the check in `caphv doctor`
    :param fields: the fields that name the object
    :param where: the place that a user edits to correct it; empty if the fields are this place
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
    """The effect on the machines of a cluster and on its Harvester.

    :param shortcomings: the objects that Harvester lacks
    :param unknown: the parts that cannot be predicted
    :param services: the source of addresses for Services of type LoadBalancer in the guest, empty
        if it is not known
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
    """The effect of applying manifests, or of the changes of a cluster that are under way."""

    objects: tuple[ObjectPlan, ...] = ()
    clusters: tuple[ClusterPlan, ...] = ()
    unseen: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether the API server refuses an object."""
        return any(plan.action is Action.REFUSED for plan in self.objects)

    @property
    def short(self) -> bool:
        """Whether Harvester lacks objects or room."""
        for cluster in self.clusters:
            if any(need.short for need in cluster.needs):
                return True
            if any(not shortcoming.advice for shortcoming in cluster.shortcomings):
                return True
        return False

    @property
    def changes(self) -> bool:
        """Whether anything happens."""
        return bool(self.objects) or any(
            cluster.pools or cluster.infrastructure or cluster.unknown for cluster in self.clusters
        )
