"""Rules about the settings of a cluster that a schema cannot express: fields together, and with the cluster itself."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.addons import fleetrules
from packager.addons.gather import CAAPF, DELIVERED_SECRET, ClusterFacts, Gathered
from packager.addons.merge import at, origin
from packager.rendering import secretscan

RULES = Rules()
"""Their checks take the facts of a cluster and its settings; paths are those of the settings."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_ENCAPSULATIONS = {
    "calico": ("VXLANCrossSubnet", "VXLAN", "IPIP", "IPIPCrossSubnet", "None"),
    "canal": ("VXLAN", "WireGuard", "None"),
    "cilium": ("VXLAN", "Geneve", "None"),
}
"""What each CNI can do; the first is the default."""
_WITHOUT_BUNDLE = {
    "k3s": "for its own flannel",
    "kubeadm": "and install a CNI yourself",
    "talos": "for what its machine configuration installs",
}
"""What a cluster of a distribution has where no bundle installs a CNI."""
_WITH_HELM_CONTROLLER = ("rke2", "k3s")
"""Distributions in which HelmChart manifests install charts."""
_CSI_KEY = "cloud-provider-config"
"""Key of the Secret, or name of the file, that the CSI driver reads."""
_CIDRS = {"podCIDRs": "pods", "serviceCIDRs": "services"}
"""Setting of the CNI → field of the Cluster's `spec.clusterNetwork`."""
_POLICY_SINCE = (1, 36)
"""First Kubernetes with MutatingAdmissionPolicy in `admissionregistration.k8s.io/v1`."""


def encapsulation(cni: Obj) -> str:
    """Return the encapsulation of CNI settings, the CNI's default where none is set; empty without a CNI."""
    if cni["name"] == "none":
        return ""
    return str(cni.get("encapsulation") or _ENCAPSULATIONS[cni["name"]][0])


def check(facts: ClusterFacts, gathered: Gathered) -> list[Finding]:
    """Return what is wrong with settings that are valid field by field."""
    return [
        replace(found, path=origin(gathered.origins, found.path))
        for rule in (*RULES, *fleetrules.RULES)
        for found in rule.findings(facts, gathered.values)
    ]


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor of a version such as `v1.36.2+rke2r1`, None for none."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})", version)
    return (int(match[1]), int(match[2])) if match else None


@RULES.rule("cni-encapsulation", ("Cluster",), "The encapsulation must be one that the CNI supports.")
def _encapsulation(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    cni = values["cni"]
    name = cni["name"]
    if name != "none" and encapsulation(cni) not in _ENCAPSULATIONS[name]:
        detail = f"{name} supports {', '.join(_ENCAPSULATIONS[name])}: choose one of them, or another CNI"
        yield Finding(("cni", "encapsulation"), Fault.UNSUPPORTED, detail, value=cni["encapsulation"])


@RULES.rule(
    "cni-kube-proxy",
    ("Cluster",),
    "`kubeProxyReplacement` must be left out for a CNI that cannot replace kube-proxy.",
)
def _kube_proxy(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    distribution, cni = values["distribution"], values["cni"]
    path: FieldPath = ("cni", "kubeProxyReplacement")
    if cni["name"] == "none" or not cni.get("kubeProxyReplacement"):
        return
    if cni["name"] == "canal":
        detail = "canal cannot replace kube-proxy: choose calico or cilium, or remove the field"
        yield Finding(path, Fault.UNSUPPORTED, detail, value=True)
    if distribution not in _WITH_HELM_CONTROLLER:
        detail = (
            f"{distribution} starts kube-proxy itself, and without it nodes have no address of the API server: remove "
            "the field, or turn kube-proxy off there and set the chart's own fields in cni.values"
        )
        yield Finding(path, Fault.UNSUPPORTED, detail, value=True)


@RULES.rule(
    "cni-bgp",
    ("Cluster",),
    "BGP must be enabled where the encapsulation needs it, and only with a CNI that supports it.",
)
def _bgp(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    cni = values["cni"]
    enabled = cni.get("bgp") == "Enabled"
    if enabled and cni["name"] == "canal":
        detail = "canal does not support BGP: choose calico or cilium, or remove the field"
        yield Finding(("cni", "bgp"), Fault.UNSUPPORTED, detail, value="Enabled")
    if cni["name"] == "calico" and not enabled and encapsulation(cni) in ("IPIP", "IPIPCrossSubnet", "None"):
        detail = "Calico needs BGP for this encapsulation: set cni.bgp to Enabled, or use VXLAN or VXLANCrossSubnet"
        yield Finding(("cni", "encapsulation"), Fault.INVALID, detail, value=cni["encapsulation"])


@RULES.rule("cidr", ("Cluster",), "Networks must be IP networks, at most one per family.")
def _networks(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    cni, ccm = values["cni"], values.get("ccm", {})
    texts: list[tuple[FieldPath, str]] = [
        (("cni", name, index), text) for name in _CIDRS for index, text in enumerate(cni[name])
    ]
    texts += [(("ccm", "nodeIPCIDR"), ccm["nodeIPCIDR"])] if "nodeIPCIDR" in ccm else []
    texts += [(("ccm", "nodeExcludeIPRanges", i), text) for i, text in enumerate(ccm.get("nodeExcludeIPRanges", ()))]
    for path, text in texts:
        network, fault = _network(text)
        if not network:
            yield Finding(path, Fault.INVALID, fault, value=text)
    for name, networks in _known(values).items():
        if len({network.version for network in networks}) < len(networks):
            yield Finding(("cni", name), Fault.INVALID, "must have at most one network per IP family", value=cni[name])


@RULES.rule("cidr-overlap", ("Cluster",), "Networks of Pods and Services must not overlap.")
def _overlap(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    known = _known(values)
    for pods in known["podCIDRs"]:
        if any(pods.version == services.version and pods.overlaps(services) for services in known["serviceCIDRs"]):
            detail = "overlaps with the networks of the Services: choose separate networks"
            yield Finding(("cni", "podCIDRs"), Fault.INVALID, detail, value=str(pods))


@RULES.rule("cidr-of-cluster", ("Cluster",), "Networks of the CNI must be within `spec.clusterNetwork` of the Cluster.")
def _outside(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """The API server and the controllers use the networks of the Cluster."""
    known = _known(values)
    for name, kind in _CIDRS.items():
        listed = at(facts.cluster, "spec", "clusterNetwork", kind, "cidrBlocks")
        blocks = [_network(str(text))[0] for text in (listed if isinstance(listed, list) else ())]
        around = [block for block in blocks if block]
        for network in known[name]:
            if around and not any(_within(network, block) for block in around):
                detail = f"is not within spec.clusterNetwork.{kind} of the Cluster: change one of them"
                yield Finding(("cni", name), Fault.INVALID, detail, value=str(network))


@RULES.rule("cni-distribution", ("Cluster",), "The CNI must be one that can be installed on the distribution.")
def _cni_of_distribution(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    distribution = values["distribution"]
    if distribution != "rke2" and values["cni"]["name"] == "canal":
        detail = f'only RKE2 brings canal: choose calico or cilium, or "none" {_WITHOUT_BUNDLE[distribution]}'
        yield Finding(("cni", "name"), Fault.UNSUPPORTED, detail, value="canal")


@RULES.rule(
    "cni-pod-network",
    ("Cluster",),
    "Cilium on kubeadm and Talos must have `spec.clusterNetwork.pods`, of which Kubernetes gives each node a network.",
)
def _pod_network(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """With `ipam.mode: kubernetes` Cilium waits for `spec.podCIDR` of each Node. RKE2 and K3s have a default."""
    cni = values["cni"]
    mode = at(cni, "values", "ipam", "mode") or "kubernetes"
    if values["distribution"] in _WITH_HELM_CONTROLLER or cni["name"] != "cilium" or mode != "kubernetes":
        return
    if not at(facts.cluster, "spec", "clusterNetwork", "pods", "cidrBlocks"):
        detail = (
            "needs spec.clusterNetwork.pods.cidrBlocks of the Cluster: without it no Node gets a network for its "
            "Pods, and Cilium never starts"
        )
        yield Finding(("cni", "name"), Fault.REQUIRED, detail)


@RULES.rule("cloud-provider-distribution", ("Cluster",), "`cloudProviderName: harvester` must be used with RKE2 only.")
def _provider_of_distribution(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    if values["distribution"] != "rke2" and values["cloudProviderName"] == "harvester":
        detail = f'only RKE2 brings a Harvester cloud provider, {values["distribution"]} does not: use "external"'
        yield Finding(("cloudProviderName",), Fault.UNSUPPORTED, detail, value="harvester")


@RULES.rule("cloud-config-distribution", ("Cluster",), "The cloud config must not be delivered as a file to Talos.")
def _file_of_distribution(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    if values["distribution"] == "talos" and "hostPath" in values["cloudConfig"]:
        detail = "Talos writes no files of cloud-config: set cloudConfig.delivery of the HarvesterCluster to Secret"
        path: FieldPath = ("cloudConfig", "hostPath")
        yield Finding(path, Fault.UNSUPPORTED, detail, value=values["cloudConfig"]["hostPath"])


@RULES.rule(
    "cni-fleet-agent",
    ("Cluster",),
    "A CNI that Fleet installs must come with an agent that needs no CNI itself: CAAPF's, on the host's network.",
)
def _installed_by_fleet(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Without a Helm controller in the cluster Fleet installs the CNI, with an agent that needs none itself."""
    distribution, cni = values["distribution"], values["cni"]
    if distribution in _WITH_HELM_CONTROLLER or cni["name"] == "none":
        return
    if values["fleet"]["importedBy"] != CAAPF:
        detail = (
            f"{distribution} has no network until Fleet installs one, and Rancher's agents need one: have CAAPF "
            "import the cluster (fleet.importedBy: caapf, and no label for Rancher's import), or use "
            f'"none" {_WITHOUT_BUNDLE[distribution]}'
        )
        yield Finding(("cni", "name"), Fault.FORBIDDEN, detail, value=cni["name"])


@RULES.rule(
    "cni-workers", ("Cluster",), "A CNI that Fleet installs must have a worker to be installed from.", advice=True
)
def _installed_from_a_worker(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Fleet's agent does not tolerate the taint of control plane nodes."""
    topology = at(facts.cluster, "spec", "topology")
    by_fleet = values["distribution"] not in _WITH_HELM_CONTROLLER and values["cni"]["name"] != "none"
    if not by_fleet or not at(topology, "controlPlane", "replicas"):
        return
    if not any(pool.get("replicas", 1) for pool in at(topology, "workers", "machineDeployments") or ()):
        detail = (
            "Fleet's agent installs the CNI and runs on workers only, so that this cluster gets no network: add a "
            "worker, or have control plane nodes without taint (nodeRegistration.taints: [])"
        )
        yield Finding(("cni", "name"), Fault.UNSUPPORTED, detail, value=values["cni"]["name"])


@RULES.rule("cni-installed", ("Cluster",), "The CNI must be the one that the control plane installs.")
def _installed(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """RKE2 installs the CNI of its control plane's configuration; bundles can only configure that one."""
    installed, wanted = at(facts.control_plane, "spec", "serverConfig", "cni"), values["cni"]["name"]
    if values["distribution"] == "rke2" and installed and wanted not in (installed, "none"):
        detail = f"the control plane's spec.serverConfig.cni installs {installed}: change one of them"
        yield Finding(("cni", "name"), Fault.INVALID, detail, value=wanted)


@RULES.rule(
    "cloud-provider-installed",
    ("Cluster",),
    "A cluster must have only one Harvester cloud provider: RKE2's own, or that of the bundles.",
)
def _two_providers(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    provider = at(facts.control_plane, "spec", "serverConfig", "cloudProviderName")
    if provider == "harvester" and values["cloudProviderName"] == "external":
        detail = (
            "the control plane's spec.serverConfig.cloudProviderName installs RKE2's own, and there must not be two: "
            "change one of them"
        )
        yield Finding(("cloudProviderName",), Fault.INVALID, detail, value="external")


@RULES.rule(
    "addons-without-effect",
    ("Cluster",),
    "Version and `enabled` must be left out for charts that RKE2 installs itself: they have no effect.",
    advice=True,
)
def _without_effect(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    if values["distribution"] != "rke2":
        return
    bundled = values["cloudProviderName"] == "harvester"
    for name in ("cni", "ccm", "csi") if bundled else ("cni",):
        if version := values.get(name, {}).get("version"):
            detail = "has no effect: RKE2 installs its own chart, whose version depends on that of Kubernetes"
            yield Finding((name, "version"), Fault.UNSUPPORTED, detail, value=version)
        if name != "cni" and values.get(name, {}).get("enabled") is False:
            detail = "has no effect, since RKE2 installs its own: to have none, set cloudProviderName to external"
            yield Finding((name, "enabled"), Fault.UNSUPPORTED, detail, value=False)


@RULES.rule(
    "load-balancer-ipam",
    ("Cluster",),
    "A default for load balancers must be set with Kubernetes 1.36 or later only.",
)
def _default_ipam(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    ipam = values.get("ccm", {}).get("loadBalancer", {}).get("ipam")
    version = minor_version(facts.kubernetes_version)
    if ipam and version and version < _POLICY_SINCE:
        detail = (
            "needs Kubernetes 1.36, which can set it on each Service; "
            f"in {facts.kubernetes_version} set annotation cloudprovider.harvesterhci.io/ipam on the Services"
        )
        yield Finding(("ccm", "loadBalancer", "ipam"), Fault.FORBIDDEN, detail)


@RULES.rule("load-balancer-kube-vip", ("Cluster",), "kube-vip must be enabled for load balancers with DHCP.")
def _kube_vip(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    load_balancer = values.get("ccm", {}).get("loadBalancer", {})
    if load_balancer.get("ipam") == "dhcp" and load_balancer.get("kubeVip") is False:
        detail = "DHCP needs kube-vip: set ccm.loadBalancer.kubeVip, or use pool"
        yield Finding(("ccm", "loadBalancer", "ipam"), Fault.INVALID, detail, value="dhcp")


@RULES.rule(
    "csi-secret-key",
    ("Cluster",),
    "The Secret with the kubeconfig must have key `cloud-provider-config`: the CSI driver reads no other.",
    advice=True,
)
def _csi_key(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Chart harvester-csi-driver can choose the Secret, but mounts the whole of it and opens a file of this name."""
    cloud, key = values["cloudConfig"], values["cloudConfig"].get("secretKey", "")
    by_manifest = at(facts.harvester_cluster, "spec", "updateCloudProviderConfig")
    delivered = not by_manifest and (cloud.get("secretName"), key) == DELIVERED_SECRET
    has_driver = values["cloudProviderName"] != "harvester" and values.get("csi", {}).get("enabled", True)
    if has_driver and key not in ("", _CSI_KEY) and not delivered:
        detail = (
            f"the CSI driver reads key {_CSI_KEY} of Secret {cloud.get('secretName')} whatever this says: give the "
            "Secret that key as well, with the same kubeconfig, or disable the driver with csi.enabled: false"
        )
        yield Finding(("cloudConfig", "secretKey"), Fault.INVALID, detail, value=key)


@RULES.rule(
    "values-from-config-map",
    ("Cluster",),
    "Values must come from a ConfigMap only where Fleet installs the chart: Helm controllers read Secrets.",
)
def _values_from(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    distribution = values["distribution"]
    bundled = distribution == "k3s" or values["cloudProviderName"] == "harvester"
    bundled = bundled or values.get("charts", {}).get("installedBy") == "HelmController"
    by_controller = {"cni": distribution in _WITH_HELM_CONTROLLER, "ccm": bundled, "csi": bundled}
    for name in (name for name, is_so in by_controller.items() if is_so):
        for index, row in enumerate(values.get(name, {}).get("valuesFrom", ())):
            if "configMapKeyRef" in row:
                path: FieldPath = (name, "valuesFrom", index, "configMapKeyRef")
                detail = f"the Helm controller of {distribution} reads Secrets only: use secretKeyRef"
                yield Finding(path, Fault.UNSUPPORTED, detail, value=row["configMapKeyRef"].get("name"))


@RULES.rule(
    "charts-installed-by",
    ("Cluster",),
    "Charts must be installed by one that the distribution has: Fleet, or a Helm controller.",
)
def _installer(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    installer, distribution = values.get("charts", {}).get("installedBy"), values["distribution"]
    path: FieldPath = ("charts", "installedBy")
    detail = ""
    if installer == "HelmController" and distribution not in _WITH_HELM_CONTROLLER:
        detail = f"{distribution} has no Helm controller: use Fleet, or remove the field"
    elif installer == "HelmController" and values["cloudProviderName"] == "harvester":
        detail = "with cloudProviderName harvester RKE2 installs its own charts: remove the field"
    elif installer == "Fleet" and distribution == "k3s":
        detail = "charts in K3s are installed by its Helm controller: remove the field"
    if detail:
        yield Finding(path, Fault.UNSUPPORTED, detail, value=installer)


@RULES.rule("storage-class-name-unique", ("Cluster",), "Names of storage classes must be unique.")
def _class_names(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, found in enumerate(_storage_classes(values)):
        if found["name"] in seen:
            path: FieldPath = ("csi", "storageClasses", index, "name")
            yield Finding(path, Fault.DUPLICATE, "names of storage classes must be unique", value=found["name"])
        seen.add(found["name"])


@RULES.rule("storage-class-default", ("Cluster",), "At most one storage class must be the default.")
def _default_class(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    defaults = [index for index, found in enumerate(_storage_classes(values)) if found.get("default")]
    for index in defaults[1:]:
        path: FieldPath = ("csi", "storageClasses", index, "default")
        detail = "only one storage class can be the default: remove it from the others"
        yield Finding(path, Fault.INVALID, detail, value=True)


@RULES.rule(secretscan.RULE, ("Cluster",), secretscan.DESCRIPTION)
def _secrets(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    for name in ("cni", "ccm", "csi"):
        yield from secretscan.check(values.get(name, {}).get("values"), (name, "values"))


def _storage_classes(values: Obj) -> Sequence[Any]:
    return values.get("csi", {}).get("storageClasses") or ()


def _known(values: Obj) -> Mapping[str, list[_Network]]:
    """The networks of the CNI that are networks."""
    return {name: [network for text in values["cni"][name] if (network := _network(text)[0])] for name in _CIDRS}


@lru_cache(maxsize=4096)
def _network(text: str) -> tuple[_Network | None, str]:
    try:
        return ipaddress.ip_network(text), ""
    except ValueError:
        return None, "must be an IP network with no bits set behind its prefix, for example 10.42.0.0/16"


def _within(network: _Network, block: _Network) -> bool:
    return network.version == block.version and network.subnet_of(block)  # type: ignore[arg-type]
