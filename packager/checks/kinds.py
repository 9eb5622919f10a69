"""Kinds that Kubernetes, a cluster's distribution, and CRDs in its bundles serve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caphv.api.object import Obj, at, list_at
from packager.addons.facts import minor_version

KIND = "kind-served"
Kind = tuple[str, str]
"""API version and kind: `("apps/v1", "Deployment")`."""

# Served without a flag by every version of Kubernetes that is supported.
_COMMON_KINDS = {
    "v1": (
        "Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume "
        "PersistentVolumeClaim Pod PodTemplate ReplicationController ResourceQuota Secret Service "
        "ServiceAccount"
    ),
    "admissionregistration.k8s.io/v1": (
        "MutatingWebhookConfiguration ValidatingWebhookConfiguration"
    ),
    "apiextensions.k8s.io/v1": "CustomResourceDefinition",
    "apiregistration.k8s.io/v1": "APIService",
    "apps/v1": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "autoscaling/v1": "HorizontalPodAutoscaler",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "batch/v1": "CronJob Job",
    "certificates.k8s.io/v1": "CertificateSigningRequest",
    "coordination.k8s.io/v1": "Lease",
    "discovery.k8s.io/v1": "EndpointSlice",
    "events.k8s.io/v1": "Event",
    "networking.k8s.io/v1": "Ingress IngressClass NetworkPolicy",
    "node.k8s.io/v1": "RuntimeClass",
    "policy/v1": "PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "scheduling.k8s.io/v1": "PriorityClass",
    "storage.k8s.io/v1": "CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment",
}
_KINDS_BY_FIRST_VERSION = {
    (1, 29): {"flowcontrol.apiserver.k8s.io/v1": "FlowSchema PriorityLevelConfiguration"},
    (1, 30): {
        "admissionregistration.k8s.io/v1": (
            "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding"
        )
    },
    (1, 33): {"networking.k8s.io/v1": "IPAddress ServiceCIDR"},
    (1, 34): {
        "resource.k8s.io/v1": "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice",
        "storage.k8s.io/v1": "VolumeAttributesClass",
    },
    (1, 36): {
        "admissionregistration.k8s.io/v1": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding"
    },
}
_HELM_CONTROLLER = {
    "helm.cattle.io/v1": "HelmChart HelmChartConfig",
    "k3s.cattle.io/v1": "Addon ETCDSnapshotFile",
}
_KINDS_BY_DISTRIBUTION = {
    "rke2": {
        **_HELM_CONTROLLER,
        "snapshot.storage.k8s.io/v1": "VolumeSnapshot VolumeSnapshotClass VolumeSnapshotContent",
    },
    "k3s": _HELM_CONTROLLER,
}


def served_kinds(distribution: str, version: str) -> frozenset[Kind]:
    """Return the kinds that a new cluster serves.

    An unknown version counts as the newest, so that no kind is refused that some version serves.
    """
    minor = minor_version(version)
    tables = [_COMMON_KINDS, _KINDS_BY_DISTRIBUTION.get(distribution, {})]
    for first_version, table in _KINDS_BY_FIRST_VERSION.items():
        if minor is None or first_version <= minor:
            tables.append(table)
    return frozenset(
        (name, kind) for table in tables for name, kinds in table.items() for kind in kinds.split()
    )


def crd_kinds(objects: Iterable[Obj]) -> Iterator[Kind]:
    """Yield the kinds that the CRDs among these objects define."""
    for obj in objects:
        if obj.get("kind") != "CustomResourceDefinition":
            continue
        group = at(obj, "spec", "group")
        kind = str(at(obj, "spec", "names", "kind"))
        for version in list_at(obj, "spec", "versions"):
            # CRDs keep versions that are not served for objects stored in them.
            if at(version, "served") is not False:
                yield f"{group}/{at(version, 'name')}", kind
