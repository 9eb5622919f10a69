"""Flags for the cluster, its control plane and its workers."""

from __future__ import annotations

from packager.definitions.flags import values
from packager.definitions.flags.model import EACH, KUBERNETES_VERSION, Flag

_SWITCH = ("true", "false")

FLAGS = (
    Flag("--name", ("metadata", "name"), "Name of the cluster.", "Name of the cluster", None),
    Flag(
        "--namespace",
        ("metadata", "namespace"),
        "Its namespace.  [default: the name]",
        "Namespace",
    ),
    Flag(
        "--k8s-version",
        ("spec", "kubernetesVersion"),
        f"Version of Kubernetes.  [default: {KUBERNETES_VERSION}]",
        "Version of Kubernetes",
        KUBERNETES_VERSION,
    ),
    Flag(
        "--distribution",
        ("spec", "distribution"),
        "rke2, k3s or kubeadm.  [default: rke2]",
        "Distribution (rke2, k3s, kubeadm)",
        "rke2",
        choices=("rke2", "k3s", "kubeadm"),
    ),
    Flag(
        "--class",
        ("spec", "clusterClass"),
        "ClusterClass.  [default: harvester- and the distribution]",
    ),
    Flag(
        "--cp-replicas",
        ("spec", "controlPlane", "replicas"),
        "Machines of the control plane.  [default: 3]",
        "Machines of the control plane",
        "3",
        values.number,
    ),
    Flag(
        "--worker-replicas",
        ("spec", "workers"),
        "Worker machines.  [default: 2]",
        "Worker machines",
        "2",
        values.workers,
    ),
    Flag(
        "--control-plane-backups",
        ("spec", "controlPlaneBackups", "keep"),
        "How many backups of replaced control plane machines stay on the backup target of "
        "Harvester.  [default: none are made]",
        value=values.number,
    ),
    Flag(
        "--guest-volumes",
        ("spec", "guestVolumes"),
        "Delete: volumes of PersistentVolumes with this reclaim policy are deleted with the "
        "cluster.  [default: they are kept]",
        choices=("Delete",),
    ),
    Flag(
        "--failure-domains",
        ("spec", "controlPlane", "failureDomains"),
        "Zones, or hosts, for the control plane, comma-separated.  [default: all]",
        value=values.items,
    ),
    Flag(
        "--worker-failure-domain",
        ("spec", "workers", EACH, "failureDomain"),
        "Zone, or host, for all workers.  [default: any]",
    ),
    Flag(
        "--worker-node-affinity",
        ("spec", "workers", EACH, "nodeAffinity"),
        "Labels of the hosts for workers: KEY=VALUE or KEY, comma-separated.",
        value=values.hosts,
    ),
    Flag(
        "--worker-workload-affinity",
        ("spec", "workers", EACH, "workloadAffinity"),
        "Labels of workloads that the hosts of workers must run: KEY=VALUE or KEY, "
        "comma-separated.",
        value=values.neighbours,
    ),
    Flag(
        "--worker-devices",
        ("spec", "workers", EACH, "devices"),
        "Devices of the host for each worker: RESOURCE or RESOURCE=COUNT, comma-separated.",
        value=values.devices,
    ),
    Flag(
        "--worker-cpu-pinning",
        ("spec", "workers", EACH, "cpuPinning"),
        "true gives each CPU core of a worker a physical one of its own.",
        value=values.switch,
        choices=_SWITCH,
    ),
    Flag(
        "--worker-isolate-emulator-thread",
        ("spec", "workers", EACH, "isolateEmulatorThread"),
        "true runs QEMU of a worker on a further physical core.",
        value=values.switch,
        choices=_SWITCH,
    ),
    Flag(
        "--worker-numa-passthrough",
        ("spec", "workers", EACH, "numaPassthrough"),
        "true shows workers the NUMA cells of their host.",
        value=values.switch,
        choices=_SWITCH,
    ),
    Flag(
        "--worker-hugepages",
        ("spec", "workers", EACH, "hugepages"),
        "Huge pages of the host for the memory of workers: 2Mi or 1Gi.",
        choices=("2Mi", "1Gi"),
    ),
)
