"""Whether Cilium serves the IP families of its Pods, as its chart configures it.

RKE2's chart turns IPv4 off without value `global.clusterCIDRv4`, and IPv6 on with `global.clusterCIDRv6` only. An agent
without a family does not start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caphv.api.object import Obj
from caphv.validation.finding import Fault, Finding
from packager.addons.merge import at

POD_FAMILY = "pod-family"
_KEYS = {"4": "enable-ipv4", "6": "enable-ipv6"}


def unserved(obj: Obj, pod_cidrs: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each family of the Pods that a ConfigMap `cilium-config` turns off; advice if one is on."""
    if obj.get("kind") != "ConfigMap" or at(obj, "metadata", "name") != "cilium-config":
        return
    wanted = {"6" if ":" in cidr else "4": cidr for cidr in pod_cidrs}
    off = [family for family in wanted if str(at(obj, "data", _KEYS[family])) == "false"]
    for family in off:
        detail = (
            f"turns IPv{family} off, which Pods have addresses of ({wanted[family]}): upgrade the bundles of this "
            f"cluster with caphv bundles upgrade, or set cni.values.global.clusterCIDRv{family}"
        )
        advice = len(off) < len(wanted)
        yield Finding(("data", _KEYS[family]), Fault.INVALID, detail, POD_FAMILY, "false", advice=advice)
