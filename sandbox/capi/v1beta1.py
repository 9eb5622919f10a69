"""Cluster API v1beta1, for a core that serves nothing newer (1.10). The sandbox thinks in v1beta2. Pure.

Only what the sandbox uses is converted: what it writes (Clusters, ClusterClasses and their templates), and what it
reads of the status of Clusters and Machines.
"""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj
from sandbox.capi.resources import CORE

VERSION = "v1beta1"


def written(obj: Obj) -> Obj:
    """A Cluster, a ClusterClass or a template as a user of v1beta1 would write it."""
    found: Obj = _of_version(obj)
    if found["kind"] == "ClusterClass":
        found["spec"] = _class(found["spec"])
    elif found["kind"] == "Cluster" and "topology" in found["spec"]:
        found["spec"]["topology"] = _topology(found["spec"]["topology"])
    return found


def read(obj: Obj) -> Obj:
    """A Cluster or Machine with its status in the form of v1beta2, as far as the sandbox reads it."""
    status = obj.get("status") or {}
    conditions = (status.get("v1beta2") or {}).get("conditions") or []
    initialization = {"infrastructureProvisioned": bool(status.get("infrastructureReady"))}
    return {**obj, "status": {**status, "conditions": conditions, "initialization": initialization}}


def conditions(found: list[Obj], core: str) -> Obj:
    """The status with these conditions of v1beta2, for an object of a core of this API version."""
    return {"v1beta2": {"conditions": found}} if core == VERSION else {"conditions": found}


def _of_version(node: Any) -> Any:
    """A copy with the API versions of a core and of an RKE2 provider that know v1beta1 only."""
    if isinstance(node, list):
        return [_of_version(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    copied = {name: _of_version(value) for name, value in node.items()}
    if copied.get("apiVersion") == f"{CORE}/v1beta2" or str(copied.get("kind")).startswith("RKE2"):
        copied["apiVersion"] = f"{copied['apiVersion'].partition('/')[0]}/{VERSION}"
    return copied


def _class(spec: Obj) -> Obj:
    control_plane = _group(spec["controlPlane"])
    control_plane["machineInfrastructure"] = _template(control_plane["machineInfrastructure"])
    deployments = []
    for deployment in map(_group, spec["workers"]["machineDeployments"]):
        template = {name: _template(deployment.pop(name)) for name in ("bootstrap", "infrastructure")}
        deployments.append({**deployment, "template": template})
    return {
        **spec,
        "infrastructure": _template(spec["infrastructure"]),
        "controlPlane": _template(control_plane),
        "workers": {"machineDeployments": deployments},
    }


def _topology(spec: Obj) -> Obj:
    found = {name: value for name, value in spec.items() if name != "classRef"}
    reference = spec["classRef"]
    found |= {"class": reference["name"], "controlPlane": _group(spec["controlPlane"])}
    if "namespace" in reference:
        found["classNamespace"] = reference["namespace"]
    found["workers"] = {"machineDeployments": [_group(each) for each in spec["workers"]["machineDeployments"]]}
    return found


def _template(part: Obj) -> Obj:
    return {"ref" if name == "templateRef" else name: value for name, value in part.items()}


def _group(machines: Obj) -> Obj:
    """A group of machines with its health check."""
    found = {name: value for name, value in machines.items() if name != "healthCheck"}
    check = machines.get("healthCheck")
    if check:
        checks = check["checks"]
        own: Obj = {
            "unhealthyConditions": [
                {"type": each["type"], "status": each["status"], "timeout": f"{each['timeoutSeconds']}s"}
                for each in checks["unhealthyNodeConditions"]
            ],
            "maxUnhealthy": check["remediation"]["triggerIf"]["unhealthyLessThanOrEqualTo"],
        }
        if "nodeStartupTimeoutSeconds" in checks:
            own["nodeStartupTimeout"] = f"{checks['nodeStartupTimeoutSeconds']}s"
        found["machineHealthCheck"] = own
    return found
