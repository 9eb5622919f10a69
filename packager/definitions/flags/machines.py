"""Flags for all machines: image, sizes, disks, access and networks."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import Flag

FLAGS = (
    Flag(
        "--image",
        ("spec", "machines", "image"),
        "NAMESPACE/NAME",
        "Image of the VMs on Harvester.",
        "Image of the VMs (namespace/name)",
        None,
    ),
    Flag(
        "--image-lookup",
        ("spec", "machines", "imageLookup", "format"),
        "TEMPLATE",
        "Template for the name of the image, instead of --image, such as "
        "default/{{.BaseOS}}-{{.K8sVersion}}.",
    ),
    Flag(
        "--base-os",
        ("spec", "machines", "imageLookup", "baseOS"),
        "NAME",
        "Value of {{.BaseOS}} in --image-lookup, such as sles-15-sp7.",
    ),
    Flag(
        "--cpu",
        ("spec", "machines", "cpu"),
        "CORES",
        "CPU cores of a VM.  [default: 2]",
        "CPU cores of a VM",
        "2",
        values.number,
    ),
    Flag(
        "--cpu-max",
        ("spec", "machines", "cpuMax"),
        "CORES",
        "Maximum number of CPU cores to which a running VM can grow.",
        value=values.number,
    ),
    Flag(
        "--memory",
        ("spec", "machines", "memory"),
        "QUANTITY",
        "Memory of a VM.  [default: 4Gi]",
        "Memory of a VM",
        "4Gi",
    ),
    Flag(
        "--memory-max",
        ("spec", "machines", "memoryMax"),
        "QUANTITY",
        "Maximum memory to which a running VM can grow.",
    ),
    Flag(
        "--disk-size",
        ("spec", "machines", "diskSize"),
        "QUANTITY",
        "Size of a VM's boot disk.  [default: 40Gi]",
        "Boot disk of a VM",
        "40Gi",
    ),
    Flag(
        "--extra-disk",
        ("spec", "machines", "extraDisks"),
        "SIZE[:STORAGECLASS]",
        "Additional disk of a VM, such as 10Gi:longhorn.",
        "Further disk (size:storageClass, empty for none)",
        value=values.disks,
    ),
    Flag(
        "--ssh-keypair",
        ("spec", "machines", "sshKeyPair"),
        "NAMESPACE/NAME",
        "KeyPair on Harvester for logins by SSH.",
        "KeyPair on Harvester (namespace/name)",
        None,
    ),
    Flag(
        "--ssh-user",
        ("spec", "machines", "sshUser"),
        "NAME",
        "User of the image for logins by SSH.  [default: sles]",
        "User of the image",
        "sles",
    ),
    Flag(
        "--network",
        ("spec", "machines", "networks"),
        "NAMESPACE/NAME,...",
        "VM networks, comma-separated.",
        "VM network (namespace/name)",
        None,
        values.items,
    ),
    Flag(
        "--ipam-pools",
        ("spec", "machines", "networkInterfaces"),
        "NETWORK=POOLS[@DNS],...",
        "IPAM providers' pools and DNS servers of interfaces, comma-separated; + separates "
        "pools and servers. A pool is the NAME of an InClusterIPPool, or KIND.GROUP/NAME.",
        value=values.interfaces,
    ),
    Flag(
        "--mtu",
        ("spec", "machines", "networkInterfaces"),
        "NETWORK=BYTES,...",
        "MTU of interfaces, comma-separated, such as default/storage=9000.",
        value=values.mtus,
        merge_field="network",
    ),
    Flag(
        "--routes",
        ("spec", "machines", "networkInterfaces"),
        "NETWORK=TO@VIA,...",
        "Routes of interfaces, comma-separated, such as "
        "default/storage=10.20.0.0/16@172.17.1.254; + separates the routes of an interface.",
        value=values.routes,
        merge_field="network",
    ),
)
