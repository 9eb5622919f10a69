"""Objects that other objects name: whether a cluster has them, by its bundles or from the beginning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from caphv.api.object import Obj
from caphv.validation.finding import FieldPath
from packager.addons.merge import at

REFERENCE = "reference"


class Reference(NamedTuple):
    """A name in an object; the kind is of a namespace where `namespace` is set."""

    path: FieldPath
    kind: str
    namespace: str
    name: str


POD_TEMPLATES: Mapping[str, FieldPath] = {
    "Pod": ("spec",),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    **dict.fromkeys(("DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"), ("spec", "template", "spec")),
}
"""Path of the spec of Pods, by kind."""
_NAMES: Mapping[str, tuple[tuple[FieldPath, str], ...]] = {
    "MutatingAdmissionPolicyBinding": ((("spec", "policyName"), "MutatingAdmissionPolicy"),),
    "ValidatingAdmissionPolicyBinding": ((("spec", "policyName"), "ValidatingAdmissionPolicy"),),
    "PersistentVolumeClaim": ((("spec", "storageClassName"), "StorageClass"),),
    "Ingress": ((("spec", "ingressClassName"), "IngressClass"),),
}
_BUILT_IN = {
    "ClusterRole": re.compile(r"cluster-admin|admin|edit|view|system:.*"),
    "Role": re.compile(r"extension-apiserver-authentication-reader|system:.*"),
    "ServiceAccount": re.compile(r"default"),
    "PriorityClass": re.compile(r"system-(?:cluster|node)-critical"),
    "ConfigMap": re.compile(r"kube-root-ca\.crt|extension-apiserver-authentication"),
    "Service": re.compile(r"kubernetes|kube-dns|rke2-coredns-rke2-coredns"),
}
"""What a cluster has from the beginning."""


def is_built_in(reference: Reference) -> bool:
    """Whether every cluster has the object."""
    known = _BUILT_IN.get(reference.kind)
    return bool(known and known.fullmatch(reference.name))


def references(obj: Obj, namespace: str) -> Iterator[Reference]:
    """Yield all names of other objects; `namespace` is that of the release. Optional ones are left out."""
    kind = str(obj.get("kind"))
    namespace = str(at(obj, "metadata", "namespace") or namespace)
    for path, wanted in _NAMES.get(kind, ()):
        name = at(obj, *path)
        if isinstance(name, str) and name:
            yield Reference(path, wanted, "", name)
    if kind in POD_TEMPLATES:
        path = POD_TEMPLATES[kind]
        yield from _of_pod(at(obj, *path), path, namespace)
    elif kind in ("RoleBinding", "ClusterRoleBinding"):
        yield from _of_binding(obj, namespace)
    elif kind.endswith("WebhookConfiguration"):
        for index, hook in _rows(obj.get("webhooks")):
            yield from _service(at(hook, "clientConfig", "service"), ("webhooks", index, "clientConfig", "service"))
    elif kind == "APIService":
        yield from _service(at(obj, "spec", "service"), ("spec", "service"))


def _of_binding(obj: Obj, namespace: str) -> Iterator[Reference]:
    role = at(obj, "roleRef", "kind")
    if role in ("Role", "ClusterRole"):
        place = namespace if role == "Role" else ""
        yield Reference(("roleRef", "name"), role, place, str(at(obj, "roleRef", "name")))
    for index, subject in _rows(obj.get("subjects")):
        if subject.get("kind") == "ServiceAccount":
            place = str(subject.get("namespace") or namespace)
            yield Reference(("subjects", index, "name"), "ServiceAccount", place, str(subject.get("name")))


def _service(service: Any, path: FieldPath) -> Iterator[Reference]:
    if isinstance(service, dict) and service.get("name"):
        yield Reference((*path, "name"), "Service", str(service.get("namespace") or "default"), str(service["name"]))


def _of_pod(spec: Any, path: FieldPath, namespace: str) -> Iterator[Reference]:
    if not isinstance(spec, dict):
        return
    for field, kind in (("serviceAccountName", "ServiceAccount"), ("priorityClassName", "PriorityClass")):
        if isinstance(spec.get(field), str) and spec[field]:
            place = namespace if kind == "ServiceAccount" else ""
            yield Reference((*path, field), kind, place, spec[field])
    for index, row in _rows(spec.get("imagePullSecrets")):
        yield Reference((*path, "imagePullSecrets", index, "name"), "Secret", namespace, str(row.get("name")))
    for index, volume in _rows(spec.get("volumes")):
        inner = (*path, "volumes", index)
        yield from _sources(volume, inner, namespace)
        for number, source in _rows(at(volume, "projected", "sources")):
            yield from _sources(source, (*inner, "projected", "sources", number), namespace)
    for containers in ("initContainers", "containers"):
        for index, container in _rows(spec.get(containers)):
            yield from _of_container(container, (*path, containers, index), namespace)


def _of_container(container: Obj, path: FieldPath, namespace: str) -> Iterator[Reference]:
    keys = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}
    whole = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
    for index, row in _rows(container.get("env")):
        yield from _named(row.get("valueFrom"), keys, (*path, "env", index, "valueFrom"), namespace)
    for index, row in _rows(container.get("envFrom")):
        yield from _named(row, whole, (*path, "envFrom", index), namespace)


def _sources(volume: Obj, path: FieldPath, namespace: str) -> Iterator[Reference]:
    yield from _named(volume, {"configMap": "ConfigMap"}, path, namespace)
    yield from _named(volume, {"secret": "Secret"}, path, namespace)
    claim = at(volume, "persistentVolumeClaim", "claimName")
    if isinstance(claim, str):
        place = (*path, "persistentVolumeClaim", "claimName")
        yield Reference(place, "PersistentVolumeClaim", namespace, claim)


def _named(holder: Any, kinds: Mapping[str, str], path: FieldPath, namespace: str) -> Iterator[Reference]:
    for field, kind in kinds.items():
        source = at(holder, field)
        if not isinstance(source, dict) or source.get("optional"):
            continue
        key = "secretName" if "secretName" in source else "name"
        if isinstance(source.get(key), str):
            yield Reference((*path, field, key), kind, namespace, source[key])


def _rows(rows: Any) -> Iterator[tuple[int, Obj]]:
    for index, row in enumerate(rows if isinstance(rows, list) else ()):
        if isinstance(row, dict):
            yield index, row
