"""Small charts for tests, as folders or archives."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml


def chart(folder: Path, name: str, version: str, values: Mapping[str, Any], **templates: str) -> Path:
    """Write a chart; a template's name is that of its file, with `__` for `/`. Return its folder."""
    top = folder / name
    top.mkdir(parents=True, exist_ok=True)
    (top / "Chart.yaml").write_text(yaml.safe_dump({"apiVersion": "v2", "name": name, "version": version}))
    (top / "values.yaml").write_text(yaml.safe_dump(dict(values)))
    for file, text in templates.items():
        path = top / f"{file.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


def archived(top: Path, version: str) -> Path:
    """Pack a chart's folder next to it, as `helm package` does, and remove the folder."""
    path = top.parent / f"{top.name}-{version}.tgz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(top, top.name)
    for found in sorted(top.rglob("*"), reverse=True):
        found.rmdir() if found.is_dir() else found.unlink()
    top.rmdir()
    return path


CLOUD_PROVIDER = """\
apiVersion: v1
kind: ServiceAccount
metadata: {name: harvester-cloud-provider, namespace: kube-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: harvester-cloud-provider, namespace: kube-system}
spec:
  replicas: {{ .Values.replicasCount }}
  selector: {matchLabels: {app: {{ .Values.app }}}}
  template:
    metadata: {labels: {app: {{ .Values.app }}}}
    spec:
      serviceAccountName: {{ .Values.account }}
      tolerations: {{ toJson .Values.tolerations }}
      affinity: {{ toJson .Values.affinity }}
      containers: [{name: main, image: "{{ .Values.image.repository }}", args: {{ toJson .Values.extraArgs }}}]
      volumes: [{name: config, secret: {secretName: "{{ .Values.cloudConfig.secretName }}"}}]
"""
CLOUD_PROVIDER_VALUES = {
    "replicasCount": 1,
    "app": "ccm",
    "account": "harvester-cloud-provider",
    "image": {"repository": "rancher/harvester-cloud-provider"},
    "extraArgs": [],
    "affinity": {},
    "tolerations": [],
    "cloudConfigPath": "",
    "cloudConfig": {"secretName": "", "secretKey": "cloud-config"},
    "global": {"cattle": {"clusterName": "", "systemDefaultRegistry": ""}},
    "fullnameOverride": "",
    "kube-vip": {"enabled": True, "fullnameOverride": ""},
}
CSI_DRIVER = """\
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: harvester}
driver: driver.harvesterhci.io
deletionPolicy: Delete
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: harvester}
provisioner: driver.harvesterhci.io
parameters: {hostStorageClass: "{{ .Values.hostStorageClass }}"}
"""
CSI_DRIVER_VALUES = {
    "fullnameOverride": "",
    "replicasCount": 3,
    "hostStorageClass": "",
    "cloudConfig": {"secretName": "", "hostPath": ""},
    "tolerations": [],
}
CILIUM = """\
{{- if empty .Values.global.clusterCIDRv4 }}{{- $_ := set .Values.ipv4 "enabled" false }}{{- end }}
{{- if not (empty .Values.global.clusterCIDRv6) }}{{- $_ := set .Values.ipv6 "enabled" true }}{{- end }}
apiVersion: v1
kind: ConfigMap
metadata: {name: cilium-config, namespace: kube-system}
data:
  enable-ipv4: {{ .Values.ipv4.enabled | quote }}
  enable-ipv6: {{ .Values.ipv6.enabled | quote }}
  underlay-protocol: {{ .Values.underlayProtocol | quote }}
"""
"""Reads global values as RKE2's chart does, whose values.yaml does not have them."""
CILIUM_VALUES = {
    "global": {"systemDefaultRegistry": ""},
    "ipv4": {"enabled": True},
    "ipv6": {"enabled": False},
    "ipam": {"mode": "kubernetes"},
    "routingMode": "",
    "tunnelProtocol": "",
    "underlayProtocol": "",
}
SNAPSHOT_CRDS = "---\n".join(
    f"""\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {kind.lower()}s.snapshot.storage.k8s.io}}
spec:
  group: snapshot.storage.k8s.io
  scope: Namespaced
  names: {{kind: {kind}, plural: {kind.lower()}s}}
  versions: [{{name: v1, served: true, storage: true}}]
"""
    for kind in ("VolumeSnapshot", "VolumeSnapshotClass", "VolumeSnapshotContent")
)


def shipped(folder: Path) -> Path:
    """Small charts under the names and versions of the shipped table, one of them an archive. Return their folder."""
    chart(folder, "harvester-cloud-provider", "0.2.15", CLOUD_PROVIDER_VALUES, templates__all=CLOUD_PROVIDER)
    chart(folder, "harvester-csi-driver", "0.1.31", CSI_DRIVER_VALUES, templates__all=CSI_DRIVER)
    crds = chart(folder, "rke2-snapshot-controller-crd", "5.2.003", {}, templates__crds=SNAPSHOT_CRDS)
    archived(crds, "5.2.003")
    chart(folder, "rke2-snapshot-controller", "5.2.003", {})
    return folder


def cilium(folder: Path) -> None:
    """Add the chart of Cilium, whose Pod networks come from values."""
    chart(folder, "rke2-cilium", "1.20.102", CILIUM_VALUES, templates__config=CILIUM)


def calico(folder: Path) -> None:
    """Add RKE2's chart of Calico, whose CRDs are in a chart of their own."""
    metadata = "metadata: {name: default}"
    objects = "".join(
        f"---\n{{apiVersion: {version}, kind: {kind}, {metadata}, spec: {{{{ toJson .Values.{name} }}}}}}\n"
        for version, kind, name in (
            ("operator.tigera.io/v1", "Installation", "installation"),
            ("crd.projectcalico.org/v1", "FelixConfiguration", "felixConfiguration"),
            ("crd.projectcalico.org/v1", "IPAMConfig", "ipamConfig"),
        )
    )
    values = {"installation": {}, "felixConfiguration": {}, "ipamConfig": {}, "kubernetesServiceEndpoint": {}}
    chart(folder, "rke2-calico", "v3.32.100", values, templates__all=objects)
