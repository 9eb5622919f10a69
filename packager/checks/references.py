"""Finds names of other objects in an object, and knows the objects that every cluster has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from caphv.api.object import Obj, at, text_at
from caphv.validation.finding import FieldPath

REFERENCE = "reference"


class Reference(NamedTuple):
    """A name of another object; `namespace` is empty for a cluster-wide kind."""

    path: FieldPath
    kind: str
    namespace: str
    name: str


POD_TEMPLATES: Mapping[str, FieldPath] = {
    "Pod": ("spec",),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"),
        ("spec", "template", "spec"),
    ),
}
"""Path of the spec of Pods, by kind."""
_NAMES: Mapping[str, tuple[tuple[FieldPath, str], ...]] = {
    "MutatingAdmissionPolicyBinding": ((("spec", "policyName"), "MutatingAdmissionPolicy"),),
    "ValidatingAdmissionPolicyBinding": ((("spec", "policyName"), "ValidatingAdmissionPolicy"),),
    "PersistentVolumeClaim": ((("spec", "storageClassName"), "StorageClass"),),
    "Ingress": ((("spec", "ingressClassName"), "IngressClass"),),
}
# Objects that a cluster has from the beginning.
_BUILT_IN = {
    "ClusterRole": re.compile(r"cluster-admin|admin|edit|view|system:.*"),
    "Role": re.compile(r"extension-apiserver-authentication-reader|system:.*"),
    "ServiceAccount": re.compile(r"default"),
    "PriorityClass": re.compile(r"system-(?:cluster|node)-critical"),
    "ConfigMap": re.compile(r"kube-root-ca\.crt|extension-apiserver-authentication"),
    "Service": re.compile(r"kubernetes|kube-dns|rke2-coredns-rke2-coredns"),
}


def is_built_in(reference: Reference) -> bool:
    """Whether every cluster has the object."""
    names = _BUILT_IN.get(reference.kind)
    return bool(names and names.fullmatch(reference.name))


def references(obj: Obj, namespace: str) -> Iterator[Reference]:
    """Yield all required names of other objects.

    `namespace` is the namespace of the release, which counts if the object names none.
    """
    kind = str(obj.get("kind"))
    own_namespace = text_at(obj, "metadata", "namespace") or namespace
    for path, target_kind in _NAMES.get(kind, ()):
        name = at(obj, *path)
        if isinstance(name, str) and name:
            yield Reference(path=path, kind=target_kind, namespace="", name=name)

    if kind in POD_TEMPLATES:
        path = POD_TEMPLATES[kind]
        yield from _pod_references(at(obj, *path), path, own_namespace)
    elif kind in ("RoleBinding", "ClusterRoleBinding"):
        yield from _binding_references(obj, own_namespace)
    elif kind.endswith("WebhookConfiguration"):
        for index, hook in _rows(obj.get("webhooks")):
            field = ("webhooks", index, "clientConfig", "service")
            yield from _service_reference(at(hook, "clientConfig", "service"), field)
    elif kind == "APIService":
        yield from _service_reference(at(obj, "spec", "service"), ("spec", "service"))


def _binding_references(obj: Obj, namespace: str) -> Iterator[Reference]:
    role = at(obj, "roleRef", "kind")
    if role in ("Role", "ClusterRole"):
        yield Reference(
            path=("roleRef", "name"),
            kind=role,
            namespace=namespace if role == "Role" else "",
            name=str(at(obj, "roleRef", "name")),
        )
    for index, subject in _rows(obj.get("subjects")):
        if subject.get("kind") == "ServiceAccount":
            yield Reference(
                path=("subjects", index, "name"),
                kind="ServiceAccount",
                namespace=str(subject.get("namespace") or namespace),
                name=str(subject.get("name")),
            )


def _service_reference(service: Any, path: FieldPath) -> Iterator[Reference]:
    if isinstance(service, dict) and service.get("name"):
        namespace = str(service.get("namespace") or "default")
        yield Reference(
            path=(*path, "name"), kind="Service", namespace=namespace, name=str(service["name"])
        )


def _pod_references(spec: Any, path: FieldPath, namespace: str) -> Iterator[Reference]:
    """Yield the references of a Pod's spec, which is at a path and may have any type."""
    if not isinstance(spec, dict):
        return

    for field, kind in (
        ("serviceAccountName", "ServiceAccount"),
        ("priorityClassName", "PriorityClass"),
    ):
        if isinstance(spec.get(field), str) and spec[field]:
            # PriorityClasses have no namespace.
            owner = namespace if kind == "ServiceAccount" else ""
            yield Reference(path=(*path, field), kind=kind, namespace=owner, name=spec[field])
    for index, row in _rows(spec.get("imagePullSecrets")):
        field_path = (*path, "imagePullSecrets", index, "name")
        name = str(row.get("name"))
        yield Reference(path=field_path, kind="Secret", namespace=namespace, name=name)

    for index, volume in _rows(spec.get("volumes")):
        inner = (*path, "volumes", index)
        yield from _volume_references(volume, inner, namespace)
        for number, source in _rows(at(volume, "projected", "sources")):
            yield from _volume_references(
                source, (*inner, "projected", "sources", number), namespace
            )

    for containers in ("initContainers", "containers"):
        for index, container in _rows(spec.get(containers)):
            yield from _container_references(container, (*path, containers, index), namespace)


def _container_references(container: Obj, path: FieldPath, namespace: str) -> Iterator[Reference]:
    """Yield the references of a container to single keys of objects, and to all their keys."""
    key_fields = {"configMapKeyRef": "ConfigMap", "secretKeyRef": "Secret"}
    object_fields = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
    for index, row in _rows(container.get("env")):
        yield from _field_references(
            row.get("valueFrom"), key_fields, (*path, "env", index, "valueFrom"), namespace
        )
    for index, row in _rows(container.get("envFrom")):
        yield from _field_references(row, object_fields, (*path, "envFrom", index), namespace)


def _volume_references(volume: Obj, path: FieldPath, namespace: str) -> Iterator[Reference]:
    yield from _field_references(volume, {"configMap": "ConfigMap"}, path, namespace)
    yield from _field_references(volume, {"secret": "Secret"}, path, namespace)
    claim = at(volume, "persistentVolumeClaim", "claimName")
    if isinstance(claim, str):
        yield Reference(
            path=(*path, "persistentVolumeClaim", "claimName"),
            kind="PersistentVolumeClaim",
            namespace=namespace,
            name=claim,
        )


def _field_references(
    holder: Any, kinds: Mapping[str, str], path: FieldPath, namespace: str
) -> Iterator[Reference]:
    """Yield the references in fields of a holder; `kinds` has the kind of each field's object."""
    for field, kind in kinds.items():
        source = at(holder, field)
        # Kubernetes starts the Pod without an optional object.
        if not isinstance(source, dict) or source.get("optional"):
            continue
        # Volumes name a Secret in `secretName`, and all other references use `name`.
        key = "secretName" if "secretName" in source else "name"
        if isinstance(source.get(key), str):
            yield Reference(
                path=(*path, field, key), kind=kind, namespace=namespace, name=source[key]
            )


def _rows(rows: Any) -> Iterator[tuple[int, Obj]]:
    for index, row in enumerate(rows if isinstance(rows, list) else ()):
        if isinstance(row, dict):
            yield index, row
