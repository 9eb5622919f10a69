"""Facts in which `caphv doctor` finds nothing wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from caphv.api.object import Obj
from operations.doctor.management import ManagementFacts
from operations.status.check import Check
from tests.support.clusters import ago, condition
from tests.support.memoryserver import MemoryServer


def found(checks: Iterable[Check], check: str) -> list[Check]:
    return [each for each in checks if each.id == check]


def one(checks: Iterable[Check], check: str) -> Check:
    (only,) = found(checks, check)
    return only


def crd(strategy: str = "None", **labels: str) -> Obj:
    labels = labels or {"cluster.x-k8s.io/v1beta2": "v1beta1"}
    return {"metadata": {"name": "harvestermachines", "labels": labels}, "spec": {"conversion": {"strategy": strategy}}}


def webhooks(bundle: str = "CA") -> Obj:
    service = {"namespace": "caphv-system", "name": "caphv-webhook-service"}
    return {"metadata": {}, "webhooks": [{"clientConfig": {"service": service, "caBundle": bundle}}]}


def deployment(ready: int) -> Obj:
    containers = [{"image": "caphv:0.12"}]
    spec = {"template": {"spec": {"containers": containers}}}
    return {"spec": spec, "status": {"replicas": 1, "readyReplicas": ready}}


def lease(renewed: str) -> Obj:
    metadata = {"namespace": "caphv-system", "name": "heartbeat"}
    return {"metadata": metadata, "spec": {"holderIdentity": "pod-1", "renewTime": renewed}}


def facts(**fields: Any) -> ManagementFacts:
    """A management cluster where all is well."""
    fine: dict[str, Any] = {
        "version": "v1.36.3",
        "cluster_api": ("v1beta2",),
        "crds": [crd()],
        "deployment": deployment(1),
        "lease": lease(ago(seconds=3)),
        "webhooks": webhooks(),
        "endpoints": [{"endpoints": [{"conditions": {"ready": True}}]}],
        "certificates": [
            {
                "metadata": {"name": "caphv-webhook"},
                "status": {"notAfter": "2027-01-01T00:00:00Z", "conditions": [condition("Ready", "True")]},
            }
        ],
        "cert_manager": [{**certificate_program("own", "cert-manager", "own"), "status": {"readyReplicas": 1}}],
    }
    return ManagementFacts(**{**fine, **fields})


def host(name: str, zone: str = "", *, ready: bool = True, **spec: Any) -> Obj:
    labels = {"topology.kubernetes.io/zone": zone} if zone else {}
    conditions = {"conditions": [condition("Ready", str(ready))]}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": conditions}


def certificate_program(name: str, app: str, release: str) -> Obj:
    """Return a Deployment with labels as cert-manager's chart gives them."""
    labels = {"app.kubernetes.io/name": app, "app.kubernetes.io/instance": release}
    metadata = {"name": name, "namespace": "cert-manager", "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}


class ManagementServer(MemoryServer):
    """A management cluster that answers which versions it serves."""

    async def request(self, method: str, path: str, **options: Any) -> Any:
        if path == "/version":
            return {"gitVersion": "v1.34.0"}
        if path == "/apis/cluster.x-k8s.io":
            return {"versions": [{"version": "v1beta2"}, {"version": "v1beta1"}]}
        return await super().request(method, path, **options)
