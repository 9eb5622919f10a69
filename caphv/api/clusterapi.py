"""Read fields of Cluster API's Cluster and Machine, in v1beta1 and v1beta2."""

from typing import NamedTuple

from caphv.api import conditions, names
from caphv.api.object import Obj, at, dict_at, labels_of, list_at, text_at
from caphv.api.objectid import group_of

RANCHER_GROUP = "rke.cattle.io"
RANCHER_CONTROL_PLANE = "RKEControlPlane"
_RANCHER_BOOTSTRAP = "RKEBootstrap"
_RANCHER_ROLES = (
    names.RANCHER_CONTROL_PLANE_LABEL,
    names.RANCHER_ETCD_LABEL,
    names.RANCHER_WORKER_LABEL,
)


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


class InfrastructureRef(NamedTuple):
    """Kind and name of an infrastructure object, which is in the namespace of its owner."""

    kind: str
    name: str


def infrastructure_ref(obj: Obj) -> InfrastructureRef:
    """Return the infrastructure object of a Cluster or Machine; empty texts for none."""
    ref = dict_at(obj, "spec", "infrastructureRef")
    return InfrastructureRef(str(ref.get("kind", "")), str(ref.get("name", "")))


def bootstrap_secret_name(machine: Obj) -> str:
    """Return the name of the Secret with bootstrap data; empty until the provider creates it."""
    return text_at(machine, "spec", "bootstrap", "dataSecretName")


def cluster_name(obj: Obj) -> str:
    """Return the name of the Cluster that an object belongs to, by label; empty for none."""
    return str((obj["metadata"].get("labels") or {}).get(names.CLUSTER_NAME_LABEL, ""))


def is_of_rancher(cluster: Obj | None) -> bool:
    """Return whether Rancher provisions a Cluster, and reverts changes of its objects."""
    return _refers_to(dict_at(cluster, "spec", "controlPlaneRef"), RANCHER_CONTROL_PLANE)


def _refers_to(reference: Obj, kind: str) -> bool:
    """Return whether a reference, of v1beta1 or v1beta2, is to an object of Rancher."""
    group = reference.get("apiGroup") or group_of(reference.get("apiVersion"))
    return bool(group == RANCHER_GROUP and reference.get("kind") == kind)


# The roles of a machine follow from labels, which Machine and HarvesterMachine share. A control
# plane machine has the label of Cluster API with any value (contract). Rancher, which provisions
# control planes as MachineDeployments, also says which of its machines have etcd: not all of the
# control plane need, and pools with nothing but etcd exist. In clusters of other providers, labels
# of Rancher mean nothing. A Machine shows by its bootstrap object who provisions it; for a
# HarvesterMachine, only the Cluster tells.


def is_control_plane(obj: Obj, cluster: Obj | None) -> bool:
    """Return whether a machine of a Cluster serves the workload API."""
    labels = labels_of(obj)
    if names.CONTROL_PLANE_LABEL in labels:
        return True
    return _is_ranchers(obj, cluster) and (
        names.CONTROL_PLANE_NAME_LABEL in labels
        or labels.get(names.RANCHER_CONTROL_PLANE_LABEL) == "true"
    )


def has_etcd(obj: Obj, cluster: Obj | None) -> bool:
    """Return whether a machine has a member of etcd: as Rancher says, or as the control plane."""
    if has_rancher_roles(obj, cluster):
        return has_rancher_etcd(obj, cluster)
    return is_control_plane(obj, cluster)


def is_server(obj: Obj, cluster: Obj | None) -> bool:
    """Return whether a machine serves the workload API, or has a member of its etcd.

    Such machines stop after workers and one at a time.
    """
    return is_control_plane(obj, cluster) or has_etcd(obj, cluster)


def has_rancher_roles(obj: Obj, cluster: Obj | None) -> bool:
    """Return whether Rancher provisions a machine, whose roles it has put into labels."""
    labels = labels_of(obj)
    return _is_ranchers(obj, cluster) and any(labels.get(name) == "true" for name in _RANCHER_ROLES)


def has_rancher_etcd(obj: Obj, cluster: Obj | None) -> bool:
    """Return whether Rancher gives a machine the role etcd."""
    has_label = labels_of(obj).get(names.RANCHER_ETCD_LABEL) == "true"
    return has_label and _is_ranchers(obj, cluster)


def _is_ranchers(obj: Obj, cluster: Obj | None) -> bool:
    """Return whether Rancher provisions the cluster of a Machine or HarvesterMachine."""
    config = dict_at(obj, "spec", "bootstrap", "configRef")
    return is_of_rancher(cluster) or _refers_to(config, _RANCHER_BOOTSTRAP)


def failure_domain(machine: Obj) -> str:
    """Return the failure domain that the owner of the Machine chose, empty for none."""
    return text_at(machine, "spec", "failureDomain")
