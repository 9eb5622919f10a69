"""The health check of the control plane's LoadBalancer on Harvester."""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj

# Harvester probes for the first time after one period, and until then the address of a cluster with
# one control plane machine does not answer.
DEFAULTS = {"successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 5}


def health_check(cluster_spec: Obj) -> dict[str, Any]:
    """Return the settings of the health check, with defaults for fields that the spec omits."""
    config = cluster_spec["loadBalancerConfig"].get("healthCheck") or {}
    return {**DEFAULTS, **{name: value for name, value in config.items() if name in DEFAULTS}}


def seconds_to_serve(cluster_spec: Obj) -> float:
    """Return the most seconds until a machine whose API server answers gets traffic."""
    check = health_check(cluster_spec)
    return float(check["successThreshold"] * check["periodSeconds"])
