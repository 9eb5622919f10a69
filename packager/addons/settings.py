"""Settings of one cluster's add-ons: what all sources say together, checked, as plain values for the templates.

`settings_of` is the only way to them; an invalid setting is a finding at the place where it is set and never an
exception, so that one invalid cluster does not stop the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from caphv.api import supported
from caphv.api.object import Key, Obj
from caphv.validation.finding import Finding, in_order
from packager.addons import rules
from packager.addons.gather import ClusterFacts, gather
from packager.addons.merge import Origins

__all__ = ["AddonSettings", "Ccm", "CloudConfig", "ClusterFacts", "Cni", "Csi", "Fleet", "Packaging", "settings_of"]


HELM_CONTROLLER = "HelmController"
"""Value of `charts.installedBy`: HelmChart manifests instead of charts by Fleet."""


class Packaging(StrEnum):
    """How an add-on gets into the cluster."""

    CHART = "Chart"
    """Fleet installs the chart."""
    HELM_CHART = "HelmChart"
    """A manifest of kind HelmChart, for the Helm controller of K3s."""
    HELM_CHART_CONFIG = "HelmChartConfig"
    """A manifest of kind HelmChartConfig: RKE2 installs its own chart, with our values."""


_CNI_PACKAGING = {"rke2": Packaging.HELM_CHART_CONFIG, "k3s": Packaging.HELM_CHART}
"""How a CNI gets into the cluster; by Fleet alone where a distribution has no Helm controller."""


@dataclass(frozen=True)
class CloudConfig:
    """Where the workload cluster has its kubeconfig for Harvester: a file on each node, or a Secret in kube-system."""

    secret_name: str
    secret_key: str
    host_path: str


@dataclass(frozen=True)
class Cni:
    """The Pod network; `name` is `calico`, `canal`, `cilium` or `none`. `mtu` 0 lets the CNI find it out."""

    name: str
    packaging: Packaging
    version: str
    mtu: int
    encapsulation: str
    bgp: bool
    pod_cidrs: tuple[str, ...]
    service_cidrs: tuple[str, ...]
    kube_proxy_replacement: bool
    values: Mapping[str, Any] = field(default_factory=dict)
    values_from: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Ccm:
    """Harvester cloud provider; `load_balancer_ipam` is `dhcp`, `pool`, or empty for the default of the provider."""

    enabled: bool
    version: str
    replicas: int
    load_balancer_ipam: str
    kube_vip: bool
    extra_args: tuple[str, ...]
    tolerations: tuple[Mapping[str, Any], ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    values_from: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Csi:
    """Harvester CSI driver; each storage class has all fields of the schema."""

    enabled: bool
    version: str
    storage_classes: tuple[Mapping[str, Any], ...] = ()
    tolerations: tuple[Mapping[str, Any], ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    snapshot_controller: bool = True
    values_from: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Charts:
    """How a Helm controller pulls charts; names of objects in kube-system, empty for none."""

    secret_name: str = ""
    ca_config_map_name: str = ""


@dataclass(frozen=True)
class Fleet:
    """How Fleet reaches the cluster; `imported_by` is `caapf` or `rancher`, `group` may be empty.

    `keep_removed`: add-ons stay installed when they are disabled. `workspace` is the namespace of the Fleet Cluster,
    and `cluster_name` its name where CAAPF creates it; empty for the default.
    """

    imported_by: str
    take_ownership: bool
    keep_removed: bool
    group: str
    workspace: str
    cluster_name: str

    @property
    def keep_resources(self) -> bool:
        """Always true: no bundle may be uninstalled because its GitRepo, branch or path was lost."""
        return True


@dataclass(frozen=True)
class AddonSettings:
    """All settings of one cluster's add-ons."""

    cluster: Key
    distribution: str
    packaging: Packaging
    kubernetes_version: str
    single_node: bool
    cloud_config: CloudConfig
    cni: Cni
    ccm: Ccm
    csi: Csi
    fleet: Fleet
    charts: Charts = field(default_factory=Charts)
    image_registry: str = ""
    origins: Origins = field(default_factory=dict, repr=False, compare=False)

    @property
    def installer(self) -> str:
        """Who installs charts where that can be chosen and is not the default; empty for the default."""
        return HELM_CONTROLLER if self.distribution == "rke2" and self.packaging is Packaging.HELM_CHART else ""

    @property
    def helm_controller(self) -> supported.HelmController:
        """What HelmCharts and HelmChartConfigs say to the Helm controller of this version of Kubernetes."""
        return supported.support().helm_controller(self.kubernetes_version)

    @property
    def network(self) -> Obj:
        """What cannot be changed in a running cluster, as recorded in its lockfile."""
        return {
            "cni": self.cni.name,
            "encapsulation": self.cni.encapsulation,
            "kubeProxyReplacement": self.cni.kube_proxy_replacement,
            "podCIDRs": list(self.cni.pod_cidrs),
            "serviceCIDRs": list(self.cni.service_cidrs),
        }


def settings_of(facts: ClusterFacts) -> tuple[AddonSettings | None, list[Finding]]:
    """Return the settings of a cluster and all errors and warnings of them, paths as in the source.

    There are no settings when a finding is more than advice.
    """
    gathered = gather(facts)
    findings = gathered.findings
    if not findings:
        findings = rules.check(facts, gathered)
    findings = in_order(findings)
    if any(not finding.advice for finding in findings):
        return None, findings
    return _settings(facts, gathered.values, gathered.origins), findings


def _settings(facts: ClusterFacts, values: Obj, origins: Origins) -> AddonSettings:
    cloud = values["cloudConfig"]
    return AddonSettings(
        cluster=facts.key,
        distribution=values["distribution"],
        packaging=_packaging(values),
        kubernetes_version=facts.kubernetes_version,
        single_node=values["singleNode"],
        cloud_config=CloudConfig(cloud.get("secretName", ""), cloud.get("secretKey", ""), cloud.get("hostPath", "")),
        cni=_cni(values["cni"], values["distribution"]),
        ccm=_ccm(values.get("ccm", {})),
        csi=_csi(values.get("csi", {})),
        fleet=_fleet(values["fleet"]),
        charts=_charts(values.get("charts", {})),
        image_registry=values.get("imageRegistry", ""),
        origins=origins,
    )


def _packaging(values: Obj) -> Packaging:
    if values["distribution"] == "k3s" or values.get("charts", {}).get("installedBy") == HELM_CONTROLLER:
        return Packaging.HELM_CHART
    return Packaging.HELM_CHART_CONFIG if values["cloudProviderName"] == "harvester" else Packaging.CHART


def _cni(values: Obj, distribution: str) -> Cni:
    return Cni(
        name=values["name"],
        packaging=_CNI_PACKAGING.get(distribution, Packaging.CHART),
        version=values.get("version", ""),
        mtu=values.get("mtu", 0),
        encapsulation=rules.encapsulation(values),
        bgp=values.get("bgp") == "Enabled",
        pod_cidrs=tuple(values["podCIDRs"]),
        service_cidrs=tuple(values["serviceCIDRs"]),
        kube_proxy_replacement=values.get("kubeProxyReplacement", False),
        values=values.get("values", {}),
        values_from=_values_from(values),
    )


def _ccm(values: Obj) -> Ccm:
    load_balancer = values.get("loadBalancer", {})
    return Ccm(
        enabled=values.get("enabled", True),
        version=values.get("version", ""),
        replicas=values.get("replicas", 1),
        load_balancer_ipam=load_balancer.get("ipam", ""),
        kube_vip=load_balancer.get("kubeVip", True),
        extra_args=tuple(_extra_args(values)),
        tolerations=tuple(values.get("tolerations", ())),
        values=values.get("values", {}),
        values_from=_values_from(values),
    )


def _extra_args(values: Obj) -> Sequence[str]:
    wanted = {
        "--management-network": values.get("managementNetwork"),
        "--node-ip-cidr": values.get("nodeIPCIDR"),
        "--node-exclude-ip-ranges": ",".join(values.get("nodeExcludeIPRanges", ())),
    }
    return [f"{flag}={value}" for flag, value in wanted.items() if value]


def _csi(values: Obj) -> Csi:
    defaults = {
        "default": False,
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": True,
        "volumeBindingMode": "Immediate",
    }
    return Csi(
        enabled=values.get("enabled", True),
        version=values.get("version", ""),
        snapshot_controller=values.get("snapshotController", True),
        storage_classes=tuple(defaults | found for found in values.get("storageClasses", ())),
        tolerations=tuple(values.get("tolerations", ())),
        values=values.get("values", {}),
        values_from=_values_from(values),
    )


def _values_from(values: Obj) -> tuple[Mapping[str, Any], ...]:
    """Return references as Fleet has them, with the namespace."""
    return tuple(
        {kind: {"name": ref["name"], "namespace": "kube-system", "key": ref["key"]}}
        for row in values.get("valuesFrom", ())
        for kind, ref in row.items()
    )


def _charts(values: Obj) -> Charts:
    return Charts(values.get("secretName", ""), values.get("caConfigMapName", ""))


def _fleet(values: Obj) -> Fleet:
    return Fleet(
        imported_by=values["importedBy"],
        take_ownership=values.get("takeOwnership", False),
        keep_removed=values.get("keepResources", False),
        group=values.get("group", ""),
        workspace=values.get("workspace", ""),
        cluster_name=values.get("clusterName", ""),
    )
