"""What the charts of the add-ons install that matters to others: kinds that they bring and need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj, Resource
from sandbox.addons.charts import chart_name, opaque
from tests.support.packager.environment import crd

SNAPSHOT_CLASSES = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses", "VolumeSnapshotClass")
INSTALLATIONS = Resource("operator.tigera.io", "v1", "installations", "Installation")
_APPROVED = {"api-approved.kubernetes.io": "https://example.com/approved"}


def chart(helm: Mapping[str, Any]) -> Sequence[Obj]:
    """Return the objects of a chart: a ConfigMap with version and values, and kinds that other charts depend on."""
    return [*opaque(helm), *_others(chart_name(helm), helm)]


@dataclass
class Charts:
    """The same charts; those of `broken` versions have an object that the API server refuses."""

    broken: set[str] = field(default_factory=set)

    def __call__(self, helm: Mapping[str, Any]) -> Sequence[Obj]:
        objects = chart(helm)
        if helm.get("version") in self.broken:
            objects = [*objects, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "_"}}]
        return objects


def _others(name: str, helm: Mapping[str, Any]) -> list[Obj]:
    if name == "harvester-csi-driver":
        return [_object(SNAPSHOT_CLASSES, "harvester")]
    if name == "rke2-calico":
        spec = (helm.get("values") or {}).get("installation") or {}
        return [{**_object(INSTALLATIONS, "default"), "spec": spec}]
    kinds = {"rke2-snapshot-controller-crd": SNAPSHOT_CLASSES, "rke2-calico-crd": INSTALLATIONS}
    if name not in kinds:
        return []
    found = crd(kinds[name])
    found["metadata"]["annotations"] = _APPROVED
    return [found]


def _object(resource: Resource, name: str) -> Obj:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
