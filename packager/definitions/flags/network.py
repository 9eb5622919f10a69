"""Flags for the network of Pods and Services."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import Flag

FLAGS = (
    Flag(
        "--cni",
        ("spec", "addons", "cni", "name"),
        "[calico|canal|cilium|none]",
        "CNI plugin.  [default: calico with rke2, otherwise none]",
        "CNI plugin (empty for the default)",
        choices=("calico", "canal", "cilium", "none"),
    ),
    Flag(
        "--cni-mtu",
        ("spec", "addons", "cni", "mtu"),
        "BYTES",
        "MTU of the Pod network.",
        value=values.number,
    ),
    Flag(
        "--cni-encapsulation",
        ("spec", "addons", "cni", "encapsulation"),
        "ENCAPSULATION",
        "Encapsulation of the Pod network: VXLAN, VXLANCrossSubnet, IPIP, IPIPCrossSubnet, "
        "Geneve, WireGuard or None.",
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
        "[Enabled|Disabled]",
        "Whether the CNI plugin uses BGP.",
        choices=("Enabled", "Disabled"),
    ),
    Flag(
        "--pod-cidr",
        ("spec", "clusterNetwork", "podCIDRs"),
        "CIDR,...",
        "Networks of Pods, comma-separated.  [default: 10.42.0.0/16]",
        value=values.items,
    ),
    Flag(
        "--service-cidr",
        ("spec", "clusterNetwork", "serviceCIDRs"),
        "CIDR,...",
        "Networks of Services, comma-separated.  [default: 10.43.0.0/16]",
        value=values.items,
    ),
)
