"""Flags for the network of Pods and Services."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import Flag

FLAGS = (
    Flag(
        "--cni",
        ("spec", "addons", "cni", "name"),
        "calico, canal, cilium or none.",
        "CNI (empty for the usual one)",
        choices=("calico", "canal", "cilium", "none"),
    ),
    Flag(
        "--cni-mtu",
        ("spec", "addons", "cni", "mtu"),
        "MTU of the Pod network.",
        value=values.number,
    ),
    Flag(
        "--cni-encapsulation",
        ("spec", "addons", "cni", "encapsulation"),
        "For example VXLAN.",
        choices=(
            "VXLAN",
            "VXLANCrossSubnet",
            "IPIP",
            "IPIPCrossSubnet",
            "Geneve",
            "WireGuard",
            "None",
        ),
    ),
    Flag(
        "--cni-bgp",
        ("spec", "addons", "cni", "bgp"),
        "Enabled or Disabled.",
        choices=("Enabled", "Disabled"),
    ),
    Flag(
        "--pod-cidr",
        ("spec", "clusterNetwork", "podCIDRs"),
        "Networks of Pods, comma-separated.  [default: 10.42.0.0/16]",
        value=values.items,
    ),
    Flag(
        "--service-cidr",
        ("spec", "clusterNetwork", "serviceCIDRs"),
        "Networks of Services, comma-separated.  [default: 10.43.0.0/16]",
        value=values.items,
    ),
)
