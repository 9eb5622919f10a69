"""Flags for what a cluster uses on Harvester: addresses, load balancer, namespace, identity."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import Flag

FLAGS = (
    Flag(
        "--ip-pool",
        ("spec", "addresses", "ipPoolRefs"),
        "NAME",
        "IPPool on Harvester for the addresses of VMs.  [default: DHCP]",
        value=values.items,
    ),
    Flag(
        "--ip-pool-refs",
        ("spec", "addresses", "ipPoolRefs"),
        "NAME,...",
        "Several IPPools instead of --ip-pool, comma-separated, tried in this order.",
        "IPPools for addresses of VMs (comma-separated, empty for DHCP)",
        value=values.items,
    ),
    Flag(
        "--gateway",
        ("spec", "addresses", "gateway"),
        "ADDRESS",
        "Gateway of the VM network.",
        "Gateway (empty with DHCP)",
    ),
    Flag(
        "--subnet-mask",
        ("spec", "addresses", "subnetMask"),
        "MASK",
        "Subnet mask of the VM network.",
        "Subnet mask (empty with DHCP)",
    ),
    Flag(
        "--dns",
        ("spec", "addresses", "dnsServers"),
        "ADDRESS,...",
        "DNS servers of the VMs, comma-separated.",
        "DNS servers (comma-separated, may be empty)",
        value=values.items,
    ),
    Flag(
        "--lb-ip-pool",
        ("spec", "loadBalancer"),
        "NAME",
        "IPPool for the control plane's address.  [default: DHCP]",
        "IPPool for the control plane's address (empty for DHCP)",
        value=values.pool,
    ),
    Flag(
        "--external-endpoint",
        ("spec", "loadBalancer"),
        "HOST[:PORT]",
        "Your own load balancer in front of the control plane; none is created on Harvester.",
        value=values.endpoint,
    ),
    Flag(
        "--kube-vip",
        ("spec", "loadBalancer"),
        "ADDRESS",
        "IPv4 address of the control plane that kube-vip keeps on one of its machines; no "
        "load balancer is created on Harvester.",
        value=values.virtual_address,
    ),
    Flag(
        "--kube-vip-interface",
        ("spec", "loadBalancer", "kubeVip", "interface"),
        "NAME",
        "Interface in the guests for the address of --kube-vip.  [default: that of the "
        "default route]",
    ),
    Flag(
        "--kube-vip-image",
        ("spec", "loadBalancer", "kubeVip", "image"),
        "IMAGE",
        "Image of kube-vip.",
    ),
    Flag(
        "--target-namespace",
        ("spec", "targetNamespace"),
        "NAMESPACE",
        "Namespace of the VMs on Harvester.  [default: default]",
        "Namespace on Harvester",
        "default",
    ),
    Flag(
        "--identity-secret",
        ("spec", "identitySecret", "name"),
        "NAME",
        "Identity Secret in the cluster's namespace.  [default: NAME-harvester-identity]",
    ),
    Flag(
        "--cluster-identity",
        ("spec", "identityRef", "name"),
        "NAME",
        "HarvesterClusterIdentity that allows the cluster's namespace, instead of an "
        "identity Secret.",
    ),
)
