"""Define resources (kinds with their URL paths), and small helpers for plain objects.

Objects stay plain dicts, as the API server sends them, because typed models cost CPU and memory on
every watch event and lose unknown fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

Obj = dict[str, Any]


class Key(NamedTuple):
    """Namespace and name of an object; the namespace is empty for cluster-scoped kinds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind, for example `Resource("apps", "v1", "deployments", "Deployment")`."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """Return `v1` for the core group, `<group>/<version>` otherwise."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the quoted URL path below the server's root.

        Without a name, the path leads to the collection. Without a namespace, it leads to all
        namespaces.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", _segment(namespace)]
        parts.append(self.plural)
        parts += [_segment(part) for part in (name, subresource) if part]
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
EVENTS = Resource("", "v1", "events", "Event")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
PERSISTENT_VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", namespaced=False
)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io",
    "v1",
    "clusterrolebindings",
    "ClusterRoleBinding",
    namespaced=False,
)
STORAGE_CLASSES = Resource(
    "storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False
)
CSI_DRIVERS = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False)
VOLUME_ATTACHMENTS = Resource(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False
)
RESOURCE_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
TOKEN_REVIEWS = Resource(
    "authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False
)
SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
SELF_SUBJECT_ACCESS_REVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    namespaced=False,
)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)
POD_DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")


_TEXTS = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
# The largest number of 64 bits has so many digits. They are limited, because Python refuses to
# parse thousands of digits.
_VERSION_DIGITS = 20


def _segment(text: str) -> str:
    # A name stays one part of the path whatever it contains, because names come from users.
    return quote(text, safe="") if text.strip(".") else "%2E" * len(text)


def at(obj: Any, *path: str | int) -> Any:
    """Return the value at a path of nested mappings, None if there is none.

    `at(obj, "status", "conditions")` needs no object of the right shape: a value of another type
    on the way has nothing below it. A list is such a value, even for a number as part of a path.
    """
    value = obj
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def text_at(obj: Any, *path: str | int) -> str:
    """Return the value at a path as text, empty if there is none."""
    return str(at(obj, *path) or "")


def list_at(obj: Any, *path: str | int) -> list[Any]:
    """Return the list at a path, an empty one if there is none. Callers do not change it."""
    value = at(obj, *path)
    return value if isinstance(value, list) else []


def dict_at(obj: Any, *path: str | int) -> Obj:
    """Return the mapping at a path, an empty one if there is none. Callers do not change it."""
    value = at(obj, *path)
    return value if isinstance(value, dict) else {}


def key_of(obj: Obj) -> Key:
    """Return the key of an object."""
    metadata = obj["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


def well_formed(obj: Any) -> bool:
    """Return whether the fields that all objects have are of the right types.

    A server that is not an API server may answer anything.
    """
    if not isinstance(obj, dict) or not isinstance(metadata := obj.get("metadata"), dict):
        return False
    status = obj.get("status") or {}
    return (
        all(isinstance(metadata.get(field, ""), str) for field in _TEXTS)
        and _is_version(metadata.get("resourceVersion", ""))
        and all(isinstance(metadata.get(field) or {}, dict) for field in ("labels", "annotations"))
        and all(isinstance(obj.get(field) or {}, dict) for field in ("spec", "data", "status"))
        and _is_list_of(str, metadata.get("finalizers"))
        and _is_list_of(dict, metadata.get("ownerReferences"))
        and _is_list_of(dict, status.get("conditions"))
    )


def _is_version(text: str) -> bool:
    return not text or (text.isascii() and text.isdecimal() and len(text) <= _VERSION_DIGITS)


def _is_list_of(kind: type, value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def labels_of(obj: Obj) -> dict[str, str]:
    """Return the labels, empty when there are none."""
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Obj) -> dict[str, str]:
    """Return the annotations, empty when there are none."""
    return obj["metadata"].get("annotations") or {}


def uid_of(obj: Obj) -> str:
    """Return the uid of an object, empty if the API server has not assigned one yet."""
    return str(obj["metadata"].get("uid", ""))


def being_deleted(obj: Obj) -> bool:
    """Return whether the deletion of the object has been requested."""
    return "deletionTimestamp" in obj["metadata"]


def owner_reference(obj: Obj, kind: str, group: str) -> dict[str, Any] | None:
    """Return the first owner of that kind and group, whatever its version."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        owner_group = str(reference.get("apiVersion", "")).partition("/")[0]
        if reference.get("kind") == kind and owner_group == group:
            return dict(reference)
    return None


def resource_version(obj: Obj) -> int:
    """Return the resource version as a number.

    Numbers order the versions of an object (official since Kubernetes 1.35).
    """
    return int(obj["metadata"].get("resourceVersion") or 0)
