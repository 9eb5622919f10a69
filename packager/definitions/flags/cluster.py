"""Flags for the cluster, its control plane and its workers."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import EACH, KUBERNETES_VERSION, Flag

_SWITCH = ("true", "false")

FLAGS = (
    Flag(
        "--name", ("metadata", "name"), "NAME", "Name of the cluster.", "Name of the cluster", None
    ),
    Flag(
        "--namespace",
        ("metadata", "namespace"),
        "NAMESPACE",
        "Namespace of the cluster.  [default: its name]",
        "Namespace",
    ),
    Flag(
        "--k8s-version",
        ("spec", "kubernetesVersion"),
        "VERSION",
        f"Version of Kubernetes.  [default: {KUBERNETES_VERSION}]",
        "Version of Kubernetes",
        KUBERNETES_VERSION,
    ),
    Flag(
        "--distribution",
        ("spec", "distribution"),
        "[rke2|k3s|kubeadm]",
        "Distribution of Kubernetes.  [default: rke2]",
        "Distribution (rke2, k3s, kubeadm)",
        "rke2",
        choices=("rke2", "k3s", "kubeadm"),
    ),
    Flag(
        "--class",
        ("spec", "clusterClass"),
        "NAME",
        "ClusterClass of the cluster.  [default: harvester-DISTRIBUTION]",
    ),
    Flag(
        "--cp-replicas",
        ("spec", "controlPlane", "replicas"),
        "REPLICAS",
        "Number of control plane machines.  [default: 3]",
        "Machines of the control plane",
        "3",
        values.number,
    ),
    Flag(
        "--worker-replicas",
        ("spec", "workers"),
        "REPLICAS",
        "Number of worker machines.  [default: 2]",
        "Worker machines",
        "2",
        values.workers,
    ),
    Flag(
        "--control-plane-backups",
        ("spec", "controlPlaneBackups", "keep"),
        "NUMBER",
        "Number of backups of replaced control plane machines to keep on Harvester's backup "
        "target.  [default: no backups]",
        value=values.number,
    ),
    Flag(
        "--guest-volumes",
        ("spec", "guestVolumes"),
        "Delete",
        "With Delete, volumes of PersistentVolumes with reclaim policy Delete are deleted "
        "with the cluster.  [default: they are kept]",
        choices=("Delete",),
    ),
    Flag(
        "--failure-domains",
        ("spec", "controlPlane", "failureDomains"),
        "ZONE,...",
        "Zones, or hosts, for the control plane, comma-separated.  [default: all]",
        value=values.items,
    ),
    Flag(
        "--worker-failure-domain",
        ("spec", "workers", EACH, "failureDomain"),
        "ZONE",
        "Zone, or host, for all workers.  [default: any]",
    ),
    Flag(
        "--worker-node-affinity",
        ("spec", "workers", EACH, "nodeAffinity"),
        "KEY[=VALUE],...",
        "Labels that the hosts of workers must have, comma-separated.",
        value=values.hosts,
    ),
    Flag(
        "--worker-workload-affinity",
        ("spec", "workers", EACH, "workloadAffinity"),
        "KEY[=VALUE],...",
        "Labels of workloads that must run on the hosts of workers, comma-separated.",
        value=values.neighbours,
    ),
    Flag(
        "--worker-devices",
        ("spec", "workers", EACH, "devices"),
        "RESOURCE[=COUNT],...",
        "Host devices for each worker, comma-separated.",
        value=values.devices,
    ),
    Flag(
        "--worker-cpu-pinning",
        ("spec", "workers", EACH, "cpuPinning"),
        "[true|false]",
        "Pin each CPU core of a worker to a physical core of its own.",
        value=values.switch,
        choices=_SWITCH,
    ),
    Flag(
        "--worker-isolate-emulator-thread",
        ("spec", "workers", EACH, "isolateEmulatorThread"),
        "[true|false]",
        "Run QEMU of a worker on an additional physical core.",
        value=values.switch,
        choices=_SWITCH,
    ),
    Flag(
        "--worker-numa-passthrough",
        ("spec", "workers", EACH, "numaPassthrough"),
        "[true|false]",
        "Expose the NUMA cells of the host to workers.",
        value=values.switch,
        choices=_SWITCH,
    ),
    Flag(
        "--worker-hugepages",
        ("spec", "workers", EACH, "hugepages"),
        "[2Mi|1Gi]",
        "Size of the host's huge pages that back the memory of workers.",
        choices=("2Mi", "1Gi"),
    ),
)
