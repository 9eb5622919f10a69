"""Settings of one cluster's add-ons, merged from all sources and checked, as values for templates.

Only `settings_of` creates them. An invalid setting is a finding at its place and never an
exception, so that one invalid cluster does not stop the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from caphv.api import supported
from caphv.api.object import Key, Obj
from caphv.validation.finding import Finding, in_order
from packager.addons import cnirules, rules
from packager.addons.facts import ClusterFacts
from packager.addons.gather import gather
from packager.addons.merge import Origins

__all__ = [
    "AddonSettings",
    "Ccm",
    "CloudConfig",
    "Cni",
    "Csi",
    "Fleet",
    "Packaging",
    "cni_of",
    "settings_of",
]


HELM_CONTROLLER = "HelmController"
"""Value of `charts.installedBy`: HelmChart manifests instead of charts by Fleet."""


class Packaging(StrEnum):
    """Form in which an add-on gets into the cluster."""

    CHART = "Chart"
    """Fleet installs the chart."""
    HELM_CHART = "HelmChart"
    """A manifest of kind HelmChart, for the Helm controller of K3s."""
    HELM_CHART_CONFIG = "HelmChartConfig"
    """A manifest of kind HelmChartConfig, which gives our values to RKE2's own chart."""


# Packaging of a CNI. Fleet installs the chart if the distribution has no Helm controller.
_CNI_PACKAGING = {"rke2": Packaging.HELM_CHART_CONFIG, "k3s": Packaging.HELM_CHART}


@dataclass(frozen=True)
class CloudConfig:
    """Place of the kubeconfig for Harvester: a file on each node, or a Secret in kube-system."""

    secret_name: str
    secret_key: str
    host_path: str


@dataclass(frozen=True)
class Cni:
    """The Pod network: `calico`, `canal`, `cilium` or `none`. With `mtu` 0, it detects the MTU."""

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
    """Harvester cloud provider; `load_balancer_ipam` is `dhcp`, `pool` or empty for the default."""

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
    """Objects in kube-system with which a Helm controller pulls charts; empty names for none."""

    secret_name: str = ""
    ca_config_map_name: str = ""


@dataclass(frozen=True)
class Fleet:
    """Settings of Fleet. `imported_by` is `caapf` or `rancher`, and `group` may be empty.

    `keep_removed`: add-ons stay installed when they are disabled. `workspace` is the namespace of
    the Fleet Cluster, and `cluster_name` is its name if CAAPF creates it; empty for the default.
    """

    imported_by: str
    take_ownership: bool
    keep_removed: bool
    group: str
    workspace: str
    cluster_name: str

    @property
    def keep_resources(self) -> bool:
        """Always true, because Fleet must not uninstall bundles when a GitRepo or path is lost."""
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
        """The installer of charts if the user chose one, empty for the default."""
        is_chosen = self.distribution == "rke2" and self.packaging is Packaging.HELM_CHART
        return HELM_CONTROLLER if is_chosen else ""

    @property
    def helm_controller(self) -> supported.HelmController:
        """Fields of HelmCharts and HelmChartConfigs for the Helm controller of this Kubernetes."""
        return supported.support().helm_controller(self.kubernetes_version)

    @property
    def network(self) -> Obj:
        """Settings that cannot change in a running cluster, as its lockfile records them."""
        return {
            "cni": self.cni.name,
            "encapsulation": self.cni.encapsulation,
            "kubeProxyReplacement": self.cni.kube_proxy_replacement,
            "podCIDRs": list(self.cni.pod_cidrs),
            "serviceCIDRs": list(self.cni.service_cidrs),
        }


class CheckedSettings(NamedTuple):
    """The settings of a cluster, None if a finding is more than advice, and all findings."""

    settings: AddonSettings | None
    findings: list[Finding]


def settings_of(facts: ClusterFacts) -> CheckedSettings:
    """Return the settings of a cluster, and findings about them with the paths of the sources."""
    gathered = gather(facts)
    # Rules take settings that the schema accepts, so they wait until all sources are valid.
    findings = in_order(gathered.findings or rules.check(facts, gathered))
    # Warnings do not stop a cluster from being rendered.
    if any(not finding.advice for finding in findings):
        return CheckedSettings(None, findings)
    return CheckedSettings(_settings(facts, gathered.values, gathered.origins), findings)


def cni_of(facts: ClusterFacts) -> Cni | None:
    """Return the CNI of a cluster without checking any rules; None if a source is invalid."""
    gathered = gather(facts)
    if gathered.findings:
        return None
    return _cni(gathered.values["cni"], gathered.values["distribution"])


def _settings(facts: ClusterFacts, values: Obj, origins: Origins) -> AddonSettings:
    """Return merged values as settings, with the defaults of fields that no source sets."""
    cloud_config = values["cloudConfig"]

    return AddonSettings(
        cluster=facts.key,
        distribution=values["distribution"],
        packaging=_packaging(values),
        kubernetes_version=facts.kubernetes_version,
        single_node=values["singleNode"],
        cloud_config=CloudConfig(
            cloud_config.get("secretName", ""),
            cloud_config.get("secretKey", ""),
            cloud_config.get("hostPath", ""),
        ),
        cni=_cni(values["cni"], values["distribution"]),
        ccm=_ccm(values.get("ccm", {})),
        csi=_csi(values.get("csi", {})),
        fleet=_fleet(values["fleet"]),
        charts=_charts(values.get("charts", {})),
        image_registry=values.get("imageRegistry", ""),
        origins=origins,
    )


def _packaging(values: Obj) -> Packaging:
    installer = values.get("charts", {}).get("installedBy")
    if values["distribution"] == "k3s" or installer == HELM_CONTROLLER:
        return Packaging.HELM_CHART
    # RKE2 ships its own Harvester cloud provider and CSI driver.
    if values["cloudProviderName"] == "harvester":
        return Packaging.HELM_CHART_CONFIG
    return Packaging.CHART


def _cni(values: Obj, distribution: str) -> Cni:
    return Cni(
        name=values["name"],
        packaging=_CNI_PACKAGING.get(distribution, Packaging.CHART),
        version=values.get("version", ""),
        mtu=values.get("mtu", 0),
        encapsulation=cnirules.encapsulation(values),
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
    values_of_flags = {
        "--management-network": values.get("managementNetwork"),
        "--node-ip-cidr": values.get("nodeIPCIDR"),
        "--node-exclude-ip-ranges": ",".join(values.get("nodeExcludeIPRanges", ())),
    }
    return [f"{flag}={value}" for flag, value in values_of_flags.items() if value]


def _csi(values: Obj) -> Csi:
    # These are the API server's defaults, except `allowVolumeExpansion`, which Harvester supports.
    defaults = {
        "default": False,
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": True,
        "volumeBindingMode": "Immediate",
    }
    storage_classes = tuple(defaults | row for row in values.get("storageClasses", ()))

    return Csi(
        enabled=values.get("enabled", True),
        version=values.get("version", ""),
        snapshot_controller=values.get("snapshotController", True),
        storage_classes=storage_classes,
        tolerations=tuple(values.get("tolerations", ())),
        values=values.get("values", {}),
        values_from=_values_from(values),
    )


def _values_from(values: Obj) -> tuple[Mapping[str, Any], ...]:
    """Return references in the form of Fleet, which includes the namespace."""
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
