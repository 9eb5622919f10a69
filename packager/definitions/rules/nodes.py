"""Rules about what RKE2 and K3s do on nodes: mirrors of registries, snapshots of etcd."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.model import KINDS

RULES = Rules()


@RULES.rule(
    "definition-registries",
    KINDS,
    "Registries must be set for RKE2 and K3s only, and Secrets with access to them for RKE2 only.",
)
def _check_registries(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    registries = spec.get("registries")
    distribution = spec.get("distribution", "rke2")
    path: FieldPath = ("spec", "registries")
    if registries and distribution == "kubeadm":
        detail = "is for RKE2 and K3s: configure containerd in the machine image, and remove this"
        yield Finding(path, Fault.FORBIDDEN, detail)
    elif registries and registries.get("configs") and distribution == "k3s":
        detail = "is for RKE2 only: put credentials for K3s into the machine image, and remove this"
        yield Finding((*path, "configs"), Fault.FORBIDDEN, detail)

    # Credentials belong in a Secret that is named here, so that no credential is in Git.
    for name, config in (registries or {}).get("configs", {}).items():
        if not config.get("authSecret") and not config.get("tls"):
            detail = "must name authSecret, tls, or both"
            yield Finding((*path, "configs", name), Fault.REQUIRED, detail)


@RULES.rule(
    "definition-etcd-snapshots",
    KINDS,
    "Snapshots of etcd must be set for RKE2 and K3s only, and a CA must not come with "
    "`insecureSkipVerify`.",
)
def _check_etcd_snapshots(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    snapshots = spec.get("etcdSnapshots")
    path = ("spec", "etcdSnapshots")
    if snapshots and spec.get("distribution", "rke2") == "kubeadm":
        detail = "is for RKE2 and K3s: kubeadm takes no snapshots, so run etcdctl, and remove this"
        yield Finding(path, Fault.FORBIDDEN, detail)

    s3 = (snapshots or {}).get("s3", {})
    if s3.get("insecureSkipVerify") and "caSecretName" in s3:
        detail = "has no effect with insecureSkipVerify: remove one of them"
        yield Finding((*path, "s3", "caSecretName"), Fault.FORBIDDEN, detail)
