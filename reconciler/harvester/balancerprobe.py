"""How the load balancer of a control plane probes API servers, with the defaults of this provider.

Harvester's load balancer does the probing, and sends traffic only to machines that answer.
"""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj

# Harvester probes for the first time after one period, and until then the address of a cluster with
# one control plane machine does not answer.
DEFAULTS = {"successThreshold": 1, "failureThreshold": 3, "periodSeconds": 5, "timeoutSeconds": 5}


def probe_settings(cluster_spec: Obj) -> dict[str, Any]:
    """Return `loadBalancerConfig.healthCheck` of a HarvesterCluster's spec, with defaults."""
    settings = cluster_spec["loadBalancerConfig"].get("healthCheck") or {}
    return {**DEFAULTS, **{name: value for name, value in settings.items() if name in DEFAULTS}}


def seconds_to_serve(cluster_spec: Obj) -> float:
    """Return the most seconds until a machine whose API server answers gets traffic."""
    settings = probe_settings(cluster_spec)
    return float(settings["successThreshold"] * settings["periodSeconds"])
