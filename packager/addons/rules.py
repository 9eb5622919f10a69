"""Rules about the settings of a cluster that a schema cannot express.

The rules compare fields with each other, and with the cluster's objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from caphv.api.compatibility import CHARTS, compatibility
from caphv.api.object import Obj, at
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager import secretscan
from packager.addons import cnirules, fleetrules
from packager.addons.facts import WITH_HELM_CONTROLLER, ClusterFacts, minor_version
from packager.addons.gather import DELIVERED_SECRET, Gathered
from packager.addons.merge import origin

RULES = Rules()
"""Their checks take the facts of a cluster and its settings, and report paths in the settings."""


# Key of the Secret, or name of the file, that the CSI driver reads.
_CSI_KEY = "cloud-provider-config"
# First Kubernetes with MutatingAdmissionPolicy in `admissionregistration.k8s.io/v1`.
_FIRST_POLICY_VERSION = (1, 36)


def check(facts: ClusterFacts, gathered: Gathered) -> list[Finding]:
    """Return findings about settings that are valid field by field."""
    findings = []
    for rule in (*cnirules.RULES, *RULES, *fleetrules.RULES):
        for finding in rule.findings(facts, gathered.values):
            path = origin(gathered.origins, finding.path)
            findings.append(replace(finding, path=path))
    return findings


@RULES.rule(
    "cloud-provider-distribution",
    ("Cluster",),
    "`cloudProviderName: harvester` must be used with RKE2 only.",
)
def _check_provider_of_distribution(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    if values["distribution"] != "rke2" and values["cloudProviderName"] == "harvester":
        detail = (
            f"only RKE2 brings a Harvester cloud provider, {values['distribution']} does not: use"
            ' "external"'
        )
        yield Finding(("cloudProviderName",), Fault.UNSUPPORTED, detail, value="harvester")


@RULES.rule(
    "cloud-config-distribution",
    ("Cluster",),
    "The cloud config must not be delivered as a file to Talos.",
)
def _check_cloud_config_file(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    if values["distribution"] == "talos" and "hostPath" in values["cloudConfig"]:
        detail = (
            "Talos writes no files of cloud-config: set cloudConfig.delivery of the "
            "HarvesterCluster to Secret"
        )
        path: FieldPath = ("cloudConfig", "hostPath")
        yield Finding(path, Fault.UNSUPPORTED, detail, value=values["cloudConfig"]["hostPath"])


@RULES.rule(
    "cloud-provider-installed",
    ("Cluster",),
    "A cluster must have only one Harvester cloud provider: RKE2's own, or that of the bundles.",
)
def _check_installed_provider(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    provider = at(facts.control_plane, "spec", "serverConfig", "cloudProviderName")
    if provider == "harvester" and values["cloudProviderName"] == "external":
        detail = (
            "the control plane's spec.serverConfig.cloudProviderName installs RKE2's own, and "
            "there must not be two: change one of them"
        )
        yield Finding(("cloudProviderName",), Fault.INVALID, detail, value="external")


@RULES.rule(
    "addons-without-effect",
    ("Cluster",),
    "Version and `enabled` must be left out for charts that RKE2 installs itself: they have no "
    "effect.",
    advice=True,
)
def _check_effect(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    if values["distribution"] != "rke2":
        return

    rke2_charts = compatibility().rke2_charts(facts.kubernetes_version)
    # RKE2 always installs its CNI, and CCM and CSI driver only with `cloudProviderName: harvester`.
    own_charts = ["cni"]
    if values["cloudProviderName"] == "harvester":
        own_charts += ["ccm", "csi"]
    for name in own_charts:
        settings = values.get(name, {})
        if version := settings.get("version"):
            detail = (
                "has no effect: RKE2 installs its own chart, whose version depends on that of "
                "Kubernetes"
            )
            if chart_version := rke2_charts.get(CHARTS.get(name, "")):
                detail += f" and is {chart_version} in {facts.kubernetes_version}"
            yield Finding((name, "version"), Fault.UNSUPPORTED, detail, value=version)
        if name != "cni" and settings.get("enabled") is False:
            detail = (
                "has no effect, since RKE2 installs its own: to have none, set cloudProviderName "
                "to external"
            )
            yield Finding((name, "enabled"), Fault.UNSUPPORTED, detail, value=False)


@RULES.rule(
    "load-balancer-ipam",
    ("Cluster",),
    "A default for load balancers must be set with Kubernetes 1.36 or later only.",
)
def _check_ipam(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    ipam = at(values, "ccm", "loadBalancer", "ipam")
    version = minor_version(facts.kubernetes_version)
    if ipam and version and version < _FIRST_POLICY_VERSION:
        detail = (
            "needs Kubernetes 1.36, which can set it on each Service; in "
            f"{facts.kubernetes_version} set annotation cloudprovider.harvesterhci.io/ipam on the "
            "Services"
        )
        yield Finding(("ccm", "loadBalancer", "ipam"), Fault.FORBIDDEN, detail)


@RULES.rule(
    "load-balancer-kube-vip",
    ("Cluster",),
    "kube-vip must be enabled for load balancers with DHCP.",
)
def _check_kube_vip(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    load_balancer = at(values, "ccm", "loadBalancer")
    if at(load_balancer, "ipam") == "dhcp" and at(load_balancer, "kubeVip") is False:
        detail = "DHCP needs kube-vip: set ccm.loadBalancer.kubeVip, or use pool"
        yield Finding(("ccm", "loadBalancer", "ipam"), Fault.INVALID, detail, value="dhcp")


@RULES.rule(
    "csi-secret-key",
    ("Cluster",),
    "The Secret with the kubeconfig must have key `cloud-provider-config`: the CSI driver reads no "
    "other.",
    advice=True,
)
def _check_csi_key(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Yield a finding if the CSI driver would not find its key in the cloud config's Secret.

    Users of chart harvester-csi-driver can choose the Secret, but the driver mounts the whole
    Secret and opens a file of this name.
    """
    cloud_config = values["cloudConfig"]
    secret = cloud_config.get("secretName")
    key = cloud_config.get("secretKey", "")
    # The Secret that the controller itself delivers also has the driver's key.
    by_manifest = at(facts.harvester_cluster, "spec", "updateCloudProviderConfig")
    is_delivered = not by_manifest and (secret, key) == DELIVERED_SECRET
    is_enabled = values.get("csi", {}).get("enabled", True)
    has_driver = values["cloudProviderName"] != "harvester" and is_enabled
    if has_driver and key not in ("", _CSI_KEY) and not is_delivered:
        detail = (
            f"the CSI driver reads key {_CSI_KEY} of Secret {secret} whatever "
            "this says: give the Secret that key as well, with the same kubeconfig, or disable "
            "the driver with csi.enabled: false"
        )
        yield Finding(("cloudConfig", "secretKey"), Fault.INVALID, detail, value=key)


@RULES.rule(
    "values-from-config-map",
    ("Cluster",),
    "Values must come from a ConfigMap only where Fleet installs the chart: Helm controllers read "
    "Secrets.",
)
def _check_values_from(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    distribution = values["distribution"]
    installed_by = at(values, "charts", "installedBy")
    by_controller = (
        distribution == "k3s"
        or values["cloudProviderName"] == "harvester"
        or installed_by == "HelmController"
    )
    # Fleet reads both ConfigMaps and Secrets, so only charts that a Helm controller installs are
    # checked.
    addons = []
    if distribution in WITH_HELM_CONTROLLER:
        addons.append("cni")
    if by_controller:
        addons += ["ccm", "csi"]

    detail = f"the Helm controller of {distribution} reads Secrets only: use secretKeyRef"
    for name in addons:
        for index, row in enumerate(values.get(name, {}).get("valuesFrom", ())):
            if "configMapKeyRef" not in row:
                continue
            path: FieldPath = (name, "valuesFrom", index, "configMapKeyRef")
            config_map = row["configMapKeyRef"].get("name")
            yield Finding(path, Fault.UNSUPPORTED, detail, value=config_map)


@RULES.rule(
    "charts-installed-by",
    ("Cluster",),
    "Charts must be installed by one that the distribution has: Fleet, or a Helm controller.",
)
def _check_installer(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    installer = at(values, "charts", "installedBy")
    distribution = values["distribution"]
    detail = ""
    if installer == "HelmController" and distribution not in WITH_HELM_CONTROLLER:
        detail = f"{distribution} has no Helm controller: use Fleet, or remove the field"
    elif installer == "HelmController" and values["cloudProviderName"] == "harvester":
        detail = "with cloudProviderName harvester RKE2 installs its own charts: remove the field"
    elif installer == "Fleet" and distribution == "k3s":
        detail = "charts in K3s are installed by its Helm controller: remove the field"

    if detail:
        yield Finding(("charts", "installedBy"), Fault.UNSUPPORTED, detail, value=installer)


@RULES.rule("storage-class-name-unique", ("Cluster",), "Names of storage classes must be unique.")
def _check_class_names(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    names: set[str] = set()
    for index, storage_class in enumerate(_storage_classes(values)):
        name = storage_class["name"]
        if name in names:
            path: FieldPath = ("csi", "storageClasses", index, "name")
            detail = "names of storage classes must be unique"
            yield Finding(path, Fault.DUPLICATE, detail, value=name)
        names.add(name)


@RULES.rule("storage-class-default", ("Cluster",), "At most one storage class must be the default.")
def _check_default_class(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    classes = enumerate(_storage_classes(values))
    defaults = [index for index, storage_class in classes if storage_class.get("default")]
    for index in defaults[1:]:
        path: FieldPath = ("csi", "storageClasses", index, "default")
        detail = "only one storage class can be the default: remove it from the others"
        yield Finding(path, Fault.INVALID, detail, value=True)


@RULES.rule(secretscan.RULE, ("Cluster",), secretscan.DESCRIPTION)
def _check_secrets(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    for name in ("cni", "ccm", "csi"):
        yield from secretscan.check(values.get(name, {}).get("values"), (name, "values"))


def _storage_classes(values: Obj) -> Sequence[Any]:
    return values.get("csi", {}).get("storageClasses") or ()
