"""What a schema cannot say about the settings of a cluster: how fields go together, and with the cluster itself."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from caphv.api import names
from caphv.validation.finding import Fault, FieldPath, Finding
from packager.addons.gather import CAAPF, ClusterFacts, Gathered, labels_of_cluster
from packager.addons.merge import Obj, at, origin
from packager.rendering import secretscan

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
        Finding(origin(gathered.origins, found.path), found.fault, found.detail, found.rule, found.value, found.advice)
        for rule in (
            _cni,
            _bgp,
            _networks,
            _distribution,
            _installed_by_fleet,
            _installed,
            _brought,
            _cloud_provider,
            _storage_classes,
            _fleet,
            _secrets,
        )
        for found in rule(facts, gathered.values)
    ]


def minor_version(version: str) -> tuple[int, int] | None:
    """Return major and minor of a version such as `v1.34.2+rke2r1`, None for none."""
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})", version)
    return (int(match[1]), int(match[2])) if match else None


# The rules; paths are those of the settings


def _cni(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    cni = values["cni"]
    name = cni["name"]
    if name == "none":
        return
    if encapsulation(cni) not in _ENCAPSULATIONS[name]:
        detail = f"{name} knows {', '.join(_ENCAPSULATIONS[name])}: take one of them or another CNI"
        yield Finding(("cni", "encapsulation"), Fault.UNSUPPORTED, detail, "cni-encapsulation", cni["encapsulation"])
    if name == "canal" and cni.get("kubeProxyReplacement"):
        detail = "canal cannot replace kube-proxy: take calico or cilium, or leave it out"
        yield Finding(("cni", "kubeProxyReplacement"), Fault.UNSUPPORTED, detail, "cni-kube-proxy", value=True)


def _bgp(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    cni = values["cni"]
    enabled = cni.get("bgp") == "Enabled"
    if enabled and cni["name"] == "canal":
        detail = "canal speaks no BGP: take calico or cilium, or leave it out"
        yield Finding(("cni", "bgp"), Fault.UNSUPPORTED, detail, "cni-bgp", "Enabled")
    if cni["name"] == "calico" and not enabled and encapsulation(cni) in ("IPIP", "IPIPCrossSubnet", "None"):
        detail = "Calico needs BGP for it: set cni.bgp to Enabled, or take VXLAN or VXLANCrossSubnet"
        yield Finding(("cni", "encapsulation"), Fault.INVALID, detail, "cni-bgp", cni["encapsulation"])


def _networks(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    cni, ccm = values["cni"], values.get("ccm", {})
    known: dict[str, list[_Network]] = {}
    for name in ("podCIDRs", "serviceCIDRs"):
        known[name] = []
        for index, text in enumerate(cni[name]):
            network, fault = _network(text)
            if network:
                known[name].append(network)
            else:
                yield Finding(("cni", name, index), Fault.INVALID, fault, "cidr", text)
        if len({network.version for network in known[name]}) < len(known[name]):
            detail = "two networks must be of two IP families"
            yield Finding(("cni", name), Fault.INVALID, detail, "cidr", cni[name])
    for pods in known["podCIDRs"]:
        if any(pods.version == services.version and pods.overlaps(services) for services in known["serviceCIDRs"]):
            detail = "overlaps with the networks of the Services: choose networks apart"
            yield Finding(("cni", "podCIDRs"), Fault.INVALID, detail, "cidr-overlap", str(pods))
    yield from _outside(facts, known)
    texts: list[tuple[FieldPath, str]] = [(("ccm", "nodeIPCIDR"), ccm["nodeIPCIDR"])] if "nodeIPCIDR" in ccm else []
    texts += [(("ccm", "nodeExcludeIPRanges", i), text) for i, text in enumerate(ccm.get("nodeExcludeIPRanges", ()))]
    for path, text in texts:
        network, fault = _network(text)
        if not network:
            yield Finding(path, Fault.INVALID, fault, "cidr", text)


def _outside(facts: ClusterFacts, known: dict[str, list[_Network]]) -> Iterator[Finding]:
    """Networks that are not part of what the Cluster says, which the API server and controllers go by."""
    for name, kind in (("podCIDRs", "pods"), ("serviceCIDRs", "services")):
        said = at(facts.cluster, "spec", "clusterNetwork", kind, "cidrBlocks")
        blocks = [_network(str(text))[0] for text in (said if isinstance(said, list) else ())]
        around = [block for block in blocks if block]
        for network in known[name]:
            if around and not any(_within(network, block) for block in around):
                detail = f"is not within spec.clusterNetwork.{kind} of the Cluster: change one of them"
                yield Finding(("cni", name), Fault.INVALID, detail, "cidr-of-cluster", str(network))


def _distribution(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    distribution, cni = values["distribution"], values["cni"]
    if distribution == "rke2":
        return
    if cni["name"] == "canal":
        detail = f'only RKE2 brings canal: take calico or cilium, or "none" {_WITHOUT_BUNDLE[distribution]}'
        yield Finding(("cni", "name"), Fault.UNSUPPORTED, detail, "cni-distribution", "canal")
    if values["cloudProviderName"] == "harvester":
        detail = f'only RKE2 brings a Harvester cloud provider, {distribution} has none: take "external"'
        yield Finding(("cloudProviderName",), Fault.UNSUPPORTED, detail, "cloud-provider-distribution", "harvester")
    if distribution == "talos" and "hostPath" in values["cloudConfig"]:
        detail = "Talos takes no files of cloud-config: set cloudConfig.delivery of the HarvesterCluster to Secret"
        path: FieldPath = ("cloudConfig", "hostPath")
        yield Finding(path, Fault.UNSUPPORTED, detail, "cloud-config-distribution", values["cloudConfig"]["hostPath"])


def _installed_by_fleet(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Without a Helm controller in the cluster Fleet installs the CNI, with an agent that needs none itself."""
    distribution, cni = values["distribution"], values["cni"]
    if distribution in ("rke2", "k3s") or cni["name"] == "none":
        return
    if values["fleet"]["importedBy"] != CAAPF:
        detail = (
            f"{distribution} has no network before Fleet installs one, and Rancher's agents need one: have CAAPF "
            "import the cluster (fleet.importedBy: caapf, and no label for Rancher's import), or take "
            f'"none" {_WITHOUT_BUNDLE[distribution]}'
        )
        yield Finding(("cni", "name"), Fault.FORBIDDEN, detail, "cni-fleet-agent", cni["name"])
    if cni.get("kubeProxyReplacement"):
        detail = (
            f"{distribution} starts kube-proxy itself, and nodes have no address of the API server without it: leave "
            "it out, or turn kube-proxy off there and set the chart's own fields in cni.values"
        )
        path: FieldPath = ("cni", "kubeProxyReplacement")
        yield Finding(path, Fault.UNSUPPORTED, detail, "cni-kube-proxy", value=True)


def _installed(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """RKE2 installs the CNI of its control plane's configuration; bundles can only configure that one."""
    server = at(facts.control_plane, "spec", "serverConfig")
    installed, wanted = at(server, "cni"), values["cni"]["name"]
    if values["distribution"] == "rke2" and installed and wanted not in (installed, "none"):
        detail = f"the control plane's spec.serverConfig.cni installs {installed}: change one of them"
        yield Finding(("cni", "name"), Fault.INVALID, detail, "cni-installed", wanted)
    theirs = at(server, "cloudProviderName") == "harvester"
    if theirs and values["cloudProviderName"] == "external":
        detail = "the control plane's spec.serverConfig.cloudProviderName installs RKE2's own: there would be two"
        yield Finding(("cloudProviderName",), Fault.INVALID, detail, "cloud-provider-installed", "external")


def _brought(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Settings without an effect, because RKE2 installs charts of its own, in versions of its own."""
    if values["distribution"] != "rke2":
        return
    bundled = values["cloudProviderName"] == "harvester"
    for name in ("cni", "ccm", "csi") if bundled else ("cni",):
        if version := values.get(name, {}).get("version"):
            detail = "has no effect: RKE2 installs a chart of its own, whose version comes with that of Kubernetes"
            yield Finding((name, "version"), Fault.UNSUPPORTED, detail, "addons-without-effect", version, advice=True)
        if name != "cni" and values.get(name, {}).get("enabled") is False:
            detail = "RKE2 installs its own all the same: to have none, set cloudProviderName to external"
            yield Finding(
                (name, "enabled"), Fault.UNSUPPORTED, detail, "addons-without-effect", value=False, advice=True
            )


def _cloud_provider(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    ccm = values.get("ccm", {})
    load_balancer = ccm.get("loadBalancer", {})
    path: FieldPath = ("ccm", "loadBalancer", "ipam")
    ipam = load_balancer.get("ipam")
    version = minor_version(facts.kubernetes_version)
    if ipam and version and version < _POLICY_SINCE:
        detail = (
            "needs Kubernetes 1.36, which can set it for each Service; "
            f"in {facts.kubernetes_version} put annotation cloudprovider.harvesterhci.io/ipam on the Services"
        )
        yield Finding(path, Fault.FORBIDDEN, detail, "load-balancer-ipam")
    if ipam == "dhcp" and load_balancer.get("kubeVip") is False:
        detail = "DHCP needs kube-vip: set ccm.loadBalancer.kubeVip, or take pool"
        yield Finding(path, Fault.INVALID, detail, "load-balancer-kube-vip", ipam)


def _storage_classes(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    classes: Sequence[Any] = values.get("csi", {}).get("storageClasses", ())
    path: FieldPath = ("csi", "storageClasses")
    for index, found in enumerate(classes):
        if found["name"] in [earlier["name"] for earlier in classes[:index]]:
            detail = "two storage classes have this name: give each its own"
            yield Finding((*path, index, "name"), Fault.DUPLICATE, detail, "storage-class-name", found["name"])
    defaults = [index for index, found in enumerate(classes) if found.get("default")]
    for index in defaults[1:]:
        detail = "only one storage class can be the default: remove it from the others"
        yield Finding((*path, index, "default"), Fault.INVALID, detail, "storage-class-default", value=True)


def _fleet(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    path: FieldPath = ("fleet", "importedBy")
    remedy = "two Fleet agents in one cluster undo each other's work"
    imported = labels_of_cluster(facts).get(names.AUTO_IMPORT_LABEL) == "true"
    if imported and values["fleet"]["importedBy"] == CAAPF:
        detail = f"label {names.AUTO_IMPORT_LABEL} has Rancher import the cluster as well, and {remedy}: drop one"
        yield Finding(path, Fault.FORBIDDEN, detail, "fleet-twice")
    if len(facts.fleet_clusters) > 1:
        detail = f"Fleet has a Cluster of CAAPF and one of Rancher for it, and {remedy}: remove one of them"
        yield Finding(path, Fault.FORBIDDEN, detail, "fleet-twice")


def _secrets(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    for name in ("cni", "ccm", "csi"):
        yield from secretscan.check(values.get(name, {}).get("values"), (name, "values"))


@lru_cache(maxsize=4096)
def _network(text: str) -> tuple[_Network | None, str]:
    try:
        return ipaddress.ip_network(text), ""
    except ValueError:
        return None, "must be an IP network with no bits set behind its prefix, for example 10.42.0.0/16"


def _within(network: _Network, block: _Network) -> bool:
    return network.version == block.version and network.subnet_of(block)  # type: ignore[arg-type]
