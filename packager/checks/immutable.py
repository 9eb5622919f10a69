"""Finds changes that an API server refuses. Helm's upgrades fail until they are undone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caphv.api.object import Obj, at, dict_at, text_at
from caphv.validation.finding import Fault, Finding

IMMUTABLE = "immutable-field"
Identity = tuple[str, str, str, str]

_SELECTOR = ("spec", "selector")
FIELDS: Mapping[tuple[str, str], Mapping[tuple[str, ...], Any]] = {
    ("storage.k8s.io", "StorageClass"): {
        ("provisioner",): None,
        ("parameters",): None,
        ("reclaimPolicy",): "Delete",
        ("volumeBindingMode",): "Immediate",
    },
    ("storage.k8s.io", "CSIDriver"): {
        ("spec", "attachRequired"): True,
        ("spec", "volumeLifecycleModes"): ["Persistent"],
    },
    ("storage.k8s.io", "VolumeAttributesClass"): {("driverName",): None, ("parameters",): None},
    ("apps", "Deployment"): {_SELECTOR: None},
    ("apps", "DaemonSet"): {_SELECTOR: None},
    ("apps", "ReplicaSet"): {_SELECTOR: None},
    ("apps", "StatefulSet"): {
        _SELECTOR: None,
        ("spec", "serviceName"): None,
        ("spec", "podManagementPolicy"): "OrderedReady",
        ("spec", "volumeClaimTemplates"): None,
    },
    ("batch", "Job"): {_SELECTOR: None, ("spec", "template"): None},
    ("", "PersistentVolumeClaim"): {
        _SELECTOR: None,
        ("spec", "accessModes"): None,
        ("spec", "storageClassName"): None,
        ("spec", "volumeMode"): "Filesystem",
    },
    ("", "Secret"): {("type",): "Opaque"},
    ("rbac.authorization.k8s.io", "RoleBinding"): {("roleRef",): None},
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): {("roleRef",): None},
    ("scheduling.k8s.io", "PriorityClass"): {
        ("value",): 0,
        ("preemptionPolicy",): "PreemptLowerPriority",
    },
    ("node.k8s.io", "RuntimeClass"): {("handler",): None},
    ("networking.k8s.io", "IngressClass"): {("spec", "controller"): None},
    ("apiextensions.k8s.io", "CustomResourceDefinition"): {
        ("spec", "group"): None,
        ("spec", "scope"): None,
        ("spec", "names", "kind"): None,
        ("spec", "names", "plural"): None,
    },
}
"""Fields that cannot change, by group and kind, with the value that an unset field has."""


def identity(obj: Obj, namespace: str) -> Identity:
    """Return group, kind, namespace and name of an object.

    `namespace` is the namespace of its release, which counts if the object names none.
    """
    group = text_at(obj, "apiVersion").rpartition("/")[0]
    return (
        group,
        str(obj.get("kind")),
        text_at(obj, "metadata", "namespace") or namespace,
        str(at(obj, "metadata", "name")),
    )


def changes(
    before: Mapping[Identity, Obj], after: Mapping[Identity, Obj]
) -> Iterator[tuple[Identity, Finding]]:
    """Yield each immutable field that differs between two versions of an object."""
    for key, obj in after.items():
        old = before.get(key)
        # Helm recreates hooks.
        if old is None or "helm.sh/hook" in dict_at(obj, "metadata", "annotations"):
            continue

        fields = dict(FIELDS.get(key[:2], {}))
        # An immutable ConfigMap or Secret cannot be made mutable again either.
        if old.get("immutable") is True and key[1] in ("ConfigMap", "Secret"):
            fields["data",] = None

        for path, default in fields.items():
            old_value = _value(old, path, default)
            new_value = _value(obj, path, default)
            if old_value != new_value:
                detail = (
                    f"cannot change in a {key[1]} that exists ({_shown(old_value)} before): "
                    "restore it, use another metadata.name, or delete the object in the cluster "
                    "first"
                )
                yield key, Finding(path, Fault.FORBIDDEN, detail, IMMUTABLE, new_value)


def _value(obj: Obj, path: Sequence[str], default: Any) -> Any:
    # The API server also sets the default for an empty field.
    value = at(obj, *path)
    return default if value in (None, "", {}, []) else value


def _shown(value: Any) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
