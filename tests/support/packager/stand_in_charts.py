"""What the charts of the add-ons install that matters to others: kinds that they bring and need."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from caphv.api.object import Obj, Resource
from tests.support.addons.charts import chart_name, opaque
from tests.support.packager.environment import crd

SNAPSHOT_CLASSES = Resource("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses", "VolumeSnapshotClass")
INSTALLATIONS = Resource("operator.tigera.io", "v1", "installations", "Installation")
_VALUES, _INSTALLATION = "@values@", "@installation@"
_TEMPLATES = {
    _VALUES: "{{ .Values | toYaml | toJson }}",
    _INSTALLATION: "{{ .Values.installation | default dict | toJson }}",
}
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

    def write(self, name: str, version: str, folder: Path) -> None:
        """Write a chart into a folder, with templates of the same objects, whose values Helm merges."""
        (folder / "templates").mkdir()
        head = {"apiVersion": "v2", "name": name, "version": version or "0.0.1"}
        (folder / "Chart.yaml").write_text(json.dumps(head))
        objects = [_with_marks(obj) for obj in self({"chart": name, "version": version})]
        text = "\n---\n".join(map(json.dumps, objects))
        for mark, template in _TEMPLATES.items():
            text = text.replace(json.dumps(mark), template)
        (folder / "templates" / "all.yaml").write_text(text)

    def archive(self, name: str) -> str:
        """Return a chart as RKE2 has it in field `chartContent` of a HelmChart."""
        with tempfile.TemporaryDirectory(prefix="caphv-chart-") as scratch:
            folder = Path(scratch) / name
            folder.mkdir()
            self.write(name, "", folder)
            output = io.BytesIO()
            with tarfile.open(fileobj=output, mode="w:gz") as archive:
                archive.add(folder, arcname=name)
        return base64.b64encode(output.getvalue()).decode()


def _with_marks(obj: Obj) -> Obj:
    """Return an object with marks in place of what depends on values."""
    if obj["kind"] == INSTALLATIONS.kind:
        return {**obj, "spec": _INSTALLATION}
    if "values" in obj.get("data", {}):
        return {**obj, "data": {**obj["data"], "values": _VALUES}}
    return obj


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
