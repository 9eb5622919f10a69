"""Flags for what a cluster uses on Harvester: addresses, load balancer, namespace, identity."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import Flag

FLAGS = (
    Flag(
        "--ip-pool",
        ("spec", "addresses", "ipPoolRefs"),
        "IPPool on Harvester for the addresses of VMs.  [default: DHCP]",
        value=values.items,
    ),
    Flag(
        "--ip-pool-refs",
        ("spec", "addresses", "ipPoolRefs"),
        "Several IPPools, comma-separated, tried in this order.",
        "IPPools for addresses of VMs (comma-separated, empty for DHCP)",
        value=values.items,
    ),
    Flag(
        "--gateway",
        ("spec", "addresses", "gateway"),
        "Gateway of the VM network.",
        "Gateway (empty with DHCP)",
    ),
    Flag(
        "--subnet-mask",
        ("spec", "addresses", "subnetMask"),
        "Subnet mask of the VM network.",
        "Subnet mask (empty with DHCP)",
    ),
    Flag(
        "--dns",
        ("spec", "addresses", "dnsServers"),
        "DNS servers, comma-separated.",
        "DNS servers (comma-separated, may be empty)",
        value=values.items,
    ),
    Flag(
        "--lb-ip-pool",
        ("spec", "loadBalancer"),
        "IPPool for the address of the control plane.  [default: DHCP]",
        "IPPool for the control plane's address (empty for DHCP)",
        value=values.pool,
    ),
    Flag(
        "--external-endpoint",
        ("spec", "loadBalancer"),
        "HOST or HOST:PORT of a load balancer of your own in front of the control plane; nothing "
        "is created on Harvester for it.",
        value=values.endpoint,
    ),
    Flag(
        "--kube-vip",
        ("spec", "loadBalancer"),
        "IPv4 address of the control plane that its machines hold themselves, by kube-vip; nothing "
        "is created on Harvester for it.",
        value=values.virtual_address,
    ),
    Flag(
        "--kube-vip-interface",
        ("spec", "loadBalancer", "kubeVip", "interface"),
        "Interface of the guests that gets this address.  [default: that of their default route]",
    ),
    Flag(
        "--kube-vip-image",
        ("spec", "loadBalancer", "kubeVip", "image"),
        "Image of kube-vip.",
    ),
    Flag(
        "--target-namespace",
        ("spec", "targetNamespace"),
        "Namespace on Harvester.  [default: default]",
        "Namespace on Harvester",
        "default",
    ),
    Flag(
        "--identity-secret",
        ("spec", "identitySecret", "name"),
        "Identity Secret in the namespace.  [default: NAME-harvester-identity]",
    ),
    Flag(
        "--cluster-identity",
        ("spec", "identityRef", "name"),
        "HarvesterClusterIdentity that allows the namespace, instead of an identity Secret.",
    ),
)
