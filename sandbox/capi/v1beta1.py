"""Cluster API v1beta1, for a core that serves nothing newer (1.10). Pure.

The sandbox works with v1beta2. It converts only the objects that it writes (Clusters,
ClusterClasses and their templates), and those parts of the status of Clusters and Machines that it
reads.
"""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj, list_at
from sandbox.capi.resources import CORE

VERSION = "v1beta1"


def to_v1beta1(obj: Obj) -> Obj:
    """Return a Cluster, a ClusterClass or a template as a user of v1beta1 would write it."""
    converted: Obj = _with_older_versions(obj)
    if converted["kind"] == "ClusterClass":
        converted["spec"] = _convert_class(converted["spec"])
    elif converted["kind"] == "Cluster" and "topology" in converted["spec"]:
        converted["spec"]["topology"] = _convert_topology(converted["spec"]["topology"])
    return converted


def convert_status(obj: Obj) -> Obj:
    """Return a Cluster or Machine with the fields of the v1beta2 status that the sandbox reads."""
    status = obj.get("status") or {}
    # The older version also has the newer conditions, below the field `v1beta2`.
    fields = {
        "conditions": list_at(status, "v1beta2", "conditions"),
        "initialization": {"infrastructureProvisioned": bool(status.get("infrastructureReady"))},
    }
    return {**obj, "status": {**status, **fields}}


def conditions(entries: list[Obj], core: str) -> Obj:
    """Return the status with conditions of v1beta2, for a core with the API version `core`."""
    return {"v1beta2": {"conditions": entries}} if core == VERSION else {"conditions": entries}


def _with_older_versions(node: Any) -> Any:
    """Return a copy with the API versions of a core and an RKE2 provider that only know v1beta1."""
    if isinstance(node, list):
        return [_with_older_versions(entry) for entry in node]
    if not isinstance(node, dict):
        return node

    copy = {name: _with_older_versions(value) for name, value in node.items()}
    if copy.get("apiVersion") == f"{CORE}/v1beta2" or str(copy.get("kind")).startswith("RKE2"):
        copy["apiVersion"] = f"{copy['apiVersion'].partition('/')[0]}/{VERSION}"
    return copy


def _convert_class(spec: Obj) -> Obj:
    control_plane = _convert_group(spec["controlPlane"])
    control_plane["machineInfrastructure"] = _rename_template_ref(
        control_plane["machineInfrastructure"]
    )

    deployments = []
    for deployment in map(_convert_group, spec["workers"]["machineDeployments"]):
        template = {
            name: _rename_template_ref(deployment.pop(name))
            for name in ("bootstrap", "infrastructure")
        }
        deployments.append({**deployment, "template": template})

    return {
        **spec,
        "infrastructure": _rename_template_ref(spec["infrastructure"]),
        "controlPlane": _rename_template_ref(control_plane),
        "workers": {"machineDeployments": deployments},
    }


def _convert_topology(spec: Obj) -> Obj:
    topology = {name: value for name, value in spec.items() if name != "classRef"}
    reference = spec["classRef"]
    topology |= {"class": reference["name"], "controlPlane": _convert_group(spec["controlPlane"])}
    if "namespace" in reference:
        topology["classNamespace"] = reference["namespace"]

    deployments = [
        _convert_group(deployment) for deployment in spec["workers"]["machineDeployments"]
    ]
    topology["workers"] = {"machineDeployments": deployments}
    return topology


def _rename_template_ref(part: Obj) -> Obj:
    return {"ref" if name == "templateRef" else name: value for name, value in part.items()}


def _convert_group(machines: Obj) -> Obj:
    """Return a group of machines with its health check."""
    group = {name: value for name, value in machines.items() if name != "healthCheck"}
    check = machines.get("healthCheck")
    if not check:
        return group

    # A duration is a number of seconds in v1beta2, and a text in v1beta1.
    checks = check["checks"]
    health_check: Obj = {
        "unhealthyConditions": [
            {
                "type": condition["type"],
                "status": condition["status"],
                "timeout": f"{condition['timeoutSeconds']}s",
            }
            for condition in checks["unhealthyNodeConditions"]
        ],
        "maxUnhealthy": check["remediation"]["triggerIf"]["unhealthyLessThanOrEqualTo"],
    }
    if "nodeStartupTimeoutSeconds" in checks:
        health_check["nodeStartupTimeout"] = f"{checks['nodeStartupTimeoutSeconds']}s"
    group["machineHealthCheck"] = health_check
    return group
