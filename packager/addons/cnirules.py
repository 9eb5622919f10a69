"""Rules about the CNI of a cluster and its networks."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from functools import lru_cache

from caphv.api.object import Obj, at, list_at
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.addons.facts import CAAPF, WITH_HELM_CONTROLLER, ClusterFacts

RULES = Rules()
"""Their checks take the facts of a cluster and its settings, and report paths in the settings."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Encapsulations of each CNI, the default first.
_ENCAPSULATIONS = {
    "calico": ("VXLANCrossSubnet", "VXLAN", "IPIP", "IPIPCrossSubnet", "None"),
    "canal": ("VXLAN", "WireGuard", "None"),
    "cilium": ("VXLAN", "Geneve", "None"),
}
# End of a remedy that describes the effect of `none` on a distribution.
_WITHOUT_BUNDLE = {
    "k3s": "for its own flannel",
    "kubeadm": "and install a CNI yourself",
    "talos": "for what its machine configuration installs",
}
# Setting of the CNI → field of the Cluster's `spec.clusterNetwork`.
_CIDRS = {"podCIDRs": "pods", "serviceCIDRs": "services"}


def encapsulation(cni: Obj) -> str:
    """Return the encapsulation of CNI settings, or the CNI's default; empty without a CNI."""
    if cni["name"] == "none":
        return ""
    return str(cni.get("encapsulation") or _ENCAPSULATIONS[cni["name"]][0])


@RULES.rule(
    "cni-encapsulation", ("Cluster",), "The encapsulation must be one that the CNI supports."
)
def _check_encapsulation(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    cni = values["cni"]
    name = cni["name"]
    if name == "none" or encapsulation(cni) in _ENCAPSULATIONS[name]:
        return
    detail = (
        f"{name} supports {', '.join(_ENCAPSULATIONS[name])}: choose one of them, or another CNI"
    )
    path: FieldPath = ("cni", "encapsulation")
    yield Finding(path, Fault.UNSUPPORTED, detail, value=cni["encapsulation"])


@RULES.rule(
    "cni-kube-proxy",
    ("Cluster",),
    "`kubeProxyReplacement` must be left out for a CNI that cannot replace kube-proxy.",
)
def _check_kube_proxy(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    distribution = values["distribution"]
    cni = values["cni"]
    path: FieldPath = ("cni", "kubeProxyReplacement")
    if cni["name"] == "none" or not cni.get("kubeProxyReplacement"):
        return

    if cni["name"] == "canal":
        detail = "canal cannot replace kube-proxy: choose calico or cilium, or remove the field"
        yield Finding(path, Fault.UNSUPPORTED, detail, value=True)
    if distribution not in WITH_HELM_CONTROLLER:
        detail = (
            f"{distribution} starts kube-proxy itself, and without it nodes have no address of the "
            "API server: remove the field, or turn kube-proxy off there and set the chart's own "
            "fields in cni.values"
        )
        yield Finding(path, Fault.UNSUPPORTED, detail, value=True)


@RULES.rule(
    "cni-bgp",
    ("Cluster",),
    "BGP must be enabled where the encapsulation needs it, and only with a CNI that supports it.",
)
def _check_bgp(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    cni = values["cni"]
    is_enabled = cni.get("bgp") == "Enabled"
    if is_enabled and cni["name"] == "canal":
        detail = "canal does not support BGP: choose calico or cilium, or remove the field"
        yield Finding(("cni", "bgp"), Fault.UNSUPPORTED, detail, value="Enabled")

    needs_bgp = encapsulation(cni) in ("IPIP", "IPIPCrossSubnet", "None")
    if cni["name"] == "calico" and needs_bgp and not is_enabled:
        detail = (
            "Calico needs BGP for this encapsulation: set cni.bgp to Enabled, or use VXLAN or "
            "VXLANCrossSubnet"
        )
        path: FieldPath = ("cni", "encapsulation")
        yield Finding(path, Fault.INVALID, detail, value=cni["encapsulation"])


@RULES.rule("cidr", ("Cluster",), "Networks must be IP networks, at most one per family.")
def _check_networks(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    cni = values["cni"]
    ccm = values.get("ccm", {})
    texts: dict[FieldPath, str] = {}
    for name in _CIDRS:
        texts |= {("cni", name, index): text for index, text in enumerate(cni[name])}
    if "nodeIPCIDR" in ccm:
        texts["ccm", "nodeIPCIDR"] = ccm["nodeIPCIDR"]
    for index, text in enumerate(ccm.get("nodeExcludeIPRanges", ())):
        texts["ccm", "nodeExcludeIPRanges", index] = text

    for path, text in texts.items():
        if not _network(text):
            detail = (
                "must be an IP network with no bits set behind its prefix, for example 10.42.0.0/16"
            )
            yield Finding(path, Fault.INVALID, detail, value=text)

    for name, networks in _cni_networks(values).items():
        if len({network.version for network in networks}) < len(networks):
            detail = "must have at most one network per IP family"
            yield Finding(("cni", name), Fault.INVALID, detail, value=cni[name])


@RULES.rule("cidr-overlap", ("Cluster",), "Networks of Pods and Services must not overlap.")
def _check_overlap(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    networks = _cni_networks(values)
    for pods in networks["podCIDRs"]:
        if any(
            pods.version == services.version and pods.overlaps(services)
            for services in networks["serviceCIDRs"]
        ):
            detail = "overlaps with the networks of the Services: choose separate networks"
            yield Finding(("cni", "podCIDRs"), Fault.INVALID, detail, value=str(pods))


@RULES.rule(
    "cidr-of-cluster",
    ("Cluster",),
    "Networks of the CNI must be within `spec.clusterNetwork` of the Cluster.",
)
def _check_within_cluster(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Yield networks outside of `spec.clusterNetwork`, which API server and controllers use."""
    networks = _cni_networks(values)
    for name, kind in _CIDRS.items():
        texts = at(facts.cluster, "spec", "clusterNetwork", kind, "cidrBlocks")
        blocks = [_network(str(text)) for text in (texts if isinstance(texts, list) else ())]
        # Rule `cidr` and the API server report blocks that cannot be parsed.
        valid_blocks = [block for block in blocks if block]
        if not valid_blocks:
            continue
        for network in networks[name]:
            if any(_is_within(network, block) for block in valid_blocks):
                continue
            detail = f"is not within spec.clusterNetwork.{kind} of the Cluster: change one of them"
            yield Finding(("cni", name), Fault.INVALID, detail, value=str(network))


@RULES.rule(
    "cni-distribution",
    ("Cluster",),
    "The CNI must be one that can be installed on the distribution.",
)
def _check_cni_of_distribution(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    distribution = values["distribution"]
    if distribution != "rke2" and values["cni"]["name"] == "canal":
        detail = (
            'only RKE2 brings canal: choose calico or cilium, or "none"'
            f" {_WITHOUT_BUNDLE[distribution]}"
        )
        yield Finding(("cni", "name"), Fault.UNSUPPORTED, detail, value="canal")


@RULES.rule(
    "cni-pod-network",
    ("Cluster",),
    "Cilium on kubeadm and Talos must have `spec.clusterNetwork.pods`, of which Kubernetes gives "
    "each node a network.",
)
def _check_pod_network(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Yield a finding if Cilium with `ipam.mode: kubernetes` would wait for its network.

    Kubernetes sets it as `spec.podCIDR` of each Node. RKE2 and K3s have a default.
    """
    cni = values["cni"]
    if values["distribution"] in WITH_HELM_CONTROLLER or cni["name"] != "cilium":
        return
    mode = at(cni, "values", "ipam", "mode") or "kubernetes"
    if mode != "kubernetes":
        return
    if not at(facts.cluster, "spec", "clusterNetwork", "pods", "cidrBlocks"):
        detail = (
            "needs spec.clusterNetwork.pods.cidrBlocks of the Cluster: without it no Node gets a "
            "network for its Pods, and Cilium never starts"
        )
        yield Finding(("cni", "name"), Fault.REQUIRED, detail)


@RULES.rule(
    "cni-fleet-agent",
    ("Cluster",),
    "A CNI that Fleet installs must come with an agent that needs no CNI itself: CAAPF's, on the "
    "host's network.",
)
def _check_fleet_agent(_: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Yield a finding if Fleet cannot install the CNI of a cluster without a Helm controller.

    Fleet's agent must be able to run without a CNI.
    """
    distribution = values["distribution"]
    cni = values["cni"]
    if distribution in WITH_HELM_CONTROLLER or cni["name"] == "none":
        return
    if values["fleet"]["importedBy"] != CAAPF:
        detail = (
            f"{distribution} has no network until Fleet installs one, and Rancher's agents need "
            "one: have CAAPF import the cluster (fleet.importedBy: caapf, and no label for "
            f'Rancher\'s import), or use "none" {_WITHOUT_BUNDLE[distribution]}'
        )
        yield Finding(("cni", "name"), Fault.FORBIDDEN, detail, value=cni["name"])


@RULES.rule(
    "cni-workers",
    ("Cluster",),
    "A CNI that Fleet installs must have a worker to be installed from.",
    advice=True,
)
def _check_workers(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Yield advice to add workers: Fleet's agent does not tolerate the taint of control planes."""
    distribution = values["distribution"]
    cni = values["cni"]["name"]
    if distribution in WITH_HELM_CONTROLLER or cni == "none":
        return
    # Without a topology the number of workers is unknown, because MachineDeployments are not among
    # the facts.
    topology = at(facts.cluster, "spec", "topology")
    if not at(topology, "controlPlane", "replicas"):
        return

    # A pool without a number has one machine.
    pools = list_at(topology, "workers", "machineDeployments")
    if all(isinstance(pool, dict) and not pool.get("replicas", 1) for pool in pools):
        detail = (
            "Fleet's agent installs the CNI and runs on workers only, so that this cluster gets no "
            "network: add a worker, or have control plane nodes without taint "
            "(nodeRegistration.taints: [])"
        )
        yield Finding(("cni", "name"), Fault.UNSUPPORTED, detail, value=cni)


@RULES.rule(
    "cni-installed", ("Cluster",), "The CNI must be the one that the control plane installs."
)
def _check_installed_cni(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    """Yield a finding if bundles configure another CNI than RKE2's control plane installs."""
    installed = at(facts.control_plane, "spec", "serverConfig", "cni")
    name = values["cni"]["name"]
    if values["distribution"] == "rke2" and installed and name not in (installed, "none"):
        detail = (
            f"the control plane's spec.serverConfig.cni installs {installed}: change one of them"
        )
        yield Finding(("cni", "name"), Fault.INVALID, detail, value=name)


def _cni_networks(values: Obj) -> Mapping[str, list[_Network]]:
    """Return the valid networks of the CNI by setting."""
    return {
        name: [network for text in values["cni"][name] if (network := _network(text))]
        for name in _CIDRS
    }


@lru_cache(maxsize=4096)
def _network(text: str) -> _Network | None:
    """Return the network of a CIDR, None for an invalid one or one with host bits."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _is_within(network: _Network, block: _Network) -> bool:
    return network.version == block.version and network.subnet_of(block)  # type: ignore[arg-type]
