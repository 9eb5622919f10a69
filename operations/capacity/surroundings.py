"""Objects of a Harvester to which clusters refer, by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from caphv.api.hostresources import offered_resources
from caphv.api.object import Obj, dict_at, key_of, text_at
from operations.capacity.free import CapacityObjects
from operations.read.chartlimits import ChartLimits
from operations.status.details import pools_of


@dataclass(slots=True)
class Surroundings:
    """Objects of a Harvester by name. A kind that could not be read is None, and is not checked."""

    capacity: CapacityObjects
    namespaces: list[str] | None = None
    storage_classes: list[str] | None = None
    chart_limits: ChartLimits = field(default_factory=ChartLimits)

    @property
    def images(self) -> dict[str, Obj] | None:
        """Images by namespace and display name, and by namespace and name."""
        harvester = self.capacity.harvester
        if not harvester.sees("virtualmachineimages.harvesterhci.io"):
            return None
        by_display_name = {
            f"{key_of(obj).namespace}/{_display_name(obj)}": obj
            for obj in harvester.images
            if _display_name(obj)
        }
        # Display names win, as when the provider resolves a name.
        return {str(key_of(obj)): obj for obj in harvester.images} | by_display_name

    @property
    def networks(self) -> dict[str, Obj] | None:
        """VM networks by namespace and name."""
        harvester = self.capacity.harvester
        if not harvester.sees("network-attachment-definitions.k8s.cni.cncf.io"):
            return None
        return {str(key_of(obj)): obj for obj in harvester.networks}

    @property
    def key_pairs(self) -> dict[str, Obj] | None:
        """Key pairs by namespace and name."""
        harvester = self.capacity.harvester
        if not harvester.sees("keypairs.harvesterhci.io"):
            return None
        return {str(key_of(obj)): obj for obj in harvester.key_pairs}

    @property
    def devices(self) -> set[str] | None:
        """Resource names of the devices and huge pages that hosts offer."""
        harvester = self.capacity.harvester
        if not harvester.sees("nodes") or not harvester.hosts:
            return None
        return {
            name
            for host in harvester.hosts
            for name in offered_resources(dict_at(host, "status", "allocatable"))
        }

    @property
    def pools(self) -> dict[str, Obj] | None:
        """IPPools by name."""
        harvester = self.capacity.harvester
        if not harvester.sees("ippools.loadbalancer.harvesterhci.io"):
            return None
        return {str(obj["metadata"]["name"]): obj for obj in harvester.pools}

    def free(self, pool: str) -> int | None:
        """Return the number of free addresses of a pool; None if it is unknown."""
        for entry in pools_of(self.capacity.harvester):
            if entry.name == pool:
                return entry.free
        return None


def _display_name(image: Obj) -> str:
    return text_at(image, "spec", "displayName")
