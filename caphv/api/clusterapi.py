"""Fields of Cluster API's Cluster and Machine that a provider reads, in v1beta1 and v1beta2."""

from caphv.api import conditions, names
from caphv.api.object import Obj


def paused(cluster: Obj | None, obj: Obj) -> bool:
    """Whether reconciliation is suspended: the Cluster's `spec.paused`, or the annotation on the object itself."""
    annotations = obj["metadata"].get("annotations") or {}
    return names.PAUSED_ANNOTATION in annotations or bool(cluster and cluster.get("spec", {}).get("paused"))


def externally_managed(obj: Obj) -> bool:
    """Whether this infrastructure is externally managed (contract: annotation `cluster.x-k8s.io/managed-by`)."""
    return names.MANAGED_BY_ANNOTATION in (obj["metadata"].get("annotations") or {})


def infrastructure_provisioned(cluster: Obj) -> bool:
    """Whether the Cluster's infrastructure is there: v1beta2 `initialization`, v1beta1 `infrastructureReady`."""
    status = cluster.get("status") or {}
    initialization = status.get("initialization") or {}
    return bool(initialization.get("infrastructureProvisioned") or status.get("infrastructureReady"))


def control_plane_initialized(cluster: Obj) -> bool:
    """Whether the workload cluster's API has answered: v1beta2 `initialization`, v1beta1 condition."""
    status = cluster.get("status") or {}
    if (status.get("initialization") or {}).get("controlPlaneInitialized"):
        return True
    return conditions.is_true(status.get("conditions") or [], "ControlPlaneInitialized")


def infrastructure_ref(obj: Obj) -> tuple[str, str]:
    """Kind and name of the infrastructure object of a Cluster or Machine; empty when it has none."""
    ref = (obj.get("spec") or {}).get("infrastructureRef") or {}
    return str(ref.get("kind", "")), str(ref.get("name", ""))


def bootstrap_secret_name(machine: Obj) -> str:
    """Name of the Secret with bootstrap data, empty until the bootstrap provider has created it."""
    return str(((machine.get("spec") or {}).get("bootstrap") or {}).get("dataSecretName") or "")


def cluster_name(obj: Obj) -> str:
    """Name of the Cluster that an object belongs to, by Cluster API's label; empty when it has none."""
    return str((obj["metadata"].get("labels") or {}).get(names.CLUSTER_NAME_LABEL, ""))


def is_control_plane(obj: Obj) -> bool:
    """Whether a machine belongs to the control plane (contract: the label exists, with any value)."""
    return names.CONTROL_PLANE_LABEL in (obj["metadata"].get("labels") or {})


def failure_domain(machine: Obj) -> str:
    """Failure domain that the owner of the Machine chose, empty for none."""
    return str((machine.get("spec") or {}).get("failureDomain") or "")
