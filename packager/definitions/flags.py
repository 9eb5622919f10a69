"""The flags of `caphv generate`, most of them of the old generator, as fields of a definition.

Values are kept as typed until the schema validates them, so that all errors are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from caphv.validation.finding import FieldPath

KUBERNETES_VERSION = "v1.36.2"


def _text(text: str) -> Any:
    return text


def _number(text: str) -> Any:
    # The schema rejects values that are not numbers.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _list(text: str) -> Any:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pool(text: str) -> Any:
    return {"ipamType": "pool", "ipPoolRef": text}


def _endpoint(text: str) -> Any:
    """Return an external endpoint for `HOST` or `HOST:PORT`."""
    host, separator, port = text.partition(":")
    return {
        "ipamType": "none",
        "endpoint": {"host": host, **({"port": _number(port)} if separator else {})},
    }


def _disk(text: str) -> Any:
    size, _, storage_class = text.partition(":")
    return [{"size": size, **({"storageClass": storage_class} if storage_class else {})}]


def _workers(text: str) -> Any:
    return [{"name": "workers", "replicas": _number(text)}]


def _devices(text: str) -> Any:
    """Return devices for `RESOURCE` and `RESOURCE=COUNT`, comma-separated."""
    pairs = [part.partition("=") for part in _list(text)]
    return [
        {"resourceName": name, **({"count": _number(count)} if separator else {})}
        for name, separator, count in pairs
    ]


def _switch(text: str) -> Any:
    # The schema rejects every other text.
    return {"true": True, "false": False}.get(text, text)


def _mirrors(text: str) -> Any:
    mirrors: dict[str, Any] = {}
    for part in _list(text):
        registry, _, endpoint = part.partition("=")
        mirrors.setdefault(registry, {"endpoint": []})["endpoint"].append(endpoint)
    return mirrors


def _expressions(text: str) -> Any:
    """Return demands on labels: `KEY=VALUE` for a value, `KEY` alone for any."""
    # A label may have an empty value, so only the separator tells `KEY=` from `KEY`.
    pairs = [part.partition("=") for part in _list(text)]
    return [
        (
            {"key": key, "operator": "In", "values": [value]}
            if separator
            else {"key": key, "operator": "Exists"}
        )
        for key, separator, value in pairs
    ]


def _hosts(text: str) -> Any:
    terms = [{"matchExpressions": _expressions(text)}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _neighbours(text: str) -> Any:
    term = {
        "labelSelector": {"matchExpressions": _expressions(text)},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


# Stands for each pool of workers in the path of a flag.
EACH = "*"
_SWITCH = ("true", "false")


@dataclass(frozen=True)
class Flag:
    """A flag, the field that it sets, and its question in the interactive mode.

    `ask` is the question, empty for flags that are not asked for. `default` is the value for an
    empty answer, None if an answer is required. `choices` are all values that the schema takes if
    they are few, for completion in a shell.
    """

    name: str
    path: FieldPath
    help: str
    ask: str = ""
    default: str | None = ""
    value: Callable[[str], Any] = _text
    choices: tuple[str, ...] = ()

    @property
    def parameter(self) -> str:
        """The name in the form of a Python variable."""
        return self.name.removeprefix("--").replace("-", "_")


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
        _number,
    ),
    Flag(
        "--worker-replicas",
        ("spec", "workers"),
        "Worker machines.  [default: 2]",
        "Worker machines",
        "2",
        _workers,
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
        value=_list,
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
        value=_hosts,
    ),
    Flag(
        "--worker-workload-affinity",
        ("spec", "workers", EACH, "workloadAffinity"),
        "Labels of workloads that the hosts of workers must run: KEY=VALUE or KEY, "
        "comma-separated.",
        value=_neighbours,
    ),
    Flag(
        "--worker-devices",
        ("spec", "workers", EACH, "devices"),
        "Devices of the host for each worker: RESOURCE or RESOURCE=COUNT, comma-separated.",
        value=_devices,
    ),
    Flag(
        "--worker-cpu-pinning",
        ("spec", "workers", EACH, "cpuPinning"),
        "true gives each CPU core of a worker a physical one of its own.",
        value=_switch,
        choices=_SWITCH,
    ),
    Flag(
        "--worker-isolate-emulator-thread",
        ("spec", "workers", EACH, "isolateEmulatorThread"),
        "true runs QEMU of a worker on a further physical core.",
        value=_switch,
        choices=_SWITCH,
    ),
    Flag(
        "--worker-numa-passthrough",
        ("spec", "workers", EACH, "numaPassthrough"),
        "true shows workers the NUMA cells of their host.",
        value=_switch,
        choices=_SWITCH,
    ),
    Flag(
        "--worker-hugepages",
        ("spec", "workers", EACH, "hugepages"),
        "Huge pages of the host for the memory of workers: 2Mi or 1Gi.",
        choices=("2Mi", "1Gi"),
    ),
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
        _number,
    ),
    Flag(
        "--cpu-max",
        ("spec", "machines", "cpuMax"),
        "CPU cores to which a running VM can grow.",
        value=_number,
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
        value=_disk,
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
        _list,
    ),
    Flag(
        "--ip-pool",
        ("spec", "addresses", "ipPoolRefs"),
        "IPPool on Harvester for the addresses of VMs.  [default: DHCP]",
        value=_list,
    ),
    Flag(
        "--ip-pool-refs",
        ("spec", "addresses", "ipPoolRefs"),
        "Several IPPools, comma-separated, tried in this order.",
        "IPPools for addresses of VMs (comma-separated, empty for DHCP)",
        value=_list,
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
        value=_list,
    ),
    Flag(
        "--lb-ip-pool",
        ("spec", "loadBalancer"),
        "IPPool for the address of the control plane.  [default: DHCP]",
        "IPPool for the control plane's address (empty for DHCP)",
        value=_pool,
    ),
    Flag(
        "--external-endpoint",
        ("spec", "loadBalancer"),
        "HOST or HOST:PORT of a load balancer of your own in front of the control plane; nothing "
        "is created on Harvester for it.",
        value=_endpoint,
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
        "--cni",
        ("spec", "addons", "cni", "name"),
        "calico, canal, cilium or none.",
        "CNI (empty for the usual one)",
        choices=("calico", "canal", "cilium", "none"),
    ),
    Flag("--cni-mtu", ("spec", "addons", "cni", "mtu"), "MTU of the Pod network.", value=_number),
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
        value=_list,
    ),
    Flag(
        "--service-cidr",
        ("spec", "clusterNetwork", "serviceCIDRs"),
        "Networks of Services, comma-separated.  [default: 10.43.0.0/16]",
        value=_list,
    ),
    Flag(
        "--image-registry",
        ("spec", "addons", "imageRegistry"),
        "Registry with the images of add-ons, RKE2 and K3s, host[:port][/path].",
    ),
    Flag(
        "--registry-mirror",
        ("spec", "registries", "mirrors"),
        "Mirrors of registries for RKE2 and K3s, REGISTRY=URL, comma-separated.",
        value=_mirrors,
    ),
    Flag(
        "--etcd-snapshot-schedule",
        ("spec", "etcdSnapshots", "schedule"),
        "When RKE2 or K3s takes snapshots of etcd, in the form of cron.  [default: every 12 hours]",
    ),
    Flag(
        "--etcd-snapshot-retention",
        ("spec", "etcdSnapshots", "retention"),
        "Snapshots of etcd to keep on each machine.  [default: 5]",
        value=_number,
    ),
    Flag(
        "--etcd-s3-endpoint",
        ("spec", "etcdSnapshots", "s3", "endpoint"),
        "S3 service for snapshots of etcd, host[:port].",
    ),
    Flag(
        "--etcd-s3-bucket",
        ("spec", "etcdSnapshots", "s3", "bucket"),
        "Bucket for snapshots of etcd.",
    ),
    Flag(
        "--etcd-s3-folder",
        ("spec", "etcdSnapshots", "s3", "folder"),
        "Folder in the bucket for this cluster alone, of all management clusters.",
    ),
    Flag(
        "--etcd-s3-retention",
        ("spec", "etcdSnapshots", "s3", "retention"),
        "Snapshots of etcd to keep in the S3 store, of all machines together.",
        value=_number,
    ),
    Flag(
        "--etcd-s3-region",
        ("spec", "etcdSnapshots", "s3", "region"),
        "Region of the S3 service.",
    ),
    Flag(
        "--etcd-s3-secret",
        ("spec", "etcdSnapshots", "s3", "credentialsSecretName"),
        "Secret in the namespace with aws_access_key_id and aws_secret_access_key.",
    ),
    Flag(
        "--etcd-s3-ca-secret",
        ("spec", "etcdSnapshots", "s3", "caSecretName"),
        "Secret in the namespace with the CA of the S3 service, ca.pem.",
    ),
    Flag(
        "--cis-profile",
        ("spec", "hardening", "cisProfile"),
        "CIS profile of RKE2.",
        choices=("cis", "cis-1.23"),
    ),
    Flag(
        "--fleet-addon-repo",
        ("spec", "fleet", "repo"),
        "Repository with the cluster's bundles, for add-ons by Fleet.  [default: add-ons by "
        "ClusterResourceSets]",
    ),
    Flag(
        "--fleet-addon-branch",
        ("spec", "fleet", "branch"),
        "Branch of that repository.  [default: main]",
    ),
)
