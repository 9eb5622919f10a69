"""Flags for all machines: image, sizes, disks, access and networks."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import Flag

FLAGS = (
    Flag(
        "--image",
        ("spec", "machines", "image"),
        "Image of the VMs on Harvester, namespace/name.",
        "Image of the VMs (namespace/name)",
        None,
    ),
    Flag(
        "--image-lookup",
        ("spec", "machines", "imageLookup", "format"),
        "Instead of --image, its name by version, for example default/{{.BaseOS}}-{{.K8sVersion}}.",
    ),
    Flag(
        "--base-os",
        ("spec", "machines", "imageLookup", "baseOS"),
        "What {{.BaseOS}} in --image-lookup stands for, for example sles-15-sp7.",
    ),
    Flag(
        "--cpu",
        ("spec", "machines", "cpu"),
        "CPU cores of a VM.  [default: 2]",
        "CPU cores of a VM",
        "2",
        values.number,
    ),
    Flag(
        "--cpu-max",
        ("spec", "machines", "cpuMax"),
        "CPU cores to which a running VM can grow.",
        value=values.number,
    ),
    Flag(
        "--memory",
        ("spec", "machines", "memory"),
        "Memory of a VM.  [default: 4Gi]",
        "Memory of a VM",
        "4Gi",
    ),
    Flag(
        "--memory-max",
        ("spec", "machines", "memoryMax"),
        "Memory to which a running VM can grow.",
    ),
    Flag(
        "--disk-size",
        ("spec", "machines", "diskSize"),
        "Boot disk of a VM.  [default: 40Gi]",
        "Boot disk of a VM",
        "40Gi",
    ),
    Flag(
        "--extra-disk",
        ("spec", "machines", "extraDisks"),
        "Further disk, SIZE:STORAGECLASS, for example 10Gi:longhorn.",
        "Further disk (size:storageClass, empty for none)",
        value=values.disks,
    ),
    Flag(
        "--ssh-keypair",
        ("spec", "machines", "sshKeyPair"),
        "KeyPair on Harvester that may log in, namespace/name.",
        "KeyPair on Harvester (namespace/name)",
        None,
    ),
    Flag(
        "--ssh-user",
        ("spec", "machines", "sshUser"),
        "User of the image.  [default: sles]",
        "User of the image",
        "sles",
    ),
    Flag(
        "--network",
        ("spec", "machines", "networks"),
        "VM network, namespace/name; several comma-separated.",
        "VM network (namespace/name)",
        None,
        values.items,
    ),
    Flag(
        "--ipam-pools",
        ("spec", "machines", "networkInterfaces"),
        "NETWORK=POOL+POOL@DNS+DNS: pools of IPAM providers, and DNS servers, for interfaces, "
        "comma-separated. POOL is NAME of an InClusterIPPool, or KIND.GROUP/NAME.",
        value=values.interfaces,
    ),
    Flag(
        "--mtu",
        ("spec", "machines", "networkInterfaces"),
        "NETWORK=BYTES: largest packets of interfaces, comma-separated.",
        value=values.mtus,
        joined_by="network",
    ),
    Flag(
        "--routes",
        ("spec", "machines", "networkInterfaces"),
        "NETWORK=TO@VIA+TO@VIA: routes of interfaces, comma-separated, for example "
        "default/storage=10.20.0.0/16@172.17.1.254.",
        value=values.routes,
        joined_by="network",
    ),
)
