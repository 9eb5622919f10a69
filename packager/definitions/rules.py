"""Rules about a ClusterDefinition that its schema cannot express: fields together, and what must not be in it."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable, Iterator
from typing import Any

from caphv.api import names
from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.rendering import secretscan
from packager.rendering.gitrepo import GitRepoOptions

ADDONS_LABEL = "caphv.io/addons"
DISTRIBUTIONS = ("rke2", "k3s", "kubeadm")
KINDS = ("ClusterDefinition",)
RULES = Rules()
"""Their checks take a definition that its schema accepts."""

_RESERVED_LABELS = {
    names.CNI_LABEL: "spec.addons.cni.name",
    names.CSI_LABEL: "spec.addons.csi.enabled",
    names.AUTO_IMPORT_LABEL: "spec.rancherAutoImport",
    ADDONS_LABEL: "spec.addonDelivery",
}
_RESERVED_ANNOTATIONS = {
    names.ADDON_VALUES_ANNOTATION: "spec.addons",
    names.OLD_CNI_MTU_ANNOTATION: "spec.addons.cni.mtu",
    names.OLD_CNI_ENCAPSULATION_ANNOTATION: "spec.addons.cni.encapsulation",
    names.OLD_CNI_BGP_ANNOTATION: "spec.addons.cni.bgp",
}


def check(obj: Obj) -> list[Finding]:
    """Return what is wrong with a definition that its schema accepts."""
    return [found for rule in RULES for found in rule.findings(obj)]


def check_what_can_be(obj: Any, reported: Iterable[Finding]) -> list[Finding]:
    """Return what else is wrong with a definition that its schema refuses: people want all errors in one round.

    Rules that need what is missing or malformed are left out, and so is what the schema has reported.
    """
    known = [finding.path for finding in reported]
    found: list[Finding] = []
    for rule in RULES:
        with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):
            found += rule.findings(obj)
    return [finding for finding in found if not any(_same_place(finding.path, path) for path in known)]


def _same_place(one: FieldPath, other: FieldPath) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


@RULES.rule(
    "definition-class",
    KINDS,
    "The ClusterClass must fit the distribution, and must not be set with `individualObjects`.",
)
def _class(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    path: FieldPath = ("spec", "clusterClass")
    name, distribution = spec.get("clusterClass"), spec.get("distribution", "rke2")
    if name and spec.get("individualObjects"):
        detail = "must not be set with individualObjects: remove one of them"
        yield Finding(path, Fault.FORBIDDEN, detail)
    others = {f"harvester-{other}" for other in DISTRIBUTIONS if other != distribution}
    if name in others:
        detail = f"does not create clusters of {distribution}: remove the field, and the right class is used"
        yield Finding(path, Fault.INVALID, detail, value=name)


@RULES.rule("definition-version", KINDS, "The suffix of the version must be one of the distribution.")
def _version(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    version, distribution = spec["kubernetesVersion"], spec.get("distribution", "rke2")
    suffix = version.partition("+")[2].rstrip("0123456789")
    wanted = {"rke2": "rke2r", "k3s": "k3s", "kubeadm": ""}[distribution]
    if suffix and suffix != wanted:
        detail = f"is not a version of {distribution}: remove the suffix after +, and it is filled in"
        yield Finding(("spec", "kubernetesVersion"), Fault.INVALID, detail, value=version)


@RULES.rule("definition-load-balancer", KINDS, "`ipPoolRef` must be set with `ipamType: pool`, and only with it.")
def _load_balancer(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    balancer = spec.get("loadBalancer", {})
    path: FieldPath = ("spec", "loadBalancer", "ipPoolRef")
    if balancer.get("ipamType") == "pool" and "ipPoolRef" not in balancer:
        detail = "must be set when ipamType is pool: name an IPPool on Harvester"
        yield Finding(path, Fault.REQUIRED, detail)
    if balancer.get("ipamType") == "dhcp" and "ipPoolRef" in balancer:
        detail = "has no effect with ipamType dhcp: remove it, or use ipamType pool"
        yield Finding(path, Fault.FORBIDDEN, detail)


@RULES.rule("definition-firmware", KINDS, "UEFI must be enabled for Secure Boot.")
def _firmware(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    firmware = spec["machines"].get("firmware", {})
    if firmware.get("secureBoot") and not firmware.get("efi"):
        path: FieldPath = ("spec", "machines", "firmware", "efi")
        yield Finding(path, Fault.REQUIRED, "must be true for secureBoot")


@RULES.rule(
    "definition-hardening",
    KINDS,
    "CIS profile and STIG must be set for RKE2 only, and a STIG must come with a CIS profile, Secure Boot and a TPM.",
)
def _hardening(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    hardening, distribution = spec.get("hardening", {}), spec.get("distribution", "rke2")
    path: FieldPath = ("spec", "hardening")
    for name in ("cisProfile", "stig"):
        if hardening.get(name) and distribution != "rke2":
            detail = f"is for RKE2 only, and not for {distribution}: remove it"
            yield Finding((*path, name), Fault.FORBIDDEN, detail, value=hardening[name])
    if not hardening.get("stig") or distribution != "rke2":
        return
    if not hardening.get("cisProfile"):
        yield Finding((*path, "cisProfile"), Fault.REQUIRED, "must be set with stig: use cis")
    machines = spec["machines"]
    if not machines.get("firmware", {}).get("secureBoot"):
        place: FieldPath = ("spec", "machines", "firmware", "secureBoot")
        yield Finding(place, Fault.REQUIRED, "must be true with stig: use an image with a signed boot loader")
    if not machines.get("tpm", {}).get("enabled"):
        yield Finding(("spec", "machines", "tpm", "enabled"), Fault.REQUIRED, "must be true with stig")


@RULES.rule(
    "definition-registries",
    KINDS,
    "Registries must be set for RKE2 and K3s only, and Secrets with access to them for RKE2 only.",
)
def _registries(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    registries, distribution = spec.get("registries"), spec.get("distribution", "rke2")
    path: FieldPath = ("spec", "registries")
    if registries and distribution == "kubeadm":
        detail = "is for RKE2 and K3s: configure containerd in the machine image, and remove this"
        yield Finding(path, Fault.FORBIDDEN, detail)
    elif registries and registries.get("configs") and distribution == "k3s":
        detail = "is for RKE2 only: put credentials for K3s into the machine image, and remove this"
        yield Finding((*path, "configs"), Fault.FORBIDDEN, detail)
    for name, config in (registries or {}).get("configs", {}).items():
        if not config.get("authSecret") and not config.get("tls"):
            yield Finding((*path, "configs", name), Fault.REQUIRED, "must name authSecret, tls, or both")


@RULES.rule(
    "definition-address",
    KINDS,
    "Gateway and DNS servers must be IPv4 addresses, and the subnet mask must be one.",
)
def _addresses(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    addresses = spec.get("addresses", {})
    root: FieldPath = ("spec", "addresses")
    texts: list[tuple[FieldPath, str]] = [(("gateway",), addresses["gateway"])] if addresses else []
    texts += [(("dnsServers", index), text) for index, text in enumerate(addresses.get("dnsServers", ()))]
    for path, text in texts:
        if not _is_ipv4(text):
            detail = "must be an IPv4 address, for example 172.16.0.1"
            yield Finding((*root, *path), Fault.INVALID, detail, value=text)
    if addresses and not _is_mask(addresses["subnetMask"]):
        detail = "must be a subnet mask, for example 255.255.0.0"
        yield Finding((*root, "subnetMask"), Fault.INVALID, detail, value=addresses["subnetMask"])
    elif addresses and _is_ipv4(addresses["gateway"]):
        network = ipaddress.IPv4Network((addresses["gateway"], addresses["subnetMask"]), strict=False)
        ends = (network.network_address, network.broadcast_address) if network.prefixlen < 31 else ()
        if ipaddress.IPv4Address(addresses["gateway"]) in ends:
            detail = f"must not be the network or broadcast address of {network}: use one between them"
            yield Finding((*root, "gateway"), Fault.INVALID, detail, value=addresses["gateway"])


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _is_mask(text: str) -> bool:
    if not _is_ipv4(text):
        return False
    # A mask is ones, then zeros: its inverse is one less than a power of two.
    rest = ~int(ipaddress.IPv4Address(text)) & 0xFFFFFFFF
    return rest & (rest + 1) == 0 and rest != 0xFFFFFFFF


@RULES.rule("definition-pool-name", KINDS, "Worker pool names must be unique.")
def _pools(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    seen: set[str] = set()
    for index, pool in enumerate(spec.get("workers", ())):
        if pool["name"] in seen:
            path: FieldPath = ("spec", "workers", index, "name")
            yield Finding(path, Fault.DUPLICATE, "worker pool names must be unique: rename one", value=pool["name"])
        seen.add(pool["name"])


@RULES.rule(
    "definition-addons",
    KINDS,
    "Settings of the add-ons must fit the distribution, the ClusterClass and the delivery.",
)
def _addons(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    addons, distribution = spec.get("addons", {}), spec.get("distribution", "rke2")
    root: FieldPath = ("spec", "addons")

    def finding(path: FieldPath, detail: str, value: Any) -> Finding:
        return Finding((*root, *path), Fault.INVALID, detail, value=value)

    if addons.get("distribution", distribution) != distribution:
        yield finding(("distribution",), "set spec.distribution instead, and remove this", addons["distribution"])
    cni, delivery = addons.get("cni", {}).get("name", "none"), spec.get("addonDelivery", "Fleet")
    if distribution == "kubeadm" and delivery == "ClusterResourceSet":
        detail = (
            "creates HelmChart manifests for the Helm controller of RKE2 and K3s, which kubeadm lacks: use Fleet, "
            "which installs the charts itself, or None, and install them with Helm"
        )
        yield Finding(("spec", "addonDelivery"), Fault.UNSUPPORTED, detail, value=delivery)
    elif distribution == "kubeadm" and cni != "none" and delivery == "None":
        detail = "is not installed with addonDelivery None: use Fleet, or remove the field and install a CNI yourself"
        yield finding(("cni", "name"), detail, cni)
    if addons.get("cloudProviderName") == "harvester" and not spec.get("individualObjects"):
        detail = "needs individualObjects, since ClusterClasses have no variable for it: set that, or remove the field"
        yield finding(("cloudProviderName",), detail, "harvester")


@RULES.rule("definition-fleet", KINDS, "The Fleet repository must be the URL of a Git repository without credentials.")
def _fleet(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    fleet = spec.get("fleet")
    if fleet is None:
        return
    if spec.get("addonDelivery", "Fleet") != "Fleet":
        detail = "has no effect with this addonDelivery: remove it, or use Fleet"
        yield Finding(("spec", "fleet"), Fault.FORBIDDEN, detail)
    try:
        helm = {
            "helm_secret_name": fleet.get("helmSecretName", ""),
            "helm_repo_regex": fleet.get("helmRepoURLRegex", ""),
        }
        GitRepoOptions(fleet["repo"], folder=fleet.get("path", ""), **helm)
    except ValueError as error:
        # Without its value: it may hold a password.
        yield Finding(("spec", "fleet"), Fault.FORBIDDEN, str(error))


@RULES.rule(
    "definition-reserved",
    KINDS,
    "Labels and annotations that are derived from the spec must not be set by hand.",
)
def _reserved(obj: Obj) -> Iterator[Finding]:
    metadata = obj["metadata"]
    for part, reserved in (("labels", _RESERVED_LABELS), ("annotations", _RESERVED_ANNOTATIONS)):
        for name in sorted(reserved.keys() & metadata.get(part, {}).keys()):
            detail = f"is derived from {reserved[name]}: set that instead, and remove this"
            yield Finding(("metadata", part, name), Fault.FORBIDDEN, detail)


@RULES.rule(secretscan.RULE, KINDS, secretscan.DESCRIPTION)
def _secrets(obj: Obj) -> Iterator[Finding]:
    yield from secretscan.check(obj)


TWICE = RULES.declare("definition-twice", "Two definitions must not define the same cluster.", kinds=KINDS)
SOURCE = RULES.declare(
    "definition-source",
    "Two sources of a shared repository must not define the same cluster. Only `caphv packager` checks it.",
    kinds=KINDS,
)
