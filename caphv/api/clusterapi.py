"""Read fields of Cluster API's Cluster and Machine, in v1beta1 and v1beta2."""

from caphv.api import conditions, names
from caphv.api.object import Obj, at, dict_at, list_at, text_at


def paused(cluster: Obj | None, obj: Obj) -> bool:
    """Return whether reconciliation is suspended.

    `spec.paused` of the Cluster or an annotation on the object itself suspends it.
    """
    annotations = obj["metadata"].get("annotations") or {}
    return names.PAUSED_ANNOTATION in annotations or bool(at(cluster, "spec", "paused"))


def externally_managed(obj: Obj) -> bool:
    """Return whether this infrastructure is externally managed.

    Annotation `cluster.x-k8s.io/managed-by` marks it (contract).
    """
    return names.MANAGED_BY_ANNOTATION in (obj["metadata"].get("annotations") or {})


def infrastructure_provisioned(cluster: Obj) -> bool:
    """Return whether the Cluster's infrastructure is provisioned.

    v1beta2 reports it in `initialization`, v1beta1 in `infrastructureReady`.
    """
    return bool(
        at(cluster, "status", "initialization", "infrastructureProvisioned")
        or at(cluster, "status", "infrastructureReady")
    )


def control_plane_initialized(cluster: Obj) -> bool:
    """Return whether the workload cluster's API has answered.

    v1beta2 reports it in `initialization`, v1beta1 in a condition.
    """
    if at(cluster, "status", "initialization", "controlPlaneInitialized"):
        return True
    return conditions.is_true(list_at(cluster, "status", "conditions"), "ControlPlaneInitialized")


def infrastructure_ref(obj: Obj) -> tuple[str, str]:
    """Return kind and name of the infrastructure object of a Cluster or Machine; empty for none."""
    ref = dict_at(obj, "spec", "infrastructureRef")
    return str(ref.get("kind", "")), str(ref.get("name", ""))


def bootstrap_secret_name(machine: Obj) -> str:
    """Return the name of the Secret with bootstrap data; empty until the provider creates it."""
    return text_at(machine, "spec", "bootstrap", "dataSecretName")


def cluster_name(obj: Obj) -> str:
    """Return the name of the Cluster that an object belongs to, by label; empty for none."""
    return str((obj["metadata"].get("labels") or {}).get(names.CLUSTER_NAME_LABEL, ""))


def is_control_plane(obj: Obj) -> bool:
    """Return whether a machine belongs to the control plane.

    It does if it has the label, with any value (contract).
    """
    return names.CONTROL_PLANE_LABEL in (obj["metadata"].get("labels") or {})


def failure_domain(machine: Obj) -> str:
    """Return the failure domain that the owner of the Machine chose, empty for none."""
    return text_at(machine, "spec", "failureDomain")
