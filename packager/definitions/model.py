"""A ClusterDefinition as checked, plain values with all defaults filled in.

Only `parse` creates one. It reports all errors at once, at the fields that the user set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from caphv.api import hostresources, interfaces
from caphv.api.distributions import full_version
from caphv.api.object import Key, Obj, text_at
from caphv.validation import schema
from caphv.validation.finding import Finding, in_order
from packager import secretscan
from packager.definitions import kubevip, rules
from packager.definitions.hardening import Hardening
from packager.definitions.rules.sizes import DEFAULT_SIZES

SCHEMA = "clusterdefinition.json"
API_VERSION = "caphv.io/v1alpha1"
KIND = "ClusterDefinition"
FLEET = "Fleet"
CLUSTER_RESOURCE_SET = "ClusterResourceSet"
NONE = "None"


@dataclass(frozen=True)
class Pool:
    """Machines of one size: the control plane, or a pool of workers.

    `maxima` (`cpuMax`, `memoryMax`), `host_resources` (devices, pinned CPUs, huge pages),
    `network_interfaces`, `volumes` and `affinities` are as in a HarvesterMachine; `failure_domain`
    is empty for machines that may be anywhere.
    """

    name: str
    replicas: int
    cpu: int
    memory: str
    volumes: tuple[Mapping[str, Any], ...]
    maxima: Mapping[str, Any] = field(default_factory=dict)
    host_resources: Mapping[str, Any] = field(default_factory=dict)
    network_interfaces: tuple[Mapping[str, Any], ...] = ()
    affinities: Mapping[str, Any] = field(default_factory=dict)
    failure_domain: str = ""


@dataclass(frozen=True)
class HealthCheck:
    """Conditions for replacing machines.

    `unhealthy` is a number or a share of machines (`34%`). `startup` and `timeout` are in seconds.
    """

    enabled: bool
    unhealthy: int | str
    startup: int
    timeout: int


@dataclass(frozen=True)
class FleetSource:
    """Repository with the bundles of the cluster."""

    repo: str
    branch: str
    path: str
    client_secret_name: str
    helm_secret_name: str = ""
    helm_repo_regex: str = ""


@dataclass(frozen=True)
class Definition:
    """A wanted cluster. `cluster_class` is empty if objects are created individually.

    `identity` is field `identitySecret` or `identityRef` of the HarvesterCluster.
    """

    key: Key
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    distribution: str
    version: str
    cluster_class: str
    identity: Mapping[str, Any]
    target_namespace: str
    rancher_auto_import: bool
    control_plane: Pool
    workers: tuple[Pool, ...]
    ssh_user: str
    ssh_key_pair: str
    networks: tuple[str, ...]
    firmware: Mapping[str, Any]
    tpm: Mapping[str, Any]
    addresses: Mapping[str, Any]
    load_balancer: Mapping[str, Any]
    pod_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    health_check: HealthCheck
    addons: Mapping[str, Any] = field(default_factory=dict)
    delivery: str = FLEET
    fleet: FleetSource | None = None
    failure_domains: tuple[str, ...] = ()
    guest_volumes: str = ""
    control_plane_backups: Mapping[str, Any] = field(default_factory=dict)
    etcd_snapshots: Mapping[str, Any] = field(default_factory=dict)
    images: tuple[Mapping[str, Any], ...] = ()
    guest_config: Mapping[str, Any] = field(default_factory=dict)
    registries: Mapping[str, Any] = field(default_factory=dict)
    hardening: Hardening = field(default_factory=Hardening)

    @property
    def identity_secret(self) -> str:
        """Name of the identity Secret, empty with a HarvesterClusterIdentity."""
        return text_at(self.identity, "identitySecret", "name")

    @property
    def cluster_identity(self) -> str:
        """Name of the HarvesterClusterIdentity, empty with an identity Secret."""
        return text_at(self.identity, "identityRef", "name")


def interfaces_of(pool: Pool) -> Obj:
    """Return the field for the interfaces of a pool; nothing if it has none with settings."""
    if not pool.network_interfaces:
        return {}
    return {interfaces.FIELD: [dict(settings) for settings in pool.network_interfaces]}


def is_definition(obj: Any) -> bool:
    """Whether an object names kind and group of a ClusterDefinition, in any version."""
    group = API_VERSION.partition("/")[0]
    return (
        isinstance(obj, dict)
        and obj.get("kind") == KIND
        and str(obj.get("apiVersion", "")).partition("/")[0] == group
    )


def check(obj: Any) -> list[Finding]:
    """Return all errors and warnings of a single definition."""
    findings = schema.load(SCHEMA).findings(obj)
    # Rules take a valid definition. For an invalid one, only the rules run that its shape allows.
    more = rules.check_valid_parts(obj, findings) if findings else rules.check(obj)
    return in_order(_hide_secret(finding) for finding in (*findings, *more))


def _hide_secret(finding: Finding) -> Finding:
    """Leave out a value that may be a pasted kubeconfig or another secret."""
    # Findings are printed, and written to the status file of a repository.
    value = finding.value
    is_secret = secretscan.check(value) or "\n" in str(value)
    return replace(finding, value=None) if is_secret else finding


class ParsedDefinition(NamedTuple):
    """A definition, None if it has errors, and all errors and warnings."""

    definition: Definition | None
    findings: list[Finding]


def parse(obj: Any) -> ParsedDefinition:
    """Check and parse a definition of any shape."""
    findings = check(obj)
    if any(not finding.advice for finding in findings):
        return ParsedDefinition(None, findings)
    return ParsedDefinition(_definition(obj), findings)


def _identity(metadata: Obj, spec: Obj) -> Obj:
    """Return the field of a HarvesterCluster that names its credentials."""
    if "identityRef" in spec:
        return {"identityRef": spec["identityRef"]}
    secret = {"name": spec["identitySecret"]["name"], "namespace": metadata["namespace"]}
    return {"identitySecret": secret}


def _definition(obj: Obj) -> Definition:
    """Return a definition without errors as plain values, with the defaults of missing fields."""
    metadata = obj["metadata"]
    spec = obj["spec"]
    machines = spec["machines"]
    distribution = spec.get("distribution", "rke2")
    network = spec.get("clusterNetwork", {})
    control_plane = spec.get("controlPlane", {})
    workers = spec.get("workers", [{"name": "workers"}])

    return Definition(
        key=Key(metadata["namespace"], metadata["name"]),
        labels=metadata.get("labels", {}),
        annotations=metadata.get("annotations", {}),
        distribution=distribution,
        version=full_version(spec["kubernetesVersion"], distribution),
        cluster_class=cluster_class(spec),
        identity=_identity(metadata, spec),
        target_namespace=spec.get("targetNamespace", "default"),
        rancher_auto_import=spec.get("rancherAutoImport", True),
        control_plane=_pool("control-plane", control_plane, machines, replicas=3),
        workers=tuple(_pool(pool["name"], pool, machines, replicas=2) for pool in workers),
        ssh_user=machines.get("sshUser", "sles"),
        ssh_key_pair=machines["sshKeyPair"],
        networks=tuple(machines["networks"]),
        firmware=machines.get("firmware", {}),
        tpm=machines.get("tpm", {}),
        addresses=spec.get("addresses", {}),
        load_balancer=_load_balancer(spec),
        pod_cidrs=tuple(network.get("podCIDRs", ["10.42.0.0/16"])),
        service_cidrs=tuple(network.get("serviceCIDRs", ["10.43.0.0/16"])),
        health_check=_health_check(spec.get("healthCheck", {})),
        addons=spec.get("addons", {}),
        delivery=spec.get("addonDelivery", FLEET),
        fleet=_fleet(spec["fleet"]) if "fleet" in spec else None,
        failure_domains=tuple(control_plane.get("failureDomains", ())),
        guest_volumes=spec.get("guestVolumes", ""),
        control_plane_backups=spec.get("controlPlaneBackups", {}),
        etcd_snapshots=spec.get("etcdSnapshots", {}),
        images=tuple(spec.get("images", ())),
        guest_config=machines.get("guestConfig", {}),
        registries=spec.get("registries", {}),
        hardening=_hardening(spec.get("hardening", {})),
    )


def _load_balancer(spec: Obj) -> Obj:
    registry = text_at(spec, "addons", "imageRegistry")
    return kubevip.with_image(spec.get("loadBalancer", {"ipamType": "dhcp"}), registry)


def cluster_class(spec: Obj) -> str:
    """Return the ClusterClass of a definition's spec; empty if it names none."""
    if spec.get("individualObjects"):
        return ""
    return str(spec.get("clusterClass") or f"harvester-{spec.get('distribution', 'rke2')}")


def _pool(name: str, pool: Obj, machines: Obj, *, replicas: int) -> Pool:
    """Return a pool, whose own sizes override the sizes of all machines."""
    # The machine boots from the disk with the image. All other disks are empty.
    source = "imageLookup" if "imageLookup" in machines else "imageName"
    boot = {
        "volumeType": "image",
        source: machines.get("imageLookup") or machines["image"],
        "volumeSize": pool.get("diskSize") or machines.get("diskSize", "40Gi"),
        "bootOrder": 1,
    }
    sizes = {**DEFAULT_SIZES, **machines, **pool}
    affinities = {
        field: pool[field] for field in ("nodeAffinity", "workloadAffinity") if pool.get(field)
    }

    return Pool(
        name=name,
        replicas=pool.get("replicas", replicas),
        cpu=sizes["cpu"],
        memory=sizes["memory"],
        volumes=(boot, *_extra_disks(machines.get("extraDisks", ()))),
        maxima={field: sizes[field] for field in ("cpuMax", "memoryMax") if field in sizes},
        # A pool without what all others have says so by false or an empty list.
        host_resources={name: sizes[name] for name in hostresources.FIELDS if sizes.get(name)},
        network_interfaces=tuple(sizes.get(interfaces.FIELD) or ()),
        affinities=affinities,
        failure_domain=pool.get("failureDomain", ""),
    )


def _extra_disks(disks: Sequence[Obj]) -> list[Obj]:
    return [
        {
            "volumeType": "storageClass",
            "storageClass": disk.get("storageClass", "longhorn"),
            "volumeSize": disk["size"],
            **{name: disk[name] for name in ("accessMode", "volumeMode") if name in disk},
        }
        for disk in disks
    ]


def _health_check(values: Obj) -> HealthCheck:
    return HealthCheck(
        enabled=values.get("enabled", True),
        unhealthy=values.get("unhealthyLessThanOrEqualTo", "34%"),
        startup=values.get("nodeStartupTimeoutSeconds", 1200),
        timeout=values.get("unhealthyTimeoutSeconds", 300),
    )


def _hardening(values: Obj) -> Hardening:
    return Hardening(
        cis_profile=values.get("cisProfile", ""),
        stig=values.get("stig", False),
        fips_required=values.get("fipsRequired", False),
    )


def _fleet(values: Obj) -> FleetSource:
    return FleetSource(
        repo=values["repo"],
        branch=values.get("branch", "main"),
        path=values.get("path", ""),
        client_secret_name=values.get("clientSecretName", ""),
        helm_secret_name=values.get("helmSecretName", ""),
        helm_repo_regex=values.get("helmRepoURLRegex", ""),
    )
