"""Whether Cilium serves the IP families of its Pods, as its chart configures it.

RKE2's chart turns IPv4 off without value `global.clusterCIDRv4`, and IPv6 on with
`global.clusterCIDRv6` only. An agent without a family does not start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caphv.api.object import Obj, at
from caphv.validation.finding import Fault, Finding

POD_FAMILY = "pod-family"
_KEYS = {"4": "enable-ipv4", "6": "enable-ipv6"}


def check_pod_families(obj: Obj, pod_cidrs: Sequence[str]) -> Iterator[Finding]:
    """Yield IP families of Pods that ConfigMap `cilium-config` turns off; advice if one is on."""
    if obj.get("kind") != "ConfigMap" or at(obj, "metadata", "name") != "cilium-config":
        return
    cidrs = {"6" if ":" in cidr else "4": cidr for cidr in pod_cidrs}
    off = [family for family in cidrs if str(at(obj, "data", _KEYS[family])) == "false"]

    for family in off:
        detail = (
            f"turns IPv{family} off, which Pods have addresses of ({cidrs[family]}): upgrade the "
            "bundles of this cluster with caphv bundles upgrade, or set "
            f"cni.values.global.clusterCIDRv{family}"
        )
        # With one family left, Pods start, and lack only the other address.
        advice = len(off) < len(cidrs)
        yield Finding(
            ("data", _KEYS[family]), Fault.INVALID, detail, POD_FAMILY, "false", advice=advice
        )
